//! Tests of the report.

use super::html::escaped;
use super::*;
use crate::cost;
use crate::experiment::test_experiment::{Scripted, Silent};
use crate::experiment::{CellOutcome, Experiment, Options, Section, Stop, run};
use tollgate_host_facts::processors::HostDescription;

/// Results of the test experiment that are the same everywhere.
fn results() -> Results {
    let experiment = Scripted::default();
    let mut results = run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap();
    results.host = HostDescription {
        processor: "Z80".into(),
        kernel: "CP/M 2.2".into(),
        processors: 1,
        tsc_khz: 4000,
    };
    results.no_hardware_monitor = Some("no PMU on this host".into());
    results.build = "0.1.0, executable 12".into();
    results.guest_versions = vec!["theirs: Digital Research 2.2".into()];
    results.began_at = 951_781_080;
    results.measured_at = 951_782_400;
    results
}

fn study(results: Results) -> Study {
    let sections = Scripted::default().sections(&results);
    Study::Experiment(Box::new(Measured {
        sections,
        answers: vec!["Half the time takes half the time (the study: no <figure>).".into()],
        results,
    }))
}

fn slower(mut results: Results, factor: f64) -> Results {
    for cell in &mut results.cells {
        if let CellOutcome::Measured { samples, .. } = &mut cell.outcome {
            for sample in samples {
                sample.timed.seconds *= factor;
                let latency = sample.timed.values.get_mut("latency").unwrap();
                *latency *= factor;
            }
        }
    }
    results
}

fn earlier(results: Results) -> EarlierRun {
    EarlierRun {
        name: "old-results".into(),
        results: vec![results],
        cost: None,
        problems: Vec::new(),
    }
}

/// The costs of one kind of exit: three values of single events, in steps of 2 cycles.
fn cost(values: &[u64]) -> cost::Report {
    cost::Report {
        host: results().host,
        pinned_to: 0,
        tsc_step: 2,
        is_complete: true,
        rows: vec![cost::comparison::example_row(values, 10.0)],
    }
}

#[test]
fn a_small_report_is_as_the_golden_one() {
    let missing = Study::NotRun {
        name: "cost".into(),
        why: "it was not requested".into(),
    };
    let report = markdown(&page(&[study(results()), missing], None));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/report/golden.txt");
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        std::fs::write(path, &report).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    assert_eq!(report, golden, "TOLLGATE_BLESS=1 accepts the new report");
}

#[test]
fn the_page_holds_its_pictures_and_nothing_from_elsewhere() {
    let text = html(&page(&[study(results())], None));
    assert!(text.starts_with("<!doctype html>") && text.ends_with("</html>\n"));
    assert!(text.matches("<svg").count() >= 3, "{text}");
    let svg = text.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http://", "https://", "<script", "src=", "url(", "@import"] {
        assert!(!svg.contains(outside), "{outside}");
    }
    assert!(text.contains("prefers-color-scheme: dark") && text.contains("name=\"viewport\""));
    // Every element is closed.
    for element in [
        "table", "figure", "details", "ul", "p", "main", "svg", "div",
    ] {
        let opened = text.matches(&format!("<{element}>")).count()
            + text.matches(&format!("<{element} ")).count();
        let closed = text.matches(&format!("</{element}>")).count();
        assert_eq!(opened, closed, "{element}");
    }
}

#[test]
fn nothing_that_was_measured_is_taken_for_markup() {
    let evil = "<script>alert('x')</script> | *a* [b](c) \"d\" & \u{1b}[2J";
    let mut results = results();
    results.host.processor = evil.into();
    results.cells[0].guest = evil.into();
    results.arms[1].what = evil.into();
    results.cells[2].outcome = CellOutcome::NotRun(evil.into());
    let measured = Measured {
        results,
        sections: vec![Section {
            title: evil.into(),
            columns: vec![evil.into()],
            rows: vec![vec![evil.into()]],
            notes: vec![evil.into()],
        }],
        answers: vec![evil.into()],
    };
    let page = page(&[Study::Experiment(Box::new(measured))], None);
    let html = html(&page);
    assert!(
        !html.contains("<script") && !html.contains('\u{1b}'),
        "{html}"
    );
    assert!(html.contains(&escaped("<script>alert('x')</script>")));
    let markdown = markdown(&page);
    assert!(
        !markdown.contains("<script") && !markdown.contains("[b](c)"),
        "{markdown}"
    );
    let row = markdown
        .lines()
        .find(|line| line.starts_with("| &lt;script"));
    // The bar is no border of a cell.
    assert!(row.is_some_and(|row| row.contains("\\|")), "{markdown}");
}

