//! What one run of a workload tells.

use crate::hardware_monitor::HardwareCounts;
use crate::statistics::Quartiles;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use tollgate_exits::books::Books;
use tollgate_exits::snapshot::{ExitRow, Snapshot};

/// The value of samples that says how many cycles one event of a workload took.
pub const EVENT: &str = "event";

/// One timed run, as the bench hands it over.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Timed {
    /// Seconds that the work took.
    pub seconds: f64,
    /// What the guest says it did: must be the same in every run of the cell.
    pub work: BTreeMap<String, u64>,
    /// The machine's ledger, without origins.
    pub ledger: Snapshot,
    /// Whatever else was measured.
    #[serde(deserialize_with = "numbers")]
    pub values: BTreeMap<String, f64>,
}

/// Values that are numbers: JSON has null for others.
fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let values = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    let values = values.into_iter();
    Ok(values
        .filter_map(|(name, value)| Some((name, value?)))
        .collect())
}

impl Timed {
    /// A run that took so long and left these books.
    pub fn new(seconds: f64, books: &Books) -> Self {
        let mut ledger = Snapshot::of(books, |_| None);
        // Where exits came from is for `tollgate run --stats`; here it would be most of
        // the output.
        ledger.origins.clear();
        ledger.spaces.clear();
        Self {
            seconds,
            work: BTreeMap::new(),
            ledger,
            values: BTreeMap::new(),
        }
    }

    /// A run of so many events that took so many cycles; [`EVENT`] is what one took.
    pub fn of_events(events: u64, cycles: u64, books: &Books) -> Self {
        let cycles = cycles as f64;
        let mut timed = Self::new(cycles / (books.tsc_khz.max(1) as f64 * 1e3), books);
        let each = cycles / events as f64;
        timed.values.insert(EVENT.to_owned(), each);
        timed
    }

    /// Adds what was counted besides, as values; what did not occur is left out.
    pub fn add_counts(&mut self, counts: &[(&str, u64)]) {
        let counts = counts.iter().filter(|row| row.1 != 0);
        let values = counts.map(|(name, count)| ((*name).to_owned(), *count as f64));
        self.values.extend(values);
    }

    /// The ledger's row about a kind of exit; `None` if there was no such exit.
    pub fn exits(&self, kind: &str) -> Option<&ExitRow> {
        self.ledger.exits.iter().find(|row| row.kind == kind)
    }
}

/// One timed run in its place in the experiment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// The arm's name.
    pub arm: String,
    /// Which repetition of this arm, from 1.
    pub repetition: u32,
    /// Which sample of the whole experiment, from 1.
    pub order: usize,
    /// What was measured.
    #[serde(flatten)]
    pub timed: Timed,
    /// What the host's processor counted; `None` if it counts nothing.
    pub hardware: Option<HardwareCounts>,
}

/// What the guest executes, counted in a run that was not timed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counted {
    /// How often each kind of instruction is executed, by the name of its kind of exit.
    pub executed: BTreeMap<String, u64>,
    /// All instructions, if that can be told.
    pub instructions: Option<u64>,
    /// How it was counted.
    pub how: String,
}

/// What one exit costs, measured apart.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Price {
    /// The guest's name.
    pub guest: String,
    /// The arm's name.
    pub arm: String,
    /// The kind's name.
    pub kind: String,
    /// Cycles of the time-stamp counter: the median of what was measured.
    pub cycles: f64,
    /// All that was measured.
    pub measured: Vec<f64>,
}

impl Price {
    /// The price that these measurements come to; `None` if there are none.
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
