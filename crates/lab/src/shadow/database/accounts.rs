//! Divides the monitor's time in one run as the study does.

use crate::experiment::{CellResult, Sample};

/// The kinds of exit that validate entries.
const VALIDATING: [&str; 3] = ["tlb-miss-read", "tlb-miss-write", "window-fault"];
const INVALIDATING: [&str; 1] = ["invlpg"];
const SWITCHING: [&str; 1] = ["cr3-load"];
/// The kinds of exit that find translated code: the study's monitor had none.
const FINDING: [&str; 2] = ["link-miss", "indirect-miss"];
/// The counts of tables that lost all of their entries: for INVLPG, for an invalidation of a space or
/// of all, at a load that keeps nothing, or for another space.
const PURGING: [&str; 5] = ["page-full", "loaded-space", "purged", "flushed", "stolen"];

/// Cycles and counts of one run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Accounts {
    /// Entries made, and the cycles for them.
    pub fills: f64,
    /// Cycles for making entries.
    pub validation: f64,
    /// Cycles for invalidating pages, by INVLPG and INVPCID.
    pub invalidation: f64,
    /// Cycles for loads of spaces.
    pub switch: f64,
    /// Cycles for emptying tables of whole spaces, whatever caused it.
    pub purge: f64,
    /// Tables that lost all of their entries.
    pub purged: f64,
    /// Cycles for finding translated code.
    pub finding: f64,
    /// Cycles of everything else that the monitor did.
    pub rest: f64,
    /// Cycles of guest code.
    pub guest: f64,
}

impl Accounts {
    /// The accounts of a run. Translation is left out, as in the times that are compared.
    pub fn of(sample: &Sample) -> Self {
        let ledger = &sample.timed.ledger;
        let cycles = |kinds: &[&str]| -> f64 {
            let exits = kinds.iter().filter_map(|kind| sample.timed.exits(kind));
            let exits: u64 = exits.map(|row| row.cycles).sum();
            let calls = kinds
                .iter()
                .filter_map(|kind| ledger.fast_path_cycles.get(*kind));
            (exits + calls.sum::<u64>()) as f64
        };
        let purging = |kinds: &[&str]| -> f64 {
            let parts = kinds
                .iter()
                .filter_map(|kind| ledger.purging_cycles.get(*kind));
            parts.sum::<u64>() as f64
        };
        // The time of an exit is estimated and that of its purges measured.
        let without_purges = |kinds: &[&str]| (cycles(kinds) - purging(kinds)).max(0.0);
        let (validation, finding) = (cycles(&VALIDATING), cycles(&FINDING));
        let (invalidation, switch) = (without_purges(&INVALIDATING), without_purges(&SWITCHING));
        let purge = ledger.purging_cycles.values().sum::<u64>() as f64;
        let monitor = ledger.exit_cycles
            + ledger.fast_path_call_cycles
            + ledger.device_cycles
            + ledger.signal_cycles
            + ledger.start_end_cycles
            + ledger.ledger_cycles;
        let tables = validation + invalidation + switch + purge;
        let count = |name: &str| sample.timed.values.get(name).copied().unwrap_or(0.0);
        Self {
            fills: fills(sample),
            validation,
            invalidation,
            switch,
            purge,
            purged: PURGING.map(count).iter().sum(),
            finding,
            rest: (monitor as f64 - tables - finding).max(0.0),
            guest: ledger.guest_cycles as f64,
        }
    }

    /// Cycles for the maintenance of tables.
    pub fn maintenance(&self) -> f64 {
        self.validation + self.invalidation + self.switch + self.purge
    }

    /// The cycles of what the study's monitor did too: all but finding code.
    pub fn comparable(&self) -> f64 {
        self.maintenance() + self.rest
    }

    /// All cycles of the monitor.
    pub fn monitor(&self) -> f64 {
        self.comparable() + self.finding
    }

    /// Cycles of guest and monitor.
    pub fn all(&self) -> f64 {
        self.monitor() + self.guest
    }

    /// The part of the validation that made entries again: those beyond `least`, the fewest that
    /// any arm had to make for the same work.
    pub fn refill(&self, least: f64) -> f64 {
        match self.fills > least {
            true => self.validation * (self.fills - least) / self.fills,
            false => 0.0,
        }
    }
}

/// The entries that were made in a run, by an exit or without.
fn fills(sample: &Sample) -> f64 {
    let counts = VALIDATING.iter().map(|kind| {
        let exits = sample.timed.exits(kind).map_or(0, |row| row.count);
        exits
            + sample
                .timed
                .ledger
                .fast_paths
                .get(*kind)
                .copied()
                .unwrap_or(0)
    });
    counts.sum::<u64>() as f64
}

/// The median over an arm's runs of a part of the accounts.
pub fn median(cell: &CellResult, arm: &str, part: impl Fn(&Accounts) -> f64) -> Option<f64> {
    cell.median(arm, |sample| part(&Accounts::of(sample)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::test_experiment::sample as scripted;
    use tollgate_exits::snapshot::ExitRow;

    fn row(kind: &str, count: u64, cycles: u64) -> ExitRow {
        ExitRow {
            kind: kind.into(),
            count,
            samples: count,
            cycles,
            p50: 0,
            p95: 0,
            p99: 0,
            max: 0,
            attributed: 0,
            hardware_exit: String::new(),
            assist: String::new(),
        }
    }

    fn sample() -> Sample {
        let mut sample = scripted("a", 1, 0, 0, 0);
        let ledger = &mut sample.timed.ledger;
        ledger.exits = vec![
            row("tlb-miss-read", 10, 1_000),
            row("cr3-load", 4, 400),
            row("invlpg", 2, 100),
            row("port-in", 1, 50),
            row("link-miss", 9, 600),
        ];
        ledger.exit_cycles = 2_150;
        ledger.fast_path_call_cycles = 500;
        ledger.fast_paths = [("tlb-miss-write".into(), 5), ("msr".into(), 7)].into();
        ledger.fast_path_cycles = [("tlb-miss-write".into(), 300), ("msr".into(), 200)].into();
        ledger.purging_cycles = [("cr3-load".into(), 150), ("port-in".into(), 20)].into();
        ledger.device_cycles = 70;
        ledger.guest_cycles = 8_000;
        sample.timed.values.insert("purged".into(), 3.0);
        sample.timed.values.insert("stolen".into(), 4.0);
        sample
    }

    #[test]
    fn the_monitors_time_is_divided_without_a_remainder() {
        let accounts = Accounts::of(&sample());
        assert_eq!(accounts.fills, 15.0);
        assert_eq!(accounts.validation, 1_300.0);
        assert_eq!((accounts.switch, accounts.invalidation), (250.0, 100.0));
        assert_eq!(accounts.purge, 170.0);
        assert_eq!(accounts.rest, 300.0);
        assert_eq!(accounts.comparable(), 1_550.0 + 500.0 + 70.0);
        assert_eq!(accounts.monitor(), accounts.comparable() + 600.0);
        assert_eq!(accounts.all(), accounts.monitor() + 8_000.0);
        assert_eq!(accounts.purged, 7.0);
    }

    #[test]
    fn refills_are_what_another_arm_need_not_fill() {
        let accounts = Accounts::of(&sample());
        assert_eq!(accounts.refill(15.0), 0.0);
        assert_eq!(accounts.refill(20.0), 0.0);
        assert_eq!(accounts.refill(10.5), 1_300.0 * 0.3);
    }
}
