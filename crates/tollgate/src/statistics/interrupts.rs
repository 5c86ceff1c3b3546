//! Formats how long interrupts waited as a table.

use super::text::{grouped, plural};
use std::cmp::Reverse;
use tollgate_exits::snapshot::{DurationRow, Snapshot};

/// The number of lines about what interrupts waited for in the monitor.
const MASKER_LINES: usize = 8;

/// The table, with at most `top` lines in each list; empty if no interrupt was delivered and no
/// section ran.
pub fn table(snapshot: &Snapshot, top: Option<usize>) -> String {
    let lines = top.unwrap_or(usize::MAX);
    let interrupts = &snapshot.interrupts;
    let mut text = String::new();
    if !interrupts.waits.is_empty() {
        text += &header("interrupts waited, us");
        for row in &interrupts.waits {
            let name = match row.name.as_str() {
                "to-handler" => "to their handler",
                "host" => "of that for the host",
                "guest" => "for the guest",
                "monitor" => "for the monitor",
                other => other,
            };
            text += &line(snapshot, name, row);
        }
        for row in interrupts.maskers.iter().take(lines.min(MASKER_LINES)) {
            text += &line(snapshot, &format!("  {}", row.name), row);
        }
    }
    if !interrupts.sections.is_empty() {
        text += &header("the monitor works, us");
        for row in by_cost(&interrupts.sections).take(lines) {
            text += &line(snapshot, &row.name, row);
        }
        for (name, rows) in [
            ("of that in one piece", &interrupts.masked),
            ("the guest's IF clear", &interrupts.within),
        ] {
            if !rows.is_empty() {
                text += &header(name);
            }
            for row in by_cost(rows).take(lines) {
                text += &line(snapshot, &row.name, row);
            }
        }
        text += &stops(snapshot);
    }
    text
}

/// How often sections stopped, what happened to them then, and from which length on sections stop.
fn stops(snapshot: &Snapshot) -> String {
    let interrupts = &snapshot.interrupts;
    let mut text = String::new();
    for (name, &count) in &interrupts.stops {
        let (shown, end) = (grouped(count), plural(count));
        text += &format!("{name:<22} {shown:>10} stop{end} for an interrupt");
        if let Some(&resumed) = interrupts.resumed.get(name) {
            text += &format!(", {} resumed", grouped(resumed));
        }
        text += "\n";
    }
    if let Some(&dropped) = interrupts.resumed.get("dropped") {
        let dropped = grouped(dropped);
        text += &format!(
            "{:<22} {dropped:>10} stops to which the guest did not come back\n",
            ""
        );
    }
    let cycles = interrupts.break_even_cycles as f64;
    let break_even = cycles * 1e3 / snapshot.tsc_khz.max(1) as f64;
    text += &format!(
        "a section stops if it has run for {break_even:.1} us: what the way to the handler costs\n"
    );
    text
}

/// The rows, those with the greatest total first.
fn by_cost(rows: &[DurationRow]) -> impl Iterator<Item = &DurationRow> {
    let mut rows: Vec<_> = rows.iter().collect();
    rows.sort_by_key(|row| Reverse(row.cycles));
    rows.into_iter()
}

fn header(title: &str) -> String {
    format!(
        "{title:<22} {:>10} {:>9} {:>8} {:>8} {:>8} {:>9}\n",
        "count", "ms", "p50", "p99", "p99.9", "max"
    )
}

fn line(snapshot: &Snapshot, name: &str, row: &DurationRow) -> String {
    let milliseconds = |cycles: u64| cycles as f64 / snapshot.tsc_khz.max(1) as f64;
    let microseconds = |cycles| format!("{:.1}", milliseconds(cycles) * 1e3);
    format!(
        "{name:<22} {:>10} {:>9.1} {:>8} {:>8} {:>8} {:>9}\n",
        grouped(row.count),
        milliseconds(row.cycles),
        microseconds(row.p50),
        microseconds(row.p99),
        microseconds(row.p999),
        microseconds(row.max),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::snapshot;
    use super::*;

    #[test]
    fn waits_are_told_in_microseconds() {
        // At 1 MHz a cycle is a microsecond.
        let text = table(&snapshot(), None);
        let row: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
        let expected = [
            "to", "their", "handler", "9", "5.0", "100.0", "2000.0", "3000.0", "3100.0",
        ];
        assert_eq!(row, expected, "{text}");
    }

    #[test]
    fn without_interrupts_there_is_no_table() {
        let mut snapshot = snapshot();
        snapshot.interrupts = Default::default();
        assert_eq!(table(&snapshot, None), "");
    }
}
