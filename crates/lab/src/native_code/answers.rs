//! The findings of the experiment `native` in words.

use super::about::{ADAPTIVE, CALLS, LOOPS, NATIVE, TRANSLATED};
use super::linux::MICROSECONDS;
use super::paper::{BreakEven, break_even, value};
use crate::experiment::{CellResult, Results, Verdict};

/// Where the break-even lies, what programs gain and lose, and what 'adaptive' makes of both.
pub fn answers(results: &Results) -> Vec<String> {
    let mut answers = Vec::new();
    for guest in results.about.guests {
        for (kind, ladder) in [("loop", LOOPS), ("calls", CALLS)] {
            answers.extend(ways(results, guest.name, kind, ladder));
        }
    }
    answers.extend(gains(results, NATIVE));
    answers.extend(gains(results, ADAPTIVE));
    answers
}

/// The break-even of a ladder, and the price of one system call.
fn ways(results: &Results, guest: &str, kind: &str, ladder: &[(&str, u32)]) -> Option<String> {
    let (first, _) = ladder.first()?;
    let cell = results.cell(guest, first)?;
    let of = |arm| value(cell, arm, MICROSECONDS);
    let found = match break_even(results, guest, ladder)? {
        BreakEven::Always => "running it natively always pays".to_owned(),
        BreakEven::Never => "running it natively does not pay at all".to_owned(),
        BreakEven::At { microseconds, .. } => format!(
            "running it natively pays if it computes for more than {microseconds:.0} us between \
             two system calls"
        ),
    };
    Some(format!(
        "{guest}, {kind}: a system call takes {:.2} us translated and {:.1} us natively; {found}.",
        of(TRANSLATED)?,
        of(NATIVE)?
    ))
}

/// The workloads, without the steps of ladders, that gain and lose by an arm.
fn gains(results: &Results, arm: &str) -> Option<String> {
    let is_step = |cell: &&CellResult| {
        let mut steps = LOOPS.iter().chain(CALLS);
        steps.any(|(name, _)| *name == cell.workload)
    };
    let of = |verdict: Verdict| {
        let cells = results.cells.iter().filter(|cell| !is_step(cell));
        let compared = cells.filter_map(|cell| Some((cell, cell.comparison(arm)?)));
        let parts = compared.filter(|(_, it)| it.verdict == verdict);
        let parts: Vec<String> = parts
            .map(|(cell, it)| format!("{} {:.2}", cell.workload, it.ratio))
            .collect();
        match parts.is_empty() {
            true => "none".to_owned(),
            false => parts.join(", "),
        }
    };
    let cells = results.cells.iter().filter(|cell| !is_step(cell));
    let has_any = cells.filter_map(|cell| cell.comparison(arm)).count() > 0;
    has_any.then(|| {
        format!(
            "'{arm}' (times the time of '{TRANSLATED}'): gain: {}; lose: {}.",
            of(Verdict::Less),
            of(Verdict::More)
        )
    })
}
