//! Tables of the experiment `vif`: the study's figures next to ours.

use super::about::{IDLE, OFF, OFF_TASK, OFF_TRAP};
use super::findings::of_cell;
use crate::experiment::{Results, Section};

/// A row of the original table, and which of our workloads corresponds to it.
pub struct Original {
    /// The original workload.
    pub name: &'static str,
    /// Per cent of executed instructions that trapped.
    pub trapped: f64,
    /// Per cent of real time spent in emulation that was entered by a trap gate.
    pub trap_gate: f64,
    /// Per cent of real time spent in emulation that was entered by a task gate.
    pub task_gate: f64,
    /// The corresponding workload here.
    pub ours: &'static str,
}

/// The original table.
pub const ORIGINAL: [Original; 4] = [
    Original {
        name: "DOS idle at its prompt",
        trapped: 1.9,
        trap_gate: 66.0,
        task_gate: 78.0,
        ours: IDLE,
    },
    Original {
        name: "DOS copying and typing files",
        trapped: 0.12,
        trap_gate: 17.0,
        task_gate: 23.0,
        ours: "copy-type",
    },
    Original {
        name: "spreadsheet",
        trapped: 0.53,
        trap_gate: 36.0,
        task_gate: 50.0,
        ours: "mix",
    },
    Original {
        name: "word processor",
        trapped: 0.62,
        trap_gate: 37.0,
        task_gate: 52.0,
        ours: "mix",
    },
];

/// The cost of one trap in average instructions, if `trapped` of all instructions trap and take
/// `share` of the time.
pub fn implied_cost(trapped: f64, share: f64) -> Option<f64> {
    let holds = trapped > 0.0 && trapped < 1.0 && share > 0.0 && share < 1.0;
    holds.then(|| share / (1.0 - share) * (1.0 - trapped) / trapped)
}

/// The costs of the three transitions on this host, for guests whose own loops were timed with
/// each.
fn transitions(results: &Results) -> Option<String> {
    let mean = |guest: &str, arm: &str| {
        let prices = results.prices(guest, arm);
        let sum: f64 = prices.iter().map(|price| price.cycles).sum();
        (!prices.is_empty()).then(|| sum / prices.len() as f64)
    };
    let mut guests = results.about.guests.iter();
    let (guest, call, trap, task) = guests.find_map(|guest| {
        let [call, trap, task] = [OFF, OFF_TRAP, OFF_TASK].map(|arm| mean(guest.name, arm));
        Some((guest.name, call?, trap?, task?))
    })?;
    Some(format!(
        "On this host one exit of the six costs {call:.0} cycles by call, {trap:.0} by a host #GP and \
         {task:.0} by a host #UD (guest {guest}): what stands for the task gate costs {:.1} times what \
         stands for the trap gate, where the study has about 3. Far more than that says that a \
         hypervisor below this host takes #UD itself.",
        task / trap
    ))
}

/// The original table next to ours.
pub fn beside_ours(results: &Results) -> Section {
    let implied = |trapped: f64, percent: f64| {
        let cost = implied_cost(trapped / 100.0, percent / 100.0);
        cost.map_or("-".into(), |cost| format!("{cost:.0}"))
    };
    let there = ORIGINAL.iter().map(|row| {
        vec![
            "80386".into(),
            row.name.into(),
            format!("{}", row.trapped),
            "-".into(),
            format!("{}", row.trap_gate),
            format!("{}", row.task_gate),
            "-".into(),
            implied(row.trapped, row.trap_gate),
            implied(row.trapped, row.task_gate),
        ]
    });
    let cells = results.cells.iter();
    let cells = cells.filter(|cell| ORIGINAL.iter().any(|row| row.ours == cell.workload));
    let here = cells.filter(|cell| !cell.samples().is_empty()).map(|cell| {
        let cost = |arm: &str| of_cell(results, cell, arm);
        let share = |arm: &str| cost(arm).map_or("-".into(), |cost| cost.share_text());
        let implied = |arm: &str| cost(arm).map_or("-".into(), |cost| cost.implied_text());
        vec![
            "here".into(),
            format!("{}, {}", cell.workload, cell.guest),
            cost(OFF).map_or("?".into(), |cost| cost.trapped_text()),
            share(OFF),
            share(OFF_TRAP),
            share(OFF_TASK),
            implied(OFF),
            implied(OFF_TRAP),
            implied(OFF_TASK),
        ]
    });
    let rows = there.chain(here).collect();
    Section {
        title: "the original table beside ours".into(),
        columns: [
            "where",
            "workload",
            "% trapped",
            "% of time: call",
            "trap",
            "task",
            "instr/trap: call",
            "trap",
            "task",
        ]
        .map(str::to_owned)
        .into(),
        rows,
        notes: vec![
            "% trapped: of executed instructions. % of time: spent on the six; ours is count x \
             cost, or as timed where one has no price of its own (in virtual-8086 mode, where the \
             guest's own monitor emulates them too: its time is not in the share). instr/trap: how many average instructions one trap costs, which the two \
             imply. The study also has CP/M-86, \"about as DOS\"; there is no such guest here."
                .into(),
            "What stands for what: for its DOS our small 16-bit system; for its spreadsheet and \
             word processor the workload mix; for its trap gate a host #GP taken as a signal; for \
             its task gate a host #UD with the whole context saved and loaded. The call-out inside \
             one process crosses no protection boundary and stands for nothing there. Its average \
             instruction is one of an 80386, ours one of translated code: figures of the two \
             machines answer the same question and are no ratio of each other."
                .into(),
        ]
        .into_iter()
        .chain(transitions(results))
        .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_original_shares_imply_what_the_study_says() {
        let of = |share: fn(&Original) -> f64| {
            let costs = ORIGINAL.iter().map(|row| {
                implied_cost(row.trapped / 100.0, share(row) / 100.0)
                    .unwrap()
                    .round()
            });
            let costs: Vec<f64> = costs.collect();
            (
                costs.iter().copied().fold(f64::INFINITY, f64::min),
                costs.iter().copied().fold(0.0, f64::max),
            )
        };
        assert_eq!(of(|row| row.trap_gate), (94.0, 170.0));
        let (least, most) = of(|row| row.task_gate);
        assert!(least >= 174.0 && most <= 249.0, "{least} to {most}");
    }

    #[test]
    fn nothing_is_implied_by_nothing() {
        assert_eq!(implied_cost(0.0, 0.5), None);
        assert_eq!(implied_cost(0.5, 1.0), None);
    }
}
