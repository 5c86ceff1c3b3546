//! The result of a command: the values that the guest measured, and the exits that the ledger counted in that time.

use tollgate_exits::{ExitCounts, ExitKind};

/// The result of a command.
pub struct Outcome {
    /// Cycles between the two readings, for each value.
    pub values: Vec<u64>,
    /// What was counted; `None` for a machine without a ledger.
    pub counted: Option<Counted>,
}

/// The ledger's counts before and after a command.
pub struct Counted {
    pub(super) before: ExitCounts,
    pub(super) after: ExitCounts,
    /// The number of instructions that fast paths executed, by the name of their kind.
    pub(super) fast_paths: Vec<(&'static str, u64)>,
}

impl Counted {
    /// The number of exits of this kind during the command.
    pub fn exits(&self, kind: ExitKind) -> u64 {
        self.after.get(kind).saturating_sub(self.before.get(kind))
    }

    /// The number of instructions that fast paths executed instead of exits of this kind.
    pub fn fast_paths(&self, kind: ExitKind) -> u64 {
        let of_kind = self
            .fast_paths
            .iter()
            .filter(|(name, _)| *name == kind.name());
        of_kind.map(|(_, count)| count).sum()
    }

    /// The number of all exits during the command, except those around its loop.
    pub fn total(&self) -> u64 {
        let around: u64 = AROUND_A_COMMAND.iter().map(|(_, count)| count).sum();
        let total: u64 = ExitKind::ALL.iter().map(|&kind| self.exits(kind)).sum();
        total.saturating_sub(around)
    }

    /// A list of all exits during the command.
    pub fn all_exits(&self) -> String {
        let counts = ExitKind::ALL.iter().filter_map(|&kind| {
            let count = self.exits(kind);
            (count > 0).then(|| format!("{} {count}", kind.name()))
        });
        counts.collect::<Vec<_>>().join(", ")
    }
}

/// Exits of the guest around every command, in addition to those of its loop.
pub const AROUND_A_COMMAND: [(ExitKind, u64); 2] = [(ExitKind::Cli, 1), (ExitKind::PortOut, 1)];
