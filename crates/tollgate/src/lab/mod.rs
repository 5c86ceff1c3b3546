//! `tollgate lab`: runs the experiments and writes their outputs.

mod all;
mod all_arguments;
mod arguments;
mod cost_parts;
mod folder;
mod outputs;
mod progress;
mod report;

use tollgate_lab::experiment::{self, Journal, LabError, Results, Section, Stop};
use tollgate_lab::experiments;
use tollgate_lab::guest_versions;

use crate::failure::{Failure, say};
use crate::interruption::Interruption;
use crate::standard_output::{self, print_and_end};
use crate::{columns, doctor, exit_code, files};

use all_arguments::ReportArguments;
use arguments::{ExperimentArguments, LabCommand, ShowArguments, description, options};
pub use arguments::{LabArguments, with_show};
use folder::{Earlier, Folder};
use outputs::Outputs;
pub use progress::Progress;

/// Runs `tollgate lab` and returns its exit code.
pub fn run(arguments: &LabArguments) -> u8 {
    match &arguments.command {
        LabCommand::List => list(),
        LabCommand::Show(arguments) => match show(arguments) {
            Ok(()) => exit_code::SUCCESS,
            Err(failure) => failure.report(),
        },
        LabCommand::All(arguments) => {
            all::run(arguments).unwrap_or_else(|failure| failure.report())
        }
        LabCommand::Report(arguments) => match write_report(arguments) {
            Ok(()) => exit_code::SUCCESS,
            Err(failure) => failure.report(),
        },
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
    // Errors of the files must be reported now, not after an hour of measuring.
    let outputs = Outputs::open(arguments)?;
    doctor::required_floor().map_err(Failure::host)?;
    let folder = arguments.output.as_deref().map(Folder::open).transpose()?;
    let (options, mut journal) = match &folder {
        Some(folder) => folder.journal(name, arguments, Earlier::of(arguments.resume))?,
        None => (options(arguments), Journal::none()),
    };
    let stop = Stop::new();
    let interruption = Interruption::of(&stop)?;
    let mut progress = Progress::new();
    let results = experiment::resume(&*experiment, &options, &stop, &mut progress, &mut journal);
    progress.clear();
    let mut results = results.map_err(|error| match error {
        LabError::Unknown { .. } | LabError::NotRun(_) => Failure::usage(error.to_string()),
        _ => Failure::host(error.to_string()),
    })?;
    results.guest_versions = guest_versions::recorded(&results, &options.images);
    let shown = Shown {
        sections: experiment.sections(&results),
        answers: experiment.answers(&results),
        results: &results,
    };
    let written = shown.report(outputs, arguments.full);
    let written = written.and(match &folder {
        Some(folder) => kept(folder, &shown),
        None => Ok(()),
    });
    let is_empty = results.cells.iter().all(|cell| cell.samples().is_empty());
    match (interruption.exit_code(), results.failures().first()) {
        (None, None) if is_empty => Err(Failure::host(NOTHING)),
        (None, None) => written.map(|()| exit_code::SUCCESS),
        (None, Some(failure)) => Err(Failure::host(failure.clone())),
        (Some(code), _) => written.map(|()| code),
    }
}

/// Writes the report of a folder's results again.
fn write_report(arguments: &ReportArguments) -> Result<(), Failure> {
    let folder = Folder::existing(&arguments.folder, "FOLDER")?;
    let studies = report::studies(&folder, &[])?;
    if studies.is_empty() {
        return Err(Failure::usage(format!(
            "'{}' holds no results of 'tollgate lab --output'",
            folder.path().display()
        )));
    }
    let earlier = arguments.compare.as_deref().map(report::earlier);
    report::write(&folder, &studies, earlier.transpose()?.as_ref())
}

/// Writes the results to the folder of `--output`, and says how an unfinished run is continued.
fn kept(folder: &Folder, shown: &Shown) -> Result<(), Failure> {
    folder.write(shown.results, &shown.sections)?;
    report::write(folder, &report::studies(folder, &[])?, None)?;
    let (results, path) = (shown.results, folder.path().display());
    if results.finished < results.planned {
        say(&format!(
            "{} of {} samples are in '{path}'; to continue: tollgate lab {} --output '{path}' --resume",
            results.finished, results.planned, results.experiment
        ));
    }
    Ok(())
}

/// The message if no cell was run.
const NOTHING: &str =
    "nothing was measured, and nothing drawn: no cell could be run here, for the reasons above";

/// The results of an experiment and the sections that are shown.
struct Shown<'a> {
    results: &'a Results,
    /// The experiment's own tables.
    sections: Vec<Section>,
    answers: Vec<String>,
}

impl Shown<'_> {
    fn report(&self, outputs: Outputs, full: bool) -> Result<(), Failure> {
        let shown = match full {
            true => print(&experiment::table(self.results, &self.sections)),
            false => {
                let summary = experiment::summary(self.results, &self.answers);
                print(&columns::wrapped(&summary, &std::io::stdout())).and_then(|()| {
                    print(
                        "All tables: --full; in files: --csv, --json, --plot. A file of --json \
                         shows them again: tollgate lab FILE.json.",
                    )
                })
            }
        };
        // Results that took an hour to measure are written to their files even if the experiment
        // was stopped.
        outputs.write(self.results, &self.sections)?;
        shown
    }
}

/// Shows the results that `--json` has written.
fn show(arguments: &ShowArguments) -> Result<(), Failure> {
    let outputs = Outputs::to_files(&arguments.csv, &None, &arguments.plot)?;
    let text = files::read(&arguments.file, "FILE.json", LIMIT)?;
    let find = |name: &str| experiments::find(name).map(|experiment| experiment.about());
    let (results, sections) = experiment::from_json(&text, find)
        .map_err(|why| Failure::usage(format!("'{}': {why}", arguments.file.display())))?;
    let answers = experiments::find(&results.experiment)
        .map_or_else(Vec::new, |experiment| experiment.answers(&results));
    let shown = Shown {
        results: &results,
        sections,
        answers,
    };
    shown.report(outputs, !arguments.short)
}

/// The maximum size of a file of results in bytes; a long run has about 50 MB.
const LIMIT: u64 = 1 << 30;
