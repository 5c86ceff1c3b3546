//! The findings of the experiment `vif` in words, with the study's figures.

use super::about::{DOS, OFF_TRAP, ON, SIX};
use super::paper::ORIGINAL;
use super::trap_cost::TrapCost;
use crate::experiment::{CellResult, Results};

/// For each guest and workload, what the six instructions take as traps, and what is left.
pub fn answers(results: &Results) -> Vec<String> {
    let cells = results.cells.iter();
    cells.filter_map(|cell| of_cell(results, cell)).collect()
}

fn of_cell(results: &Results, cell: &CellResult) -> Option<String> {
    let trapped = TrapCost::of(results, cell, OFF_TRAP, SIX)?;
    let left = TrapCost::of(results, cell, ON, SIX)?;
    let mut originals = ORIGINAL.iter();
    let original = originals.find(|row| cell.guest == DOS && row.is_of(&cell.workload));
    let study = original.map_or(String::new(), |row| {
        format!(" (the study: {} and {} %)", row.trapped, row.trap_gate)
    });
    Some(format!(
        "{}, {}: the six are {} % of instructions and take {} % of the time as traps{study}, {} % \
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
    use super::super::about::EDITOR;
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
}
