//! `tollgate logs`: shows what a machine in the background has written.

use std::fs::File;
use std::io::Read;
use std::thread;
use std::time::Duration;

use clap::Args;

use super::entry;
use crate::exit_code;
use crate::failure::Failure;
use crate::standard_output::{Reader, offer};

/// How often a log that is followed is looked at.
const RETRY: Duration = Duration::from_millis(100);

/// The arguments of `tollgate logs`.
#[derive(Args, Debug)]
#[command(after_help = "\
Only machines that were started with --detach have a log: the output of others is where they were
started. A log is removed when its machine has ended.")]
pub struct LogsArguments {
    /// The machine's name, as 'tollgate ps' lists it, or the number of its process
    #[arg(value_name = "NAME")]
    pub name: String,

    /// Show what comes from now on too, until the machine ends
    #[arg(short, long)]
    pub follow: bool,
}

/// Runs `tollgate logs` and returns its exit code.
pub fn run(arguments: &LogsArguments) -> u8 {
    match show(arguments) {
        Ok(()) => exit_code::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn show(arguments: &LogsArguments) -> Result<(), Failure> {
    let facts = entry::find(&arguments.name)?;
    let name = &facts.name;
    let Some(log) = &facts.log else {
        return Err(Failure::usage(format!(
            "'{name}' has no log: its output is where it was started (--detach makes a log)"
        )));
    };
    let failed = |error| Failure::host(format!("the log of '{name}' cannot be read: {error}"));
    let mut file = File::open(log).map_err(failed)?;
    loop {
        // What was written before the end of the machine is read after it.
        let is_last = !arguments.follow || !entry::is_running(&facts);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        if offer(&String::from_utf8_lossy(&bytes))? == Reader::Gone || is_last {
            return Ok(());
        }
        thread::sleep(RETRY);
    }
}
