//! `tollgate stats`: shows the ledger of a running machine, or one that a run has saved.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde_json::{Value, json};
use tollgate_exits::prices::PriceTable;
use tollgate_exits::snapshot::{Snapshot, VERSION};
use tollgate_machine::marks::MarkName;

use super::client::{ask, exit_code_of, talk_patiently};
use super::command::Name;
use crate::exit_code;
use crate::failure::{Failure, one_line};

use crate::files;
use crate::standard_output::{Reader, offer, print};
use crate::statistics::{
    Format, Picture, Sort, SymbolFiles, SymbolSource, View, fitted, read_price_table, top, written,
};

/// The maximum size of saved statistics in bytes; the lists in them are bounded.
const LIMIT: u64 = 16 << 20;

/// The arguments of `tollgate stats`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 the machine refused or did not answer, 2 no machine listens at PATH.
Examples:
  What the guest has done so far:
    tollgate stats vm.sock --format json
  What a workload costs, without the boot before it:
    tollgate mark vm.sock begin; ssh guest make; tollgate stats vm.sock --since begin
  What happens now, every two seconds, the five most expensive kinds:
    tollgate stats vm.sock --interval 2 --top 5
  As a picture:
    tollgate stats vm.sock --plot exits.svg
  With the names of a program in one of the address spaces that were shown:
    tollgate stats vm.sock --symbols System.map --symbols ./server,space=1a2b000
  What an earlier run with --stats-format json --stats-file run.json has saved:
    tollgate stats run.json --symbols System.map")]
pub struct StatsArguments {
    /// The path given to tollgate run --control; or a file of statistics in JSON
    #[arg(value_name = "PATH")]
    pub socket: PathBuf,

    /// Format of the statistics
    #[arg(
        long,
        value_name = "FORMAT",
        value_enum,
        default_value_t,
        alias = "stats-format"
    )]
    pub format: Format,

    /// Order of the lists in the table
    #[arg(
        long,
        value_name = "ORDER",
        value_enum,
        default_value_t,
        alias = "stats-sort"
    )]
    pub sort: Sort,

    /// Number of lines that each list in the table has at most
    #[arg(long, value_name = "N", value_parser = top, alias = "stats-top")]
    pub top: Option<usize>,

    /// Show what happened since this mark, which 'tollgate mark' or the guest has set
    #[arg(long, value_name = "MARK", alias = "stats-since")]
    pub since: Option<MarkName>,

    /// Show what happened until this mark
    #[arg(long, value_name = "MARK", alias = "stats-until")]
    pub until: Option<MarkName>,

    /// Show what happened since the last time, every SECONDS, until the machine ends
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = seconds,
        conflicts_with_all = ["since", "until", "reset"]
    )]
    pub interval: Option<Duration>,

    /// Draw where the time went, and what exits consist of, instead (.svg or .png)
    ///
    /// Below all exits are address spaces, their symbols or instructions, and the kinds of exit.
    /// Boxes of equal width took equal time.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["format", "sort", "top", "interval"],
        alias = "stats-plot"
    )]
    pub plot: Option<PathBuf>,

    /// Names for guest addresses, in addition to those that the run was given
    ///
    /// System.map, a saved /proc/kallsyms, or an ELF file. FILE,space=1234000 applies to that address
    /// space only, as statistics show it; FILE@0x1000000 adds this number to all addresses. May be
    /// repeated.
    #[arg(
        long,
        value_name = "FILE",
        value_parser = OsStringValueParser::new().try_map(SymbolSource::parse)
    )]
    pub symbols: Vec<SymbolSource>,

    /// Estimate how long the run would take at another machine's exit costs
    #[arg(long, value_name = "FILE")]
    pub price_table: Option<PathBuf>,

    /// Show nothing, and start the statistics again from zero
    #[arg(
        long,
        conflicts_with_all = [
            "format", "sort", "top", "since", "until", "plot", "symbols", "price_table"
        ]
    )]
    pub reset: bool,
}

/// Parses the number of seconds between two reports.
///
/// # Errors
///
/// The number is too small or too large, or the text is not a number.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|it| (0.1..=86_400.0).contains(it));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected seconds, from 0.1 to 86400".into())
}

/// Runs `tollgate stats` and returns its exit code.
pub fn run(arguments: &StatsArguments) -> u8 {
    show(arguments).unwrap_or_else(|failure| failure.report())
}

fn show(arguments: &StatsArguments) -> Result<u8, Failure> {
    let prices = arguments.price_table.as_deref().map(read_price_table);
    let additions = Additions {
        symbols: SymbolFiles::read(&arguments.symbols)?,
        prices: prices.transpose()?,
    };
    let is_saved = arguments.socket.is_file();
    if let (true, Some(flag)) = (is_saved, live_flag(arguments)) {
        let path = arguments.socket.display();
        return Err(Failure::usage(format!(
            "{flag} is for a running machine; '{path}' is a file"
        )));
    }
    if arguments.reset {
        return Ok(exit_code_of(&ask(&arguments.socket, Name::ResetStats)?));
    }
    if let Some(interval) = arguments.interval {
        return repeat(arguments, interval, &additions);
    }
    let picture = arguments.plot.as_deref();
    let picture = picture.map(|path| Picture::create(path, "--plot"));
    let picture = picture.transpose()?;
    let snapshot = if is_saved {
        additions.add_to(saved(&arguments.socket)?)
    } else {
        let name = |name: Option<MarkName>| name.map(|name| name.to_string());
        let request = json!({
            "command": Name::Stats, "since": name(arguments.since), "until": name(arguments.until)
        });
        let answer = talk_patiently(&arguments.socket, &request)?;
        if answer["ok"] != true {
            return Ok(refused(arguments, &answer));
        }
        additions.add_to(snapshot_in(&answer)?)
    };
    if let Some(picture) = picture {
        picture.write(&snapshot)?;
        return Ok(exit_code::SUCCESS);
    }
    print(&text(arguments, &snapshot))?;
    Ok(exit_code::SUCCESS)
}

