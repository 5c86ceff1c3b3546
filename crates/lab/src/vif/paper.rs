//! The figures of the study that the experiment `vif` repeats.

use super::about::{
    COPY_TYPE, EDITOR, IDLE, OFF, OFF_TASK, OFF_TRAP, SPREADSHEET, VI, WORD_PROCESSOR,
};
use crate::experiment::Results;

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
    /// The corresponding workloads on DOS here.
    pub ours: &'static [&'static str],
}

impl Original {
    /// Whether a workload on DOS here corresponds to it.
    pub fn is_of(&self, workload: &str) -> bool {
        self.ours.contains(&workload)
    }
}

/// The original table.
pub const ORIGINAL: [Original; 4] = [
    Original {
        name: "DOS idle at its prompt",
        trapped: 1.9,
        trap_gate: 66.0,
        task_gate: 78.0,
        ours: &[IDLE],
    },
    Original {
        name: "DOS copying and typing files",
        trapped: 0.12,
        trap_gate: 17.0,
        task_gate: 23.0,
        ours: &[COPY_TYPE],
    },
    Original {
        name: "spreadsheet",
        trapped: 0.53,
        trap_gate: 36.0,
        task_gate: 50.0,
        ours: &[SPREADSHEET],
    },
    Original {
        name: "word processor",
        trapped: 0.62,
        trap_gate: 37.0,
        task_gate: 52.0,
        ours: &[EDITOR, WORD_PROCESSOR, VI],
    },
];

/// The cost of one trap in average instructions, if `trapped` of all instructions trap and take
/// `share` of the time.
pub fn implied_cost(trapped: f64, share: f64) -> Option<f64> {
    let holds = trapped > 0.0 && trapped < 1.0 && share > 0.0 && share < 1.0;
    holds.then(|| share / (1.0 - share) * (1.0 - trapped) / trapped)
}

/// The system in the study's table whose row has no figures, and what that row says.
pub const WITHOUT_FIGURES: (&str, &str) = ("CP/M-86", "about as DOS");

/// The costs of the three transitions on this host, for guests whose own loops were timed with
/// each.
pub fn transitions(results: &Results) -> Option<String> {
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
