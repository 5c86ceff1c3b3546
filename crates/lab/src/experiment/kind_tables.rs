//! The tables of a cell with a row for each kind of exit: the numbers, and the shares of time.

use super::section::{grouped, percent};
use super::{CellResult, KindGroup, Results, Section, Share, shares};

/// Marks shares whose two figures differ.
pub const DIFFERS: &str = "!";

/// The rows for kinds of exit, and for the sums of their groups.
fn kind_rows(groups: &[KindGroup]) -> Vec<(String, Vec<&'static str>)> {
    let mut rows = Vec::new();
    for group in groups {
        let names: Vec<&str> = group.kinds.iter().map(|kind| kind.name()).collect();
        rows.extend(names.iter().map(|&name| (format!("  {name}"), vec![name])));
        rows.push((group.title.to_owned(), names));
    }
    rows
}

/// How many instructions were executed, and how many exited to the monitor with each arm.
pub fn exits(groups: &[KindGroup], cell: &CellResult) -> Section {
    let counted = cell.counted();
    let instructions = counted.and_then(|counted| counted.instructions);
    let executed = |kinds: &[&str]| {
        let counted = counted?;
        let counts = kinds.iter().map(|kind| counted.executed.get(*kind));
        // A sum is unknown if one of its parts is.
        counts.sum::<Option<u64>>()
    };
    let arms = cell.arms();
    let rows = kind_rows(groups).into_iter().map(|(title, kinds)| {
        let executed = executed(&kinds);
        let share = executed
            .zip(instructions)
            .map(|(executed, instructions)| percent(executed as f64 / instructions.max(1) as f64));
        let mut row = vec![
            title,
            executed.map_or("?".into(), |count| grouped(count as f64)),
            share.unwrap_or_else(|| "?".into()),
        ];
        row.extend(arms.iter().map(|arm| {
            let count = cell.median(arm, |sample| {
                let rows = kinds.iter().filter_map(|kind| sample.timed.exits(kind));
                rows.map(|row| row.count).sum::<u64>() as f64
            });
            count.map_or(String::new(), grouped)
        }));
        row
    });
    let mut rows: Vec<Vec<String>> = rows.collect();
    let mut all = vec!["exits of all kinds".into(), String::new(), String::new()];
    all.extend(arms.iter().map(|arm| {
        let count = cell.median(arm, |sample| sample.timed.ledger.exit_count as f64);
        count.map_or(String::new(), grouped)
    }));
    rows.push(all);
    let mut columns: Vec<String> = ["exits", "executed", "% of instr"]
        .map(str::to_owned)
        .into();
    columns.extend(arms.iter().map(|arm| (*arm).to_owned()));
    let mut notes = Vec::new();
    if let Some(instructions) = instructions {
        let how = counted.map_or("", |counted| counted.how.as_str());
        notes.push(format!(
            "executed: of {} instructions, {how}",
            grouped(instructions as f64)
        ));
    } else if let Some(counted) = counted {
        notes.push(format!(
            "executed: {}; all instructions: not counted",
            counted.how
        ));
    }
    Section {
        columns,
        rows,
        notes,
        ..Section::default()
    }
}

/// How the time was spent with each arm, determined in two ways.
pub fn time_shares(results: &Results, cell: &CellResult) -> Section {
    let arms = cell.arms();
    let of_arm = |arm: &str, kinds: &[&str]| {
        let prices = results.prices(&cell.guest, arm);
        shares(kinds, &cell.of_arm(arm), &prices)
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (title, kinds) in kind_rows(results.about.kinds) {
        let mut row = vec![title];
        row.extend(arms.iter().map(|arm| share_text(&of_arm(arm, &kinds))));
        rows.push(row);
    }
    type Part = fn(&super::Sample) -> f64;
    let parts: [(&str, Part); 8] = [
        ("all exits", |s| s.timed.ledger.exit_cycles as f64),
        ("devices", |s| s.timed.ledger.device_cycles as f64),
        ("translating", |s| s.timed.ledger.translating_cycles as f64),
        ("halted", |s| s.timed.ledger.halted_cycles as f64),
        ("waiting", |s| s.timed.ledger.waiting_cycles as f64),
        ("signals, ledger", |s| {
            let ledger = &s.timed.ledger;
            (ledger.signal_cycles + ledger.start_end_cycles + ledger.ledger_cycles) as f64
        }),
        ("fast paths", |s| {
            s.timed.ledger.fast_path_call_cycles as f64
        }),
        ("guest code", |s| s.timed.ledger.guest_cycles as f64),
    ];
    for (title, part) in parts {
        let mut row = vec![title.to_owned()];
        row.extend(arms.iter().map(|arm| {
            let share = cell.median(arm, |sample| {
                part(sample) / sample.timed.ledger.wall_cycles.max(1) as f64
            });
            share.map_or(String::new(), |share| format!("- / {}", percent(share)))
        }));
        rows.push(row);
    }
    let mut columns = vec!["% of time".to_owned()];
    columns.extend(arms.iter().map(|arm| (*arm).to_owned()));
    Section {
        columns,
        rows,
        ..Section::default()
    }
}

/// A share of the time in per cent. A share above 100 %, which can occur on a busy host, is not
/// shown because it has no meaning.
fn part_of_time(share: f64) -> String {
    match share <= 1.0 {
        true => percent(share),
        false => "?".into(),
    }
}

/// The share by count times cost, and the share that was timed directly: `41.2 / 39.9`; for several
/// kinds the sums.
fn share_text(shares: &[Share]) -> String {
    let by_price: Option<f64> = shares.iter().map(|share| share.by_price).sum();
    let timed: f64 = shares.iter().map(|share| share.timed).sum();
    let sum = Share {
        kind: String::new(),
        count: 0.0,
        by_price,
        timed,
    };
    let mark = if sum.disagrees() { DIFFERS } else { "" };
    let by_price = by_price.map_or("-".into(), part_of_time);
    format!("{by_price} / {}{mark}", part_of_time(timed))
}
