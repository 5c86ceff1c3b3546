//! Tables of the experiment `native`: the break-even, what native programs did, and what stands for
//! what.

use super::about::{
    ADAPTIVE, CALLS, FORK, LATE_FORK, LATE_PIPE, LOOPS, NATIVE, PAGES, TRANSLATED, WRITTEN,
};
use super::linux::MICROSECONDS;
use crate::experiment::{CellResult, Results, Section, columns, rounded, whole};

/// The tables of this experiment.
pub fn sections(results: &Results) -> Vec<Section> {
    let measured = [ladders, prices, timers, counts].map(|table| table(results));
    let mut sections: Vec<Section> = (measured.into_iter())
        .filter(|section| !section.rows.is_empty())
        .collect();
    sections.push(others());
    sections
}

/// The median of a value in an arm's samples; zero counts are not in them.
pub(super) fn value(cell: &CellResult, arm: &str, name: &str) -> Option<f64> {
    cell.median(arm, |it| it.timed.values.get(name).copied().unwrap_or(0.0))
}

/// A step of a ladder: rounds between two system calls, and the microseconds of these and of the
/// call, translated and natively.
struct Step {
    rounds: f64,
    translated: f64,
    native: f64,
}

/// Where a ladder's two lines cross.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum BreakEven {
    /// Programs gain from the first step on.
    Always,
    /// They lose up to the last one.
    Never,
    /// They gain if they compute for longer than this number of rounds, which takes this number of
    /// microseconds natively.
    At { rounds: f64, microseconds: f64 },
}

/// The break-even of a ladder; `None` if it was not measured.
pub(super) fn break_even(
    results: &Results,
    guest: &str,
    ladder: &[(&str, u32)],
) -> Option<BreakEven> {
    let steps: Vec<Step> = ladder
        .iter()
        .filter_map(|(workload, rounds)| {
            let cell = results.cell(guest, workload)?;
            let of = |arm| value(cell, arm, MICROSECONDS);
            Some(Step {
                rounds: f64::from(*rounds),
                translated: of(TRANSLATED)?,
                native: of(NATIVE)?,
            })
        })
        .collect();
    crossing(&steps)
}

/// Where the native line comes below the other for good.
fn crossing(steps: &[Step]) -> Option<BreakEven> {
    let loss = |step: &Step| step.native - step.translated;
    let (first, last) = (steps.first()?, steps.last()?);
    if steps.len() < 2 {
        return None;
    }
    if loss(last) >= 0.0 {
        return Some(BreakEven::Never);
    }
    let Some(place) = steps.iter().rposition(|step| loss(step) >= 0.0) else {
        return Some(BreakEven::Always);
    };
    let (before, after) = (&steps[place], &steps[place + 1]);
    let part = loss(before) / (loss(before) - loss(after));
    let between = |value: fn(&Step) -> f64| value(before) + part * (value(after) - value(before));
    Some(BreakEven::At {
        rounds: between(|step| step.rounds),
        microseconds: between(|step| step.native) - first.native,
    })
}

fn ladders(results: &Results) -> Section {
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    for guest in results.about.guests {
        for (kind, ladder) in [("loop", LOOPS), ("calls", CALLS)] {
            for (workload, rounds) in ladder {
                let Some(cell) = results.cell(guest.name, workload) else {
                    continue;
                };
                let of = |arm| value(cell, arm, MICROSECONDS);
                let Some(translated) = of(TRANSLATED) else {
                    continue;
                };
                let mut row = vec![format!("{}, {kind}", guest.name), rounds.to_string()];
                row.push(rounded(translated));
                for arm in [NATIVE, ADAPTIVE] {
                    row.push(of(arm).map_or("-".into(), rounded));
                    row.push(of(arm).map_or("-".into(), |it| format!("{:.2}", it / translated)));
                }
                rows.push(row);
            }
            if let Some(found) = break_even(results, guest.name, ladder) {
                let found = match found {
                    BreakEven::Always => "programs gain from the first step on".to_owned(),
                    BreakEven::Never => "programs lose up to the last step".to_owned(),
                    BreakEven::At {
                        rounds,
                        microseconds,
                    } => format!(
                        "programs gain from {rounds:.0} rounds between two system calls on, which \
                         take {microseconds:.1} us natively"
                    ),
                };
                notes.push(format!("{}, {kind}: {found}.", guest.name));
            }
        }
    }
    notes.push(
        "The break-even lies where a straight line between two steps crosses. A loop is translated \
         into nearly itself, so it gains little by running natively; calls by a table are what a \
         translator must look up."
            .into(),
    );
    Section {
        title: "microseconds of some rounds and a system call, and the ratio to translated".into(),
        columns: columns(&[
            "",
            "rounds",
            "translated",
            "native",
            "ratio",
            "adaptive",
            "ratio",
        ]),
        rows,
        notes,
    }
}

