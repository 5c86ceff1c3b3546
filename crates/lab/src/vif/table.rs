//! The study's table with ours in it: for each guest and workload the shares of instructions and of
//! time, the six instructions and I/O in rows of their own.

use super::about::{DOS, FOUR_MACHINES, INPUT_OUTPUT, OFF, OFF_TASK, OFF_TRAP, ON, SIX};
use super::paper::{ORIGINAL, Original, WITHOUT_FIGURES, implied_cost, transitions};
use super::trap_cost::{TrapCost, UNFIT};
use crate::experiment::{CellResult, Results, Section, columns};
use tollgate_exits::ExitKind;

const COLUMNS: [&str; 12] = [
    "system",
    "workload",
    "kinds",
    "% trapped",
    "% of time: call",
    "trap",
    "task",
    "instr/trap: call",
    "trap",
    "task",
    "vif=on: exits",
    "% of time",
];

/// The kinds of exit that have a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Row {
    Six,
    InputOutput,
}

impl Row {
    const fn kinds(self) -> &'static [ExitKind] {
        match self {
            Self::Six => SIX,
            Self::InputOutput => INPUT_OUTPUT,
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Six => "the six",
            Self::InputOutput => "I/O",
        }
    }
}

/// Puts the cells into the table.
pub fn table(results: &Results) -> Section {
    let cells = results.cells.iter();
    let cells = cells.filter(|cell| cell.workload != FOUR_MACHINES && !cell.samples().is_empty());
    let (dos, small): (Vec<&CellResult>, Vec<&CellResult>) =
        cells.partition(|cell| cell.guest == DOS);
    let ours = |cell: &&CellResult| {
        [Row::Six, Row::InputOutput].map(|row| row_of_ours(results, cell, row))
    };
    let mut rows = Vec::new();
    for original in &ORIGINAL {
        rows.push(row_of_theirs(original));
        let here = dos.iter().filter(|cell| original.is_of(&cell.workload));
        rows.extend(here.flat_map(ours));
    }
    let is_theirs = |cell: &&&CellResult| ORIGINAL.iter().any(|it| it.is_of(&cell.workload));
    rows.extend(dos.iter().filter(|cell| !is_theirs(cell)).flat_map(ours));
    rows.push(row_without_figures());
    rows.extend(small.iter().flat_map(ours));
    Section {
        title: "the study's table and ours".into(),
        columns: columns(&COLUMNS),
        rows,
        notes: notes(results),
    }
}

fn row_of_theirs(original: &Original) -> Vec<String> {
    let implied = |percent: f64| {
        let cost = implied_cost(original.trapped / 100.0, percent / 100.0);
        cost.map_or("-".into(), |cost| format!("{cost:.0}"))
    };
    vec![
        "80386, the study".into(),
        original.name.into(),
        Row::Six.title().into(),
        original.trapped.to_string(),
        "-".into(),
        original.trap_gate.to_string(),
        original.task_gate.to_string(),
        "-".into(),
        implied(original.trap_gate),
        implied(original.task_gate),
        "-".into(),
        "-".into(),
    ]
}

fn row_without_figures() -> Vec<String> {
    let (system, what) = WITHOUT_FIGURES;
    let mut row = vec![
        "80386, the study".to_owned(),
        format!("{system}: {what}"),
        Row::Six.title().into(),
    ];
    row.resize(COLUMNS.len(), "-".into());
    row
}

fn row_of_ours(results: &Results, cell: &CellResult, row: Row) -> Vec<String> {
    let cost = |arm: &str| TrapCost::of(results, cell, arm, row.kinds());
    let share = |arm: &str| cost(arm).map_or("-".into(), |cost| cost.share_text());
    let implied = |arm: &str| match row {
        // The arms differ in how the six exit.
        Row::InputOutput if arm != OFF => "-".into(),
        _ => cost(arm).map_or("-".into(), |cost| cost.implied_text()),
    };
    vec![
        cell.guest.clone(),
        cell.workload.clone(),
        row.title().into(),
        cost(OFF).map_or("?".into(), |cost| cost.trapped_text()),
        share(OFF),
        share(OFF_TRAP),
        share(OFF_TASK),
        implied(OFF),
        implied(OFF_TRAP),
        implied(OFF_TASK),
        exits(cell, ON, row.kinds()).map_or("-".into(), |count| format!("{count:.0}")),
        share(ON),
    ]
}

