//! The ledger as plain data, for tables, JSON, CSV and the control socket.

use crate::ExitKind;
use crate::ledger::Ledger;
use serde::{Deserialize, Serialize};

/// Lines of blame that a snapshot carries.
pub const BLAME_LINES: usize = 200;

/// One kind of exit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ExitRow {
    /// The kind's name.
    pub kind: String,
    /// How many (exact).
    pub count: u64,
    /// How many were timed.
    pub samples: u64,
    /// Cycles of all of them (estimated from the samples).
    pub cycles: u64,
    /// Median cycles.
    pub p50: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Longest.
    pub max: u64,
}

/// One line of blame.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BlameRow {
    /// The kind's name.
    pub kind: String,
    /// Linear address of the guest instruction.
    pub address: u64,
    /// The symbol at or before it, and the distance: `name+0x12`; empty if not known.
    pub symbol: String,
    /// CR3.
    pub space: u64,
    /// Exits (estimated from the samples).
    pub exits: u64,
}

/// Where the time of a run went. Cycles are of the time-stamp counter.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// Kilohertz of the time-stamp counter.
    pub tsc_khz: u64,
    /// From start to end (or to now).
    pub wall_cycles: u64,
    /// In guest code (estimated).
    pub guest_cycles: u64,
    /// Translating (measured).
    pub translating_cycles: u64,
    /// In devices (estimated).
    pub device_cycles: u64,
    /// Asleep in HLT (measured).
    pub halted_cycles: u64,
    /// In exits, devices and translation apart (estimated).
    pub exit_cycles: u64,
    /// Wall time less all of the above.
    pub remainder_cycles: i64,
    /// All exits (exact).
    pub exit_count: u64,
    /// Kinds that occurred, most frequent first.
    pub exits: Vec<ExitRow>,
    /// Where they came from, most exits first.
    pub blame: Vec<BlameRow>,
}

impl Snapshot {
    /// Takes the books as they are. `symbol` names linear addresses.
    pub fn of(ledger: &Ledger, tsc_khz: u64, symbol: impl Fn(u64) -> String) -> Self {
        let shares = ledger.shares();
        let exits = ledger
            .counts()
            .ranked()
            .into_iter()
            .map(|(kind, count)| row(ledger, kind, count))
            .collect();
        let blame = ledger
            .blame()
            .ranked()
            .into_iter()
            .take(BLAME_LINES)
            .map(|blamed| BlameRow {
                kind: blamed.kind.name().to_owned(),
                address: blamed.place.linear,
                symbol: symbol(blamed.place.linear),
                space: blamed.place.space,
                exits: blamed.exits,
            });
        Self {
            tsc_khz,
            wall_cycles: shares.wall,
            guest_cycles: shares.guest,
            translating_cycles: shares.translating,
            device_cycles: shares.devices,
            halted_cycles: shares.halted,
            exit_cycles: shares.exits.iter().map(|exit| exit.1).sum(),
            remainder_cycles: shares.remainder(),
            exit_count: ledger.counts().total(),
            exits,
            blame: blame.collect(),
        }
    }
}

fn row(ledger: &Ledger, kind: ExitKind, count: u64) -> ExitRow {
    let cost = ledger.cost(kind);
    let of = |value: fn(crate::ledger::Cost) -> u64| cost.map_or(0, value);
    ExitRow {
        kind: kind.name().to_owned(),
        count,
        samples: of(|c| c.samples),
        cycles: of(|c| c.total),
        p50: of(|c| c.p50),
        p95: of(|c| c.p95),
        p99: of(|c| c.p99),
        max: of(|c| c.max),
    }
}
