//! The common part of all experiments.
//!
//! An experiment compares *arms*: settings of the same machine that differ in the knob under test
//! and in nothing else. It has *workloads* and *guests*; one of each is a *cell*. For each cell,
//! this module
//!
//! 1. opens a [`Bench`]: whatever the experiment needs to run that workload on that guest;
//! 2. makes it count once what the guest executes, with counting that may slow it down;
//! 3. times it, all arms in turns (A B C, B C A, ...) until each has its repetitions, and fails if
//!    any run did other work than the first;
//! 4. compares each arm with the first: ratio of the medians, and "no difference measured" if the
//!    middle halves overlap.
//!
//! Every sample is kept with its ledger. A [`Journal`] keeps in a file what is finished, so that an
//! interrupted run can be continued with [`resume`]. Tables, CSV, JSON and plots are made from [`Results`] and
//! know no particular experiment; an experiment adds what is specific to it as [`Section`]s.
//!
//! ```text
//! Experiment --about--> arms, workloads, guests, kinds of exit that matter
//!     |
//!     +--open(cell)--> Bench --count()----> Counted   \
//!     |                      --measure(arm)-> Sample   > Results --> table, CSV, JSON, plot
//!     +--prices(arm)------------------------> Price   /
//! ```

mod about;
mod busy;
mod clock;
mod compare;
mod error;
mod export;
mod journal;
#[cfg(test)]
mod journal_tests;
mod kind_tables;
mod number_plot;
mod origin;
pub(crate) mod parts;
mod plan;
mod plot;
mod results;
mod run;
#[cfg(test)]
mod run_tests;
mod same_work;
mod sample;
mod section;
mod share;
mod stop;
mod stored;
mod summary;
mod table;
#[cfg(test)]
pub(crate) mod test_experiment;
mod workload_plot;

pub use about::{
    About, Arm, Contention, Guest, KindGroup, Metric, Numbers, Workload, WorkloadNumbers,
};
pub use compare::{Comparison, Verdict};
pub use error::LabError;
pub use export::{samples_csv, to_json};
pub use journal::{Journal, JournalError};
pub use origin::{Origin, build};
pub use plan::{Cell, GuestImages, LEAST_REPETITIONS, Options, REPETITIONS, planned_samples};
pub use plot::{PlotPart, plot_svg, write_plot};
pub use results::{CellOutcome, CellResult, Results};
pub use run::{Observer, resume, run};
pub use sample::{Counted, EVENT, Price, Sample, Timed};
pub use section::{Section, columns, whole};
pub(crate) use section::{grouped, is_figure, percent, rounded};
pub use share::{Share, shares};
pub use stop::Stop;
pub use stored::from_json;
pub use summary::summary;
pub use table::table;

use std::path::Path;
use tollgate_host_facts::file_words::reading;

/// An experiment that `tollgate lab` can run.
pub trait Experiment {
    /// The description of the experiment.
    fn about(&self) -> &'static About;

    /// Prepares to run a workload on a guest.
    ///
    /// # Errors
    ///
    /// [`LabError::NotRun`] if this cell cannot run here; the others are still run.
    fn open(&self, cell: &Cell, options: &Options, stop: &Stop)
    -> Result<Box<dyn Bench>, LabError>;

    /// Checks the file or folder that the user supplies for a guest, before anything is measured.
    ///
    /// # Errors
    ///
    /// [`LabError::NotRun`] if it cannot be used.
    fn check_image(&self, _guest: &str, path: &Path) -> Result<(), LabError> {
        std::fs::metadata(path).map(drop).map_err(|error| {
            let (path, why) = (path.display(), reading(&error));
            LabError::NotRun(format!("--guest-image: cannot read '{path}': {why}"))
        })
    }

    /// The cost of one exit of each kind with this arm on this guest, measured separately from the
    /// workloads. Empty by default.
    ///
    /// # Errors
    ///
    /// The guest did not do its work.
    fn prices(
        &self,
        _guest: &Guest,
        _arm: &Arm,
        _options: &Options,
        _stop: &Stop,
    ) -> Result<Vec<Price>, LabError> {
        Ok(Vec::new())
    }

    /// The findings as answers to the experiment's question: one sentence each, with the original
    /// study's figure where it has one. Empty by default.
    fn answers(&self, _results: &Results) -> Vec<String> {
        Vec::new()
    }

    /// Sections of this experiment in addition to the tables that all have, such as a comparison of
    /// the original study's figures with ours.
    fn sections(&self, _results: &Results) -> Vec<Section> {
        Vec::new()
    }
}

/// The machine of one cell, which can be run repeatedly.
pub trait Bench {
    /// Counts what the guest executes, in a run that is not timed; `None` if the experiment counts
    /// nothing.
    ///
    /// # Errors
    ///
    /// The guest did not do its work.
    fn count(&mut self, _stop: &Stop) -> Result<Option<Counted>, LabError> {
        Ok(None)
    }

    /// Whether [`Bench::measure`] runs the guest on the thread that calls it: hardware counters
    /// count only that thread.
    fn is_on_calling_thread(&self) -> bool {
        true
    }

    /// Runs the workload once with this arm's settings.
    ///
    /// # Errors
    ///
    /// The guest did not do its work, or the run was interrupted.
    fn measure(&mut self, arm: &Arm, stop: &Stop) -> Result<Timed, LabError>;
}
