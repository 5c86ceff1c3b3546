//! The results of an experiment.

use super::busy::is_too_busy;
use super::{
    About, Arm, Comparison, Contention, Counted, LabError, Metric, Price, Sample, Verdict,
};
use crate::statistics::Quartiles;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tollgate_host_facts::processors::HostDescription;

/// An arm as the output describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ArmDescription {
    /// The arm's name.
    pub name: String,
    /// A description of the arm.
    pub what: String,
    /// The arm's knobs.
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
    /// It was measured; if the experiment was interrupted, not completely.
    Measured {
        /// The number of instructions that the guest executes.
        counted: Option<Counted>,
        /// The samples of all runs.
        samples: Vec<Sample>,
    },
    /// It cannot run here, for this reason.
    NotRun(String),
    /// The guest did not do its work, or not the same each time, for this reason.
    Failed(String),
}

/// The result for one workload on one guest.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CellResult {
    /// The guest's name.
    pub guest: String,
    /// The workload's name.
    pub workload: String,
    /// The value that is compared, and its unit.
    #[serde(serialize_with = "metric_text")]
    pub metric: Metric,
    /// What the measured machine waits for when it could run.
    #[serde(skip)]
    pub contention: Contention,
    /// How the cell ended.
    pub outcome: CellOutcome,
}

fn metric_text<S: serde::Serializer>(metric: &Metric, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{} in {}", metric.name(), metric.unit()))
}

impl CellOutcome {
    /// The cell ended before anything was measured.
    pub(super) const NONE: Self = Self::Measured {
        counted: None,
        samples: Vec::new(),
    };
}

impl CellResult {
    /// The samples of the runs; empty if the cell was not measured.
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

    /// The samples of one arm.
    pub fn of_arm(&self, arm: &str) -> Vec<&Sample> {
        let samples = self.samples().iter();
        samples.filter(|sample| sample.arm == arm).collect()
    }

    /// The names of the arms that have samples, in their order.
    pub fn arms(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for sample in self.samples() {
            if !names.contains(&sample.arm.as_str()) {
                names.push(&sample.arm);
            }
        }
        names
    }

    /// The value that is compared, for each run of an arm.
    pub fn values(&self, arm: &str) -> Vec<f64> {
        let samples = self.of_arm(arm).into_iter();
        samples
            .filter_map(|sample| match self.metric {
                Metric::Seconds => Some(sample.timed.seconds),
                Metric::Value { name, .. } => sample.timed.values.get(name).copied(),
            })
            .collect()
    }

    /// Median and quartiles of the value that is compared.
    pub fn quartiles(&self, arm: &str) -> Option<Quartiles> {
        Quartiles::of(&self.values(arm))
    }

    /// The comparison of an arm with the first one; `None` for the first itself.
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

    /// The median over an arm's runs of a value in them.
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
    /// The description of the experiment.
    #[serde(skip)]
    pub about: &'static About,
    /// A description of the host.
    pub host: HostDescription,
    /// The build of tollgate.
    pub build: String,
    /// The measured guests with the versions that the folder of guests records: `NAME: VERSION`.
    pub guest_versions: Vec<String>,
    /// When the first of the run's samples was begun, in seconds since 1970; 0 if it is not known.
    pub began_at: u64,
    /// When the run ended, in seconds since 1970.
    pub measured_at: u64,
    /// Why there are no hardware counters; `None` if there are.
    pub no_hardware_monitor: Option<String>,
    /// Whether the experiment did only the minimum of work that shows that everything works.
    pub quick: bool,
    /// Repetitions of each arm in each cell.
    pub repetitions: u32,
    /// The number of samples that were planned.
    pub planned: usize,
    /// The number of samples that were taken.
    pub finished: usize,
    /// Whether the experiment was stopped before it was complete.
    pub interrupted: bool,
    /// Whether samples were left out because the time of [`super::Options::time`] was over.
    pub out_of_time: bool,
    /// What the host refused, which ended the experiment early.
    pub refused: Option<String>,
    /// The arms of the experiment.
    pub arms: Vec<ArmDescription>,
    /// The costs of one exit, measured separately.
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

    /// The costs of exits with this arm on this guest.
    pub fn prices(&self, guest: &str, arm: &str) -> Vec<&Price> {
        let prices = self.prices.iter();
        prices
            .filter(|price| price.guest == guest && price.arm == arm)
            .collect()
    }

    /// The result of a cell; `None` if it was not requested.
    pub fn cell(&self, guest: &str, workload: &str) -> Option<&CellResult> {
        let mut cells = self.cells.iter();
        cells.find(|cell| cell.guest == guest && cell.workload == workload)
    }
}
