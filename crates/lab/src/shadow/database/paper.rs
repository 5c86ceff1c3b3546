//! Tables of the workloads with a database: the monitor's time in parts, times and misses for each
//! guest instruction, the best number of tables, and the study's figures next to ours.

use super::super::arms::*;
use super::accounts::{Accounts, median};
use super::kinds;
use super::workloads::{Action, task_of};
use crate::experiment::{CellResult, Results, Section, columns, percent, rounded};

/// The tables of these workloads.
pub fn sections(results: &Results) -> Vec<Section> {
    let mut sections = Vec::new();
    for cell in cells(results) {
        sections.push(parts(cell));
        sections.push(for_each_instruction(results, cell));
    }
    if cells(results).next().is_some() {
        sections.push(best_numbers(results));
    }
    for cell in cells(results) {
        sections.push(beside_ours(cell));
    }
    sections.extend(kinds::section(results));
    sections
}

/// The cells with a database that have samples.
pub fn cells(results: &Results) -> impl Iterator<Item = &CellResult> {
    let cells = results.cells.iter();
    cells.filter(|cell| task_of(&cell.workload).is_some() && !cell.samples().is_empty())
}

fn text(value: Option<f64>, format: impl Fn(f64) -> String) -> String {
    value
        .filter(|value| value.is_finite())
        .map_or("-".into(), format)
}

/// The fewest entries that an arm with the same way to memory has made.
fn least_fills(cell: &CellResult, arm: &str) -> f64 {
    let way = |arm: &str| {
        arm.split('=')
            .next()
            .filter(|way| *way != "conventional")
            .map(str::to_owned)
    };
    let same =
        |other: &&str| way(other).unwrap_or("tables".into()) == way(arm).unwrap_or("tables".into());
    let arms = cell.arms().into_iter().filter(same);
    let fills = arms.filter_map(|arm| median(cell, arm, |it| it.fills));
    fills.fold(f64::MAX, f64::min)
}

/// The monitor's time with each arm.
fn parts(cell: &CellResult) -> Section {
    let row = |arm: &&str| {
        let least = least_fills(cell, arm);
        let share = |part: &dyn Fn(&Accounts) -> f64| {
            text(median(cell, arm, |it| part(it) / it.all()), percent)
        };
        let count = |part: &dyn Fn(&Accounts) -> f64| text(median(cell, arm, part), rounded);
        vec![
            (*arm).to_owned(),
            count(&|it| it.fills),
            share(&|it| it.validation - it.refill(least)),
            share(&|it| it.refill(least)),
            share(&|it| it.invalidation),
            share(&|it| it.switch),
            share(&|it| it.purge),
            count(&|it| it.purged),
            share(&|it| it.finding),
            share(&|it| it.rest),
            share(&Accounts::monitor),
            text(
                median(cell, arm, |it| it.maintenance() / it.comparable()),
                percent,
            ),
        ]
    };
    Section {
        title: format!("{}, {}: where the monitor's time goes", cell.guest, cell.workload),
        columns: columns(&[
            "% of processor time",
            "entries",
            "validation",
            "refill",
            "invalidation",
            "switch",
            "purge",
            "purges",
            "finding code",
            "rest",
            "monitor",
            "tables, % of monitor without finding code",
        ]),
        rows: cell.arms().iter().map(row).collect(),
        notes: vec![
            "validation: making entries, as often as the arm that made the fewest; refill: those beyond. \
             invalidation: INVLPG and INVPCID. switch: loads of CR3. purge: emptying the tables of whole \
             spaces, for an invalidation, for a load that keeps nothing, or to make room for another space; \
             purges: the number of these tables. finding \
             code: exits for targets of branches in translated code, which the study's monitor did not \
             have. Translation of code is left out, because each change of a knob causes some."
                .into(),
        ],
    }
}

