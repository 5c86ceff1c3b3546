//! A sample: the data of one run of a workload.

use crate::statistics::Quartiles;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use tollgate_exits::reading::Reading;
use tollgate_exits::snapshot::{ExitRow, Snapshot};
use tollgate_host_facts::hardware_counters::HardwareCounts;

/// The name of the value with the cycles that one event of a workload took.
pub const EVENT: &str = "event";

/// One timed run, as the bench returns it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Timed {
    /// Seconds that the workload took.
    pub seconds: f64,
    /// The work that the guest reports: must be the same in every run of the cell.
    pub work: BTreeMap<String, u64>,
    /// The machine's ledger, without origins.
    pub ledger: Snapshot,
    /// All other values that were measured.
    #[serde(deserialize_with = "numbers")]
    pub values: BTreeMap<String, f64>,
}

/// Reads only values that are numbers: JSON has null for others.
fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let values = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    let values = values.into_iter();
    Ok(values
        .filter_map(|(name, value)| Some((name, value?)))
        .collect())
}

impl Timed {
    /// A run that took `seconds` and left this ledger.
    pub fn new(seconds: f64, reading: &Reading) -> Self {
        let mut ledger = Snapshot::of(reading, |_| None);
        // The origins of exits are shown by `tollgate run --stats`; here they would be most of the
        // output.
        ledger.origins.clear();
        ledger.spaces.clear();
        Self {
            seconds,
            work: BTreeMap::new(),
            ledger,
            values: BTreeMap::new(),
        }
    }

    /// A run of `events` events that took `cycles`; [`EVENT`] is the cycles of one.
    pub fn of_events(events: u64, cycles: u64, reading: &Reading) -> Self {
        let cycles = cycles as f64;
        let mut timed = Self::new(cycles / (reading.tsc_khz.max(1) as f64 * 1e3), reading);
        let each = cycles / events as f64;
        timed.values.insert(EVENT.to_owned(), each);
        timed
    }

    /// Adds other counts as values; counts of zero are omitted.
    pub fn add_counts(&mut self, counts: &[(&str, u64)]) {
        let counts = counts.iter().filter(|row| row.1 != 0);
        let values = counts.map(|(name, count)| ((*name).to_owned(), *count as f64));
        self.values.extend(values);
    }

    /// The ledger's row for a kind of exit; `None` if there was no such exit.
    pub fn exits(&self, kind: &str) -> Option<&ExitRow> {
        self.ledger.exits.iter().find(|row| row.kind == kind)
    }
}

/// One timed run, and its place in the experiment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// The arm's name.
    pub arm: String,
    /// The number of this repetition of the arm, starting at 1.
    pub repetition: u32,
    /// The number of this sample in the whole experiment, starting at 1.
    pub order: usize,
    /// The measured values.
    #[serde(flatten)]
    pub timed: Timed,
    /// The counts of the host processor; `None` if it counts nothing.
    pub hardware: Option<HardwareCounts>,
}

/// What the guest executes, counted in a run that was not timed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counted {
    /// How often each kind of instruction is executed, by the name of its kind of exit.
    pub executed: BTreeMap<String, u64>,
    /// The number of all instructions, if it is known.
    pub instructions: Option<u64>,
    /// How the instructions were counted.
    pub how: String,
}

/// The cost of one exit, measured separately.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Price {
    /// The guest's name.
    pub guest: String,
    /// The arm's name.
    pub arm: String,
    /// The kind's name.
    pub kind: String,
    /// Cycles of the time-stamp counter: the median of the measured values.
    pub cycles: f64,
    /// All measured values.
    pub measured: Vec<f64>,
}

impl Price {
    /// The price that these measurements give; `None` if there are none.
    pub fn of(guest: &str, arm: &str, kind: &str, measured: Vec<f64>) -> Option<Self> {
        Some(Self {
            guest: guest.to_owned(),
            arm: arm.to_owned(),
            kind: kind.to_owned(),
            cycles: Quartiles::of(&measured)?.median,
            measured,
        })
    }
}
