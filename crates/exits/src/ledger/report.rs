//! The ledger's report: how the time was spent, and what each kind of exit costs.

use super::accounts::{Accounts, FastPathMemo};
use crate::blame::Blame;
use crate::latency::Latency;
use crate::{ExitCounts, ExitKind};

/// How a vCPU's time was spent, in cycles of the time-stamp counter.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TimeShares {
    /// The time from the start of the run to its end.
    pub wall: u64,
    /// The time in guest code, without fast-path calls (estimated).
    pub guest: u64,
    /// The time in functions of the monitor that translated code called without an exit, by the
    /// kind of exit that each call replaced (estimated). Their sum is at most the time measured
    /// around them.
    pub fast_path_calls: Vec<(ExitKind, u64)>,
    /// The time of translating (measured).
    pub translating: u64,
    /// The time in devices (estimated).
    pub devices: u64,
    /// The time of sleep in HLT (measured).
    pub halted: u64,
    /// The time in which the vCPU was ready and the host ran something else (measured).
    pub waiting: u64,
    /// The time, between exits, in guest code that a signal interrupted, and of handling that
    /// signal (estimated).
    pub signals: u64,
    /// The time from the start to the first guest code, and at the end (measured).
    pub start_end: u64,
    /// The time of the ledger's own work (measured).
    pub own_cost: u64,
    /// The time in each kind of exit, without devices and translation (estimated).
    pub exits: Vec<(ExitKind, u64)>,
    /// The part of `exits` in which tables of whole spaces were emptied (measured).
    pub purging: Vec<(ExitKind, u64)>,
}

impl TimeShares {
    /// The sum of all accounts.
    pub fn sum(&self) -> u64 {
        let exits: u64 = self.exits.iter().map(|exit| exit.1).sum();
        let monitor = self.signals + self.start_end + self.own_cost;
        let code = self.guest + self.all_fast_path_calls();
        code + self.translating + self.devices + self.halted + self.waiting + monitor + exits
    }

    /// The sum of all fast-path calls.
    pub fn all_fast_path_calls(&self) -> u64 {
        self.fast_path_calls.iter().map(|call| call.1).sum()
    }

    /// Wall time minus the sum: positive if time is missing, negative if some was counted twice.
    pub fn remainder(&self) -> i64 {
        self.wall as i64 - self.sum() as i64
    }
}

/// The costs of one kind of exit, from its samples, in cycles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// The number of exits that were timed.
    pub samples: u64,
    /// Estimated total of all exits of this kind.
    pub total: u64,
    /// Median.
    pub p50: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Longest.
    pub max: u64,
}

impl Accounts {
    /// Exact counts.
    pub fn counts(&self) -> &ExitCounts {
        &self.counts
    }

    /// The instructions that the exits came from.
    pub fn blame(&self) -> &Blame {
        &self.blame
    }

    /// How long interrupts waited, and for what.
    pub fn latency(&self) -> &Latency {
        &self.latency
    }

    /// The cost of one kind of exit; `None` if none was timed.
    pub fn cost(&self, kind: ExitKind) -> Option<Cost> {
        let record = self.kinds[kind as usize].as_deref()?;
        let histogram = record.durations.histogram();
        let at = |quantile| histogram.value_at_quantile(quantile);
        Some(Cost {
            samples: record.samples,
            total: record.total,
            p50: at(0.50),
            p95: at(0.95),
            p99: at(0.99),
            max: histogram.max(),
        })
    }

    /// The time of fast-path calls of one kind, from those that were timed.
    pub fn fast_path_calls(&self, kind: ExitKind) -> FastPathMemo {
        self.fast_path_calls[kind as usize]
    }

    /// The time of fast-path calls by kind. The guest code around them is sampled independently: if
    /// the fast-path calls seem to take longer than all of it, they are scaled down to that time.
    fn fast_path_call_cycles(&self) -> Vec<(ExitKind, u64)> {
        let cycles = |kind: ExitKind| self.fast_path_calls[kind as usize].cycles;
        let kinds = ExitKind::ALL.iter().copied();
        let all: u64 = kinds.clone().map(cycles).sum();
        let most = all.min(self.guest);
        let part =
            |cycles: u64| (u128::from(cycles) * u128::from(most) / u128::from(all.max(1))) as u64;
        kinds
            .map(|kind| (kind, part(cycles(kind))))
            .filter(|call| call.1 > 0)
            .collect()
    }

    /// How the time was spent.
    pub fn shares(&self) -> TimeShares {
        let fast_path_calls = self.fast_path_call_cycles();
        let in_fast_path_calls: u64 = fast_path_calls.iter().map(|call| call.1).sum();
        TimeShares {
            wall: self.wall,
            guest: self.guest.saturating_sub(in_fast_path_calls),
            fast_path_calls,
            translating: self.translating,
            devices: self.devices,
            halted: self.halted,
            waiting: self.waiting,
            signals: self.signals,
            start_end: self.start_end,
            own_cost: self.own_cost,
            exits: ExitKind::ALL
                .iter()
                .filter_map(|&kind| Some((kind, self.kinds[kind as usize].as_deref()?.total)))
                .collect(),
            purging: ExitKind::ALL
                .iter()
                .map(|&kind| (kind, self.purging[kind as usize]))
                .filter(|purge| purge.1 > 0)
                .collect(),
        }
    }
}
