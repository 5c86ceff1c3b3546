//! Results read back from the JSON that [`super::to_json`] has made, to be displayed again.

use super::results::{ArmDescription, CellOutcome, CellResult};
use super::{About, Price, Results, Section};
use serde::Deserialize;
use tollgate_host_facts::processors::HostDescription;

/// A cell in the JSON.
#[derive(Deserialize)]
struct StoredCell {
    guest: String,
    workload: String,
    outcome: CellOutcome,
}

/// The results in the JSON.
#[derive(Deserialize)]
struct Stored {
    experiment: String,
    host: HostDescription,
    #[serde(default)]
    build: String,
    #[serde(default)]
    guest_versions: Vec<String>,
    #[serde(default)]
    began_at: u64,
    #[serde(default)]
    measured_at: u64,
    no_hardware_monitor: Option<String>,
    quick: bool,
    repetitions: u32,
    planned: usize,
    finished: usize,
    interrupted: bool,
    #[serde(default)]
    out_of_time: bool,
    refused: Option<String>,
    arms: Vec<ArmDescription>,
    prices: Vec<Price>,
    cells: Vec<StoredCell>,
    sections: Vec<Section>,
}

/// The results, and the experiment's own tables, in this JSON. `find` finds experiments by their
/// names.
///
/// # Errors
///
/// A description of what is wrong with the text.
pub fn from_json(
    text: &[u8],
    find: impl Fn(&str) -> Option<&'static About>,
) -> Result<(Results, Vec<Section>), String> {
    let stored: Stored = serde_json::from_slice(text)
        .map_err(|error| format!("it is not a result of 'tollgate lab --json': {error}"))?;
    let about = find(&stored.experiment)
        .ok_or_else(|| format!("no experiment is called '{}'", stored.experiment))?;
    let cells: Result<Vec<CellResult>, String> = stored
        .cells
        .into_iter()
        .map(|cell| {
            let mut workloads = about.workloads.iter();
            let workload = workloads
                .find(|workload| workload.name == cell.workload)
                .ok_or_else(|| format!("{} has no workload '{}'", about.name, cell.workload))?;
            Ok(CellResult {
                guest: cell.guest,
                workload: cell.workload,
                metric: workload.metric,
                contention: workload.contention,
                outcome: cell.outcome,
            })
        })
        .collect();
    let results = Results {
        experiment: stored.experiment,
        about,
        host: stored.host,
        build: stored.build,
        guest_versions: stored.guest_versions,
        began_at: stored.began_at,
        measured_at: stored.measured_at,
        no_hardware_monitor: stored.no_hardware_monitor,
        quick: stored.quick,
        repetitions: stored.repetitions,
        planned: stored.planned,
        finished: stored.finished,
        interrupted: stored.interrupted,
        out_of_time: stored.out_of_time,
        refused: stored.refused,
        arms: stored.arms,
        prices: stored.prices,
        cells: cells?,
    };
    Ok((results, stored.sections))
}

#[cfg(test)]
mod tests {
    use super::super::test_experiment::{Scripted, Silent};
    use super::super::{Experiment, Options, Stop, run, table, to_json};
    use super::*;

    #[test]
    fn what_was_written_shows_the_same_tables_again() {
        let experiment = Scripted::default();
        let results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
        let sections = experiment.sections(&results);
        let text = to_json(&results, &sections);
        let find = |name: &str| (name == "made-up").then(|| experiment.about());
        let (again, sections_again) = from_json(text.as_bytes(), find).unwrap();
        assert_eq!(table(&again, &sections_again), table(&results, &sections));
        assert_eq!(to_json(&again, &sections_again), text);
    }

    #[test]
    fn what_is_no_result_is_refused_with_a_reason() {
        let find = |_: &str| None;
        let wrong = |text: &str| match from_json(text.as_bytes(), find) {
            Ok(_) => panic!("understood: {text}"),
            Err(why) => why,
        };
        assert!(wrong("{").contains("not a result of 'tollgate lab --json'"));
        assert!(wrong("{\"version\": 2}").contains("missing field"));
        let experiment = Scripted::default();
        let results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
        assert_eq!(
            wrong(&to_json(&results, &[])),
            "no experiment is called 'made-up'"
        );
    }
}
