//! The entropy device (5.4), which supplies random bytes from the host.

use super::device::{Queues, VirtioDevice};
use super::device_type;
use super::queue::QueueError;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// The maximum number of bytes for a request. The driver sends another request for more.
const MAX_BYTES: u64 = 4096;

/// An entropy device. It uses getrandom(2), which needs no device node, so a host root without /dev
/// supplies random bytes too.
pub struct Entropy {
    name: String,
}

impl Default for Entropy {
    fn default() -> Self {
        Self {
            name: "virtio-rng".into(),
        }
    }
}

impl Entropy {
    /// Makes one of several devices, which have different names in saved states.
    pub fn numbered(number: u8) -> Self {
        Self {
            name: format!("virtio-rng{number}"),
        }
    }
}

/// Fills a buffer with random bytes from the host. The kernel has them without a wait, except in
/// the first seconds after the host's own start.
fn fill(buffer: &mut [u8]) -> Result<(), Errno> {
    let mut filled = 0;
    while filled < buffer.len() {
        match getrandom(&mut buffer[filled..], GetRandomFlags::empty()) {
            Ok(bytes) => filled += bytes,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl VirtioDevice for Entropy {
    fn name(&self) -> &str {
        &self.name
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
            let is_given = fill(&mut bytes).is_ok() && chain.copy_in(queues.memory(), 0, &bytes);
            let written = if is_given { bytes.len() as u32 } else { 0 };
            queues.push(queue, &chain, written)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_filled_with_different_bytes() {
        let mut buffers = [[0; MAX_BYTES as usize]; 2];
        for buffer in &mut buffers {
            fill(buffer).unwrap();
            // Each of the last bytes is zero with a probability of 1/256.
            assert!(
                buffer
                    .rchunks(64)
                    .next()
                    .unwrap()
                    .iter()
                    .any(|byte| *byte != 0)
            );
        }
        assert_ne!(buffers[0], buffers[1]);
    }
}
