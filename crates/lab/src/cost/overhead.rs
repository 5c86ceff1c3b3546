//! The cost of the ledger itself: the same loops with full recording and with counts only, in turns
//! in one run. The time is the processor time of the thread, so that other programs on a busy host
//! matter less.

use super::bench::{Machine, find};
use super::guest::Guest;
use super::image::{self, Command, Loops};
use super::kinds::INTERPRETER;
use super::{CostError, GuestMode};
use crate::experiment::{Observer, Stop};
use crate::statistics::Quartiles;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use tollgate_exits::ledger::Detail;
use tollgate_host_facts::processors::thread_time;

/// Cycles that one run of a loop should take: much more than a timer's tick costs.
const CYCLES_PER_RUN: u64 = 150_000_000;
/// Repetitions of the first, short run, which determines the number for the long ones.
const FIRST_REPEAT: u32 = 200;

/// The loops to run: name, what it represents, mode.
const WORKLOADS: [(&str, &str, GuestMode); 3] = [
    (
        INTERPRETER,
        "a bytecode interpreter: 5,000 bytecodes, no exit",
        GuestMode::Paged,
    ),
    (
        "sysenter-sysexit",
        "as getppid: SYSENTER from ring 3 and SYSEXIT, nothing else",
        GuestMode::Ring3,
    ),
    (
        "int-iret",
        "as getppid by INT 80h: INT n from ring 3 and IRET, nothing else",
        GuestMode::Ring3,
    ),
];

/// The measurements of one loop with both settings.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// The loop's name.
    pub workload: String,
    /// A description of the loop.
    pub what: String,
    /// Cycles of one repetition with full recording, for each run.
    pub full: Vec<f64>,
    /// Cycles of one repetition with counts only, for each run; each was made right after the one
    /// in `full`.
    pub counts_only: Vec<f64>,
}

impl Comparison {
    /// The ratio of full recording to counts only, for each pair of runs.
    pub fn ratios(&self) -> Vec<f64> {
        self.full
            .iter()
            .zip(&self.counts_only)
            .map(|(full, counts_only)| full / counts_only)
            .collect()
    }

    /// Whether the two settings differ measurably.
    pub fn is_difference_measured(&self) -> bool {
        match (Quartiles::of(&self.full), Quartiles::of(&self.counts_only)) {
            (Some(full), Some(counts_only)) => !full.overlaps(&counts_only),
            _ => false,
        }
    }
}

/// Runs every loop `pairs` times with each setting, in turns. A loop that `stop` has interrupted is
/// left out.
///
/// # Errors
///
/// The host refuses resources, or a guest does not do its work.
pub fn run(
    pairs: usize,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Vec<Comparison>, CostError> {
    let table = image::table();
    let mut results = Vec::new();
    for (index, workload) in WORKLOADS.into_iter().enumerate() {
        observer.progress(index, WORKLOADS.len(), workload.0);
        match compare(workload, &table, pairs, stop) {
            Ok(result) => results.push(result),
            Err(CostError::Interrupted) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(results)
}

/// Runs one loop.
fn compare(
    (name, what, mode): (&str, &str, GuestMode),
    table: &[Loops],
    pairs: usize,
    stop: &Stop,
) -> Result<Comparison, CostError> {
    let loops = find(table, name, mode)
        .ok_or_else(|| CostError::WorkNotDone(format!("the guest has no loop {name}")))?;
    let mut guest = Guest::start(mode, stop)?;
    let timed = |guest: &mut Guest, detail, repeat: u32| -> Result<f64, CostError> {
        guest.vcpu_mut().set_ledger_detail(detail);
        let command = Command {
            entry: loops.batch,
            count: 1,
            repeat,
            ticks: 0,
        };
        let before = thread_time();
        guest.run(name, command)?;
        let nanoseconds = thread_time().saturating_sub(before) as f64;
        let cycles = nanoseconds * guest.tsc_khz() as f64 / 1e6;
        Ok(cycles / f64::from(repeat))
    };
    timed(&mut guest, Detail::Full, FIRST_REPEAT)?;
    let each = timed(&mut guest, Detail::Full, FIRST_REPEAT)?.max(1.0);
    let repeat = (CYCLES_PER_RUN as f64 / each).clamp(1.0, 1e8) as u32;
    let mut result = Comparison {
        workload: name.to_owned(),
        what: what.to_owned(),
        full: Vec::new(),
        counts_only: Vec::new(),
    };
    for _ in 0..pairs {
        result.full.push(timed(&mut guest, Detail::Full, repeat)?);
        let counts_only = timed(&mut guest, Detail::CountsOnly, repeat)?;
        result.counts_only.push(counts_only);
    }
    Ok(result)
}

/// The comparisons as a table for people, with every repetition.
pub fn table(results: &[Comparison]) -> String {
    let mut text = String::from(
        "the ledger's own cost: full ledger against counts only, in turns, cycles of one repetition\n",
    );
    for result in results {
        let _ = writeln!(text, "\n{}: {}", result.workload, result.what);
        for (name, values) in [("full", &result.full), ("counts only", &result.counts_only)] {
            let Some(quartiles) = Quartiles::of(values) else {
                continue;
            };
            let runs: Vec<String> = values.iter().map(|value| format!("{value:.1}")).collect();
            let _ = writeln!(
                text,
                "  {name:<12} median {:>9.1}  quartiles {:>9.1} {:>9.1}  runs {}",
                quartiles.median,
                quartiles.lower,
                quartiles.upper,
                runs.join(" ")
            );
        }
        if let Some(ratio) = Quartiles::of(&result.ratios()) {
            let verdict = if result.is_difference_measured() {
                format!("the ledger costs {:+.2} %", (ratio.median - 1.0) * 100.0)
            } else {
                "no difference measured".to_owned()
            };
            let _ = writeln!(
                text,
                "  ratio        median {:>9.4}  quartiles {:>9.4} {:>9.4}  {verdict}",
                ratio.median, ratio.lower, ratio.upper
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(full: &[f64], counts_only: &[f64]) -> Comparison {
        Comparison {
            workload: "w".into(),
            what: "x".into(),
            full: full.to_vec(),
            counts_only: counts_only.to_vec(),
        }
    }

    #[test]
    fn overlapping_settings_are_not_called_different() {
        let same = comparison(&[100.0, 101.0, 99.0], &[100.0, 100.5, 99.5]);
        assert!(!same.is_difference_measured());
        assert!(table(&[same]).contains("no difference measured"));
    }

    #[test]
    fn a_difference_is_the_median_of_the_pairs_ratios() {
        let slower = comparison(&[110.0, 111.0, 109.0], &[100.0, 100.0, 100.0]);
        assert!(slower.is_difference_measured());
        assert!(table(&[slower]).contains("the ledger costs +10.00 %"));
    }
}
