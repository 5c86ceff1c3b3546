//! The entropy device (5.4): the host's random bytes.

use super::device::{Queues, VirtioDevice};
use super::device_type;
use super::queue::QueueError;
use std::fs::File;
use std::io::Read;

/// Bytes that a request gets at most: the driver asks again.
const MAX_BYTES: u64 = 4096;

/// An entropy device.
pub struct Entropy {
    /// The host's random bytes, which never run out and never wait. Without them the guest
    /// gets none.
    source: Option<File>,
}

impl Default for Entropy {
    fn default() -> Self {
        Self {
            source: File::open("/dev/urandom").ok(),
        }
    }
}

impl VirtioDevice for Entropy {
    fn name(&self) -> &str {
        "virtio-rng"
    }

    fn device_type(&self) -> u16 {
        device_type::ENTROPY
    }

    fn features(&self) -> u64 {
        0
    }

    fn queue_sizes(&self) -> &[u16] {
        &[64]
    }

    fn notify(&mut self, queue: usize, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        while let Some(chain) = queues.pop(queue)? {
            let mut bytes = vec![0; chain.writable_bytes().min(MAX_BYTES) as usize];
            let mut source = self.source.as_ref();
            let is_given = source
                .as_mut()
                .is_some_and(|file| file.read_exact(&mut bytes).is_ok())
                && chain.copy_in(queues.memory(), 0, &bytes);
            let written = if is_given { bytes.len() as u32 } else { 0 };
            queues.push(queue, &chain, written)?;
        }
        Ok(())
    }
}
