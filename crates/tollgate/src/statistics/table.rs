//! Formats statistics as a table for people.

use std::cmp::Reverse;
use tollgate_exits::prices::{Estimate, Priced};

use tollgate_exits::snapshot::{ExitRow, Snapshot};

use super::interrupts;
use super::text::{grouped, plural, with_device, with_program};
use super::view::{Sort, View};
use crate::failure::one_line;

/// The number of lines about origins, unless more are requested.
const ORIGIN_LINES: usize = 12;
/// The number of characters of a line about knobs, without its title.
const KNOBS_WIDTH: usize = 65;
/// The number of lines about address spaces.
const SPACE_LINES: usize = 6;

/// The table: where the time went, then the exits by kind, then their origins, then the estimate of
/// the run elsewhere.
pub fn table(snapshot: &Snapshot, view: View) -> String {
    let mut text = knobs(snapshot);
    text.push_str(&shares(snapshot));
    text.push('\n');
    text.push_str(&exits(snapshot, view));
    let waits = interrupts::table(snapshot, view.top);
    if !waits.is_empty() {
        text.push('\n');
        text.push_str(&waits);
    }
    if !snapshot.origins.is_empty() {
        text.push('\n');
        text.push_str(&origins(snapshot, view));
    }
    if let Some(prices) = &snapshot.estimate {
        text.push('\n');
        text.push_str(&estimate(prices));
    }
    text
}

/// The values of the knobs.
fn knobs(snapshot: &Snapshot) -> String {
    if snapshot.knobs.is_empty() {
        return String::new();
    }
    let knobs = snapshot.knobs.iter();
    let texts: Vec<String> = knobs
        .map(|(name, value)| one_line(&format!("{name}={value}")))
        .collect();
    let note = if snapshot.knobs_changed {
        " (turned while it ran)"
    } else {
        ""
    };
    let mut lines = vec![String::new()];
    for text in texts {
        let is_full = lines
            .last()
            .is_some_and(|line| line.len() + text.len() > KNOBS_WIDTH);
        match lines.last_mut() {
            Some(line) if !is_full => line.push_str(&format!(" {text}")),
            _ => lines.push(format!(" {text}")),
        }
    }
    format!("knobs         {}{note}\n", lines.join("\n              "))
}

fn percent(part: f64, whole: u64) -> String {
    format!("{:.1}%", part * 100.0 / whole.max(1) as f64)
}

fn milliseconds(cycles: f64, snapshot: &Snapshot) -> String {
    format!("{:.1}", cycles / snapshot.tsc_khz.max(1) as f64)
}

/// Cycles as microseconds: the unit of all costs in the table.
fn microseconds(cycles: u64, snapshot: &Snapshot) -> String {
    let value = cycles as f64 * 1000.0 / snapshot.tsc_khz.max(1) as f64;
    if value < 99.995 {
        format!("{value:.2}")
    } else {
        grouped(value.round() as u64)
    }
}

