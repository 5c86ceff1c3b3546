//! The cost of one exit of each sensitive instruction: the guest times its own loops of instruction
//! pairs by its time-stamp counter, so the transition to the monitor is included.

use super::about::{ABOUT, OFF, ON};
use super::machine::{Ended, base_config, run};
use crate::experiment::{Arm, LabError, Price, Stop};
use crate::small_system::{Mode, Setup, Workload};
use tollgate_exits::ExitKind;

/// Repetitions of each pair in one run.
const COUNT: u32 = 5_000;
const QUICK_COUNT: u32 = 1_000;
/// Number of runs; the median is used, since one may be disturbed by other work of the host.
const RUNS: usize = 7;
const QUICK_RUNS: usize = 3;

/// The guest's events, and the instructions in each.
const PAIRS: [(&str, [ExitKind; 2]); 3] = [
    ("cli-sti", [ExitKind::Cli, ExitKind::Sti]),
    ("pushf-popf", [ExitKind::Pushf, ExitKind::Popf]),
    ("int-iret", [ExitKind::SoftwareInterrupt, ExitKind::Iret]),
];

/// The prices of one arm on one guest.
///
/// # Errors
///
/// The guest did not do its work.
pub fn prices(
    guest: &str,
    mode: Mode,
    arm: &Arm,
    quick: bool,
    stop: &Stop,
) -> Result<Vec<Price>, LabError> {
    let (count, runs) = if quick {
        (QUICK_COUNT, QUICK_RUNS)
    } else {
        (COUNT, RUNS)
    };
    let setup = Setup {
        workload: Workload::Flags { count },
        mode,
        rate: None,
    };
    let measured = |arm: &Arm| -> Result<Vec<Ended>, LabError> {
        let config = arm.config(&base_config())?;
        (0..runs).map(|_| run(&setup, &config, stop)).collect()
    };
    let own = measured(arm)?;
    // Where an arm leaves no exits whose price could be measured, the few remaining ones are
    // call-outs.
    let call_outs = match ABOUT.arms.iter().find(|other| other.name == OFF) {
        Some(off) if arm.name.starts_with(ON) => measured(off)?,
        _ => Vec::new(),
    };
    let mut prices = Vec::new();
    for (event, kinds) in PAIRS {
        let of_pairs = |ended: &[Ended]| -> Result<Vec<f64>, LabError> {
            let cycles: Result<Vec<Option<f64>>, LabError> = ended
                .iter()
                .map(|ended| of_pair(ended, event, kinds, count))
                .collect();
            Ok(cycles?.into_iter().flatten().collect())
        };
        let mut cycles = of_pairs(&own)?;
        if cycles.is_empty() {
            cycles = of_pairs(&call_outs)?;
        }
        prices.extend(
            kinds
                .into_iter()
                .filter_map(|kind| Price::of(guest, arm.name, kind.name(), cycles.clone())),
        );
    }
    Ok(prices)
}

/// Cycles of one exit: those of the pair, divided among its exits. `None` if it has no exits, or if
/// the guest's own monitor emulates it too: the pair's time is then that of many exits of many
/// kinds.
fn of_pair(
    ended: &Ended,
    event: &str,
    kinds: [ExitKind; 2],
    count: u32,
) -> Result<Option<f64>, LabError> {
    let mut events = ended.report.events.iter();
    let timed = events
        .find(|timed| timed.name == event)
        .ok_or_else(|| LabError::WorkNotDone(format!("it did not time the event {event}")))?;
    let emulated = ended
        .report
        .monitor
        .iter()
        .flat_map(|monitor| monitor.pairs());
    let emulated = emulated.filter(|(name, _)| event.split('-').any(|part| part == *name));
    if emulated.map(|(_, count)| count).sum::<u64>() >= u64::from(count) {
        return Ok(None);
    }
    let rows = ended.reading.kinds.iter();
    let exits: u64 = rows
        .filter(|row| kinds.contains(&row.kind))
        .map(|row| row.count)
        .sum();
    Ok(share_out(timed.cycles, exits, count))
}

/// Cycles of one of `exits` exits in `count` pairs. Some additional exits occur outside the loop,
/// for instance at the guest's start.
fn share_out(cycles: u64, exits: u64, count: u32) -> Option<f64> {
    let each = (exits as f64 / f64::from(count)).round();
    (each >= 1.0).then(|| cycles as f64 / each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pairs_time_is_that_of_the_exits_that_it_takes() {
        assert_eq!(share_out(300, 2_050, 1_000), Some(150.0));
        // If the flag is virtualized, one exit of the pair remains.
        assert_eq!(share_out(300, 1_050, 1_000), Some(300.0));
        assert_eq!(share_out(4, 50, 1_000), None);
    }
}