#[test]
fn a_run_is_compared_with_an_earlier_one() {
    let text = |then: Results| markdown(&page(&[study(results())], Some(&earlier(then))));
    let same = text(results());
    assert!(same.contains("## Next to the run in old-results"), "{same}");
    assert!(
        same.contains("Of 4 comparisons, 0 take less than then, 0 take more, in 4 no difference"),
        "{same}"
    );
    let slower_then = text(slower(results(), 2.0));
    assert!(
        slower_then.contains("Of 4 comparisons, 4 take less than then"),
        "{slower_then}"
    );
    let row = "| ours, spin | a | 0.0020 | 0.0010 | 0.500 | 0.500 to 0.500 | 50.0 % less |";
    assert!(slower_then.contains(row), "{slower_then}");
}

#[test]
fn costs_of_exits_are_compared_with_earlier_ones() {
    let study = |report| {
        Study::Cost(Box::new(MeasuredCost {
            report,
            pictures: Vec::new(),
            texts: Vec::new(),
        }))
    };
    let text = |now, then| {
        let earlier = EarlierRun {
            name: "old-results".into(),
            results: Vec::new(),
            cost: Some(then),
            problems: Vec::new(),
        };
        markdown(&page(&[study(now)], Some(&earlier)))
    };
    let same = text(cost(&[100, 102, 104]), cost(&[102, 104, 106]));
    assert!(
        same.contains("Of 1 rows, 0 cost less than then, 0 more, and in 1 no difference"),
        "{same}"
    );
    let slower = text(cost(&[200, 204, 208]), cost(&[100, 102, 104]));
    let row = "| cpuid | 64-bit | yes | 102 | 204 | 2.000 | 104 | 208 | more |";
    assert!(slower.contains(row), "{slower}");
    let mut other = cost(&[100, 102, 104]);
    other.host.processor = "8086".into();
    let elsewhere = text(cost(&[200, 204, 208]), other);
    assert!(
        elsewhere.contains("on another host (8086, 1 processor)")
            && elsewhere.contains("| another host |"),
        "{elsewhere}"
    );
    // Two runs that have no kind in common say so.
    let mut none = cost(&[1]);
    none.rows.clear();
    assert!(text(cost(&[1]), none).contains("no kind of exit in a mode in common"));
}

#[test]
fn runs_on_other_hosts_or_busy_ones_get_no_verdict() {
    let text = |now: Results, then: Results| markdown(&page(&[study(now)], Some(&earlier(then))));
    let mut elsewhere = slower(results(), 2.0);
    elsewhere.host.processor = "8086".into();
    let elsewhere = text(results(), elsewhere);
    assert!(
        elsewhere.contains("on another host (8086, 1 processor)"),
        "{elsewhere}"
    );
    assert!(
        elsewhere.contains("0.500 to 0.500 | another host |"),
        "{elsewhere}"
    );
    let mut busy = slower(results(), 2.0);
    for cell in &mut busy.cells {
        if let CellOutcome::Measured { samples, .. } = &mut cell.outcome {
            for sample in samples {
                sample.timed.ledger.waiting_cycles = sample.timed.ledger.wall_cycles / 2;
            }
        }
    }
    let busy = text(results(), busy);
    assert!(busy.contains("0.500 to 0.500 | host was busy |"), "{busy}");
    let mut full = results();
    full.quick = false;
    let differs = text(results(), full);
    assert!(
        differs.contains("One of the two runs was quick"),
        "{differs}"
    );
}