/// Times, misses, requests and exits for the guest's instructions, which were counted in a run of
/// their own.
fn for_each_instruction(results: &Results, cell: &CellResult) -> Section {
    let instructions = cell.counted().and_then(|counted| counted.instructions);
    let each = |arm: &str, scale: f64, value: &dyn Fn(&crate::experiment::Sample) -> f64| {
        let value = cell.median(arm, value)?;
        instructions.map(|all| value * scale / all as f64)
    };
    let named = |name: &'static str| {
        move |sample: &crate::experiment::Sample| {
            sample.timed.values.get(name).copied().unwrap_or(0.0)
        }
    };
    let first = cell.arms().first().copied().unwrap_or_default().to_owned();
    let misses = |arm: &str| each(arm, 1e3, &|sample| Accounts::of(sample).fills);
    let row = |arm: &&str| {
        let tsc = |sample: &crate::experiment::Sample| sample.timed.ledger.tsc_khz.max(1) as f64;
        let nanoseconds = each(arm, 1e6, &|sample| {
            sample.timed.values.get(PROCESSOR).copied().unwrap_or(0.0) / tsc(sample)
        });
        let requests = each(arm, 1e6, &named("disk-requests"));
        let exits = each(arm, 1e6, &|sample| sample.timed.ledger.exit_count as f64);
        let swapped = cell.median(arm, |sample| {
            named("swapped-in")(sample) + named("swapped-out")(sample)
        });
        let busy = cell.median(arm, busy);
        vec![
            (*arm).to_owned(),
            text(nanoseconds, rounded),
            text(misses(arm), rounded),
            text(misses(arm).zip(misses(&first)).map(|(a, b)| a / b), rounded),
            text(requests, rounded),
            text(exits, rounded),
            text(swapped, rounded),
            text(busy, percent),
        ]
    };
    let mut notes = vec![match instructions {
        Some(count) => format!(
            "{} instructions, counted in a run of its own with the same work. misses: entries that had \
             to be made, in the software TLB or, with 'direct' and 'adaptive', in windows too; the \
             accesses that hit are not counted, so that the ratio is to the first arm's.",
            crate::experiment::grouped(count as f64)
        ),
        None => "The guest's instructions were not counted.".into(),
    }];
    notes.push(match &results.no_hardware_monitor {
        Some(_) => "The host's own TLB misses: no PMU on this host.".into(),
        None => "The host's own TLB misses: in the samples, with the machine's thread not counted."
            .into(),
    });
    Section {
        title: format!(
            "{}, {}: for each guest instruction",
            cell.guest, cell.workload
        ),
        columns: columns(&[
            "",
            "ns each",
            "misses / 1000",
            "to first arm",
            "disk requests / million",
            "exits / million",
            "pages swapped",
            "processor, % of time",
        ]),
        rows: cell.arms().iter().map(row).collect(),
        notes,
    }
}

/// The value with the cycles that guest and monitor took, without translation.
pub const PROCESSOR: &str = "processor-cycles";

/// The share of the time in which guest or monitor ran.
fn busy(sample: &crate::experiment::Sample) -> f64 {
    let ledger = &sample.timed.ledger;
    let idle = ledger.halted_cycles + ledger.waiting_cycles;
    1.0 - idle as f64 / ledger.wall_cycles.max(1) as f64
}

