//! Statistics as a table for people.

use tollgate_exits::prices::{Estimate, Priced};
use tollgate_exits::snapshot::Snapshot;

use super::interrupts;
use crate::failure::one_line;

/// Lines of blame in the table.
const BLAME_LINES: usize = 12;
/// Lines about address spaces.
const SPACE_LINES: usize = 6;

/// Where the time went, then the exits by kind, then where they came from, then what
/// the run would take elsewhere.
pub fn table(snapshot: &Snapshot) -> String {
    let mut text = settings(snapshot);
    text.push_str(&shares(snapshot));
    text.push('\n');
    text.push_str(&exits(snapshot));
    let waits = interrupts::table(snapshot);
    if !waits.is_empty() {
        text.push('\n');
        text.push_str(&waits);
    }
    if !snapshot.blame.is_empty() {
        text.push('\n');
        text.push_str(&blame(snapshot));
    }
    if let Some(prices) = &snapshot.estimate {
        text.push('\n');
        text.push_str(&estimate(prices));
    }
    text
}

/// How the knobs stand.
fn settings(snapshot: &Snapshot) -> String {
    if snapshot.settings.is_empty() {
        return String::new();
    }
    let settings = snapshot.settings.iter();
    let texts: Vec<String> = settings
        .map(|(name, value)| one_line(&format!("{name}={value}")))
        .collect();
    let note = if snapshot.settings_changed {
        " (turned while it ran)"
    } else {
        ""
    };
    format!("knobs          {}{note}\n", texts.join(" "))
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
        ("host busy", snapshot.waiting_cycles as f64),
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
    if let Some(instructions) = snapshot.instructions {
        text.push_str(&format!(
            "{:<20} {:>13} ({} for each exit)\n",
            "instructions",
            grouped(instructions),
            grouped(instructions / snapshot.exit_count.max(1))
        ));
        if let Some(code) = snapshot.host_code {
            let each = |count: u64| count as f64 / instructions.max(1) as f64;
            text.push_str(&format!(
                "{:<20} {:>13} ({:.2} for each, {:.1} bytes)\n",
                "host instructions",
                grouped(code.instructions),
                each(code.instructions),
                each(code.bytes)
            ));
        }
    }
    for (kind, &count) in &snapshot.leaves {
        text.push_str(&format!(
            "{kind:<20} {:>13} without an exit, in a leaf\n",
            grouped(count)
        ));
    }
    for (kind, &count) in &snapshot.space_loads {
        text.push_str(&format!(
            "{:<20} {:>13} loads of CR3\n",
            format!("space {kind}"),
            grouped(count)
        ));
    }
    for (name, &count) in &snapshot.shadow_tables {
        text.push_str(&format!(
            "{:<20} {:>13} for shadow tables\n",
            name,
            grouped(count)
        ));
    }
    for (name, &count) in &snapshot.instruction_cache {
        text.push_str(&format!(
            "{:<20} {:>13} instructions or entries\n",
            format!("icache {name}"),
            grouped(count)
        ));
    }
    for step in &snapshot.instruction_steps {
        text.push_str(&format!(
            "{:<20} {:>13} cycles to find an instruction (median)\n",
            format!("step {}", step.step),
            grouped(step.p50)
        ));
    }
    text.push_str("p50 to max: cycles of one exit, from samples\n");
    text
}

/// Origins of exits: by instruction, by symbol, by address space.
fn blame(snapshot: &Snapshot) -> String {
    let mut text = header(
        "exits by origin",
        &format!("{:<10} {:<10} {}", "address", "space", "symbol, device"),
    );
    for row in snapshot.blame.iter().take(BLAME_LINES) {
        let name = with_device(&row.symbol, &row.device);
        let origin = format!("{:08x}   {:08x}   {name}", row.address, row.space);
        text.push_str(&origin_line(snapshot, &row.kind, row.exits, &origin));
    }
    if !snapshot.symbols.is_empty() {
        text.push('\n');
        text.push_str(&header("exits by symbol", "symbol, device"));
        for row in snapshot.symbols.iter().take(BLAME_LINES) {
            let symbol = match row.symbol.as_str() {
                "" => "(no symbol)",
                symbol => symbol,
            };
            let origin = with_device(symbol, &row.device);
            text.push_str(&origin_line(snapshot, &row.kind, row.exits, &origin));
        }
    }
    if snapshot
        .spaces
        .iter()
        .any(|row| row.space != snapshot.spaces[0].space)
    {
        text.push('\n');
        text.push_str(&header("exits by space", "space"));
        for row in snapshot.spaces.iter().take(SPACE_LINES) {
            let space = format!("{:08x}", row.space);
            text.push_str(&origin_line(snapshot, &row.kind, row.exits, &space));
        }
    }
    text.push_str("about: estimated from samples; space: CR3\n");
    text
}

