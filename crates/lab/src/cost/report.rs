//! The results of `tollgate cost`, before they are written in a format.

use super::image::GuestMode;
use crate::statistics::Summary;
use serde::{Deserialize, Serialize};
use tollgate_host_facts::processors::HostDescription;

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
