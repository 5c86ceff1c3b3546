//! Formats the results of `tollgate cost` as a table for people.

use super::{BatchContents, Report, Row, kinds, requests};
use std::fmt::Write;

/// Explains what these figures are; part of every output.
pub const WHAT_IT_IS: &str = "These are call-outs of translated code inside one process: they \
cross no protection boundary and\nare no measure of hardware exits. Comparable is the total time \
for the same work.";

/// The table, followed by the meaning of its columns.
pub fn table(report: &Report) -> String {
    let mut text = heading(report);
    for pinned in [true, false] {
        let rows: Vec<&Row> = report
            .rows
            .iter()
            .filter(|row| row.pinned == pinned)
            .collect();
        if !rows.is_empty() {
            text.push('\n');
            text.push_str(&part(report, pinned, &rows));
        }
    }
    let requests = requests::table(report);
    if !requests.is_empty() {
        let _ = write!(text, "\n{requests}");
    }
    let _ = writeln!(text, "\n{}", notes(report));
    text
}

/// Where the figures were measured, and what they are.
pub(super) fn heading(report: &Report) -> String {
    format!(
        "{}{}\n{WHAT_IT_IS}\n{}",
        report.host,
        report.steps_in_words(),
        if report.is_complete {
            ""
        } else {
            "INTERRUPTED: only what was finished is shown.\n"
        }
    )
}

fn part(report: &Report, pinned: bool, rows: &[&Row]) -> String {
    let mut text = if pinned {
        format!("pinned to host processor {}\n", report.pinned_to)
    } else {
        "not pinned\n".to_owned()
    };
    let _ = writeln!(
        text,
        "{:<19} {:<9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>8} {:>9} {:>9} {:>9} {:>7} {:>6} {:>10}",
        "cycles",
        "mode",
        "batch",
        "batch",
        "single",
        "single",
        "single",
        "single",
        "single",
        "single",
        "p50",
        "",
        "exits",
        "exits"
    );
    let _ = writeln!(
        text,
        "{:<19} {:<9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>8} {:>9} {:>9} {:>9} {:>7} {:>6} {:>10}",
        "kind",
        "",
        "mean",
        "median",
        "min",
        "p50",
        "p95",
        "p99",
        "max",
        "samples",
        "ns",
        "no-op",
        "each",
        "checked"
    );
    for row in rows {
        let batch = |value: fn(&super::BatchResult) -> f64| {
            row.batch.as_ref().map_or_else(
                || "-".to_owned(),
                |batch| {
                    let mark = match batch.contents {
                        BatchContents::EventOnly => "",
                        BatchContents::WithPreparation => "*",
                    };
                    format!("{:.0}{mark}", value(batch))
                },
            )
        };
        let single = &row.single;
        let _ = writeln!(
            text,
            "{:<19} {:<9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>8} {:>9} {:>9} {:>9.0} {:>7} {:>6.1} {:>10}",
            row.kind,
            row.mode.name(),
            batch(|batch| batch.mean),
            batch(|batch| batch.median),
            single.min,
            single.p50,
            single.p95,
            single.p99,
            single.max,
            single.count,
            report.nanoseconds(single.p50 as f64),
            row.baseline,
            row.exits_each,
            row.counts.iter().map(|count| count.counted).sum::<u64>(),
        );
    }
    text
}

fn notes(report: &Report) -> String {
    let mut text = String::from(
        "The no-op path (the same loop without the event) is subtracted from every figure. \
batch: many events\nbetween two readings of the time-stamp counter, for one event. single: each \
event between two readings of\nits own. exits each: all that one event takes, of whatever kind. exits checked: what the ledger \
counted,\nequal to what the guest says it did.\n",
    );
    let has = |contents| {
        report
            .rows
            .iter()
            .filter_map(|row| row.batch.as_ref())
            .any(|batch| batch.contents == contents)
    };
    if has(BatchContents::WithPreparation) {
        text.push_str("*: with what must come before or after each event, such as EOI.\n");
    }
    text.push_str("\nWhat the kinds are:\n");
    for kind in kinds::KINDS.iter() {
        if report.rows.iter().any(|row| row.kind == kind.name) {
            let _ = writeln!(text, "  {:<19} {}", kind.name, kind.what);
        }
    }
    text.push_str("\nNot in this version:\n");
    for (name, what) in kinds::NOT_IN_THIS_VERSION {
        let _ = writeln!(text, "  {name:<22} {what}");
    }
    text.trim_end().to_owned()
}
