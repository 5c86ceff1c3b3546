//! The memory balloon (5.5): the guest reports free pages, and the host gets their memory back.
//!
//! With *free page reporting* a guest occasionally reports ranges of free pages without being
//! asked. It uses them again without a message, and they are zero by then. Pages in the balloon
//! itself, which a guest gives because a [`BalloonControl`] asks for them, are treated in the same
//! way. For the translator, a discarded page counts as written: see
//! [`tollgate_memory::GuestMemory::discard`].
//!
//! The driver leaves its *statistics* in a chain, which the device returns when it wants new ones.

pub mod control;

use super::chain::Chain;
use super::device::{Queues, VirtioDevice};
use super::device_type;
use super::queue::QueueError;
use crate::bus::completion::Completer;
use control::{BalloonControl, BalloonOptions, Statistics};
use serde_json::{Value, json};
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// Features (5.5.3).
mod feature {
    /// There is a queue for statistics.
    pub const STATISTICS: u64 = 1 << 1;
    /// A guest without memory takes pages back.
    pub const DEFLATE_ON_OOM: u64 = 1 << 2;
    /// The device accepts reports of free pages.
    pub const PAGE_REPORTING: u64 = 1 << 5;
}

/// The queue for pages that enter the balloon.
const INFLATE: usize = 0;
/// The queue for pages that leave the balloon.
const DEFLATE: usize = 1;
/// The queue for statistics, if the driver has accepted them.
const STATISTICS: usize = 2;
/// The number of queues. The queue for reports has number 4 (5.5.2). Linux counts only the queues
/// that it uses, so there it has number 2 or 3. Every other number from 2 on is therefore treated as
/// the queue for reports.
const QUEUES: usize = 5;
/// The size in bytes of a value among the statistics: its number and the value itself.
const STATISTIC_BYTES: usize = 10;
/// The maximum number of values that are read. The specification has 16.
const MAX_STATISTICS: usize = 32;
/// The maximum number of pages of a request that are discarded; Linux sends 256. The host may keep
/// the memory of the others.
const MAX_PAGES: usize = 1024;
/// The size of the configuration in bytes: number of pages wanted and present, then fields for
/// hints and poisoning.
const CONFIG_BYTES: usize = 16;
/// The place of the number of pages that the guest has given.
const ACTUAL: usize = 4;

/// A balloon whose target a [`BalloonControl`] sets.
#[derive(Debug)]
pub struct Balloon {
    features: u64,
    config: [u8; CONFIG_BYTES],
    control: BalloonControl,
}

impl Balloon {
    /// Makes a balloon.
    pub fn new(options: BalloonOptions) -> Self {
        let features = [
            (options.statistics, feature::STATISTICS),
            (options.deflate_on_oom, feature::DEFLATE_ON_OOM),
            (options.page_reporting, feature::PAGE_REPORTING),
        ];
        let features = features.iter().filter(|(is_offered, _)| *is_offered);
        let mut balloon = Self {
            features: features.fold(0, |all, (_, feature)| all | feature),
            config: [0; CONFIG_BYTES],
            control: BalloonControl::default(),
        };
        balloon.set_pages(options.target_pages, 0);
        balloon.control.set_pages(options.target_pages, 0);
        balloon
    }

    fn pages(&self) -> (u32, u32) {
        let [t0, t1, t2, t3, a0, a1, a2, a3, ..] = self.config;
        (
            u32::from_le_bytes([t0, t1, t2, t3]),
            u32::from_le_bytes([a0, a1, a2, a3]),
        )
    }

    fn set_pages(&mut self, target: u32, actual: u32) {
        self.config[..ACTUAL].copy_from_slice(&target.to_le_bytes());
        self.config[ACTUAL..ACTUAL + 4].copy_from_slice(&actual.to_le_bytes());
    }
}

impl VirtioDevice for Balloon {
    fn name(&self) -> &str {
        "virtio-balloon"
    }

    fn device_type(&self) -> u16 {
        device_type::BALLOON
    }

    fn features(&self) -> u64 {
        self.features
    }

    fn queue_sizes(&self) -> &[u16] {
        &[128; QUEUES]
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        // The driver says how many pages it has given; it writes nothing else.
        if offset == ACTUAL as u64
            && let Ok(bytes) = <[u8; 4]>::try_from(data)
        {
            let actual = u32::from_le_bytes(bytes);
            self.set_pages(self.pages().0, actual);
            self.control.set_actual(actual);
        }
    }

    fn notify(&mut self, queue: usize, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        while let Some(chain) = queues.pop(queue)? {
            match queue {
                INFLATE => inflate(&chain, queues),
                DEFLATE => {}
                STATISTICS if queues.has_feature(feature::STATISTICS) => {
                    self.control.report(statistics(&chain, queues));
                    // The driver gets the chain back when it shall report again.
                    queues.unpop(queue, 1);
                    return Ok(());
                }
                _ => report(&chain, queues),
            }
            queues.push(queue, &chain, 0)?;
        }
        Ok(())
    }

    fn connect(&mut self, completer: Completer) {
        self.control.connect(completer);
    }

    fn complete(&mut self, _token: u64, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        let (target, asks) = self.control.look();
        let (before, actual) = self.pages();
        if target != before {
            self.set_pages(target, actual);
            queues.announce_config();
        }
        if asks
            && queues.has_feature(feature::STATISTICS)
            && let Some(chain) = queues.pop(STATISTICS)?
        {
            queues.push(STATISTICS, &chain, 0)?;
        }
        Ok(())
    }

    fn balloon(&self) -> Option<BalloonControl> {
        Some(self.control.clone())
    }

    fn save(&self) -> Value {
        match self.pages() {
            (0, 0) => Value::Null,
            (target, actual) => json!([target, actual]),
        }
    }

    fn restore(&mut self, saved: &Value) -> bool {
        let pages = match saved {
            Value::Null => Some((0, 0)),
            saved => serde_json::from_value(saved.clone()).ok(),
        };
        if let Some((target, actual)) = pages {
            self.set_pages(target, actual);
            self.control.set_pages(target, actual);
        }
        pages.is_some()
    }

    fn reset(&mut self) {
        // Another driver has given no pages yet.
        self.set_pages(self.pages().0, 0);
        self.control.set_actual(0);
    }
}

/// Reads the values in the chain of a driver.
fn statistics(chain: &Chain, queues: &mut Queues<'_>) -> Statistics {
    let count = chain.readable_bytes() / STATISTIC_BYTES as u64;
    let count = count.min(MAX_STATISTICS as u64) as usize;
    let mut bytes = vec![0; count * STATISTIC_BYTES];
    if !chain.copy_out(queues.memory(), 0, &mut bytes) {
        return Statistics::new();
    }
    let values = bytes.chunks_exact(STATISTIC_BYTES).filter_map(|value| {
        let (number, value) = value.split_first_chunk()?;
        let value = <[u8; 8]>::try_from(value).ok()?;
        Some((u16::from_le_bytes(*number), u64::from_le_bytes(value)))
    });
    // Numbers that no specification has are not kept.
    values
        .filter(|(number, _)| usize::from(*number) < MAX_STATISTICS)
        .collect()
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
