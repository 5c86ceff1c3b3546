//! The findings of the experiment `vif`: the cost of a trap, what remains when the six instructions
//! cost nothing, and the monitor's share of idling.

use super::about::{ECHO_P99, FOUR_MACHINES, IDLE, OFF, ON, SIX};
use super::trap_cost::{TrapCost, UNFIT, significant};
use crate::experiment::{CellResult, Results, Section, columns};
use crate::statistics::Quartiles;
use tollgate_exits::ExitKind;

/// The sections that have content.
pub fn sections(results: &Results) -> Vec<Section> {
    let sections = [
        prices(results),
        remains(results),
        idle(results),
        four_machines(results),
    ];
    let sections = sections.into_iter();
    sections
        .filter(|section| !section.rows.is_empty())
        .collect()
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| significant(share * 100.0))
}

/// Cycles of one exit, measured separately.
fn prices(results: &Results) -> Section {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for guest in results.about.guests {
        for arm in results.about.arms {
            let prices = results.prices(guest.name, arm.name);
            if prices.is_empty() {
                continue;
            }
            let mut row = vec![guest.name.to_owned(), arm.name.to_owned()];
            row.extend(SIX.iter().map(|kind| {
                let mut prices = prices.iter();
                let price = prices.find(|price| price.kind == kind.name());
                price.map_or("-".into(), |price| format!("{:.0}", price.cycles))
            }));
            rows.push(row);
        }
    }
    // A guest whose own monitor emulates all pairs has no row, which the reader must be told.
    let mut unpriced: Vec<&str> = Vec::new();
    for cell in results
        .cells
        .iter()
        .filter(|cell| !cell.samples().is_empty())
    {
        let guest = cell.guest.as_str();
        let is_priced = results.prices.iter().any(|price| price.guest == guest);
        if !is_priced && !unpriced.contains(&guest) {
            unpriced.push(guest);
        }
    }
    let unpriced = match unpriced.is_empty() {
        true => String::new(),
        false => format!(
            " No row: {}, where that is so for all three pairs.",
            unpriced.join(", ")
        ),
    };
    let names = SIX.iter().map(|kind| kind.name());
    Section {
        title: "what one exit costs (cycles of the time-stamp counter)".into(),
        columns: columns(
            &["guest", "arm"]
                .into_iter()
                .chain(names)
                .collect::<Vec<_>>(),
        ),
        rows,
        notes: vec![format!(
            "From the guest's own loops of pairs (CLI and STI, PUSHF and POPF, INT n and IRET), \
             the empty loop subtracted; medians of 7 runs (quick: 3). A pair's cycles are shared out among the exits that it \
             takes. With vif=on what remains is priced as a call-out. -: the guest's own monitor \
             emulates the pair too, so that its time is that of many exits.{unpriced}"
        )],
    }
}

/// The monitor's share of an arm's time: exits, devices, translation.
fn monitor_share(cell: &CellResult, arm: &str) -> Option<f64> {
    cell.median(arm, |sample| {
        let ledger = &sample.timed.ledger;
        let cycles = ledger.exit_cycles + ledger.device_cycles + ledger.translating_cycles;
        cycles as f64 / ledger.wall_cycles.max(1) as f64
    })
}

fn remains(results: &Results) -> Section {
    let count = |cell: &CellResult, arm: &str, kinds: &[ExitKind]| {
        let count = cell.median(arm, |sample| {
            let rows = kinds
                .iter()
                .filter_map(|kind| sample.timed.exits(kind.name()));
            rows.map(|row| row.count).sum::<u64>() as f64
        });
        count.map_or("-".into(), |count| format!("{count:.0}"))
    };
    let rows = results.cells.iter().filter(|cell| {
        cell.workload != FOUR_MACHINES
            && !cell.of_arm(OFF).is_empty()
            && !cell.of_arm(ON).is_empty()
    });
    let rows = rows.map(|cell| {
        vec![
            cell.workload.clone(),
            cell.guest.clone(),
            count(cell, OFF, SIX),
            count(cell, ON, SIX),
            count(cell, ON, &[ExitKind::InterruptDelivered]),
            percent(monitor_share(cell, OFF)),
            percent(monitor_share(cell, ON)),
            cell.comparison(ON)
                .map_or("-".into(), |comparison| format!("{:.3}", comparison.ratio)),
            dearest(cell, ON),
        ]
    });
    Section {
        title: "what remains when the six are free".into(),
        columns: columns(&[
            "workload",
            "guest",
            "six, off",
            "six, on",
            "delivered, on",
            "% monitor, off",
            "% monitor, on",
            "on / off",
            "dearest kinds, on (% of time)",
        ]),
        rows: rows.collect(),
        notes: vec![
            "six: exits of the six instructions. delivered: interrupts; with VIF and VIR the six \
             should come to no more than these. % monitor: exits, devices and translation, \
             timed directly, of all time. on / off: the ratio of the medians, as in the tables \
             above, which say whether it is a difference."
                .into(),
        ],
    }
}

