//! `tollgate lab all`: all studies one after the other into one folder, and one report of them.

use std::time::{Duration, Instant};

use tollgate_lab::cost::{self, CostError};
use tollgate_lab::experiment::{self, Experiment, Journal, Options, Stop};
use tollgate_lab::experiments;
use tollgate_lab::guest_versions;
use tollgate_lab::report::{COST, EarlierRun};

use super::all_arguments::AllArguments;
use super::arguments::options;
use super::cost_parts::{Measured, PARTS, Part};
use super::folder::{Earlier, Folder};
use super::progress::{Progress, Whole};
use super::report;
use crate::failure::{Failure, say};
use crate::interruption::Interruption;
use crate::standard_output::print;
use crate::{doctor, exit_code};

/// Runs `tollgate lab all` and returns its exit code.
pub fn run(arguments: &AllArguments) -> Result<u8, Failure> {
    let folder = Folder::open(&arguments.output)?;
    let arguments = &as_before(arguments, &folder);
    let chosen = arguments.chosen();
    check(arguments, &folder, &chosen)?;
    let earlier = arguments.compare.as_deref().map(report::earlier);
    let earlier = earlier.transpose()?;
    doctor::required_floor().map_err(Failure::host)?;
    let stop = Stop::new();
    let interruption = Interruption::of(&stop)?;
    let all = All {
        arguments,
        folder: &folder,
        earlier: earlier.as_ref(),
        stop: &stop,
        end: arguments.time().map(|time| Instant::now() + time),
    };
    let ended = all.studies(&chosen)?;
    let path = folder.path().display();
    print(&format!(
        "Report: {path}/report.html and {path}/report.md; samples, tables and plots are in the same folder.\n"
    ))?;
    if ended.is_unfinished || stop.is_requested() {
        say(&format!(
            "some samples are missing, for the reasons in the report; to measure them: tollgate lab all --output '{path}' --resume"
        ));
    }
    match (interruption.exit_code(), ended.failures.first()) {
        (None, None) => Ok(exit_code::SUCCESS),
        (None, Some(failure)) => Err(Failure::host(failure.clone())),
        (Some(code), _) => Ok(code),
    }
}

/// The arguments, with the options of the run that is continued where none are given.
fn as_before(arguments: &AllArguments, folder: &Folder) -> AllArguments {
    let mut arguments = arguments.clone();
    if arguments.resume {
        let stored = arguments.chosen().into_iter();
        let mut stored = stored.filter_map(|name| Journal::origin(&folder.journal_file(name)).ok());
        if let Some(origin) = stored.next() {
            let samples = &mut arguments.samples;
            samples.quick |= origin.quick;
            samples.repetitions = samples.repetitions.or(Some(origin.repetitions));
        }
    }
    arguments
}

/// Checks what can be checked before anything is measured.
fn check(arguments: &AllArguments, folder: &Folder, chosen: &[&str]) -> Result<(), Failure> {
    let path = folder.path().display();
    let begun = |name: &&&str| folder.journal_file(name).exists();
    match (arguments.resume, chosen.iter().find(begun)) {
        (false, Some(name)) => {
            return Err(Failure::usage(format!(
                "--output: '{path}' holds a run of '{name}' already: --resume continues it, or name another folder"
            )));
        }
        (true, None) => {
            return Err(Failure::usage(format!(
                "--resume: '{path}' holds no run to continue; without --resume, one begins"
            )));
        }
        _ => {}
    }
    let mut guests: Vec<&str> = Vec::new();
    for experiment in experiments::all() {
        let about = experiment.about();
        if chosen.contains(&about.name) {
            guests.extend(about.guests.iter().map(|guest| guest.name));
        }
        for (name, path) in &arguments.samples.guest_image {
            if about.guests.iter().any(|guest| guest.name == name) {
                experiment
                    .check_image(name, path)
                    .map_err(|error| Failure::usage(error.to_string()))?;
            }
        }
    }
    let unknown = |it: &&(String, _)| !guests.contains(&it.0.as_str());
    match arguments.samples.guest_image.iter().find(unknown) {
        None => Ok(()),
        Some((name, _)) => {
            guests.sort_unstable();
            guests.dedup();
            Err(Failure::usage(format!(
                "--guest-image: no guest is called '{name}'; there are: {}",
                guests.join(", ")
            )))
        }
    }
}

/// A run of several studies.
struct All<'a> {
    arguments: &'a AllArguments,
    folder: &'a Folder,
    earlier: Option<&'a EarlierRun>,
    stop: &'a Stop,
    /// When the run should end; `None` if it may take any time.
    end: Option<Instant>,
}

/// What became of the studies.
#[derive(Default)]
struct Ended {
    /// `study: reason`, for each that failed or has a guest that failed.
    failures: Vec<String>,
    /// Whether samples are missing that `--resume` would measure.
    is_unfinished: bool,
}

