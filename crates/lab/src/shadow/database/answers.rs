//! The findings with a database in words.

use super::super::arms::{BY_NUMBER, CONVENTIONAL};
use super::accounts::{Accounts, median};
use super::paper::{best, cells};
use super::workloads::{POSTGRES_JOBS, SQLITE_JOBS};
use crate::experiment::{CellResult, Comparison, Results};

/// For the five writers of each database: what the mechanisms gain.
pub fn answers(results: &Results) -> Vec<String> {
    let jobs =
        cells(results).filter(|cell| [POSTGRES_JOBS, SQLITE_JOBS].contains(&&*cell.workload));
    jobs.filter_map(answer).collect()
}

fn answer(cell: &CellResult) -> Option<String> {
    let (without, conventional) = best(cell, CONVENTIONAL)?;
    let (with, everything) = best(cell, BY_NUMBER)?;
    let comparison = Comparison::of(&cell.values(everything), &cell.values(conventional))?;
    let share = |arm| {
        median(cell, arm, |it: &Accounts| {
            it.maintenance() / it.comparable()
        })
    };
    Some(format!(
        "{}, {}: with everything at its best number of tables ({with}) against conventional tables at \
         theirs ({without}): {comparison} (the study: 10 % less, with 6 and 3); tables take {:.0} % of \
         the monitor's time, finding code apart, instead of {:.0} % (15 to 60 %).",
        cell.guest,
        cell.workload,
        share(everything)? * 100.0,
        share(conventional)? * 100.0,
    ))
}
