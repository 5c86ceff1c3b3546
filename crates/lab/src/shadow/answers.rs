//! The findings of the experiment `shadow` in words, with the study's figures.

use super::about::*;
use super::arms::*;
use super::paper::{Found, enough_tables};
use crate::experiment::{Results, Verdict};

/// How many tables suffice on each guest, and what each mechanism gains.
pub fn answers(results: &Results) -> Vec<String> {
    let mut answers = Vec::new();
    for guest in results.about.guests {
        let found = Found {
            results,
            guest: guest.name,
        };
        answers.extend(tables(&found));
        answers.extend(mechanisms(&found));
    }
    answers
}

fn cycles(value: f64) -> String {
    let digits = format!("{value:.0}");
    match digits.len() {
        4.. => {
            let (thousands, rest) = digits.split_at(digits.len() - 3);
            format!("{thousands},{rest}")
        }
        _ => digits,
    }
}

/// How many tables are worth keeping.
fn tables(found: &Found) -> Option<String> {
    const STUDY: &str = "the study found 6 with its assist and 3 without, for 6 to 7 spaces in use";
    let workload = [SWITCH, PROCESSES].into_iter().find(|workload| {
        found
            .cell(workload)
            .is_some_and(|cell| !cell.samples().is_empty())
    })?;
    let cell = found.cell(workload)?;
    let medians = found.by_number(workload);
    let (_, first) = *medians.first()?;
    let enough = enough_tables(&medians)?;
    let (_, least) = *medians.iter().find(|(number, _)| *number == enough)?;
    let (most, _) = *medians.last()?;
    if medians.len() < 2 {
        return None;
    }
    let differs = BY_NUMBER.iter().filter_map(|(arm, _)| cell.comparison(arm));
    let verdicts: Vec<Verdict> = differs.map(|it| it.verdict).collect();
    let guest = found.guest;
    if verdicts.contains(&Verdict::NotJudged) {
        return Some(format!(
            "{guest}: how many tables to keep is not judged: the host was busy ({STUDY})."
        ));
    }
    if enough == 1 || !verdicts.contains(&Verdict::Less) {
        return Some(format!(
            "{guest}: keep 1 table: more, up to {most}, make no difference worth a twentieth ('{workload}': {} cycles); \
             {STUDY}.",
            cycles(first)
        ));
    }
    Some(format!(
        "{guest}: keep {enough} tables: '{workload}' takes {} cycles with them and {} with {}; {STUDY}.",
        cycles(least),
        cycles(first),
        match medians[0].0 {
            1 => "one".to_owned(),
            number => number.to_string(),
        }
    ))
}

/// The gains by avoiding exits, and by not invalidating twice.
fn mechanisms(found: &Found) -> Option<String> {
    let ratio = |workload: &str, over: &str, under: &str| {
        let (over, under) = (found.event(workload, over)?, found.event(workload, under)?);
        (under > 0.0).then(|| format!("{:.1}", over / under))
    };
    let mut parts = Vec::new();
    if let Some(ratio) = ratio(SWITCH_ONLY, SELECTIVE, SIX) {
        parts.push(format!(
            "a switch takes {ratio} times as much by an exit as without (the study: 24.4)"
        ));
    }
    if let Some(ratio) = ratio(INVALIDATE_ONLY, SELECTIVE, SIX) {
        parts.push(format!("the invalidation of a page {ratio} times (3.4)"));
    }
    if let Some(ratio) = ratio(TWICE, ALLOW, COUNT) {
        parts.push(format!(
            "purging unused tables again takes {ratio} times as much as not (no figure there)"
        ));
    }
    (!parts.is_empty()).then(|| format!("{}: {}.", found.guest, parts.join(", ")))
}
