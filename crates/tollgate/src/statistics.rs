//! The table that `--stats` shows.

use tollgate_exits::snapshot::Snapshot;

/// Lines of blame in the table.
const BLAME_LINES: usize = 12;

/// Where the time went, then the exits by kind, then where they came from.
pub fn table(snapshot: &Snapshot) -> String {
    let mut text = shares(snapshot);
    text.push('\n');
    text.push_str(&exits(snapshot));
    if !snapshot.blame.is_empty() {
        text.push('\n');
        text.push_str(&blame(snapshot));
    }
    text
}

fn percent(part: f64, whole: u64) -> String {
    format!("{:.1}%", part * 100.0 / whole.max(1) as f64)
}

fn milliseconds(cycles: f64, snapshot: &Snapshot) -> String {
    format!("{:.1}", cycles / snapshot.tsc_khz.max(1) as f64)
}

fn shares(snapshot: &Snapshot) -> String {
    let wall = snapshot.wall_cycles;
    let sum = wall as i64 - snapshot.remainder_cycles;
    let rows = [
        ("guest code", snapshot.guest_cycles as f64),
        ("exits", snapshot.exit_cycles as f64),
        ("devices", snapshot.device_cycles as f64),
        ("translating", snapshot.translating_cycles as f64),
        ("halted", snapshot.halted_cycles as f64),
        ("sum", sum as f64),
        ("remainder", snapshot.remainder_cycles as f64),
        ("wall time", wall as f64),
    ];
    let mut text = format!("{:<14} {:>12} {:>8}\n", "time", "ms", "share");
    for (name, cycles) in rows {
        let ms = milliseconds(cycles, snapshot);
        text.push_str(&format!(
            "{name:<14} {ms:>12} {:>8}\n",
            percent(cycles, wall)
        ));
    }
    text
}

fn exits(snapshot: &Snapshot) -> String {
    let mut text = format!(
        "{:<20} {:>13} {:>7} {:>10} {:>7} {:>8} {:>8} {:>8} {:>10}\n",
        "exits by kind", "count", "share", "ms", "of wall", "p50", "p95", "p99", "max"
    );
    for row in &snapshot.exits {
        let cost = |value: u64| {
            if row.samples == 0 {
                "-".to_owned()
            } else {
                grouped(value)
            }
        };
        text.push_str(&format!(
            "{:<20} {:>13} {:>7} {:>10} {:>7} {:>8} {:>8} {:>8} {:>10}\n",
            row.kind,
            grouped(row.count),
            percent(row.count as f64, snapshot.exit_count),
            milliseconds(row.cycles as f64, snapshot),
            percent(row.cycles as f64, snapshot.wall_cycles),
            cost(row.p50),
            cost(row.p95),
            cost(row.p99),
            cost(row.max),
        ));
    }
    text.push_str(&format!(
        "{:<20} {:>13}\n",
        "total",
        grouped(snapshot.exit_count)
    ));
    text.push_str("p50 to max: cycles of one exit, from samples\n");
    text
}

fn blame(snapshot: &Snapshot) -> String {
    let mut text = format!(
        "{:<20} {:>13} {:>7}  {:<10} {:<10} {}\n",
        "exits by origin", "about", "of kind", "address", "space", "symbol"
    );
    for row in snapshot.blame.iter().take(BLAME_LINES) {
        let kind = snapshot
            .exits
            .iter()
            .find(|exit| exit.kind == row.kind)
            .map_or(0, |exit| exit.count);
        text.push_str(&format!(
            "{:<20} {:>13} {:>7}  {:<10} {:<10} {}\n",
            row.kind,
            grouped(row.exits),
            percent(row.exits as f64, kind),
            format!("{:08x}", row.address),
            format!("{:08x}", row.space),
            row.symbol,
        ));
    }
    text
}

/// A number with its thousands set apart: 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_exits::snapshot::{BlameRow, ExitRow};

    fn snapshot() -> Snapshot {
        Snapshot {
            tsc_khz: 1000,
            wall_cycles: 100_000,
            guest_cycles: 60_000,
            translating_cycles: 10_000,
            device_cycles: 5_000,
            halted_cycles: 5_000,
            exit_cycles: 19_000,
            remainder_cycles: 1_000,
            exit_count: 1_234,
            exits: vec![ExitRow {
                kind: "cli".into(),
                count: 1_234,
                samples: 20,
                cycles: 19_000,
                p50: 15,
                p95: 20,
                p99: 30,
                max: 40,
            }],
            blame: vec![BlameRow {
                kind: "cli".into(),
                address: 0xc100_0000,
                symbol: "start+0x4".into(),
                space: 0x1000,
                exits: 617,
            }],
        }
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1,000");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }

    #[test]
    fn the_table_shows_sum_and_remainder() {
        let text = table(&snapshot());
        assert!(
            text.contains("sum                    99.0    99.0%"),
            "{text}"
        );
        assert!(
            text.contains("remainder               1.0     1.0%"),
            "{text}"
        );
    }

    #[test]
    fn blame_is_a_share_of_its_kind() {
        let text = table(&snapshot());
        assert!(
            text.contains("50.0%  c1000000   00001000   start+0x4"),
            "{text}"
        );
    }
}
