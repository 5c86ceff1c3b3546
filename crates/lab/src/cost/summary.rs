//! Summarizes the results of `tollgate cost` in a few lines.

use super::table::heading;
use super::{GuestMode, Report, Row};
use crate::statistics::Quartiles;

/// Number of kinds that are named as the cheapest and as the most expensive.
const NAMED: usize = 3;
/// Maximum number of rows for which each kind gets a line of its own.
const MOST_ROWS: usize = 12;
/// The kind that does nothing except exit.
const BARE: &str = "null-hypercall";

/// The findings in about ten lines; the tables contain the rest.
pub fn summary(report: &Report) -> String {
    let mut text = heading(report);
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.pinned).collect();
    let rows = match rows.is_empty() {
        true => report.rows.iter().collect(),
        false => rows,
    };
    let price = |row: &Row| {
        let cycles = row.single.p50;
        if cycles == 0 {
            // The clock has steps, and the empty measurement was subtracted.
            return "too short for the clock".to_owned();
        }
        let micros = report.nanoseconds(cycles as f64) / 1e3;
        format!("{cycles} cycles ({micros:.2} us)")
    };
    let bare: Vec<String> = GuestMode::ALL
        .into_iter()
        .filter_map(|mode| rows.iter().find(|row| row.kind == BARE && row.mode == mode))
        .map(|row| format!("{} {}", row.mode.name(), price(row)))
        .collect();
    if !bare.is_empty() {
        text.push_str("Out of guest code and back, and nothing else (median):\n");
        for pair in bare.chunks(2) {
            text.push_str(&format!("  {}\n", pair.join(", ")));
        }
    }
    // One price for each kind: that of its most expensive mode.
    let mut kinds: Vec<&Row> = Vec::new();
    for row in &rows {
        match kinds.iter_mut().find(|known| known.kind == row.kind) {
            Some(known) if known.single.p50 < row.single.p50 => *known = row,
            Some(_) => {}
            None => kinds.push(row),
        }
    }
    kinds.sort_by_key(|row| row.single.p50);
    let named = |rows: &mut dyn Iterator<Item = &&Row>| {
        let names = rows.map(|row| format!("{} {}", row.kind, price(row)));
        names.collect::<Vec<_>>().join(", ")
    };
    if kinds.len() > NAMED {
        let cheap = named(&mut kinds.iter().take(NAMED));
        let dear = named(&mut kinds.iter().rev().take(NAMED));
        text.push_str(&format!(
            "Of {} kinds the cheapest: {cheap};\n  the most expensive: {dear}.\n",
            kinds.len()
        ));
    } else {
        // A user who requests a single kind wants to know its cost.
        for row in rows.iter().take(MOST_ROWS) {
            let (mode, p99) = (row.mode.name(), row.single.p99);
            let price = price(row);
            text.push_str(&format!(
                "  {} in {mode}: {price}; one in a hundred takes {p99} or more\n",
                row.kind
            ));
        }
    }
    // Values that are too short for the clock have no meaningful ratio.
    let spread = |row: &&&Row| row.single.p99 as f64 / row.single.p50 as f64;
    let timed = rows.iter().filter(|row| row.single.p50 > 0);
    if let Some(widest) = timed.clone().max_by(|a, b| spread(a).total_cmp(&spread(b))) {
        text.push_str(&format!(
            "Spread widest: {} in {}, where one in a hundred takes {:.1} times the median.\n",
            widest.kind,
            widest.mode.name(),
            spread(&widest)
        ));
    }
    let ratios: Vec<f64> = timed
        .filter_map(|row| {
            let free = report
                .rows
                .iter()
                .find(|other| !other.pinned && other.kind == row.kind && other.mode == row.mode)?;
            Some(free.single.p50 as f64 / row.single.p50 as f64)
        })
        .collect();
    if let Some(ratio) = Quartiles::of(&ratios).filter(|_| rows.iter().all(|row| row.pinned)) {
        text.push_str(&format!(
            "Not pinned to a processor, a median is {:.2} times as long (half of all between {:.2} and {:.2}).\n",
            ratio.median, ratio.lower, ratio.upper
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Summary;
    use tollgate_host_facts::processors::HostDescription;

    fn row(kind: &str, pinned: bool, values: &[u64]) -> Row {
        Row {
            kind: kind.into(),
            what: String::new(),
            mode: GuestMode::Long,
            pinned,
            baseline: 0,
            single: Summary::of(values).unwrap(),
            batch: None,
            exits_each: 1.0,
            counts: Vec::new(),
            distribution: Vec::new(),
        }
    }

    #[test]
    fn the_summary_is_short_and_says_what_was_found() {
        let mut rows = Vec::new();
        for (index, kind) in [BARE, "cpuid", "cli", "eoi"].into_iter().enumerate() {
            let cycles = 100 * (index as u64 + 1);
            rows.push(row(kind, true, &[cycles, cycles, 9 * cycles]));
            rows.push(row(kind, false, &[2 * cycles]));
        }
        let mut report = Report {
            host: HostDescription::here(1_000_000),
            pinned_to: 0,
            tsc_step: 1,
            is_complete: true,
            rows: vec![row("cpuid", true, &[200, 200, 1800])],
        };
        let line = "  cpuid in 64-bit: 200 cycles (0.20 us); one in a hundred takes 1800 or more\n";
        let text = summary(&report);
        assert!(text.contains(line), "{text}");
        report.rows = vec![row("cpuid", true, &[0, 0, 26]), row("cpuid", false, &[0])];
        let text = summary(&report);
        assert!(
            text.contains("cpuid in 64-bit: too short for the clock; "),
            "{text}"
        );
        assert!(!text.contains("times"), "{text}");
        report.rows = rows;
        let text = summary(&report);
        assert!(text.lines().count() <= 12, "{text}");
        for part in [
            "  64-bit 100 cycles (0.10 us)\n",
            "the cheapest: null-hypercall 100 cycles",
            "the most expensive: eoi 400 cycles",
            "one in a hundred takes 9.0 times the median",
            "a median is 2.00 times as long",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