/// The number of exits of these kinds with an arm, median of the runs.
fn exits(cell: &CellResult, arm: &str, kinds: &[ExitKind]) -> Option<f64> {
    cell.median(arm, |sample| {
        let rows = kinds
            .iter()
            .filter_map(|kind| sample.timed.exits(kind.name()));
        rows.map(|row| row.count).sum::<u64>() as f64
    })
}

fn notes(results: &Results) -> Vec<String> {
    let notes = [
        "% trapped: of executed instructions; with vif=off each of the six and each access to a \
         device traps. % of time: spent on them; ours is count x cost, or as timed where one has no \
         price of its own (I/O; in virtual-8086 mode also the six, which the guest's own monitor \
         emulates too: its time is not in the share). instr/trap: how many average instructions one \
         trap costs, which the two imply. vif=on: what remains when the six are free.",
        UNFIT,
        "What stands for what: for its DOS a DOS of today with programs of ours and free ones of its \
         time; for its CP/M-86 our small 16-bit system; for its trap gate a host #GP taken as a \
         signal; for its task gate a host #UD with the whole context saved and loaded. The call-out \
         inside one process crosses no protection boundary and stands for nothing there. Its average \
         instruction is one of an 80386, ours one of translated code: figures of the two machines \
         answer the same question and are no ratio of each other.",
    ];
    let notes = notes.into_iter().map(str::to_owned);
    notes.chain(transitions(results)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::about::EDITOR;
    use super::super::testing::{cell, results};
    use super::*;
    use crate::experiment::test_experiment::sample;

    /// Ten exits of CLI that take 200 of 1000 cycles.
    fn measured(guest: &str, workload: &str) -> CellResult {
        let samples = [OFF, OFF_TRAP, OFF_TASK, ON].map(|arm| sample(arm, 1, 10, 200, 1000));
        cell(guest, workload, samples.into())
    }

    #[test]
    fn each_guest_and_workload_has_rows_below_what_it_corresponds_to() {
        let cells = [(DOS, "build"), (DOS, EDITOR), ("real", EDITOR)];
        let cells = cells.map(|(guest, workload)| measured(guest, workload));
        let table = table(&results(cells.into()));
        let names: Vec<[&str; 3]> = table
            .rows
            .iter()
            .map(|row| [&*row[0], &*row[1], &*row[2]])
            .collect();
        let study = "80386, the study";
        assert_eq!(names[3], [study, "word processor", "the six"]);
        assert_eq!(
            names[4..6],
            [[DOS, EDITOR, "the six"], [DOS, EDITOR, "I/O"]]
        );
        assert_eq!(names[6], [DOS, "build", "the six"]);
        assert_eq!(names[8], [study, "CP/M-86: about as DOS", "the six"]);
        assert_eq!(names[9], ["real", EDITOR, "the six"]);
        assert!(table.rows.iter().all(|row| row.len() == COLUMNS.len()));
    }

    #[test]
    fn a_row_has_shares_of_instructions_and_of_time_and_the_cost_that_they_imply() {
        let table = table(&results(vec![measured(DOS, EDITOR)]));
        // 7 of 1000 instructions take a fifth of the time: 0.25 x 993 / 7 instructions each.
        let expected = ["0.70", "20", "20", "20", "35", "35", "35", "10", "20"];
        assert_eq!(table.rows[4][3..], expected);
        assert_eq!(table.rows[5][3..8], ["0.00", "0.00", "0.00", "0.00", "?"]);
    }
}
