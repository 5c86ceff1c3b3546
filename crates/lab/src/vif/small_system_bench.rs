//! One machine with one workload, timed from its first instruction to its last.

use super::about::{IDLE, OFF, POLL, SIX};
use super::machine::{Ended, base_config, run};
use crate::experiment::{Arm, Bench, Counted, LabError, Stop, Timed};
use crate::small_system::{Mode, Setup, Workload};
use tollgate_exits::ExitKind;
use tollgate_exits::reading::Reading;
use tollgate_machine::config::VmConfig;

/// The number of rounds is chosen so that the fastest arm takes at least this number of seconds,
const SECONDS_AT_LEAST: f64 = 0.5;
/// unless the slowest would take more than this number.
const SECONDS_AT_MOST: f64 = 4.0;
/// Timer ticks at the prompt, for about two seconds.
pub(super) const TICKS: u16 = 40;
pub(super) const QUICK_TICKS: u16 = 6;

/// Counters of the guest that must be the same in every run.
const WORK: [&str; 8] = [
    "int21", "hook21", "sectors", "typed", "printed", "bytes", "checksum", "screen",
];

/// The small system in one mode with one workload.
pub struct Single {
    setup: Setup,
}

impl Single {
    /// Determines how many rounds take a reasonable time with all `arms`.
    ///
    /// # Errors
    ///
    /// The guest refuses or does not do its work.
    pub fn open(
        mode: Mode,
        workload: &str,
        arms: &[Arm],
        quick: bool,
        stop: &Stop,
    ) -> Result<Self, LabError> {
        let of = |rounds: u16| match workload {
            IDLE => Workload::Idle {
                ticks: if quick { QUICK_TICKS } else { TICKS },
            },
            "copy-type" => Workload::CopyType { rounds },
            "mix" => Workload::Mix { rounds },
            _ => Workload::Compute { rounds },
        };
        let setup = |rounds| Setup {
            workload: of(rounds),
            mode,
            rate: None,
        };
        if quick || workload == IDLE {
            return Ok(Self { setup: setup(1) });
        }
        let (mut fastest, mut slowest) = (f64::INFINITY, 0.0f64);
        for arm in arms {
            let seconds = run(&setup(1), &arm.config(&base_config())?, stop)?.seconds();
            fastest = fastest.min(seconds);
            slowest = slowest.max(seconds);
        }
        Ok(Self {
            setup: setup(rounds(fastest, slowest)),
        })
    }

    fn run(&self, arm: &Arm, stop: &Stop) -> Result<Ended, LabError> {
        run(&self.setup, &arm.config(&base_config())?, stop)
    }
}

/// The number of rounds, from the seconds that one takes with the fastest and the slowest arm.
pub(super) fn rounds(fastest: f64, slowest: f64) -> u16 {
    let wanted = SECONDS_AT_LEAST / fastest.max(1e-6);
    let bearable = SECONDS_AT_MOST / slowest.max(1e-6);
    wanted.min(bearable).ceil().clamp(1.0, 10_000.0) as u16
}

/// The counts of a run with [`OFF`] in which instructions were counted.
pub(super) fn counted(reading: &Reading) -> Counted {
    let counts = |kind: &ExitKind| {
        let rows = reading.kinds.iter();
        let row = rows.filter(|row| row.kind == *kind).map(|row| row.count);
        row.sum::<u64>()
    };
    let groups = super::about::ABOUT.kinds.iter();
    let kinds = groups.flat_map(|group| group.kinds);
    Counted {
        executed: kinds
            .map(|kind| (kind.name().to_owned(), counts(kind)))
            .collect(),
        instructions: reading.instructions,
        how: format!("in a run of its own with {OFF}"),
    }
}

impl Bench for Single {
    fn count(&mut self, stop: &Stop) -> Result<Option<Counted>, LabError> {
        let off = super::about::ABOUT.arms.iter().find(|arm| arm.name == OFF);
        let Some(off) = off else { return Ok(None) };
        let config = VmConfig {
            count_instructions: true,
            ..off.config(&base_config())?
        };
        let ended = run(&self.setup, &config, stop)?;
        if let Some(monitor) = &ended.report.monitor {
            check_monitor(monitor.pairs(), &ended)?;
        }
        Ok(Some(counted(&ended.reading)))
    }

    fn measure(&mut self, arm: &Arm, stop: &Stop) -> Result<Timed, LabError> {
        let ended = self.run(arm, stop)?;
        let mut timed = Timed::new(ended.seconds(), &ended.reading);
        let counters = &ended.report.done.counters;
        for (name, value) in counters.pairs() {
            if WORK.contains(&name) {
                timed.work.insert(name.to_owned(), value);
            } else {
                timed.values.insert(name.to_owned(), value as f64);
            }
        }
        if let Workload::Idle { .. } = self.setup.workload {
            if counters.polls == 0 {
                return Err(LabError::WorkNotDone("it never polled the keyboard".into()));
            }
            let poll = timed.seconds * 1e6 / counters.polls as f64;
            timed.values.insert(POLL.to_owned(), poll);
        }
        Ok(timed)
    }
}

/// Checks that the ledger agrees with what the guest's own monitor emulated: an instruction that
/// faults into that monitor was an exit here first.
fn check_monitor(emulated: Vec<(&'static str, u64)>, ended: &Ended) -> Result<(), LabError> {
    for (name, count) in emulated {
        let name = match name {
            "int" => "software-interrupt",
            name => name,
        };
        let Some(kind) = SIX.iter().find(|kind| kind.name() == name) else {
            continue;
        };
        let rows = ended.reading.kinds.iter();
        let seen: u64 = rows
            .filter(|row| row.kind == *kind)
            .map(|row| row.count)
            .sum();
        if seen < count {
            return Err(LabError::WorkNotDone(format!(
                "its monitor emulated {count} {name}, the ledger has {seen}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_fill_the_time_but_not_more_than_can_be_borne() {
        assert_eq!(rounds(0.05, 0.1), 10);
        assert_eq!(rounds(0.05, 1.0), 4);
        assert_eq!(rounds(10.0, 100.0), 1);
        assert_eq!(rounds(0.0, 0.0), 10_000);
    }
}
