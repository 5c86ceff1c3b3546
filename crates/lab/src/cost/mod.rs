//! `tollgate cost`: what an exit costs.
//!
//! A bare-metal guest of our own takes each kind of exit many times in succession (in batches) and
//! as single events, reads the time-stamp counter before and after, and passes the readings on
//! through its memory. The same loop without the event is measured and subtracted. The ledger must
//! have counted exactly the exits that the guest reports; otherwise the experiment fails.
//!
//! What is measured is a call out of translated code inside one process. It does not cross a
//! protection boundary, so its price is never compared with that of a hardware exit.

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

use crate::statistics::Summary;
use serde::{Deserialize, Serialize};
use std::fmt;
use tollgate_host_facts::processors::HostDescription;

/// The options of an experiment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Number of single events for each kind, mode and pinning.
    pub samples: usize,
    /// Number of batches for each kind, mode and pinning.
    pub batches: usize,
    /// Number of events in a batch.
    pub repeat: usize,
    /// Measures only these kinds; if empty, all.
    pub kinds: Vec<String>,
    /// Measures only these modes; if empty, all.
    pub modes: Vec<GuestMode>,
    /// The host processor to which the thread is pinned; `None` for the one where it runs.
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
    /// Options for few samples, which suffice to see that everything works.
    pub fn quick() -> Self {
        Self {
            samples: 200,
            batches: 5,
            repeat: 50,
            ..Self::default()
        }
    }
}

/// Receives the progress of an experiment, and can stop it.
pub trait Observer {
    /// Reports that `done` of `total` rows are complete, and that `next` starts now.
    fn progress(&mut self, done: usize, total: usize, next: &str);

    /// Whether the experiment should stop; finished rows are kept.
    fn is_interrupted(&mut self) -> bool;
}

/// Why there is no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CostError {
    /// The host refused something.
    Host(String),
    /// No kind has this name.
    UnknownKind(String),
    /// None of the requested kinds occurs in the requested modes.
    NothingChosen,
    /// The guest did not do its work, or the ledger's counts differ from it.
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
    /// The number of batches.
    pub batches: u64,
    /// The number of events in each batch.
    pub repeat: u64,
    /// The mean of all batches.
    pub mean: f64,
    /// The median of the batches' means.
    pub median: f64,
    /// The cycles of one event that were subtracted.
    pub baseline: f64,
    /// What a batch contains.
    pub contents: BatchContents,
}

/// What a batch contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchContents {
    /// Only the event.
    EventOnly,
    /// The event, and what must precede or follow it.
    WithPreparation,
}

/// The exits of one kind, as the ledger counted them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CheckedCount {
    /// The kind's name.
    pub kind: String,
    /// The number that the guest's loops must have caused (at least, if `at_least`).
    pub expected: u64,
    /// The number that the ledger counted.
    pub counted: u64,
    /// More exits are accepted, because other work of the loop counts as the same kind.
    pub at_least: bool,
}

/// One row: a kind of exit in one mode, pinned or not.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The kind's name.
    pub kind: String,
    /// What happens between the readings of the clock.
    pub what: String,
    /// The guest's mode.
    pub mode: GuestMode,
    /// Whether the thread was pinned to one host processor.
    pub pinned: bool,
    /// Cycles that were subtracted from each single event.
    pub baseline: u64,
    /// Statistics of single events, in cycles.
    pub single: Summary,
    /// Statistics of batches; `None` if most of their time would be waiting.
    pub batch: Option<BatchResult>,
    /// The number of exits of any kind for each event.
    pub exits_each: f64,
    /// The counted exits of single events and batches together.
    pub counts: Vec<CheckedCount>,
    /// The values of `single`, with their numbers of occurrences.
    pub distribution: Vec<(u64, u64)>,
}

/// The result of the experiment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// A description of the host.
    pub host: HostDescription,
    /// The host processor on which pinned rows ran.
    pub pinned_to: usize,
    /// The step in cycles by which the time-stamp counter advances, which limits the resolution of
    /// a single value. Derived from the readings.
    pub tsc_step: u64,
    /// Whether everything that was requested was measured.
    pub is_complete: bool,
    /// The rows, in the order of the output.
    pub rows: Vec<Row>,
}

impl Report {
    /// A sentence about the steps of the time-stamp counter, if they are large enough to matter.
    pub fn steps_in_words(&self) -> String {
        match self.tsc_step {
            0 | 1 => String::new(),
            step => format!(" in steps of {step} cycles"),
        }
    }

    /// Converts cycles to nanoseconds.
    pub fn nanoseconds(&self, cycles: f64) -> f64 {
        cycles * 1e6 / self.host.tsc_khz.max(1) as f64
    }
}
