//! The findings of the experiment `vif` in words, with the study's figures.

use super::about::{DOS, OFF_TRAP, ON, SIX, WITH_OWN_MONITOR};
use super::paper::{ORIGINAL, Original};
use super::trap_cost::{TrapCost, significant};
use crate::experiment::{CellResult, Results};

/// For the workloads of the study together, then for each guest and workload: what the six
/// instructions take as traps, and what is left. The study's own system comes first.
pub fn answers(results: &Results) -> Vec<String> {
    let cells = results.cells.iter();
    let (dos, others): (Vec<&CellResult>, Vec<&CellResult>) =
        cells.partition(|cell| cell.guest == DOS);
    let mut answers: Vec<String> = of_dos(results, &dos).into_iter().collect();
    let cells = dos.into_iter().chain(others);
    answers.extend(cells.filter_map(|cell| of_cell(results, cell)));
    answers
}

/// The least and the greatest of these per cent, as text; `None` without any.
fn range(values: impl Iterator<Item = f64>) -> Option<String> {
    let (least, most) = values.fold((f64::INFINITY, 0.0_f64), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    (least <= most).then(|| format!("{} to {}", significant(least), significant(most)))
}

/// The workloads of the study on DOS, in one sentence; `None` if fewer than two were measured.
fn of_dos(results: &Results, cells: &[&CellResult]) -> Option<String> {
    let is_original = |cell: &&&CellResult| ORIGINAL.iter().any(|row| row.is_of(&cell.workload));
    let costs = cells.iter().filter(is_original).filter_map(|cell| {
        let of = |arm| TrapCost::of(results, cell, arm, SIX);
        Some((of(OFF_TRAP)?, of(ON)?))
    });
    let costs: Vec<(TrapCost, TrapCost)> = costs.collect();
    if costs.len() < 2 {
        return None;
    }
    let theirs = |of: fn(&Original) -> f64| range(ORIGINAL.iter().map(of));
    // A share of more than all of the time says nothing.
    let shares = costs.iter().map(|it| it.0.share).filter(|it| *it <= 1.0);
    let left = costs.iter().map(|it| it.1.share).fold(0.0, f64::max);
    Some(format!(
        "{DOS}, {} workloads like the study's: the six are {} % of instructions and take {} % of the time as traps \
         (the study: {} and {} %), at most {} % with VIF and VIR.",
        costs.len(),
        range(
            costs
                .iter()
                .filter_map(|it| it.0.trapped)
                .map(|it| it * 100.0)
        )?,
        range(shares.map(|it| it * 100.0))?,
        theirs(|row| row.trapped)?,
        theirs(|row| row.trap_gate)?,
        significant(left * 100.0)
    ))
}

fn of_cell(results: &Results, cell: &CellResult) -> Option<String> {
    let trapped = TrapCost::of(results, cell, OFF_TRAP, SIX)?;
    let left = TrapCost::of(results, cell, ON, SIX)?;
    let mut originals = ORIGINAL.iter();
    let original = originals.find(|row| cell.guest == DOS && row.is_of(&cell.workload));
    let study = original.map_or(String::new(), |row| {
        format!(" (the study: {} and {} %)", row.trapped, row.trap_gate)
    });
    let without = match WITH_OWN_MONITOR.contains(&cell.guest.as_str()) {
        true => " (without the time of the guest's own monitor, which emulates them too)",
        false => "",
    };
    Some(format!(
        "{}, {}: the six are {} % of instructions and take {} % of the time as traps{study}{without}, {} % \
         with VIF and VIR.",
        cell.guest,
        cell.workload,
        trapped.trapped_text(),
        trapped.share_text(),
        left.share_text()
    ))
}

#[cfg(test)]
mod tests {
    use super::super::about::{COPY_TYPE, EDITOR, V86};
    use super::super::testing::{cell, results};
    use super::*;
    use crate::experiment::test_experiment::sample;

    #[test]
    fn an_answer_has_both_figures_and_the_studys() {
        let samples = vec![
            sample(OFF_TRAP, 1, 10, 200, 1000),
            sample(ON, 1, 1, 1, 1000),
        ];
        let results = results(vec![cell(DOS, EDITOR, samples)]);
        assert_eq!(
            answers(&results),
            [
                "dos, editor: the six are 0.70 % of instructions and take 20 % of the time as traps \
              (the study: 0.62 and 37 %), 0.10 % with VIF and VIR."
            ]
        );
    }

    fn measured(guest: &str, workload: &str, cycles: u64) -> CellResult {
        let trapped = sample(OFF_TRAP, 1, 10, cycles, 1000);
        cell(guest, workload, vec![trapped, sample(ON, 1, 1, 1, 1000)])
    }

    #[test]
    fn the_studys_workloads_come_first_and_together() {
        let cells = vec![
            measured("real", EDITOR, 100),
            measured(DOS, EDITOR, 200),
            measured(DOS, COPY_TYPE, 400),
        ];
        let answers = answers(&results(cells));
        assert_eq!(
            answers[0],
            "dos, 2 workloads like the study's: the six are 0.70 to 0.70 % of instructions and take 20 to \
             40 % of the time as traps (the study: 0.12 to 1.90 and 17 to 66 %), at most 0.10 % with VIF \
             and VIR."
        );
        assert!(answers[1].starts_with("dos, editor: "), "{answers:?}");
        assert!(answers[3].starts_with("real, editor: "), "{answers:?}");
    }

    #[test]
    fn a_share_without_the_guests_own_monitor_says_so() {
        let answers = answers(&results(vec![measured(V86, EDITOR, 200)]));
        assert!(
            answers[0].contains("without the time of the guest's own monitor"),
            "{answers:?}"
        );
    }
}
