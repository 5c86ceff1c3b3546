//! Writes an experiment's results to the files that the command line names.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use tollgate_lab::experiment::{Results, Section, samples_csv, to_json, write_plot};
use tollgate_plots::PlotFormat;

use super::arguments::ExperimentArguments;
use crate::failure::Failure;
use crate::files::{self, Reserved};

/// The files to write.
pub struct Outputs {
    csv: Option<(File, PathBuf)>,
    json: Option<(File, PathBuf)>,
    plot: Option<(PlotFormat, PathBuf)>,
    /// Dropped when the files are written or will not be written.
    _reserved: Vec<Reserved>,
}

impl Outputs {
    /// Creates the files, so that a wrong path is reported before the guest runs.
    ///
    /// # Errors
    ///
    /// One line says which file cannot be written.
    pub fn open(arguments: &ExperimentArguments) -> Result<Self, Failure> {
        Self::to_files(&arguments.csv, &arguments.json, &arguments.plot)
    }

    /// Creates the files with these paths.
    ///
    /// # Errors
    ///
    /// One line says which file cannot be written.
    pub fn to_files(
        csv: &Option<PathBuf>,
        json: &Option<PathBuf>,
        drawing: &Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let mut reserved = Vec::new();
        let mut reserve = |path: &Path, flag| -> Result<File, Failure> {
            let (file, guard) = files::reserve(path, flag)?;
            reserved.push(guard);
            Ok(file)
        };
        let mut plot = None;
        if let Some(path) = drawing {
            let name = path.display();
            let format = PlotFormat::of(path).ok_or_else(|| {
                Failure::usage(format!("--plot: '{name}' must end in .svg or .png"))
            })?;
            reserve(path, "--plot")?;
            plot = Some((format, path.clone()));
        }
        let mut open = |path: &Option<PathBuf>, flag| -> Result<_, Failure> {
            let path = path.as_ref();
            path.map(|path| Ok((reserve(path, flag)?, path.clone())))
                .transpose()
        };
        Ok(Self {
            plot,
            csv: open(csv, "--csv")?,
            json: open(json, "--json")?,
            _reserved: reserved,
        })
    }

    /// Writes the results to the files.
    ///
    /// # Errors
    ///
    /// One line says which file cannot be written.
    pub fn write(self, results: &Results, sections: &[Section]) -> Result<(), Failure> {
        let texts = [
            ("--csv", self.csv, samples_csv(results)),
            ("--json", self.json, to_json(results, sections)),
        ];
        for (flag, file, text) in texts {
            if let Some((mut file, path)) = file {
                file.write_all(text.as_bytes()).map_err(|error| {
                    let path = path.display();
                    let why = tollgate_host_facts::file_words::writing(&error);
                    Failure::usage(format!("{flag}: cannot write '{path}': {why}"))
                })?;
            }
        }
        let is_empty = results.cells.iter().all(|cell| cell.samples().is_empty());
        if let Some((format, path)) = self.plot.filter(|_| !is_empty) {
            write_plot(results, &path, format)
                .map_err(|error| Failure::usage(format!("--plot: {error}")))?;
        }
        Ok(())
    }
}