/// New pages that an event of [`PAGES`] writes to.
const PAGES_OF_EVENT: f64 = 64.0;

/// What single ways in and out cost, by the guest's programs themselves.
fn prices(results: &Results) -> Section {
    let events = [
        ("a system call, into the kernel and back", LOOPS[0].0, 1.0),
        ("a new page", PAGES, PAGES_OF_EVENT),
        ("a function that is written and called", WRITTEN, 1.0),
        ("a process that is started, and its end", FORK, 1.0),
    ];
    let guests = results.about.guests.iter();
    let rows = guests.flat_map(|guest| {
        events.iter().filter_map(|(what, workload, parts)| {
            let cell = results.cell(guest.name, workload)?;
            let of = |arm| value(cell, arm, MICROSECONDS).map(|it| it / parts);
            let (translated, native) = (of(TRANSLATED)?, of(NATIVE)?);
            Some(vec![
                format!("{}: {what}", guest.name),
                rounded(translated),
                rounded(native),
                rounded(native - translated),
            ])
        })
    });
    Section {
        title: "what a way out of a program and back costs, in microseconds".into(),
        columns: columns(&["", "translated", "native", "difference"]),
        rows: rows.collect(),
        notes: vec![
            "Measured by programs in the guest, with what its kernel does. The ledger's kinds \
             'native-fault' and 'native-step' have only the monitor's work; the way in and out counts \
             as the guest's time."
                .into(),
        ],
    }
}

/// By how much more a timer may be late natively, at the 99th percentile.
const LATER_AT_MOST: f64 = 1.5;

/// How late processes wake by their timers.
fn timers(results: &Results) -> Section {
    let mut rows = Vec::new();
    for cell in &results.cells {
        if ![LATE_FORK, LATE_PIPE].contains(&&*cell.workload) {
            continue;
        }
        for (what, name) in [
            ("interrupt to handler", "to-handler"),
            ("handler to process", "process"),
        ] {
            let of = |arm, part: &str| {
                value(cell, arm, &format!("{name}-{part}")).filter(|late| *late > 0.0)
            };
            let mut row = vec![format!("{}, {}: {what}", cell.guest, cell.workload)];
            for arm in [TRANSLATED, NATIVE, ADAPTIVE] {
                row.extend(["p50", "p99"].map(|part| of(arm, part).map_or("-".into(), rounded)));
            }
            let ratio = of(NATIVE, "p99").zip(of(TRANSLATED, "p99"));
            row.push(ratio.map_or("-".into(), |(native, it)| format!("{:.2}", native / it)));
            rows.push(row);
        }
    }
    Section {
        title: "how late timers are, in microseconds".into(),
        columns: columns(&[
            "",
            "translated p50",
            "p99",
            "native p50",
            "p99",
            "adaptive p50",
            "p99",
            "native p99",
        ]),
        rows,
        notes: vec![format!(
            "The last column is the ratio to translated; the aim is at most {LATER_AT_MOST}."
        )],
    }
}

