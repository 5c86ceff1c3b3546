//! The memory balloon (5.5): the guest reports free pages, and the host gets their memory back.
//!
//! With *free page reporting* a guest occasionally reports ranges of free pages without being
//! asked. It uses them again without a message, and they are zero by then. Pages in the balloon
//! itself (of a guest that inflates it) are treated in the same way. For the translator, a
//! discarded page counts as written: see [`tollgate_memory::GuestMemory::discard`].

use super::chain::Chain;
use super::device::{Queues, VirtioDevice};
use super::device_type;
use super::queue::QueueError;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// The device accepts reports of free pages (5.5.3).
const PAGE_REPORTING: u64 = 1 << 5;
/// The queue for pages that enter the balloon.
const INFLATE: usize = 0;
/// The queue for pages that leave the balloon.
const DEFLATE: usize = 1;
/// The number of queues. The queue for reports has number 4 (5.5.2). Linux counts only the queues
/// that it uses, so there it has number 2. Every number from 2 on is therefore treated as the queue
/// for reports.
const QUEUES: usize = 5;
/// The maximum number of pages of a request that are discarded; Linux sends 256. The host may keep
/// the memory of the others.
const MAX_PAGES: usize = 1024;
/// The size of the configuration in bytes: number of pages wanted and present, then fields for
/// hints and poisoning.
const CONFIG_BYTES: usize = 16;

/// A balloon that requests no pages.
#[derive(Debug, Default)]
pub struct Balloon;

impl VirtioDevice for Balloon {
    fn name(&self) -> &str {
        "virtio-balloon"
    }

    fn device_type(&self) -> u16 {
        device_type::BALLOON
    }

    fn features(&self) -> u64 {
        PAGE_REPORTING
    }

    fn queue_sizes(&self) -> &[u16] {
        &[128; QUEUES]
    }

    fn config(&self) -> &[u8] {
        &[0; CONFIG_BYTES]
    }

    fn notify(&mut self, queue: usize, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        while let Some(chain) = queues.pop(queue)? {
            match queue {
                INFLATE => inflate(&chain, queues),
                DEFLATE => {}
                _ => report(&chain, queues),
            }
            queues.push(queue, &chain, 0)?;
        }
        Ok(())
    }
}

/// Discards pages whose numbers are in the chain, 4 bytes each.
fn inflate(chain: &Chain, queues: &mut Queues<'_>) {
    let count = (chain.readable_bytes() / 4).min(MAX_PAGES as u64) as usize;
    let mut bytes = vec![0; count * 4];
    if !chain.copy_out(queues.memory(), 0, &mut bytes) {
        return;
    }
    let numbers = bytes.chunks_exact(4).map(|number| {
        number
            .iter()
            .rev()
            .fold(0, |all, byte| all << 8 | u64::from(*byte))
    });
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers.dedup();
    for run in numbers.chunk_by(|one, next| one + 1 == *next) {
        let start = PhysicalAddress(run[0] * PAGE_SIZE);
        queues.memory().discard(start, run.len() as u64 * PAGE_SIZE);
    }
}

/// Discards the buffers of a report. The total is limited to the size of RAM, however often a page
/// is reported.
fn report(chain: &Chain, queues: &mut Queues<'_>) {
    let mut left = queues.memory().ram().span();
    for segment in &chain.writable {
        let bytes = left.min(segment.bytes.into());
        queues.memory().discard(segment.address, bytes);
        left -= bytes;
    }
}