/// A symbol and the device that was accessed there; either may be empty.
fn with_device(symbol: &str, device: &str) -> String {
    match (symbol, device) {
        (_, "") => symbol.to_owned(),
        ("", _) => device.to_owned(),
        _ => format!("{symbol}, {device}"),
    }
}

fn header(title: &str, origin: &str) -> String {
    format!("{title:<20} {:>13} {:>7}  {origin}\n", "about", "of kind")
}

fn origin_line(snapshot: &Snapshot, kind: &str, exits: u64, origin: &str) -> String {
    let whole = snapshot
        .exits
        .iter()
        .find(|exit| exit.kind == kind)
        .map_or(0, |exit| exit.attributed);
    format!(
        "{kind:<20} {:>13} {:>7}  {}\n",
        grouped(exits),
        percent(exits as f64, whole),
        one_line(origin),
    )
}

/// The run at another machine's prices.
fn estimate(estimate: &Estimate) -> String {
    let mut text = format!(
        "estimate: this run's exits at the prices of {} ({:.2} GHz)\n",
        one_line(&estimate.machine),
        estimate.khz as f64 / 1e6,
    );
    if !estimate.source.is_empty() {
        text.push_str(&format!("prices from: {}\n", one_line(&estimate.source)));
    }
    text.push_str(&format!(
        "{:<20} {:>13} {:>8} {:>10}  {}\n",
        "exits by kind", "count", "cycles", "ms", "hardware exit"
    ));
    let milliseconds = |nanoseconds: u64| format!("{:.1}", nanoseconds as f64 / 1e6);
    for row in &estimate.exits {
        let (cycles, ms, exit) = match row.priced {
            Priced::Exit => (
                grouped(row.cycles_each),
                format!("{:.1}", row.cycles as f64 / estimate.khz.max(1) as f64),
                one_line(&row.hardware_exit),
            ),
            Priced::NoHardwareExit => ("0".into(), "0.0".into(), "no hardware exit".into()),
            Priced::NotInTable => ("?".into(), "?".into(), "not in the price table".into()),
        };
        text.push_str(&format!(
            "{:<20} {:>13} {cycles:>8} {ms:>10}  {exit}\n",
            row.kind,
            grouped(row.count),
        ));
    }
    let rows = [
        ("exits there", estimate.exit_ns),
        ("guest, devices, HLT", estimate.outside_ns),
        ("estimated run", estimate.run_ns),
    ];
    for (name, nanoseconds) in rows {
        text.push_str(&format!("{name:<20} {:>33}\n", milliseconds(nanoseconds)));
    }
    text.push_str("guest code, devices and HLT: as measured here, in translated code\n");
    if estimate.unpriced_exits > 0 {
        text.push_str(&format!(
            "{} exits of kinds without a price count as nothing\n",
            grouped(estimate.unpriced_exits)
        ));
    }
    text
}

/// A number with its thousands set apart: 1,234,567.
pub(super) fn grouped(number: u64) -> String {
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
    use super::super::tests::snapshot;
    use super::*;

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
    fn the_table_says_how_the_knobs_stand_and_whether_they_did_so_all_the_time() {
        let mut snapshot = snapshot();
        let text = table(&snapshot);
        assert!(
            text.starts_with("knobs          vif=off vir=on\n"),
            "{text}"
        );
        snapshot.settings_changed = true;
        assert!(table(&snapshot).contains("vir=on (turned while it ran)\n"));
    }

    #[test]
    fn blame_is_a_share_of_its_kind() {
        let text = table(&snapshot());
        assert!(
            text.contains("50.0%  c1000004   00001000   start, \"really\"+0x4"),
            "{text}"
        );
        assert!(text.contains("100.0%  start, \"really\"\n"), "{text}");
    }

    #[test]
    fn one_address_space_is_no_news() {
        let mut snapshot = snapshot();
        assert!(!table(&snapshot).contains("exits by space"));
        let mut other = snapshot.spaces[0].clone();
        other.space = 0x2000;
        snapshot.spaces.push(other);
        assert!(table(&snapshot).contains("exits by space"));
    }

    #[test]
    fn an_estimate_says_that_it_is_one() {
        let text = table(&snapshot());
        assert!(text.contains("estimate: this run's exits at the prices of Old One"));
        assert!(text.contains("no hardware exit"));
        // 7 x 1650 cycles at 1 MHz, and 70 ms as here.
        assert!(
            text.contains("exits there                                       11.6"),
            "{text}"
        );
        assert!(
            text.contains("estimated run                                     81.5"),
            "{text}"
        );
    }
}
