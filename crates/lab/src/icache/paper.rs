//! Tables of the experiment `icache`: the cost of each step and of the worst case, what the dictionary
//! found, and the study's figures and verdict next to ours.

use super::about::*;
use crate::experiment::{
    CellOutcome, CellResult, Results, Section, Verdict, columns, grouped, whole,
};
use crate::statistics::Quartiles;
use tollgate_exits::steps::Step;

/// The tables of this experiment.
pub fn sections(results: &Results) -> Vec<Section> {
    vec![
        steps(results),
        worst_case(results),
        found(results),
        five_kinds(results),
        beside_ours(results),
    ]
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

/// The price of an instruction that is not in the dictionary, by step.
fn worst_case(results: &Results) -> Section {
    /// The steps that the dictionary adds to those of the arm 'off'.
    const ADDED: [Step; 2] = [Step::LookUp, Step::Note];
    let mut columns = columns(&["", "arm", "missed", "event, off", "event"]);
    columns.extend(Step::ALL.map(|step| step.name().to_owned()));
    columns.extend(["all steps", "added"].map(str::to_owned));
    let rows = measured(results)
        .filter(|cell| [APIC_SITES, BOOT].contains(&cell.workload.as_str()))
        .flat_map(|cell| {
            [ON, PHYSICAL].into_iter().filter_map(move |arm| {
                // A count of zero is not in the samples.
                let count = |name| value(cell, arm, name).unwrap_or(0.0);
                let missed = count("missed-new") + count("missed-void");
                let missed = missed / value(cell, arm, "found-anew")?;
                let step = |step: Step| value(cell, arm, &format!("step-{}", step.name()));
                let sum = |steps: &[Step]| steps.iter().map(|&it| step(it).unwrap_or(0.0)).sum();
                let (all, added): (f64, f64) = (sum(&Step::ALL), sum(&ADDED));
                let event = |arm| cell.quartiles(arm).map(|it| it.median);
                let mut row = vec![
                    name(cell),
                    arm.to_owned(),
                    format!("{:.0} %", missed * 100.0),
                ];
                row.extend([whole(event(OFF)), whole(event(arm))]);
                row.extend(Step::ALL.map(|it| whole(step(it))));
                row.extend([whole(Some(all)), whole(Some(added))]);
                Some(row)
            })
        });
    Section {
        title: "the worst case: every instruction is new to the dictionary".into(),
        columns,
        rows: rows.collect(),
        notes: vec![
            "In cycles. missed: of all instructions that were looked up. all steps: the sum of their \
             medians; added: look-up and note, which a monitor without a dictionary does not have. A \
             boot's event is the whole boot."
                .into(),
        ],
    }
}

/// The study's five kinds of workload with its figures, next to ours.
fn five_kinds(results: &Results) -> Section {
    const KINDS: [(&str, &str, &[&str]); 5] = [
        (
            "local APIC, in a loop",
            "35-40 % less",
            &[APIC_MODULE, APIC, APIC_DIRECT],
        ),
        ("bash counts", "176-181 s, both", &[SHELL]),
        (
            "building a system",
            "13,901 s and 13,938 s",
            &[MAKE, MAKE_SMP, COMPILE],
        ),
        ("dd, memory to memory", "no difference", &[COPY]),
        ("getuid, in a loop", "no difference", &[GETUID]),
    ];
    let rows = KINDS.into_iter().flat_map(|(kind, theirs, workloads)| {
        let cells = workloads.iter().flat_map(move |workload| {
            (results.cells.iter()).filter(move |cell| cell.workload == *workload)
        });
        cells.map(move |cell| {
            let mut row = vec![kind.to_owned(), theirs.to_owned(), name(cell)];
            match &cell.outcome {
                CellOutcome::Measured { .. } => {
                    let spread = |arm| cell.quartiles(arm).map_or("-".to_owned(), |it| spread(&it));
                    row.extend([spread(OFF), spread(ON)]);
                    let comparison = cell.comparison(ON);
                    row.push(comparison.map_or("-".to_owned(), |it| it.to_string()));
                }
                CellOutcome::NotRun(why) => {
                    row.extend(["-".to_owned(), "-".to_owned(), format!("not run: {why}")]);
                }
                CellOutcome::Failed(_) => {
                    row.extend(["-".to_owned(), "-".to_owned(), "no result".to_owned()]);
                }
            }
            row
        })
    });
    Section {
        title: "the study's five kinds of workload: its figures, and cycles of an event here".into(),
        columns: columns(&["kind", "study", "here", OFF, ON, "on, compared with off"]),
        rows: rows.collect(),
        notes: vec![
            "Median, and the quartiles in brackets; every repetition is in the table of the workload. \
             The study built a whole system, where here make and gcc build Lua. It saw unstable figures \
             with two processors and repeated the shell with one; a machine here has one."
                .into(),
        ],
    }
}

/// A median with its quartiles.
fn spread(quartiles: &Quartiles) -> String {
    let Quartiles {
        lower,
        median,
        upper,
    } = quartiles;
    let [median, lower, upper] = [median, lower, upper].map(|it| grouped(*it));
    format!("{median} [{lower}, {upper}]")
}

/// The original verdict next to ours.
fn beside_ours(results: &Results) -> Section {
    const NOTHING: &str = "no difference";
    let theirs = |workload: &str| match workload {
        APIC | APIC_DIRECT | APIC_MODULE => "35-40 % less",
        SHELL | COMPILE | MAKE | COPY | GETUID => NOTHING,
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
             'site' is what remains of an exit then. A ratio below 1 of 'on' is what a monitor that \
             traps and emulates would gain. There: bhyve with hardware virtualisation, whose exits \
             cost more, so that finding the instruction was a smaller share; 'there' is of a kernel \
             module's loop, a shell, the build of a whole system, dd and getuid."
                .into(),
        ],
    }
}
