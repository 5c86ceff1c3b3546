//! Everything that an experiment came to.

use super::busy::is_too_busy;
use super::{About, Arm, Comparison, Counted, LabError, Metric, Price, Sample, Verdict};
use crate::host::HostDescription;
use crate::statistics::Quartiles;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An arm as the output describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ArmDescription {
    /// Its name.
    pub name: String,
    /// What it stands for.
    pub what: String,
    /// Its knobs.
    pub settings: BTreeMap<String, String>,
}

impl From<&Arm> for ArmDescription {
    fn from(arm: &Arm) -> Self {
        let settings = arm.settings.iter();
        Self {
            name: arm.name.to_owned(),
            what: arm.what.to_owned(),
            settings: settings
                .map(|&(knob, value)| (knob.to_owned(), value.to_owned()))
                .collect(),
        }
    }
}

/// How a cell ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CellOutcome {
    /// It was measured; if the experiment was interrupted, not to the end.
    Measured {
        /// What the guest executes.
        counted: Option<Counted>,
        /// Every run.
        samples: Vec<Sample>,
    },
    /// It cannot be had here: the reason.
    NotRun(String),
    /// The guest did not do its work, or not the same each time: the reason.
    Failed(String),
}

/// One workload on one guest.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CellResult {
    /// The guest's name.
    pub guest: String,
    /// The workload's name.
    pub workload: String,
    /// What is compared, and its unit.
    #[serde(serialize_with = "metric_text")]
    pub metric: Metric,
    /// How it ended.
    pub outcome: CellOutcome,
}

fn metric_text<S: serde::Serializer>(metric: &Metric, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{} in {}", metric.name(), metric.unit()))
}

impl CellOutcome {
    /// It ended before anything was measured.
    pub(super) const NONE: Self = Self::Measured {
        counted: None,
        samples: Vec::new(),
    };
}

impl CellResult {
    /// The runs; none if the cell was not measured.
    pub fn samples(&self) -> &[Sample] {
        match &self.outcome {
            CellOutcome::Measured { samples, .. } => samples,
            CellOutcome::NotRun(_) | CellOutcome::Failed(_) => &[],
        }
    }

    /// What the guest executes, if that was counted.
    pub fn counted(&self) -> Option<&Counted> {
        match &self.outcome {
            CellOutcome::Measured { counted, .. } => counted.as_ref(),
            CellOutcome::NotRun(_) | CellOutcome::Failed(_) => None,
        }
    }

    /// The runs of one arm.
    pub fn of_arm(&self, arm: &str) -> Vec<&Sample> {
        let samples = self.samples().iter();
        samples.filter(|sample| sample.arm == arm).collect()
    }

    /// The names of the arms that have runs, in their order.
    pub fn arms(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for sample in self.samples() {
            if !names.contains(&sample.arm.as_str()) {
                names.push(&sample.arm);
            }
        }
        names
    }

    /// What is compared, run by run.
    pub fn values(&self, arm: &str) -> Vec<f64> {
        let samples = self.of_arm(arm).into_iter();
        samples
            .filter_map(|sample| match self.metric {
                Metric::Seconds => Some(sample.timed.seconds),
                Metric::Value { name, .. } => sample.timed.values.get(name).copied(),
            })
            .collect()
    }

    /// Median and quartiles of what is compared.
    pub fn quartiles(&self, arm: &str) -> Option<Quartiles> {
        Quartiles::of(&self.values(arm))
    }

    /// An arm beside the first one; `None` for the first itself.
    pub fn comparison(&self, arm: &str) -> Option<Comparison> {
        let first = *self.arms().first()?;
        if arm == first {
            return None;
        }
        let mut comparison = Comparison::of(&self.values(arm), &self.values(first))?;
        if is_too_busy(self) {
            comparison.verdict = Verdict::NotJudged;
        }
        Some(comparison)
    }

    /// The median over an arm's runs of something in them.
    pub fn median(&self, arm: &str, value: impl Fn(&Sample) -> f64) -> Option<f64> {
        let values: Vec<f64> = self.of_arm(arm).into_iter().map(value).collect();
        Quartiles::of(&values).map(|quartiles| quartiles.median)
    }
}

/// The result of an experiment.
#[derive(Clone, Serialize)]
pub struct Results {
    /// The experiment's name.
    pub experiment: String,
    /// What it is.
    #[serde(skip)]
    pub about: &'static About,
    /// Where it ran.
    pub host: HostDescription,
    /// Why there are no hardware counters; `None` if there are.
    pub no_hardware_monitor: Option<String>,
    /// It did as little work as shows that everything works.
    pub quick: bool,
    /// Repetitions of each arm in each cell.
    pub repetitions: u32,
    /// How many samples were to be taken.
    pub planned: usize,
    /// How many were.
    pub finished: usize,
    /// Somebody ended it before all were.
    pub interrupted: bool,
    /// The host refused something, which ended it before all were.
    pub refused: Option<String>,
    /// The arms.
    pub arms: Vec<ArmDescription>,
    /// What one exit costs, measured apart.
    pub prices: Vec<Price>,
    /// The cells, in the order in which they ran.
    pub cells: Vec<CellResult>,
}

impl Results {
    /// What the host refused, and what failed: `guest, workload: reason`.
    pub fn failures(&self) -> Vec<String> {
        let refused = self.refused.iter();
        let refused = refused.map(|why| LabError::Host(why.clone()).to_string());
        let cells = self.cells.iter();
        let failed = cells.filter_map(|cell| match &cell.outcome {
            CellOutcome::Failed(why) => Some(format!("{}, {}: {why}", cell.guest, cell.workload)),
            _ => None,
        });
        refused.chain(failed).collect()
    }

    /// What exits cost with this arm on this guest.
    pub fn prices(&self, guest: &str, arm: &str) -> Vec<&Price> {
        let prices = self.prices.iter();
        prices
            .filter(|price| price.guest == guest && price.arm == arm)
            .collect()
    }

    /// The result of a cell; `None` if it was not asked for.
    pub fn cell(&self, guest: &str, workload: &str) -> Option<&CellResult> {
        let mut cells = self.cells.iter();
        cells.find(|cell| cell.guest == guest && cell.workload == workload)
    }
}
