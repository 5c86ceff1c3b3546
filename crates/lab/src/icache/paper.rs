//! Tables of the experiment `icache`: the cost of each step, what the dictionary found, and the
//! study's verdict next to ours.

use super::about::*;
use crate::experiment::{CellResult, Results, Section, Verdict, columns, whole};
use crate::statistics::Quartiles;
use tollgate_exits::steps::Step;

/// The tables of this experiment.
pub fn sections(results: &Results) -> Vec<Section> {
    vec![steps(results), found(results), beside_ours(results)]
}

/// The median of a value in an arm's samples.
fn value(cell: &CellResult, arm: &str, name: &str) -> Option<f64> {
    let samples = cell.samples().iter().filter(|sample| sample.arm == arm);
    let values: Vec<f64> = samples
        .filter_map(|sample| sample.timed.values.get(name).copied())
        .collect();
    Some(Quartiles::of(&values)?.median)
}

fn measured(results: &Results) -> impl Iterator<Item = &CellResult> {
    results
        .cells
        .iter()
        .filter(|cell| !cell.samples().is_empty())
}

fn name(cell: &CellResult) -> String {
    format!("{}, {}", cell.guest, cell.workload)
}

/// Cycles of each step of finding an instruction.
fn steps(results: &Results) -> Section {
    let mut columns = columns(&["", "arm"]);
    columns.extend(Step::ALL.map(|step| step.name().to_owned()));
    let rows = measured(results).flat_map(|cell| {
        [OFF, ON, PHYSICAL].into_iter().filter_map(move |arm| {
            let of = |step: Step| value(cell, arm, &format!("step-{}", step.name()));
            let found = Step::ALL.map(of);
            found.iter().any(Option::is_some).then(|| {
                let mut row = vec![name(cell), arm.to_owned()];
                row.extend(found.map(whole));
                row
            })
        })
    });
    Section {
        title: "cycles of each step of finding an instruction".into(),
        columns,
        rows: rows.collect(),
        notes: vec![
            "Medians of one exit in 32. What is left of an exit is leaving translated code, emulating, \
             and entering it again."
                .into(),
        ],
    }
}

/// How instructions were found.
fn found(results: &Results) -> Section {
    const COUNTS: [&str; 7] = [
        "found-anew",
        "hits",
        "missed-new",
        "missed-void",
        "walked",
        "dropped-code",
        "dropped-tables",
    ];
    let mut columns = columns(&["", "arm"]);
    columns.extend(COUNTS.map(str::to_owned));
    columns.push("fast-paths".into());
    let rows = measured(results).flat_map(|cell| {
        let arms = cell.arms().into_iter().map(str::to_owned);
        arms.map(move |arm| {
            let mut row = vec![name(cell), arm.clone()];
            let counts = COUNTS.into_iter().chain(["fast-paths"]);
            row.extend(counts.map(|count| whole(value(cell, &arm, count).or(Some(0.0)))));
            row
        })
    });
    Section {
        title: "how exits found the instructions that they emulated".into(),
        columns,
        rows: rows.collect(),
        notes: vec![
            "In each run the ways to find an instruction add up to the instructions looked up, or \
             the run fails."
                .into(),
        ],
    }
}

/// The original verdict next to ours.
fn beside_ours(results: &Results) -> Section {
    const NOTHING: &str = "no difference";
    let theirs = |workload: &str| match workload {
        APIC | APIC_DIRECT | APIC_MODULE => "35-40 % less",
        SHELL | COMPILE | COPY | GETUID => NOTHING,
        _ => "not measured",
    };
    let compared = |cell: &CellResult, arm: &str| {
        (cell.comparison(arm)).map_or("-".to_owned(), |it| match it.verdict {
            Verdict::NoDifferenceMeasured => NOTHING.to_owned(),
            Verdict::NotJudged => "not judged".to_owned(),
            _ => format!("{:.2}", it.ratio),
        })
    };
    let row = |cell: &CellResult| {
        let mut row = vec![name(cell), theirs(&cell.workload).to_owned()];
        row.extend([ON, PHYSICAL, SITE, FAST_PATH].map(|arm| compared(cell, arm)));
        row
    };
    Section {
        title: "time over that of 'off'".into(),
        columns: columns(&["", "there, on", ON, PHYSICAL, SITE, FAST_PATH]),
        rows: measured(results).map(row).collect(),
        notes: vec![
            "'off' is not how Tollgate works: a translator has decoded each instruction once, and \
             'site' is what that fast_paths of an exit. A ratio below 1 of 'on' is what a monitor that \
             traps and emulates would gain. There: bhyve with hardware virtualisation, whose exits \
             cost more, so that finding the instruction was a smaller share; 'there' is of a kernel \
             module's loop, a shell, the build of a whole system (13,901 s against 13,938), dd and getuid."
                .into(),
        ],
    }
}