/// The kinds of exit that take most of an arm's time.
fn dearest(cell: &CellResult, arm: &str) -> String {
    let mut kinds: Vec<(f64, &str)> = ExitKind::ALL
        .iter()
        .filter_map(|kind| {
            let share = cell.median(arm, |sample| {
                let cycles = sample.timed.exits(kind.name()).map_or(0, |row| row.cycles);
                cycles as f64 / sample.timed.ledger.wall_cycles.max(1) as f64
            })?;
            (share > 0.001).then_some((share, kind.name()))
        })
        .collect();
    kinds.sort_by(|a, b| b.0.total_cmp(&a.0));
    let texts: Vec<String> = kinds
        .iter()
        .take(3)
        .map(|(share, name)| format!("{name} {}", significant(share * 100.0)))
        .collect();
    texts.join(", ")
}

fn idle(results: &Results) -> Section {
    let rows = results.cells.iter().filter(|cell| cell.workload == IDLE);
    let rows = rows.flat_map(|cell| {
        cell.arms().into_iter().map(|arm| {
            let cost = TrapCost::of(results, cell, arm, SIX);
            vec![
                cell.guest.clone(),
                arm.to_owned(),
                cost.map_or("-".into(), |cost| cost.share_text()),
                percent(monitor_share(cell, arm)),
                percent(cell.median(arm, |sample| {
                    let ledger = &sample.timed.ledger;
                    ledger.halted_cycles as f64 / ledger.wall_cycles.max(1) as f64
                })),
                cell.quartiles(arm)
                    .map_or("-".into(), |quartiles| format!("{:.3}", quartiles.median)),
            ]
        })
    });
    Section {
        title: "idle at the prompt: time that is the monitor's".into(),
        columns: columns(&[
            "guest",
            "arm",
            "% six",
            "% monitor, timed",
            "% halted",
            "us a poll",
        ]),
        rows: rows.collect(),
        notes: vec![
            "% six: count x cost, in v86 and v86-iopl3 without the time of the guest's own monitor. A guest \
             that polls and never halts: all that is not the monitor's is its own loop. With hooks a DOS \
             halts until the next interrupt; a poll is then what lies between two of them, without the wait."
                .into(),
            UNFIT.into(),
        ],
    }
}

fn four_machines(results: &Results) -> Section {
    let rows = results.cells.iter();
    let rows = rows
        .filter(|cell| cell.workload == FOUR_MACHINES)
        .flat_map(|cell| {
            cell.arms().into_iter().map(|arm| {
                let value = |name: &str| {
                    let samples = cell.of_arm(arm).into_iter();
                    let values: Vec<f64> = samples
                        .filter_map(|sample| sample.timed.values.get(name).copied())
                        .collect();
                    Quartiles::of(&values).map_or("-".into(), |q| format!("{:.0}", q.median))
                };
                vec![
                    cell.guest.clone(),
                    arm.to_owned(),
                    value("echo-p50"),
                    value(ECHO_P99),
                    value("echo-max"),
                    value("echo-alone-p50"),
                    value("echo-alone-p99"),
                ]
            })
        });
    Section {
        title: "concurrency: four machines on one processor, from a key to its echo (us)".into(),
        columns: columns(&[
            "guest",
            "arm",
            "p50",
            "p99",
            "max",
            "alone p50",
            "alone p99",
        ]),
        rows: rows.collect(),
        notes: vec![
            "Medians over the repetitions. The three others run the workload mix without a \
             pause; none of the four ever halts, so each key waits for the host's scheduler. \
             alone: the same machine on the same processor without the others."
                .into(),
        ],
    }
}
