//! The findings of the experiment `interruptible` in words, with the study's figures.

use super::about::{ARMS, EXEC, FORK, LOADS, OFF, PIPE, RESTART, RESUME};
use super::paper::{in_pieces, value};
use crate::experiment::{CellResult, Results, Verdict};

/// How many microseconds the monitor should hold an interrupt back at most, at p99.9.
const AIM: f64 = 20.0;

/// What stopping costs, how much it reduces masking, and the study's own latency.
pub fn answers(results: &Results) -> Vec<String> {
    let cells = || {
        results
            .cells
            .iter()
            .filter(|cell| !cell.samples().is_empty())
    };
    let mut answers: Vec<String> = price(cells()).into_iter().collect();
    answers.extend(cells().filter_map(masked));
    answers.extend(latency(cells()));
    answers.extend(cells().filter_map(held_back));
    answers.extend(cells().filter_map(goes_on));
    answers
}

/// How long the monitor holds interrupts back under a load, and in which section.
fn held_back(cell: &CellResult) -> Option<String> {
    if !LOADS.contains(&&*cell.workload) {
        return None;
    }
    let part = |arm| {
        let of = |what| value(cell, arm, what);
        let (p50, p999) = (of("monitor-p50")?, of("monitor-p999")?);
        Some(format!("{p50:.1} and {p999:.1} us with '{arm}'"))
    };
    let parts: Vec<String> = ARMS.into_iter().filter_map(part).collect();
    (!parts.is_empty()).then(|| {
        format!(
            "{}, {}: the monitor holds interrupts back for (p50, p99.9) {} (aim: at most {AIM:.0} us at p99.9).",
            cell.guest,
            cell.workload,
            parts.join(", ")
        )
    })
}

/// Whether a guest goes on when its neighbour is killed.
fn goes_on(cell: &CellResult) -> Option<String> {
    let beside = value(cell, RESTART, "process-p50")?;
    let alone = value(cell, RESTART, "alone-p50")?;
    let canaries = value(cell, RESTART, "canaries")?;
    Some(format!(
        "{}, {}: the process is late by {beside:.1} us (p50) next to the other machine, and by {alone:.1} after another \
         was killed; memory of both was unchanged each time ({canaries:.0} by the middle of the runs).",
        cell.guest, cell.workload
    ))
}

/// The cost of stopping.
fn price<'a>(cells: impl Iterator<Item = &'a CellResult>) -> Option<String> {
    let arms = |cell: &'a CellResult| {
        [RESTART, RESUME]
            .into_iter()
            .filter_map(move |arm| Some((cell, arm, cell.comparison(arm)?)))
    };
    let compared: Vec<_> = cells.flat_map(arms).collect();
    if compared.is_empty() {
        return None;
    }
    let unjudged = compared.iter();
    let unjudged = unjudged.filter(|it| it.2.verdict == Verdict::NotJudged);
    let unjudged = unjudged.count();
    if unjudged == compared.len() {
        return Some(
            "What it costs to stop for interrupts is not judged: the host was busy (the study: at most 5 %)."
                .into(),
        );
    }
    let slower = compared.iter().filter(|it| it.2.verdict == Verdict::More);
    let most = slower.max_by(|a, b| a.2.ratio.total_cmp(&b.2.ratio));
    let remark = match unjudged {
        0 => String::new(),
        count => format!(
            " Not judged, because the host was busy: {count} of {} comparisons.",
            compared.len()
        ),
    };
    Some(match most {
        None => format!(
            "Stopping for interrupts costs nothing that was measured (the study: at most 5 %).{remark}"
        ),
        Some((cell, arm, comparison)) => format!(
            "Stopping for interrupts costs at most {:.1} % ({}, {}, {arm}); the study: at most 5 %.{remark}",
            (comparison.ratio - 1.0) * 100.0,
            cell.guest,
            cell.workload
        ),
    })
}

/// How much masking is reduced.
fn masked(cell: &CellResult) -> Option<String> {
    let theirs = match cell.workload.as_str() {
        FORK | EXEC => "clearly less",
        PIPE => "no less",
        _ => return None,
    };
    let part = |arm| Some(format!("{:.1} ms with '{arm}'", in_pieces(cell, arm)?));
    let parts: Vec<String> = [OFF, RESTART, RESUME]
        .into_iter()
        .filter_map(part)
        .collect();
    (parts.len() > 1).then(|| {
        format!(
            "{}, {}: the monitor masks interrupts for {} (the study: {theirs}).",
            cell.guest,
            cell.workload,
            parts.join(", ")
        )
    })
}

/// The latency from the handler to the process.
fn latency<'a>(mut cells: impl Iterator<Item = &'a CellResult>) -> Option<String> {
    let (cell, off, resume) = cells.find_map(|cell| {
        let of = |arm| Some(value(cell, arm, "process-p50")? - value(cell, arm, "to-handler-p50")?);
        Some((cell, of(OFF)?, of(RESUME)?))
    })?;
    Some(format!(
        "From the handler to the process it takes {off:.1} us, and {resume:.1} where work stops and resumes ({}, {}); the \
         study: 11.48 and 11.52, without a monitor 10.96.",
        cell.guest, cell.workload
    ))
}
