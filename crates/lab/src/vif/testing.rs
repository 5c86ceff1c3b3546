//! Results for the unit tests of this experiment.

use super::about::ABOUT;
use crate::experiment::{CellOutcome, CellResult, Contention, Counted, Metric, Results, Sample};
use tollgate_host_facts::processors::HostDescription;

/// A cell in which 7 of 1000 instructions are CLI.
pub fn cell(guest: &str, workload: &str, samples: Vec<Sample>) -> CellResult {
    let counted = Counted {
        executed: [("cli".to_owned(), 7)].into(),
        instructions: Some(1000),
        how: "by hand".into(),
    };
    CellResult {
        guest: guest.to_owned(),
        workload: workload.to_owned(),
        metric: Metric::Seconds,
        contention: Contention::OtherPrograms,
        outcome: CellOutcome::Measured {
            counted: Some(counted),
            samples,
        },
    }
}

/// The results of these cells alone, without prices.
pub fn results(cells: Vec<CellResult>) -> Results {
    Results {
        experiment: ABOUT.name.to_owned(),
        about: &ABOUT,
        host: HostDescription::here(1000),
        build: String::new(),
        guest_versions: Vec::new(),
        began_at: 0,
        measured_at: 0,
        no_hardware_monitor: None,
        quick: true,
        repetitions: 1,
        planned: 0,
        finished: 0,
        interrupted: false,
        out_of_time: false,
        refused: None,
        arms: Vec::new(),
        prices: Vec::new(),
        cells,
    }
}