impl All<'_> {
    fn studies(&self, chosen: &[&'static str]) -> Result<Ended, Failure> {
        let mut ended = Ended::default();
        let mut missing: Vec<(String, String)> = Vec::new();
        let mut whole = Whole::new(
            chosen
                .iter()
                .map(|name| (*name, self.planned(name)))
                .collect(),
        );
        for (index, name) in chosen.iter().enumerate() {
            if self.stop.is_requested() {
                missing.push(((*name).to_owned(), "the run was interrupted before".into()));
                continue;
            }
            let left = u32::try_from(chosen.len() - index).unwrap_or(u32::MAX);
            let time = self
                .end
                .map(|end| end.saturating_duration_since(Instant::now()) / left);
            whole.begin(name, self.end);
            let done = match experiments::find(name) {
                Some(experiment) => self.experiment(&*experiment, time, &mut whole, &mut ended),
                None => self.cost(&mut whole),
            };
            if let Err(failure) = done {
                ended.failures.push(format!("{name}: {}", failure.message));
                missing.push(((*name).to_owned(), failure.message));
            }
            let studies = report::studies(self.folder, &missing)?;
            report::write(self.folder, &studies, self.earlier)?;
        }
        if self.stop.is_requested() {
            let studies = report::studies(self.folder, &missing)?;
            report::write(self.folder, &studies, self.earlier)?;
        }
        Ok(ended)
    }

    /// The number of samples of a study; 0 if it is not known.
    fn planned(&self, name: &str) -> usize {
        experiments::find(name).map_or(0, |experiment| {
            let options = self.options(&*experiment);
            experiment::planned_samples(experiment.about(), &options)
        })
    }

    fn options(&self, experiment: &dyn Experiment) -> Options {
        let guests = experiment.about().guests.iter();
        let guests: Vec<&str> = guests.map(|guest| guest.name).collect();
        options(&self.arguments.of_experiment(&guests))
    }

    fn experiment(
        &self,
        experiment: &dyn Experiment,
        time: Option<Duration>,
        whole: &mut Whole,
        ended: &mut Ended,
    ) -> Result<(), Failure> {
        let about = experiment.about();
        let guests: Vec<&str> = about.guests.iter().map(|guest| guest.name).collect();
        let arguments = self.arguments.of_experiment(&guests);
        let (options, mut journal) =
            self.folder
                .journal(about.name, &arguments, self.earlier_of(about.name))?;
        let options = Options { time, ..options };
        let mut progress = Progress::of(whole);
        let results =
            experiment::resume(experiment, &options, self.stop, &mut progress, &mut journal);
        progress.clear();
        let mut results = results.map_err(|error| Failure::host(error.to_string()))?;
        results.guest_versions = guest_versions::recorded(&results, &options.images);
        let failures = results.failures().into_iter();
        ended
            .failures
            .extend(failures.map(|why| format!("{}: {why}", about.name)));
        ended.is_unfinished |= results.finished < results.planned;
        self.folder.write(&results, &experiment.sections(&results))
    }

    /// Whether a study is continued or begins: with `--resume`, those that are not begun begin.
    fn earlier_of(&self, name: &str) -> Earlier {
        let is_begun = self.folder.journal_file(name).exists();
        Earlier::of(self.arguments.resume && is_begun)
    }

    /// Measures what exits cost. A measurement that was not complete begins again.
    fn cost(&self, whole: &mut Whole) -> Result<(), Failure> {
        let folder = self.folder;
        let arguments = self.arguments.of_experiment(&[]);
        // The file holds no samples, but says where the results come from.
        let (_, _journal) = folder.journal(COST, &arguments, self.earlier_of(COST))?;
        let options = match self.arguments.samples.quick {
            true => cost::Options::quick(),
            false => cost::Options::default(),
        };
        let mut ended = Ok(());
        for part in PARTS {
            if self.stop.is_requested() {
                break;
            }
            if is_complete(folder, part) {
                continue;
            }
            let mut progress = Progress::of(whole);
            let measured = (part.run)(&options, self.stop, &mut progress);
            progress.clear();
            match measured {
                // Only the first part says in its results that it was interrupted.
                Ok(_) if self.stop.is_requested() && part.name != COST => break,
                Ok(measured) => keep(folder, part, measured)?,
                Err(CostError::Interrupted) => break,
                Err(error) => {
                    let text = format!("not run: {error}\n");
                    folder.replace(&folder.file(part.name, "txt"), text.as_bytes())?;
                    if part.name == COST || matches!(error, CostError::WorkNotDone(_)) {
                        ended = Err(Failure::host(error.to_string()));
                    }
                }
            }
        }
        ended
    }
}

/// Whether a part of `tollgate cost` was measured before. One that was interrupted begins again.
fn is_complete(folder: &Folder, part: &Part) -> bool {
    let text = std::fs::read(folder.file(part.name, "json"));
    text.is_ok_and(|text| {
        part.name != COST || cost::from_json(&text).is_ok_and(|report| report.is_complete)
    })
}

/// Writes the files of a part of `tollgate cost`.
fn keep(folder: &Folder, part: &Part, measured: Measured) -> Result<(), Failure> {
    (measured.draw)(&folder.file(part.name, "svg"))
        .map_err(|error| Failure::usage(format!("--output: {error}")))?;
    for (ending, text) in measured.texts {
        folder.replace(&folder.file(part.name, ending), text.as_bytes())?;
    }
    Ok(())
}
