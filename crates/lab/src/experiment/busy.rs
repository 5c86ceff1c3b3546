//! Whether the host was too busy for an experiment. The ledger measures for how long a machine's
//! thread was ready to run but the host ran something else: the machine *waited*. This time is not
//! caused by any arm, and if there is much of it, a difference between arms is random.

use super::{CellResult, Contention, Results, Sample};
use crate::statistics::Quartiles;

/// A run that waited for this share of its time is spoiled.
const SPOILT: f64 = 0.1;
/// If all runs together waited for this share of their time, the output mentions it.
const REMARKED: f64 = 0.05;

/// The cycles that the machine waited, and the cycles in which it was ready to run.
fn cycles(sample: &Sample) -> (u64, u64) {
    let ledger = &sample.timed.ledger;
    let could_run = ledger.wall_cycles.saturating_sub(ledger.halted_cycles);
    (ledger.waiting_cycles, could_run)
}

/// The share of waiting in the time that the machine was ready to run, over all these samples.
fn share<'a>(samples: impl Iterator<Item = &'a Sample>) -> f64 {
    let sum = samples.map(cycles).fold((0, 0), |sum: (u64, u64), each| {
        (sum.0.saturating_add(each.0), sum.1.saturating_add(each.1))
    });
    sum.0 as f64 / sum.1.max(1) as f64
}

/// Whether the host was too busy in this cell for a verdict. Verdicts compare the middle halves, so
/// the quarter of runs that waited most must have been spoiled. Where the workload's own machines
/// share a processor, their wait for each other is measured and spoils nothing.
pub fn is_too_busy(cell: &CellResult) -> bool {
    if cell.contention == Contention::OwnMachines {
        return false;
    }
    let samples = cell.samples().iter();
    let shares: Vec<f64> = samples
        .map(|sample| share(std::iter::once(sample)))
        .collect();
    Quartiles::of(&shares).is_some_and(|quartiles| quartiles.upper >= SPOILT)
}

/// The remark about a busy host that precedes all other output; `None` if it was not busy.
pub fn remark(results: &Results) -> Option<String> {
    let cells = || {
        results
            .cells
            .iter()
            .filter(|cell| !cell.samples().is_empty())
    };
    let alone = cells().filter(|cell| cell.contention == Contention::OtherPrograms);
    let waited = share(alone.flat_map(|cell| cell.samples()));
    if waited < REMARKED {
        return None;
    }
    let (all, busy) = (
        cells().count(),
        cells().filter(|cell| is_too_busy(cell)).count(),
    );
    let what = match busy {
        0 => "small differences may be chance".to_owned(),
        busy => format!(
            "no verdict is given in {busy} of {all} cells, where a quarter of the runs or more waited for a \
             tenth of their time, and differences in the others may be chance"
        ),
    };
    Some(format!(
        "THE HOST WAS BUSY: for {:.0} % of the time in which the guest could have run it ran something else: \
         {what}. Run it again with nothing else to do.",
        waited * 100.0
    ))
}

#[cfg(test)]
mod tests {
    use super::super::test_experiment::{Scripted, Silent};
    use super::super::{CellOutcome, Options, Stop, Verdict, run, summary, table};
    use super::*;

    /// Results whose runs waited for these shares of their time.
    fn waited(shares: &[f64]) -> Results {
        let experiment = Scripted::default();
        let mut results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
        let cells = results.cells.iter_mut();
        for (cell, share) in cells.zip(shares) {
            let CellOutcome::Measured { samples, .. } = &mut cell.outcome else {
                continue;
            };
            for sample in samples {
                let ledger = &mut sample.timed.ledger;
                ledger.waiting_cycles = (ledger.wall_cycles as f64 * share) as u64;
            }
        }
        results
    }

    #[test]
    fn a_host_that_had_time_is_not_remarked() {
        assert_eq!(remark(&waited(&[0.0, 0.02])), None);
        let results = waited(&[0.07, 0.07]);
        assert!(
            remark(&results)
                .unwrap()
                .contains("small differences may be chance")
        );
        let cell = &results.cells[0];
        assert_eq!(cell.comparison("b").unwrap().verdict, Verdict::Less);
    }

    #[test]
    fn machines_that_wait_for_each_other_do_not_make_the_host_busy() {
        let mut results = waited(&[0.94, 0.94]);
        for cell in &mut results.cells {
            cell.contention = Contention::OwnMachines;
        }
        assert_eq!(remark(&results), None);
        let comparison = results.cells[0].comparison("b").unwrap();
        assert_eq!(comparison.verdict, Verdict::Less);
    }

    #[test]
    fn a_busy_host_comes_first_and_gives_no_verdict() {
        let results = waited(&[0.94, 0.94]);
        let text = summary(&results, &[]);
        assert!(
            text.starts_with("THE HOST WAS BUSY: for 94 % of the time"),
            "{text}"
        );
        assert!(
            text.contains("no verdict is given in 2 of 2 cells"),
            "{text}"
        );
        assert!(text.contains("not judged in 2 of 2"), "{text}");
        assert!(!text.contains("Most:"), "{text}");
        let comparison = results.cells[0].comparison("b").unwrap();
        assert_eq!(comparison.verdict, Verdict::NotJudged);
        let tables = table(&results, &[]);
        assert!(tables.contains("not judged: busy host"), "{tables}");
        assert!(tables.contains("THE HOST WAS BUSY"), "{tables}");
    }
}
