//! Tests of runs that are interrupted and continued.

use super::origin::tests::origin;
use super::test_experiment::{Scripted, Silent};
use super::*;
use std::path::PathBuf;

/// A file of a test, which is removed with the value.
struct TestFile(PathBuf);

impl TestFile {
    fn new(name: &str) -> Self {
        let name = format!("tollgate-journal-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap()
    }

    fn resumed(&self) -> Journal {
        Journal::resume(&self.0, &origin()).unwrap()
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn continued(experiment: &Scripted, journal: &mut Journal) -> Results {
    let options = Options::quick();
    resume(experiment, &options, &Stop::new(), &mut Silent, journal).unwrap()
}

/// A run that is interrupted in run `number`, and its file.
fn interrupted(name: &str, number: u32) -> TestFile {
    let file = TestFile::new(name);
    let experiment = Scripted {
        interrupted_in_run: Some(number),
        ..Scripted::default()
    };
    let mut journal = Journal::create(&file.0, &origin()).unwrap();
    let results = continued(&experiment, &mut journal);
    assert_eq!(results.finished, number as usize - 1);
    file
}

#[test]
fn a_continued_run_measures_only_what_is_missing() {
    // Runs 1 to 6 are the first cell; run 9 is the first of the second round of the second cell.
    let file = interrupted("missing", 10);
    let experiment = Scripted::default();
    let results = continued(&experiment, &mut file.resumed());
    // Of the second cell, one whole round was kept; its second round was incomplete.
    assert_eq!(experiment.runs.get(), 4);
    assert_eq!((results.planned, results.finished), (12, 12));
    assert!(!results.interrupted);
    let names: Vec<_> = results.cells[1]
        .samples()
        .iter()
        .map(|sample| (sample.arm.as_str(), sample.repetition))
        .collect();
    let turns = [("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3)];
    assert_eq!(names, turns);
    // Nothing is left: the results are the same without any run.
    let experiment = Scripted::default();
    let again = continued(&experiment, &mut file.resumed());
    assert_eq!(experiment.runs.get(), 0);
    assert_eq!(to_json(&again, &[]), to_json(&results, &[]));
    assert_eq!(again.prices("ours", "a").len(), 1);
    assert_eq!(again.cells[0].counted().unwrap().executed["cli"], 7);
}

#[test]
fn every_sample_has_its_own_number() {
    let file = interrupted("numbers", 10);
    let results = continued(&Scripted::default(), &mut file.resumed());
    let samples = results.cells.iter().flat_map(|cell| cell.samples());
    let mut orders: Vec<usize> = samples.map(|sample| sample.order).collect();
    assert!(orders.is_sorted(), "{orders:?}");
    orders.dedup();
    assert_eq!(orders.len(), 12);
}

#[test]
fn an_incomplete_line_at_the_end_is_not_used_and_overwritten() {
    let file = interrupted("incomplete", 8);
    let whole = file.text();
    std::fs::write(&file.0, format!("{whole}{{\"sample\":{{\"guest\":\"ou")).unwrap();
    let results = continued(&Scripted::default(), &mut file.resumed());
    assert_eq!(results.finished, 12);
    assert!(file.text().starts_with(&whole));
    assert_eq!(
        continued(&Scripted::default(), &mut file.resumed()).finished,
        12
    );
}

#[test]
fn a_cell_that_failed_is_measured_again_from_its_beginning() {
    let file = TestFile::new("failed");
    let experiment = Scripted {
        fails_in_run: Some(5),
        ..Scripted::default()
    };
    let mut journal = Journal::create(&file.0, &origin()).unwrap();
    let results = continued(&experiment, &mut journal);
    drop(journal);
    assert_eq!(results.failures().len(), 1);
    let experiment = Scripted::default();
    let results = continued(&experiment, &mut file.resumed());
    assert!(results.failures().is_empty());
    assert_eq!(experiment.runs.get(), 6);
    assert_eq!(results.cells[0].samples().len(), 6);
}

#[test]
fn another_origin_or_file_is_refused_with_a_reason() {
    let refusal = |file: &TestFile, origin: &Origin| match Journal::resume(&file.0, origin) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    };
    let file = interrupted("refused", 3);
    let other = Origin {
        repetitions: 9,
        ..origin()
    };
    assert_eq!(
        refusal(&file, &other),
        "its results cannot be continued, because --repetitions is '9' now and was '3'; measure \
         again into another folder"
    );
    let create = Journal::create(&file.0, &origin());
    assert!(create.is_err_and(|error| error.to_string().contains("exists")));
    std::fs::write(&file.0, "{}\n").unwrap();
    assert!(refusal(&file, &origin()).contains("line 1: "));
    std::fs::write(&file.0, "").unwrap();
    assert_eq!(
        refusal(&file, &origin()),
        "it does not hold the finished samples of an experiment"
    );
}

#[test]
fn the_options_of_a_run_are_found_in_its_file() {
    let file = interrupted("options", 3);
    let found = Journal::origin(&file.0).unwrap();
    assert_eq!(found.options(), Options::quick());
    // Two processes must not write to one file.
    let journal = file.resumed();
    let second = Journal::resume(&file.0, &origin());
    assert!(second.is_err_and(|error| error.to_string().contains("another tollgate")));
    drop(journal);
}
