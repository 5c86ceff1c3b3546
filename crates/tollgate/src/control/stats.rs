//! `tollgate stats`: the books of a running machine.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tollgate_exits::prices::PriceTable;
use tollgate_exits::snapshot::Snapshot;
use tollgate_machine::marks::MarkName;

use super::client::{ask, exit_code_of, talk};
use super::protocol::Name;
use crate::exit_code;
use crate::failure::Failure;

use crate::statistics::{Format, Picture, Sort, View, fitted, read_price_table, top, written};

/// `tollgate stats`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 the machine did not answer, 2 nothing answers at PATH.
Examples:
  What the guest has done so far:
    tollgate stats vm.sock --format json
  What a workload costs, without the boot before it:
    tollgate mark vm.sock begin; ssh guest make; tollgate stats vm.sock --since begin
  What happens now, every two seconds, the five most expensive kinds:
    tollgate stats vm.sock --interval 2 --top 5
  The same as a picture:
    tollgate stats vm.sock --plot exits.svg")]
pub struct StatsArguments {
    /// The path given to tollgate run --control
    #[arg(value_name = "PATH")]
    pub socket: PathBuf,

    /// How they are written
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub format: Format,

    /// What comes first in the table
    #[arg(long, value_name = "ORDER", value_enum, default_value_t)]
    pub sort: Sort,

    /// Show so many lines of each list in the table
    #[arg(long, value_name = "N", value_parser = top)]
    pub top: Option<usize>,

    /// Tell of what happened from this mark on ('tollgate mark')
    #[arg(long, value_name = "MARK")]
    pub since: Option<MarkName>,

    /// Tell of what happened up to this mark
    #[arg(long, value_name = "MARK")]
    pub until: Option<MarkName>,

    /// Tell every so many seconds of what happened meanwhile, until the machine ends
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = seconds,
        conflicts_with_all = ["since", "until", "reset"]
    )]
    pub interval: Option<Duration>,

    /// Draw where the time went, and what exits are made of, instead (.svg or .png)
    ///
    /// Below all exits stand address spaces, their symbols or instructions, and the kinds of exit;
    /// what is as wide took as much time.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "sort", "top", "interval"])]
    pub plot: Option<PathBuf>,

    /// Estimate what the run would take at another machine's exit costs
    #[arg(long, value_name = "FILE")]
    pub price_table: Option<PathBuf>,

    /// Show nothing, and have statistics tell of what happens from now on
    #[arg(
        long,
        conflicts_with_all = ["format", "sort", "top", "since", "until", "plot", "price_table"]
    )]
    pub reset: bool,
}

/// Seconds between two looks.
///
/// # Errors
/// Too few or too many, or no number.
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
    let prices = prices.transpose()?;
    let prices = prices.as_ref();
    if arguments.reset {
        return Ok(exit_code_of(&ask(&arguments.socket, Name::ResetStats)?));
    }
    if let Some(interval) = arguments.interval {
        return repeat(arguments, interval, prices);
    }
    let picture = arguments.plot.as_deref();
    let picture = picture.map(|path| Picture::create(path, "--plot"));
    let picture = picture.transpose()?;
    let name = |name: Option<MarkName>| name.map(|name| name.to_string());
    let request = json!({
        "command": Name::Stats, "since": name(arguments.since), "until": name(arguments.until)
    });
    let answer = talk(&arguments.socket, &request)?;
    if answer["ok"] != true {
        return Ok(exit_code_of(&answer));
    }
    let snapshot = snapshot_in(&answer, prices)?;
    if let Some(picture) = picture {
        picture.write(&snapshot)?;
        return Ok(exit_code::SUCCESS);
    }
    // A closed standard output is no failure of the command.
    let _ = print(arguments, &snapshot);
    Ok(exit_code::SUCCESS)
}

/// The statistics in an answer.
///
/// # Errors
/// They are not such as this version makes.
pub fn snapshot_in(answer: &Value, prices: Option<&PriceTable>) -> Result<Snapshot, Failure> {
    let mut snapshot: Snapshot = serde_json::from_value(answer["stats"].clone())
        .map_err(|_| Failure::host("the virtual machine belongs to another version of tollgate"))?;
    if let Some(prices) = prices {
        snapshot.estimate = Some(prices.estimate(&snapshot));
    }
    Ok(snapshot)
}

fn print(arguments: &StatsArguments, snapshot: &Snapshot) -> io::Result<()> {
    let view = View {
        sort: arguments.sort,
        top: arguments.top,
    };
    let mut output = io::stdout();
    let mut text = written(snapshot, arguments.format, view);
    if arguments.format == Format::Table {
        text = fitted(text, &output);
    }
    output.write_all(text.as_bytes())
}

/// Counts from each moment to the next one, between marks of its own.
fn repeat(
    arguments: &StatsArguments,
    interval: Duration,
    prices: Option<&PriceTable>,
) -> Result<u8, Failure> {
    let mark = private_mark();
    let begin = json!({"command": Name::Mark, "mark": mark});
    let answer = talk(&arguments.socket, &begin)?;
    if answer["ok"] != true {
        return Ok(exit_code_of(&answer));
    }
    let started = Instant::now();
    let count = json!({"command": Name::Stats, "since": mark, "mark": mark});
    for turn in 1.. {
        let next = interval.saturating_mul(turn);
        std::thread::sleep(next.saturating_sub(started.elapsed()));
        // The machine may have ended meanwhile, as expected.
        let Ok(answer) = talk(&arguments.socket, &count) else {
            break;
        };
        if answer["ok"] != true {
            return Ok(exit_code_of(&answer));
        }
        let snapshot = snapshot_in(&answer, prices)?;
        if arguments.format == Format::Table {
            let from = started.elapsed().saturating_sub(interval).as_secs_f64();
            let _ = writeln!(io::stdout(), "\nfrom {from:.1} s on");
        }
        if print(arguments, &snapshot).is_err() {
            break;
        }
    }
    Ok(exit_code::SUCCESS)
}

/// A mark that this process alone uses, and that is not listed.
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