fn shares(snapshot: &Snapshot) -> String {
    let wall = snapshot.wall_cycles;
    let sum = wall as i64 - snapshot.remainder_cycles;
    let rows = [
        ("guest code", snapshot.guest_cycles as f64),
        ("fast paths", snapshot.fast_path_call_cycles as f64),
        ("exits", snapshot.exit_cycles as f64),
        ("devices", snapshot.device_cycles as f64),
        ("translating", snapshot.translating_cycles as f64),
        ("halted", snapshot.halted_cycles as f64),
        ("waiting", snapshot.waiting_cycles as f64),
        ("signals", snapshot.signal_cycles as f64),
        ("start, end", snapshot.start_end_cycles as f64),
        ("ledger", snapshot.ledger_cycles as f64),
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

fn exits(snapshot: &Snapshot, view: View) -> String {
    let mut text = format!(
        "{:<19} {:>11} {:>5} {:>9} {:>7} {:>5} {:>5} {:>5} {:>6}\n",
        "exits by kind", "count", "share", "us", "of wall", "p50", "p95", "p99", "max"
    );
    let mut rows: Vec<&ExitRow> = snapshot.exits.iter().collect();
    if view.sort == Sort::Count {
        rows.sort_by_key(|row| Reverse(row.count));
    }
    for row in rows.iter().take(view.top.unwrap_or(usize::MAX)) {
        let cost = |value: u64| match row.samples {
            0 => "-".to_owned(),
            _ => microseconds(value, snapshot),
        };
        text.push_str(&format!(
            "{:<19} {:>11} {:>5} {:>9} {:>7} {:>5} {:>5} {:>5} {:>6}\n",
            row.kind,
            grouped(row.count),
            percent(row.count as f64, snapshot.exit_count).replace("100.0%", "100%"),
            cost(row.cycles),
            percent(row.cycles as f64, snapshot.wall_cycles),
            cost(row.p50),
            cost(row.p95),
            cost(row.p99),
            cost(row.max),
        ));
    }
    let others = rows.len().saturating_sub(view.top.unwrap_or(rows.len()));
    if others > 0 {
        text.push_str(&format!("{others} other kinds\n"));
    }
    text.push_str(&format!(
        "{:<19} {:>11}\n",
        "total",
        grouped(snapshot.exit_count)
    ));
    if let Some(instructions) = snapshot.instructions {
        text.push_str(&format!(
            "{:<19} {:>11} ({} for each exit)\n",
            "instructions",
            grouped(instructions),
            grouped(instructions / snapshot.exit_count.max(1))
        ));
        if let Some(code) = snapshot.host_code {
            let each = |count: u64| count as f64 / instructions.max(1) as f64;
            text.push_str(&format!(
                "{:<19} {:>11} ({:.2} for each, {:.1} bytes)\n",
                "host instructions",
                grouped(code.instructions),
                each(code.instructions),
                each(code.bytes)
            ));
        }
    }
    for (kind, &count) in &snapshot.fast_paths {
        let cycles = snapshot.fast_path_cycles.get(kind);
        let time = cycles.map_or(String::new(), |&cycles| {
            format!(", {} us", microseconds(cycles, snapshot))
        });
        text.push_str(&format!(
            "{kind:<19} {:>11} without an exit, in a fast path{time}\n",
            grouped(count)
        ));
    }
    for (kind, &count) in &snapshot.space_loads {
        text.push_str(&format!(
            "{:<19} {:>11} load{} of CR3\n",
            format!("space {kind}"),
            grouped(count),
            plural(count)
        ));
    }
    for (name, &count) in &snapshot.shadow_tables {
        text.push_str(&format!(
            "{:<19} {:>11} for shadow tables\n",
            name,
            grouped(count)
        ));
    }
    for (name, &count) in &snapshot.instruction_cache {
        text.push_str(&format!(
            "{:<19} {:>11} instructions or entries\n",
            format!("icache {name}"),
            grouped(count)
        ));
    }
    for step in &snapshot.instruction_steps {
        text.push_str(&format!(
            "{:<19} {:>11} us to find an instruction (median)\n",
            format!("step {}", step.step),
            microseconds(step.p50, snapshot)
        ));
    }
    for (kind, &count) in &snapshot.share_requests {
        text.push_str(&format!(
            "{:<19} {:>11} request{} to shared directories\n",
            format!("share {kind}"),
            grouped(count),
            plural(count)
        ));
    }
    text.push_str("us: microseconds; p50 to max: of one exit, from samples\n");
    text
}

/// A row of one of the lists of origins.
struct Origin<'a> {
    kind: &'a str,
    exits: u64,
    cycles: u64,
    text: String,
}

/// Shows the origins of exits: by instruction, by symbol, by address space.
fn origins(snapshot: &Snapshot, view: View) -> String {
    let lines = view.top.unwrap_or(ORIGIN_LINES);
    let columns = format!("{:<8} instruction, device", "space");
    let rows = snapshot.origins.iter().map(|row| {
        let (space, address) = (row.space, row.address);
        // The text comes last, so that a narrow terminal cuts it first.
        let place = match row.symbol.as_str() {
            "" => with_device(&format!("{address:08x}"), &row.device),
            symbol => format!("{} at {address:08x}", with_device(symbol, &row.device)),
        };
        let place = with_program(&row.program, place);
        Origin {
            kind: &row.kind,
            exits: row.exits,
            cycles: row.cycles,
            text: match row.kernel {
                true => format!("{:<8} {place}", "kernel"),
                false => format!("{space:08x} {place}"),
            },
        }
    });
    let mut text = list(snapshot, view.sort, ("origin", &columns), rows, lines);
    if !snapshot.symbols.is_empty() {
        let rows = snapshot.symbols.iter().map(|row| {
            let symbol = match row.symbol.as_str() {
                "" => "(no symbol)",
                symbol => symbol,
            };
            Origin {
                kind: &row.kind,
                exits: row.exits,
                cycles: row.cycles,
                text: with_device(symbol, &row.device),
            }
        });
        text.push('\n');
        let title = ("symbol", "symbol, device");
        text.push_str(&list(snapshot, view.sort, title, rows, lines));
    }
    let first = snapshot.spaces.first().map(|row| row.space);
    if (snapshot.spaces.iter()).any(|row| Some(row.space) != first) {
        let rows = snapshot.spaces.iter().map(|row| Origin {
            kind: &row.kind,
            exits: row.exits,
            cycles: row.cycles,
            text: with_program(&format!("{:08x}", row.space), row.program.clone()),
        });
        text.push('\n');
        let lines = view.top.unwrap_or(SPACE_LINES);
        text.push_str(&list(
            snapshot,
            view.sort,
            ("space", "space, program"),
            rows,
            lines,
        ));
    }
    if snapshot.elsewhere > 0 {
        text.push_str(&format!(
            "not attributed: {} of all exits, {} of their time (too many origins)\n",
            percent(snapshot.elsewhere as f64, attributed(snapshot)),
            percent(snapshot.elsewhere_cycles as f64, snapshot.exit_cycles),
        ));
    }
    text.push_str("about, us: estimates; of exits: share of all exits' time; space: CR3\n");
    text
}

/// The number of exits that the samples represent.
fn attributed(snapshot: &Snapshot) -> u64 {
    let exits = snapshot.exits.iter();
    exits.fold(0, |sum, row| sum.saturating_add(row.attributed))
}

/// A list of origins; `title` names it and what its last columns show.
fn list<'a>(
    snapshot: &Snapshot,
    sort: Sort,
    title: (&str, &str),
    rows: impl Iterator<Item = Origin<'a>>,
    lines: usize,
) -> String {
    let mut rows: Vec<Origin<'a>> = rows.collect();
    if sort == Sort::Count {
        rows.sort_by_key(|row| Reverse(row.exits));
    }
    let titles = ["about", "of kind", "us", "of exits"].map(str::to_owned);
    let mut table = vec![(format!("exits by {}", title.0), titles, title.1.to_owned())];
    for row in rows.iter().take(lines) {
        let whole = snapshot.exits.iter().find(|exit| exit.kind == row.kind);
        let numbers = [
            grouped(row.exits),
            percent(row.exits as f64, whole.map_or(0, |exit| exit.attributed)),
            microseconds(row.cycles, snapshot),
            percent(row.cycles as f64, snapshot.exit_cycles),
        ];
        table.push((row.kind.to_owned(), numbers, one_line(&row.text)));
    }
    aligned(&table)
}

