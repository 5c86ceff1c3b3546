//! The memory balloon (5.5): the guest says which of its pages are free, and the host gets them
//! back.
//!
//! With *free page reporting* a guest hands in ranges of free pages now and then, unasked, and
//! uses them again without a word; they are zero by then. Pages in the balloon itself (of a
//! guest that inflates it) go the same way. What a discarded page held for the translator counts
//! as written: see [`tollgate_memory::GuestMemory::discard`].

use super::chain::Chain;
use super::device::{Queues, VirtioDevice};
use super::device_type;
use super::queue::QueueError;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// The device takes reports of free pages (5.5.3).
const PAGE_REPORTING: u64 = 1 << 5;
/// The queue of pages that go into the balloon.
const INFLATE: usize = 0;
/// The queue of pages that come out of it.
const DEFLATE: usize = 1;
/// Queues. Reports have number 4 (5.5.2); Linux counts only the queues that it uses, so there
/// they have number 2, and each number from there on is taken for reports.
const QUEUES: usize = 5;
/// Page numbers of a request that are looked at; Linux sends 256. The host may leave pages
/// where they are.
const MAX_PAGES: usize = 1024;
/// Bytes of the configuration: pages wanted and pages there, what hints and poisoning use.
const CONFIG_BYTES: usize = 16;

/// A balloon that wants no pages.
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

/// Pages by their numbers, of 4 bytes each.
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

/// Pages as buffers. They are as many as the machine has at most, however often they are named.
fn report(chain: &Chain, queues: &mut Queues<'_>) {
    let mut left = queues.memory().ram().span();
    for segment in &chain.writable {
        let bytes = left.min(segment.bytes.into());
        queues.memory().discard(segment.address, bytes);
        left -= bytes;
    }
}
