//! The folder of `--output`: what an experiment has finished while it runs, and its results at the
//! end.
//!
//! ```text
//! FOLDER/vif.samples.jsonl   every finished sample, written when it is finished
//! FOLDER/vif.json, vif.csv, vif.svg, vif.txt   the results: everything, samples, plot, tables
//! FOLDER/report.html, report.md                the report of all experiments in the folder
//! ```

use std::path::{Path, PathBuf};

use tollgate_host_facts::file_words::writing;
use tollgate_lab::experiment::{
    self, GuestImages, Journal, Options, Origin, Results, Section, samples_csv, to_json,
};
use tollgate_plots::PlotFormat;

use super::arguments::{ExperimentArguments, options};
use crate::failure::Failure;
use crate::files;

/// What to do with the results that are in the folder already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Earlier {
    /// They must be continued.
    Resume,
    /// There must be none.
    Refuse,
}

impl Earlier {
    /// The choice of `--resume`.
    pub fn of(resume: bool) -> Self {
        if resume { Self::Resume } else { Self::Refuse }
    }
}

/// A folder of results.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder with this path, which is made if it does not exist.
    ///
    /// # Errors
    ///
    /// One line says why it cannot be made.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        std::fs::create_dir_all(path).map_err(|error| {
            let why = match error.kind() {
                std::io::ErrorKind::AlreadyExists => "it is a file".into(),
                _ => writing(&error),
            };
            Failure::usage(format!(
                "--output: cannot make the folder '{}': {why}",
                path.display()
            ))
        })?;
        Ok(Self(path.to_owned()))
    }

    /// The folder with this path, which `flag` names.
    ///
    /// # Errors
    ///
    /// It does not exist.
    pub fn existing(path: &Path, flag: &str) -> Result<Self, Failure> {
        match path.is_dir() {
            true => Ok(Self(path.to_owned())),
            false => Err(Failure::usage(format!(
                "{flag}: there is no folder '{}'",
                path.display()
            ))),
        }
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in the folder.
    pub fn file(&self, name: &str, ending: &str) -> PathBuf {
        self.0.join(format!("{name}.{ending}"))
    }

    /// The file with the finished samples of a study.
    pub fn journal_file(&self, name: &str) -> PathBuf {
        self.file(name, JOURNAL)
    }

    /// The finished samples of the experiment `name`, and the options of this run:
    /// those of the run that is continued, if there is one.
    ///
    /// # Errors
    ///
    /// One line says why the run cannot begin or be continued.
    pub fn journal(
        &self,
        name: &str,
        arguments: &ExperimentArguments,
        earlier: Earlier,
    ) -> Result<(Options, Journal), Failure> {
        let path = self.journal_file(name);
        let refusal = |why: &dyn std::fmt::Display| {
            Failure::usage(format!("--output: '{}': {why}", path.display()))
        };
        let folder = self.0.display();
        match (path.exists(), earlier) {
            (false, Earlier::Resume) => Err(Failure::usage(format!(
                "--resume: '{folder}' holds no run of '{name}' to continue; without --resume, one begins"
            ))),
            (true, Earlier::Refuse) => Err(Failure::usage(format!(
                "--output: '{folder}' holds a run of '{name}' already: --resume continues it, or name \
                 another folder"
            ))),
            (false, Earlier::Refuse) => {
                let options = options(arguments);
                let journal = Journal::create(&path, &Origin::here(name, &options));
                Ok((options, journal.map_err(|why| refusal(&why))?))
            }
            (true, Earlier::Resume) => {
                let stored = Journal::origin(&path).map_err(|why| refusal(&why))?;
                let options = continued(stored.options(), arguments);
                let journal = Journal::resume(&path, &Origin::here(name, &options));
                Ok((options, journal.map_err(|why| refusal(&why))?))
            }
        }
    }

    /// Writes the results of an experiment.
    ///
    /// # Errors
    ///
    /// One line says which file cannot be written.
    pub fn write(&self, results: &Results, sections: &[Section]) -> Result<(), Failure> {
        let texts = [
            ("json", to_json(results, sections)),
            ("csv", samples_csv(results)),
            ("txt", experiment::table(results, sections)),
        ];
        for (ending, text) in texts {
            self.replace(&self.file(&results.experiment, ending), text.as_bytes())?;
        }
        if results.cells.iter().any(|cell| !cell.samples().is_empty()) {
            let path = self.file(&results.experiment, "svg");
            experiment::write_plot(results, &path, PlotFormat::Svg)
                .map_err(|error| Failure::usage(format!("--output: {error}")))?;
        }
        Ok(())
    }

    /// Writes a file of the folder; a reader finds the old content or the new one.
    ///
    /// # Errors
    ///
    /// One line says which file cannot be written.
    pub fn replace(&self, path: &Path, content: &[u8]) -> Result<(), Failure> {
        files::replace(path, content).map_err(|error| {
            let why = writing(&error);
            Failure::usage(format!(
                "--output: cannot write '{}': {why}",
                path.display()
            ))
        })
    }
}

/// How the name of the file with the finished samples ends.
const JOURNAL: &str = "samples.jsonl";

/// The options of the run that is continued, with what the command line requests instead. What must
/// not change is refused when the two are compared.
fn continued(stored: Options, arguments: &ExperimentArguments) -> Options {
    let given = |words: &[String], stored: Vec<String>| match words {
        [] => stored,
        words => words.to_vec(),
    };
    let samples = &arguments.samples;
    let images = stored.images.all();
    let images = images.map(|(name, path)| (name.to_owned(), path.to_owned()));
    Options {
        repetitions: samples.repetitions.unwrap_or(stored.repetitions),
        quick: stored.quick || samples.quick,
        workloads: given(&arguments.workload, stored.workloads.clone()),
        guests: given(&arguments.guest, stored.guests.clone()),
        arms: given(&arguments.arm, stored.arms.clone()),
        images: GuestImages::of(images.chain(samples.guest_image.iter().cloned())),
        time: None,
    }
}