/// A line of a list: a name, numbers and a text.
type Line<const N: usize> = (String, [String; N], String);

/// Lines with aligned columns. Each column is as narrow as its content, which leaves the most room
/// for the text.
fn aligned<const N: usize>(table: &[Line<N>]) -> String {
    let longest = |of: &dyn Fn(&Line<N>) -> usize| table.iter().map(of).max().unwrap_or_default();
    let name_width = longest(&|line| line.0.len());
    let widths: [usize; N] = std::array::from_fn(|index| longest(&|line| line.1[index].len()));
    let mut text = String::new();
    for (name, numbers, behind) in table {
        text += &format!("{name:<name_width$}");
        for (number, width) in numbers.iter().zip(widths) {
            text += &format!(" {number:>width$}");
        }
        text += &format!("  {behind}\n");
    }
    text
}

/// The estimated time of the run at another machine's prices.
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
        "{:<19} {:>12} {:>8} {:>10}  {}\n",
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
            "{:<19} {:>12} {cycles:>8} {ms:>10}  {exit}\n",
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
        let text = table(&snapshot(), View::default());
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
        let text = table(&snapshot, View::default());
        assert!(
            text.starts_with("knobs          vif=off vir=on\n"),
            "{text}"
        );
        snapshot.knobs_changed = true;
        assert!(table(&snapshot, View::default()).contains("vir=on (turned while it ran)\n"));
    }

    #[test]
    fn an_origin_has_its_cost_and_its_share() {
        let text = table(&snapshot(), View::default());
        assert!(
            text.contains(" 50.0% 9,000    47.4%  00001000 start, \"really\"+0x4 at c1000004\n"),
            "{text}"
        );
        assert!(
            text.contains("100.0% 15,000    78.9%  start, \"really\"\n"),
            "{text}"
        );
    }

    #[test]
    fn figures_fit_a_terminal_of_80_columns() {
        let mut snapshot = snapshot();
        snapshot.exits[0].kind = "interrupt-delivered".to_owned();
        snapshot.exits[0].count = 12_345_678;
        snapshot.exit_count = 12_345_678;
        snapshot.exits[0].cycles = 999_999;
        snapshot.exits[0].max = 99_999;
        let wait = &mut snapshot.interrupts.waits[0];
        (wait.count, wait.cycles, wait.max) = (12_345_678, 9_999_999, 99_999);
        let text = table(&snapshot, View::default());
        let (figures, _) = text.split_once("exits by origin").unwrap();
        for line in figures.lines() {
            assert!(line.len() <= 80, "{line}");
        }
        assert!(figures.contains(" 99,999\n"), "{figures}");
    }

    #[test]
    fn one_address_space_is_no_news() {
        let mut snapshot = snapshot();
        assert!(!table(&snapshot, View::default()).contains("exits by space"));
        let mut other = snapshot.spaces[0].clone();
        other.space = 0x2000;
        snapshot.spaces.push(other);
        snapshot.spaces[0].program = "make".to_owned();
        snapshot.origins[0].program = "make".to_owned();
        let text = table(&snapshot, View::default());
        assert!(text.contains("exits by space"), "{text}");
        assert!(text.contains("  00001000 make\n"), "{text}");
        assert!(text.contains("  00001000 make start"), "{text}");
    }

    #[test]
    fn what_is_not_attributed_is_said() {
        let mut snapshot = snapshot();
        assert!(!table(&snapshot, View::default()).contains("not attributed"));
        snapshot.elsewhere = 300;
        snapshot.elsewhere_cycles = 1_900;
        snapshot.origins[0].kernel = true;
        let text = table(&snapshot, View::default());
        let line = "not attributed: 25.0% of all exits, 10.0% of their time (too many origins)\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("  kernel   start"), "{text}");
    }

    #[test]
    fn an_estimate_says_that_it_is_one() {
        let text = table(&snapshot(), View::default());
        assert!(text.contains("estimate: this run's exits at the prices of Old One"));
        assert!(text.contains("no hardware exit"));
        // The sum is 7 x 1650 cycles at 1 MHz, and 67 ms as here.
        assert!(
            text.contains("exits there                                       11.6"),
            "{text}"
        );
        assert!(
            text.contains("estimated run                                     78.5"),
            "{text}"
        );
    }
}
