//! `tollgate lab`: runs the experiments and writes their outputs.

mod arguments;
mod outputs;
mod progress;

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use tollgate_lab::experiment::{self, Experiment, LabError, Results, Stop};
use tollgate_lab::experiments;

use crate::failure::Failure;
use crate::signals::{Asked, Signals};
use crate::standard_output::{self, print_and_end};
use crate::{columns, doctor, exit_code};

pub use arguments::LabArguments;
use arguments::{ExperimentArguments, LabCommand, description, options};
use outputs::Outputs;
use progress::Progress;

/// Runs `tollgate lab` and returns its exit code.
pub fn run(arguments: &LabArguments) -> u8 {
    match &arguments.command {
        LabCommand::List => list(),
        LabCommand::Run(name, arguments) => {
            experiment(name, arguments).unwrap_or_else(|failure| failure.report())
        }
    }
}

fn list() -> u8 {
    let mut text = String::new();
    for experiment in experiments::all() {
        let about = experiment.about();
        text.push_str(&format!("{}: {}\n", about.name, about.one_line));
        for line in description(about).lines() {
            text.push_str(&format!("  {line}\n"));
        }
        text.push('\n');
    }
    print_and_end(&format!("{}\n", text.trim_end()), exit_code::SUCCESS)
}

fn print(text: &str) -> Result<(), Failure> {
    standard_output::print(&format!("{}\n", text.trim_end()))
}

fn experiment(name: &str, arguments: &ExperimentArguments) -> Result<u8, Failure> {
    let experiment = experiments::find(name)
        .ok_or_else(|| Failure::usage(format!("no experiment is called '{name}'")))?;
    // Whatever is wrong with the files is known before an hour has passed.
    let outputs = Outputs::open(arguments)?;
    doctor::required_floor().map_err(Failure::host)?;
    let signals = Signals::block()
        .map_err(|error| Failure::host(format!("cannot receive signals: {error}")))?;
    let stop = Stop::new();
    let signal = watch(signals, stop.clone())
        .map_err(|error| Failure::host(format!("cannot start a thread: {error}")))?;
    let mut progress = Progress::new();
    let results = experiment::run(&*experiment, &options(arguments), &stop, &mut progress);
    progress.clear();
    let results = results.map_err(|error| match error {
        LabError::Unknown { .. } | LabError::NotRun(_) => Failure::usage(error.to_string()),
        _ => Failure::host(error.to_string()),
    })?;
    let written = report(&*experiment, &results, outputs, arguments.full);
    let is_empty = results.cells.iter().all(|cell| cell.samples().is_empty());
    match (signal.load(Ordering::SeqCst), results.failures().first()) {
        (0, None) if is_empty => Err(Failure::host(NOTHING)),
        (0, None) => written.map(|()| exit_code::SUCCESS),
        (0, Some(failure)) => Err(Failure::host(failure.clone())),
        (signal, _) => written.map(|()| exit_code::for_signal(signal)),
    }
}

/// What is said if no cell was run.
const NOTHING: &str =
    "nothing was measured, and nothing drawn: no cell could be run here, for the reasons above";

fn report(
    experiment: &dyn Experiment,
    results: &Results,
    outputs: Outputs,
    full: bool,
) -> Result<(), Failure> {
    let sections = experiment.sections(results);
    let shown = match full {
        true => print(&experiment::table(results, &sections)),
        false => {
            let summary = experiment::summary(results);
            print(&columns::wrapped(&summary, &std::io::stdout()))
                .and_then(|()| print("All tables: --full; in files: --csv, --json, --plot."))
        }
    };
    // What took an hour to measure still goes to its files.
    outputs.write(results, &sections)?;
    shown
}

/// Has a signal end the experiment; a second one ends the process. Returns where the
/// signal's number will stand.
fn watch(signals: Signals, stop: Stop) -> std::io::Result<Arc<AtomicI32>> {
    let number = Arc::new(AtomicI32::new(0));
    let seen = Arc::clone(&number);
    let wait = move || {
        loop {
            if signals.poll(&mut [], None).is_err() {
                return;
            }
            while let Some(asked) = signals.next() {
                let Asked::Signal(signal) = asked else {
                    continue;
                };
                if seen.swap(signal, Ordering::SeqCst) != 0 {
                    std::process::exit(exit_code::for_signal(signal).into());
                }
                stop.request();
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)?;
    Ok(number)
}