/// What is counted of processes that run programs, as of tables: the title of a column, and the
/// counts that are added.
const COUNTS: &[(&str, &[&str])] = &[
    ("starts", &["native-processes"]),
    ("entries", &["native-entries"]),
    ("calls", &["native-system-calls"]),
    ("fills", &["native-page-faults"]),
    ("steps", &["native-steps"]),
    ("kicks", &["native-kicks"]),
    ("left", &["native-translated"]),
    (
        "switches",
        &["kept", "same", "compared", "flushed", "missed"],
    ),
    ("steals", &["stolen"]),
    ("unmapped", &["window-unmapped"]),
    ("deaths", &["native-deaths"]),
];

/// The counts of processes.
fn counts(results: &Results) -> Section {
    let mut names = vec!["median of a run", "arm"];
    names.extend(COUNTS.iter().map(|(title, _)| *title));
    let mut rows = Vec::new();
    for cell in &results.cells {
        for arm in [NATIVE, ADAPTIVE] {
            if cell.of_arm(arm).is_empty() {
                continue;
            }
            let mut row = vec![format!("{}, {}", cell.guest, cell.workload), arm.to_owned()];
            row.extend(COUNTS.iter().map(|(_, counts)| {
                let sum = |name: &&str| value(cell, arm, name).unwrap_or(0.0);
                whole(Some(counts.iter().map(sum).sum()))
            }));
            rows.push(row);
        }
    }
    Section {
        title: "what the processes did that run programs".into(),
        columns: columns(&names),
        rows,
        notes: vec![
            "starts: processes; entries: ways in; calls, fills (pages that were mapped), steps (instructions \
             that were run translated), kicks (the monitor had work): ways out; left: returns to a \
             program whose page must be translated. switches: loads of CR3; steals: spaces that \
             were forgotten for another one; unmapped: pages that the guest invalidated. The last \
             three count the kernel's and translated programs' pages, too."
                .into(),
        ],
    }
}

/// How other systems run programs directly, in a table with this one.
fn others() -> Section {
    const ROWS: [[&str; 4]; 4] = [
        [
            "VMware's first monitors",
            "is translated",
            "shadow page tables",
            "a trap to the monitor, in the same address space",
        ],
        [
            "User-Mode Linux",
            "is a port to the host's system calls",
            "a process of the host",
            "ptrace, or seccomp and a signal, stops the process",
        ],
        [
            "gVisor, systrap",
            "is a new one, a program of the host",
            "a process of the host",
            "a signal in the process, shared memory, a futex",
        ],
        [
            "here",
            "is translated",
            "a process of the host for each space",
            "a signal in the process, shared memory, a futex",
        ],
    ];
    Section {
        title: "systems that run programs directly".into(),
        columns: columns(&["", "the kernel", "a program's space", "the way in and out"]),
        rows: ROWS.map(|row| row.map(str::to_owned).to_vec()).to_vec(),
        notes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ladder(steps: &[(f64, f64, f64)]) -> Vec<Step> {
        let steps = steps.iter();
        steps
            .map(|&(rounds, translated, native)| Step {
                rounds,
                translated,
                native,
            })
            .collect()
    }

    #[test]
    fn lines_cross_where_both_take_the_same_time() {
        let found = crossing(&ladder(&[(0.0, 1.0, 9.0), (10.0, 21.0, 17.0)]));
        let Some(BreakEven::At {
            rounds,
            microseconds,
        }) = found
        else {
            panic!("{found:?}");
        };
        assert!((rounds - 20.0 / 3.0).abs() < 1e-9);
        assert!((microseconds - 16.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn lines_may_not_cross() {
        let lose = ladder(&[(0.0, 1.0, 9.0), (10.0, 11.0, 19.0)]);
        assert_eq!(crossing(&lose), Some(BreakEven::Never));
        let gain = ladder(&[(0.0, 9.0, 1.0), (10.0, 19.0, 11.0)]);
        assert_eq!(crossing(&gain), Some(BreakEven::Always));
        assert_eq!(crossing(&ladder(&[(0.0, 9.0, 1.0)])), None);
    }
}