/// Reports why the machine has no such statistics; returns the exit code.
fn refused(arguments: &StatsArguments, answer: &Value) -> u8 {
    let flags = match (arguments.since, arguments.until) {
        (Some(_), Some(_)) => "--since, --until",
        (Some(_), None) => "--since",
        (None, Some(_)) => "--until",
        (None, None) => return exit_code_of(answer),
    };
    let why = answer["error"].as_str().unwrap_or("no reason given");
    Failure::host(format!("{flags}: {}", one_line(why))).report()
}

/// Names and prices that are added to statistics when they are shown.
#[derive(Default)]
pub struct Additions {
    /// Files with names of guest addresses.
    pub symbols: SymbolFiles,
    /// The prices of another machine.
    pub prices: Option<PriceTable>,
}

impl Additions {
    /// Returns `snapshot` with these names and prices.
    pub fn add_to(&self, mut snapshot: Snapshot) -> Snapshot {
        if !self.symbols.is_empty() {
            let names = self.symbols.names(snapshot.system_call_entry);
            snapshot = snapshot.renamed(|place| names.at(place));
        }
        if let Some(prices) = &self.prices {
            snapshot.estimate = Some(prices.estimate(&snapshot));
        }
        snapshot
    }
}

/// The first of the given flags that needs a running machine.
fn live_flag(arguments: &StatsArguments) -> Option<&'static str> {
    let flags = [
        ("--reset", arguments.reset),
        ("--interval", arguments.interval.is_some()),
        ("--since", arguments.since.is_some()),
        ("--until", arguments.until.is_some()),
    ];
    flags.iter().find(|flag| flag.1).map(|flag| flag.0)
}

/// Reads the statistics in an answer.
///
/// # Errors
///
/// They are not statistics as this version makes them.
pub fn snapshot_in(answer: &Value) -> Result<Snapshot, Failure> {
    serde_json::from_value(answer["stats"].clone())
        .map_err(|_| Failure::host("the virtual machine belongs to another version of tollgate"))
}

/// Reads the statistics in a file.
///
/// # Errors
///
/// One line says that the file cannot be read, or has no statistics as this version makes them.
fn saved(path: &Path) -> Result<Snapshot, Failure> {
    let content = files::read(path, "tollgate stats", LIMIT)?;
    let other = |why: &str| {
        let path = path.display();
        Failure::usage(format!(
            "'{path}' is neither a control socket nor statistics that tollgate run \
             --stats-format json has written: {why}"
        ))
    };
    let value: Value = serde_json::from_slice(&content).map_err(|_| other("it is no JSON"))?;
    match value["version"].as_u64() {
        None => return Err(other("it has no version")),
        Some(version) if version != u64::from(VERSION) => {
            return Err(other(&format!(
                "its version is {version}, this tollgate reads {VERSION}"
            )));
        }
        Some(_) => {}
    }
    serde_json::from_value(value).map_err(|error| other(&error.to_string()))
}

fn text(arguments: &StatsArguments, snapshot: &Snapshot) -> String {
    let view = View {
        sort: arguments.sort,
        top: arguments.top,
    };
    let text = written(snapshot, arguments.format, view);
    match arguments.format {
        Format::Table => fitted(text, &io::stdout()),
        Format::Json | Format::Csv => text,
    }
}

/// Shows the counts from each moment to the next one, between marks that only this process uses.
fn repeat(
    arguments: &StatsArguments,
    interval: Duration,
    additions: &Additions,
) -> Result<u8, Failure> {
    let mark = private_mark();
    let begin = json!({"command": Name::Mark, "mark": mark});
    let answer = talk_patiently(&arguments.socket, &begin)?;
    if answer["ok"] != true {
        return Ok(exit_code_of(&answer));
    }
    let started = Instant::now();
    let mut shown = None;
    let count = json!({"command": Name::Stats, "since": mark, "mark": mark});
    for turn in 1.. {
        let next = interval.saturating_mul(turn);
        std::thread::sleep(next.saturating_sub(started.elapsed()));
        // The machine may have ended in the meantime, as expected.
        let Ok(answer) = talk_patiently(&arguments.socket, &count) else {
            break;
        };
        if answer["ok"] != true {
            return Ok(exit_code_of(&answer));
        }
        let mut snapshot = additions.add_to(snapshot_in(&answer)?);
        let mut shown_text = String::new();
        if arguments.format == Format::Table {
            let until = started.elapsed();
            let from = until.saturating_sub(interval).as_secs_f64();
            let until = until.as_secs_f64();
            shown_text = format!("\nfrom {from:.1} s to {until:.1} s\n");
            // Four lines about knobs are shown only if the knobs differ from those of the last
            // report.
            let knobs = (snapshot.knobs.clone(), snapshot.knobs_changed);
            if shown.as_ref() == Some(&knobs) {
                snapshot.knobs.clear();
            }
            shown = Some(knobs);
        }
        shown_text.push_str(&text(arguments, &snapshot));
        if offer(&shown_text)? == Reader::Gone {
            break;
        }
    }
    Ok(exit_code::SUCCESS)
}

/// A name for a mark that this process alone uses, and that is not listed.
pub fn private_mark() -> String {
    format!(".{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_time_that_a_person_can_read_in() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "x", "1e9", "nan"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_mark_of_ones_own_is_a_name() {
        assert!(private_mark().parse::<MarkName>().is_ok());
    }
}
