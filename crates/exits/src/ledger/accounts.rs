//! The ledger's accounts: sums that only grow, so that two states of them have a difference.

use crate::blame::{Blame, DeviceAddress, Place};
use crate::durations::DurationSet;
use crate::latency::Latency;
use crate::{ExitCounts, ExitKind};

/// One timed exit that has not been added to the accounts yet.
pub(super) struct Sample {
    pub kind: ExitKind,
    pub place: Place,
    pub device: Option<DeviceAddress>,
    pub cycles: u64,
    pub weight: u64,
}

/// The time of fast-path calls of one kind, extrapolated from those that were timed.
#[derive(Clone, Copy, Debug, Default)]
pub struct FastPathMemo {
    /// The number of calls that were timed.
    pub samples: u64,
    /// Cycles of all calls (estimated).
    pub cycles: u64,
}

impl FastPathMemo {
    /// The difference to `before`, an earlier state of this record.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            samples: self.samples.saturating_sub(before.samples),
            cycles: self.cycles.saturating_sub(before.cycles),
        }
    }
}

/// The sums of a vCPU's ledger. Times are in cycles of the time-stamp counter.
#[derive(Clone, Debug)]
pub struct Accounts {
    pub(super) counts: ExitCounts,
    pub(super) kinds: Vec<Option<Box<KindRecord>>>,
    /// Time in guest code, including the fast-path calls in it.
    pub(super) guest: u64,
    /// Fast-path calls by the kind of exit that each call replaced.
    pub(super) fast_path_calls: [FastPathMemo; ExitKind::ALL.len()],
    /// Time of purges, by the kind of exit that contained them.
    pub(super) purging: [u64; ExitKind::ALL.len()],
    pub(super) translating: u64,
    pub(super) devices: u64,
    pub(super) halted: u64,
    pub(super) waiting: u64,
    pub(super) signals: u64,
    pub(super) start_end: u64,
    pub(super) own_cost: u64,
    pub(super) wall: u64,
    pub(super) blame: Blame,
    pub(super) latency: Latency,
}

/// The times of the timed exits of one kind.
#[derive(Clone, Default, Debug)]
pub(super) struct KindRecord {
    pub durations: DurationSet,
    pub samples: u64,
    pub total: u64,
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            counts: ExitCounts::default(),
            kinds: ExitKind::ALL.iter().map(|_| None).collect(),
            guest: 0,
            fast_path_calls: [FastPathMemo::default(); ExitKind::ALL.len()],
            purging: [0; ExitKind::ALL.len()],
            translating: 0,
            devices: 0,
            halted: 0,
            waiting: 0,
            signals: 0,
            start_end: 0,
            own_cost: 0,
            wall: 0,
            blame: Blame::default(),
            latency: Latency::default(),
        }
    }
}

impl Accounts {
    /// Adds a sample that stands for `times` exits.
    pub(super) fn enter(&mut self, sample: &Sample, times: u64) {
        let Sample { kind, place, .. } = *sample;
        let cycles = sample.cycles * times;
        let origin = (kind, place, sample.device);
        self.blame.add(origin, sample.weight, cycles);
        let record = self.kinds[kind as usize].get_or_insert_default();
        // Some samples stand for more exits than others.
        record.durations.add(sample.cycles, times);
        record.samples += 1;
        record.total += cycles;
    }

    /// The difference to `before`, an earlier state of these accounts.
    pub fn since(&self, before: &Self) -> Self {
        let less = |now: u64, before: u64| now.saturating_sub(before);
        let kinds = self.kinds.iter().zip(&before.kinds);
        Self {
            counts: self.counts.since(&before.counts),
            kinds: kinds
                .map(|(now, before)| KindRecord::since(now.as_deref()?, before.as_deref()))
                .collect(),
            guest: less(self.guest, before.guest),
            fast_path_calls: std::array::from_fn(|kind| {
                self.fast_path_calls[kind].since(&before.fast_path_calls[kind])
            }),
            purging: std::array::from_fn(|kind| less(self.purging[kind], before.purging[kind])),
            translating: less(self.translating, before.translating),
            devices: less(self.devices, before.devices),
            halted: less(self.halted, before.halted),
            waiting: less(self.waiting, before.waiting),
            signals: less(self.signals, before.signals),
            start_end: less(self.start_end, before.start_end),
            own_cost: less(self.own_cost, before.own_cost),
            wall: less(self.wall, before.wall),
            blame: self.blame.since(&before.blame),
            latency: self.latency.since(&before.latency),
        }
    }
}

impl KindRecord {
    /// The difference; `None` if it is empty.
    fn since(now: &Self, before: Option<&Self>) -> Option<Box<Self>> {
        let mut rest = now.clone();
        if let Some(before) = before {
            // Fails only if `before` has values that `now` lacks.
            rest.durations = rest.durations.since(&before.durations)?;
            rest.samples = rest.samples.saturating_sub(before.samples);
            rest.total = rest.total.saturating_sub(before.total);
        }
        (!rest.durations.histogram().is_empty()).then(|| Box::new(rest))
    }
}