/// The number of tables with the lowest median, and that arm.
pub fn best(cell: &CellResult, arms: &[(&'static str, u32)]) -> Option<(u32, &'static str)> {
    let medians = arms
        .iter()
        .filter_map(|(arm, number)| Some((*number, *arm, cell.quartiles(arm)?.median)));
    medians
        .min_by(|a, b| a.2.total_cmp(&b.2))
        .map(|(number, arm, _)| (number, arm))
}

/// The best number of tables without and with the mechanisms.
fn best_numbers(results: &Results) -> Section {
    let row = |cell: &CellResult| {
        let mut row = vec![format!("{}, {}", cell.guest, cell.workload)];
        for arms in [CONVENTIONAL, BY_NUMBER] {
            let found = best(cell, arms);
            row.push(found.map_or("-".into(), |(number, _)| number.to_string()));
            let quartiles = found.and_then(|(_, arm)| cell.quartiles(arm));
            row.push(quartiles.map_or("-".into(), |it| {
                format!(
                    "{} ({} to {})",
                    rounded(it.median),
                    rounded(it.lower),
                    rounded(it.upper)
                )
            }));
        }
        let enough =
            super::super::paper::enough_tables(&super::super::paper::medians_by_number(cell));
        row.push(enough.map_or("-".into(), |number| number.to_string()));
        row
    };
    Section {
        title: "the best number of tables, by search".into(),
        columns: columns(&[
            "",
            "conventional: N",
            "cycles of an event (quartiles)",
            "with everything: N",
            "cycles of an event (quartiles)",
            "enough",
        ]),
        rows: cells(results).map(row).collect(),
        notes: vec![
            "N with the lowest median, among the numbers that the workload has arms for: 1 to 16 for \
             the jobs, 1, 3 and 6 (1 and 6 with everything) for the others. 'enough': the least N with \
             everything whose median is within 5 % of the lowest. There: 3 without the assists, 6 with \
             them, for 6 to 7 active spaces."
                .into(),
        ],
    }
}

/// The study's figures next to ours for one cell: conventional tables at their best number, and all
/// mechanisms at theirs.
fn beside_ours(cell: &CellResult) -> Section {
    let (without, with) = (best(cell, CONVENTIONAL), best(cell, BY_NUMBER));
    let arms = without
        .zip(with)
        .map(|((_, without), (_, with))| (without, with));
    let change = |part: &dyn Fn(&Accounts) -> f64| {
        let (without, with) = arms?;
        Some(median(cell, with, part)? / median(cell, without, part)? - 1.0)
    };
    let signed = |value: Option<f64>| text(value, |it| format!("{:+.1} %", it * 100.0));
    let share = |arm: Option<&str>, part: &dyn Fn(&Accounts) -> f64| {
        text(arm.and_then(|arm| median(cell, arm, part)), |it| {
            format!("{} %", percent(it))
        })
    };
    let time = arms.and_then(|(without, with)| {
        Some(cell.quartiles(with)?.median / cell.quartiles(without)?.median - 1.0)
    });
    let instructions = cell.counted().and_then(|counted| counted.instructions);
    let requests = with.zip(instructions).and_then(|((_, arm), all)| {
        let requests = cell.median(arm, |it| it.timed.values["disk-requests"])?;
        Some(requests * 1e6 / all as f64)
    });
    let maintenance = |it: &Accounts| it.maintenance() / it.comparable();
    let row =
        |what: &str, theirs: &str, ours: String| vec![what.to_owned(), theirs.to_owned(), ours];
    let without = without.map(|(_, arm)| arm);
    Section {
        title: format!("{}, {}: the original study beside ours", cell.guest, cell.workload),
        columns: columns(&["", "there", "here"]),
        rows: vec![
            row(
                "tables, of the monitor's time, conventional",
                "15 to 60 %",
                share(without, &maintenance),
            ),
            row(
                "tables, of the monitor's time, with everything",
                "almost none",
                share(with.map(|(_, arm)| arm), &maintenance),
            ),
            row(
                "the monitor's time, with everything",
                "-40 to -60 %",
                signed(change(&Accounts::comparable)),
            ),
            row(
                "time of an instruction, with everything",
                "-10 %",
                signed(time),
            ),
            row(
                "TLB misses, with everything",
                "to 1/2 to 1/4",
                text(change(&|it| it.fills), |it| format!("to {:.2}", it + 1.0)),
            ),
            row(
                "processor, of the time",
                "2.7 to 6.1 %",
                text(without.and_then(|arm| cell.median(arm, busy)), |it| {
                    format!("{} %", percent(it))
                }),
            ),
            row(
                "I/Os per million instructions",
                match task_of(&cell.workload).map(|task| task.action) {
                    Some(Action::Compute) => "-",
                    _ => "43 to 87",
                },
                text(requests, rounded),
            ),
        ],
        notes: vec![
            "Conventional tables at their best number, and all mechanisms at theirs; the monitor's time is \
             that without finding code. There: a resident VM \
             of 8 MB with a database and five jobs, on real disks. Here the disks are the host's cache, so \
             that the processor waits less."
                .into(),
        ],
    }
}
