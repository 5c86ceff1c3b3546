//! The findings of the experiment `icache` in words, with the study's figures.

use super::about::*;
use crate::experiment::{CellResult, Results, Verdict};

/// The gain by the dictionary where the study found one, and elsewhere.
pub fn answers(results: &Results) -> Vec<String> {
    let measured = results
        .cells
        .iter()
        .filter(|cell| !cell.samples().is_empty());
    let (worst, measured): (Vec<&CellResult>, Vec<&CellResult>) =
        measured.partition(|cell| cell.workload == APIC_SITES);
    let (loops, others): (Vec<&CellResult>, Vec<&CellResult>) = (measured.into_iter())
        .partition(|cell| [APIC, APIC_DIRECT, APIC_MODULE].contains(&cell.workload.as_str()));
    let mut answers: Vec<String> = loops.iter().filter_map(|cell| of_loop(cell)).collect();
    answers.extend(worst.into_iter().filter_map(of_worst_case));
    answers.extend(of_others(&others));
    answers
}

/// The answer for a loop of accesses to the local APIC.
fn of_loop(cell: &CellResult) -> Option<String> {
    let on = cell.comparison(ON)?;
    let translator = [SITE, FAST_PATH].into_iter().filter_map(|arm| {
        let comparison = cell.comparison(arm)?;
        Some(format!("'{arm}' {comparison}"))
    });
    let translator: Vec<String> = translator.collect();
    let beside = match translator.is_empty() {
        true => String::new(),
        false => format!(
            "; without a dictionary, a translator's {}",
            translator.join(", ")
        ),
    };
    let dictionary = match on.verdict {
        Verdict::NoDifferenceMeasured => {
            "no difference measured between the dictionary and finding each instruction again"
                .into()
        }
        Verdict::NotJudged => "the dictionary is not judged, because the host was busy".into(),
        Verdict::More if on.ratio >= 2.0 => {
            format!("with the dictionary {on} as finding each instruction again")
        }
        Verdict::Less | Verdict::More => {
            format!("with the dictionary {on} than finding each instruction again")
        }
    };
    Some(format!(
        "{}, {}: {dictionary} (the study: 35 to 40 % less){beside}.",
        cell.guest, cell.workload
    ))
}

/// The answer for a loop in which every instruction is new to the dictionary.
fn of_worst_case(cell: &CellResult) -> Option<String> {
    let on = cell.comparison(ON)?;
    Some(format!(
        "{}, {}, the worst case: every look-up fails and adds an entry: with the dictionary {on}.",
        cell.guest, cell.workload
    ))
}

/// The answer for all workloads that are not such a loop.
fn of_others(cells: &[&CellResult]) -> Option<String> {
    let compared = cells
        .iter()
        .filter_map(|cell| Some((cell, cell.comparison(ON)?)));
    let compared: Vec<_> = compared.collect();
    let count = |verdict| {
        compared
            .iter()
            .filter(|(_, it)| it.verdict == verdict)
            .count()
    };
    if compared.is_empty() {
        return None;
    }
    let mut text = format!(
        "Elsewhere the dictionary makes no measured difference in {} of {} cells (the study: in none of its four)",
        count(Verdict::NoDifferenceMeasured),
        compared.len()
    );
    for (cell, comparison) in &compared {
        if matches!(comparison.verdict, Verdict::Less | Verdict::More) {
            text.push_str(&format!(
                "; {}, {}: {comparison}",
                cell.guest, cell.workload
            ));
        }
    }
    match count(Verdict::NotJudged) {
        0 => {}
        count => text.push_str(&format!("; {count} not judged: busy host")),
    }
    Some(text + ".")
}
