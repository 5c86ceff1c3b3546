//! `tollgate stats`: the books of a running machine.

use std::io::Write;

use tollgate_exits::snapshot::Snapshot;

use super::client::{ask, exit_code_of};
use super::protocol::Name;
use crate::cli::StatsArguments;
use crate::exit_code;
use crate::failure::Failure;
use crate::statistics::{read_price_table, written};

/// Runs `tollgate stats` and returns its exit code.
pub fn run(arguments: &StatsArguments) -> u8 {
    show(arguments).unwrap_or_else(|failure| failure.report())
}

fn show(arguments: &StatsArguments) -> Result<u8, Failure> {
    let prices = arguments.price_table.as_deref().map(read_price_table);
    let prices = prices.transpose()?;
    if arguments.reset {
        return Ok(exit_code_of(&ask(&arguments.socket, Name::ResetStats)?));
    }
    let answer = ask(&arguments.socket, Name::Stats)?;
    if answer["ok"] != true {
        return Ok(exit_code_of(&answer));
    }
    let mut snapshot: Snapshot = serde_json::from_value(answer["stats"].clone())
        .map_err(|_| Failure::host("the virtual machine belongs to another version of tollgate"))?;
    if let Some(prices) = prices {
        snapshot.estimate = Some(prices.estimate(&snapshot));
    }
    // A closed standard output is no failure of the command.
    let _ = std::io::stdout().write_all(written(&snapshot, arguments.format).as_bytes());
    Ok(exit_code::SUCCESS)
}
