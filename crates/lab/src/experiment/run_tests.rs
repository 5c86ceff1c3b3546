//! Tests of runs.

use super::test_experiment::{Scripted, Silent};
use super::*;

fn arms_in_order(results: &Results, cell: usize) -> Vec<&str> {
    let samples = results.cells[cell].samples().iter();
    samples.map(|sample| sample.arm.as_str()).collect()
}

#[test]
fn every_cell_is_measured_with_all_arms_in_turns() {
    let experiment = Scripted::default();
    let results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
    assert_eq!(arms_in_order(&results, 0), ["a", "b", "b", "a", "a", "b"]);
    assert_eq!(arms_in_order(&results, 1), ["a", "b", "b", "a", "a", "b"]);
    assert_eq!((results.planned, results.finished), (12, 12));
    assert!(!results.interrupted && results.failures().is_empty());
    let cell = results.cell("ours", "spin").unwrap();
    assert_eq!(cell.comparison("b").unwrap().verdict, Verdict::Less);
    assert_eq!(cell.comparison("a"), None);
    assert_eq!(cell.counted().unwrap().executed["cli"], 7);
    // Prices are measured once for each guest, not for each of its cells.
    assert_eq!(results.prices("ours", "a").len(), 1);
}

#[test]
fn a_guest_without_its_image_is_not_run_and_with_it_is() {
    let experiment = Scripted::default();
    let results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
    let theirs = results.cell("theirs", "spin").unwrap();
    let why = "no image: --guest-image theirs=FILE gives it (someone else's)";
    assert_eq!(theirs.outcome, CellOutcome::NotRun(why.into()));
    let options = Options {
        images: GuestImages::of([("theirs".into(), "os.img".into())]),
        ..Options::quick()
    };
    let results = run(&experiment, &options, &Stop::new(), &mut Silent).unwrap();
    assert_eq!(results.cell("theirs", "spin").unwrap().samples().len(), 6);
}

#[test]
fn an_interruption_keeps_what_is_finished_and_says_how_much_that_is() {
    let experiment = Scripted {
        interrupted_in_run: Some(4),
        ..Scripted::default()
    };
    let results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
    // The fourth run was interrupted, so it does not count.
    assert_eq!(arms_in_order(&results, 0), ["a", "b", "b"]);
    assert_eq!(results.cells.len(), 1);
    assert!(results.interrupted);
    assert_eq!((results.planned, results.finished), (12, 3));
}

#[test]
fn work_that_differs_between_runs_fails_the_cell_and_no_other() {
    let experiment = Scripted {
        lazy_in_run: Some(4),
        ..Scripted::default()
    };
    let results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
    assert_eq!(
        results.failures(),
        [
            "ours, spin: no result: the guest did not do its work: repetition 2 with a did \
             other work than repetition 1 with a: rounds 99 instead of 100"
        ]
    );
    assert_eq!(results.cells[1].samples().len(), 6);
}

#[test]
fn a_host_that_refuses_ends_the_experiment_and_what_is_finished_is_kept() {
    let experiment = Scripted {
        refused_in_run: Some(4),
        ..Scripted::default()
    };
    let results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
    assert_eq!(arms_in_order(&results, 0), ["a", "b", "b"]);
    assert_eq!(results.cells.len(), 1);
    assert!(!results.interrupted);
    assert_eq!(results.failures(), ["the host refused: no timer"]);
}

#[test]
fn a_guest_that_fails_is_no_result_but_a_reason() {
    let experiment = Scripted {
        fails_in_run: Some(1),
        ..Scripted::default()
    };
    let results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
    assert!(results.failures()[0].contains("the guest fell asleep"));
    assert!(results.cells[0].samples().is_empty());
}
