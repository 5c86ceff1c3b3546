//! `tollgate cost`: what an exit costs.
//!
//! A bare-metal guest of our own takes each kind of exit many times in a row (batches)
//! and one by one, reads the time-stamp counter before and after, and hands the
//! readings over through its memory. The same loop without the event is the no-op path
//! that is subtracted. The ledger must have counted exactly the exits that the guest
//! says it took; if it has not, the experiment fails.
//!
//! What is priced is a call out of translated code inside one process. It crosses no
//! protection boundary, so its price is never set against that of a hardware exit.

mod export;
mod guest;
pub mod kinds;
mod measure;
pub mod overhead;
mod plot;
mod summary;
mod table;
mod virtio;

pub use export::{samples_csv, summary_csv, to_json};
pub use guest::{GuestMode, table as guest_table};
pub use measure::run;
pub use plot::write_plot;
pub use summary::summary;
pub use table::table;

use crate::host::HostDescription;
use crate::statistics::Summary;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How an experiment is to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Events timed one by one, for each kind, mode and pinning.
    pub samples: usize,
    /// Batches, for each kind, mode and pinning.
    pub batches: usize,
    /// Events in a batch.
    pub repeat: usize,
    /// Only these kinds; empty: all.
    pub kinds: Vec<String>,
    /// Only these modes; empty: all.
    pub modes: Vec<GuestMode>,
    /// The host processor to be pinned to; `None`: the one where the thread is.
    pub processor: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            samples: 10_000,
            batches: 50,
            repeat: 1000,
            kinds: Vec::new(),
            modes: Vec::new(),
            processor: None,
        }
    }
}

impl Options {
    /// Few samples: enough to see that everything works.
    pub fn quick() -> Self {
        Self {
            samples: 200,
            batches: 5,
            repeat: 50,
            ..Self::default()
        }
    }
}

/// What the experiment tells, and asks, while it runs.
pub trait Observer {
    /// `done` of `total` rows are complete; `next` comes now.
    fn progress(&mut self, done: usize, total: usize, next: &str);

    /// Whether somebody wants it to end; what is finished is kept.
    fn is_interrupted(&mut self) -> bool;
}

/// Why there is no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CostError {
    /// The host refused something.
    Host(String),
    /// No kind has this name.
    UnknownKind(String),
    /// None of the kinds that were asked for occurs in the modes that were.
    NothingChosen,
    /// The guest did not do what it was to do, or the ledger says that it did not.
    WorkNotDone(String),
}

impl fmt::Display for CostError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(why) => write!(formatter, "the host refused: {why}"),
            Self::UnknownKind(name) => {
                write!(
                    formatter,
                    "--kind: no kind of exit is called '{name}'; there are: "
                )?;
                let names: Vec<_> = kinds::KINDS.iter().map(|kind| kind.name).collect();
                formatter.write_str(&names.join(", "))
            }
            Self::NothingChosen => formatter
                .write_str("none of these kinds (--kind) is measured in these modes (--mode)"),
            Self::WorkNotDone(why) => {
                write!(formatter, "no result: the guest did not do its work: {why}")
            }
        }
    }
}

impl std::error::Error for CostError {}

/// Costs in batches, in cycles of one event.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct BatchResult {
    /// How many batches.
    pub batches: u64,
    /// Events in each.
    pub repeat: u64,
    /// Mean over all batches.
    pub mean: f64,
    /// Median of the batches' means.
    pub median: f64,
    /// What was subtracted, for one event.
    pub baseline: f64,
    /// What a batch consists of.
    pub contents: BatchContents,
}

/// What a batch consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchContents {
    /// The event alone.
    EventOnly,
    /// What must come before or after each event is part of it.
    WithPreparation,
}

/// Exits of one kind, as the ledger counted them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CheckedCount {
    /// The kind's name.
    pub kind: String,
    /// How many the guest's loops must have caused (at least, if `at_least`).
    pub expected: u64,
    /// How many the ledger counted.
    pub counted: u64,
    /// Other work of the loop counts as the same kind.
    pub at_least: bool,
}

/// One row: a kind of exit in one mode, pinned or not.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The kind's name.
    pub kind: String,
    /// What happens between the readings.
    pub what: String,
    /// The guest's mode.
    pub mode: GuestMode,
    /// The thread was pinned to one host processor.
    pub pinned: bool,
    /// What was subtracted from each event timed alone, in cycles.
    pub baseline: u64,
    /// Events timed one by one, in cycles.
    pub single: Summary,
    /// Events timed in batches; none if most of that would be waiting.
    pub batch: Option<BatchResult>,
    /// Exits of each event, whatever their kind.
    pub exits_each: f64,
    /// Exits, from both ways of timing together.
    pub counts: Vec<CheckedCount>,
    /// The values of `single` and how often each occurred.
    pub distribution: Vec<(u64, u64)>,
}

/// The experiment's result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Where it ran.
    pub host: HostDescription,
    /// The host processor that pinned rows ran on.
    pub pinned_to: usize,
    /// The time-stamp counter moves on in steps of so many cycles: no single value is
    /// finer. Found from the readings.
    pub tsc_step: u64,
    /// Everything asked for was measured.
    pub is_complete: bool,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Report {
    /// The steps of the time-stamp counter, if they are worth a word.
    pub fn steps_in_words(&self) -> String {
        match self.tsc_step {
            0 | 1 => String::new(),
            step => format!(" in steps of {step} cycles"),
        }
    }

    /// Cycles as nanoseconds.
    pub fn nanoseconds(&self, cycles: f64) -> f64 {
        cycles * 1e6 / self.host.tsc_khz.max(1) as f64
    }
}
