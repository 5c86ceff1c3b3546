//! Summarizes the results of an experiment in a few lines.

use super::table::{early_end, few_repetitions, place};
use super::{CellOutcome, Comparison, Results, Verdict, busy};
use crate::statistics::Quartiles;

/// Number of differences that are named.
const NAMED: usize = 3;

/// The comparison of an arm with the first one in one cell.
struct Found<'a> {
    cell: String,
    arm: &'a str,
    comparison: Comparison,
}

/// The findings in a few lines, including `answers`; the tables contain the rest.
pub fn summary(results: &Results, answers: &[String]) -> String {
    let mut text = String::new();
    let mut line = |words: &str| {
        text.push_str(words);
        text.push('\n');
    };
    if let Some(busy) = busy::remark(results) {
        line(&busy);
    }
    line(results.about.question);
    if let Some(few) = few_repetitions(results) {
        line(&few);
    }
    answers.iter().for_each(|answer| line(answer));
    line(&format!(
        "{} repetitions of each arm; {}",
        results.repetitions,
        place(results)
    ));
    let ran = |name: &str| results.cells.iter().any(|cell| cell.arms().contains(&name));
    let arms = results.arms.iter().filter(|arm| ran(&arm.name));
    line("What is compared:");
    for arm in arms {
        line(&format!("  {}: {}", arm.name, arm.what));
    }
    let mut found = found(results);
    for words in arms_in_words(results) {
        text.push_str(&words);
        text.push('\n');
    }
    found.retain(|it| matches!(it.comparison.verdict, Verdict::Less | Verdict::More));
    let size = |it: &Found| it.comparison.ratio.ln().abs();
    found.sort_by(|a, b| size(b).total_cmp(&size(a)));
    for it in found.iter().take(NAMED) {
        text.push_str(&format!(
            "Most: {}: {} takes {}.\n",
            it.cell, it.arm, it.comparison
        ));
    }
    let reasons = results.cells.iter().filter_map(|cell| match &cell.outcome {
        CellOutcome::NotRun(reason) => Some(reason),
        _ => None,
    });
    let mut reasons: Vec<_> = reasons.collect();
    if !reasons.is_empty() {
        text.push_str(&format!(
            "{} of {} cells were not run.\n",
            reasons.len(),
            results.cells.len()
        ));
    }
    reasons.sort_unstable();
    reasons.dedup();
    for reason in reasons.into_iter().take(NAMED) {
        text.push_str(&format!("Not run: {reason}.\n"));
    }
    for failure in results.failures() {
        text.push_str(&format!("FAILED: {failure}\n"));
    }
    if let Some(early) = early_end(results) {
        text.push_str(&format!("NOT COMPLETE: {early}.\n"));
    }
    text
}

/// All comparisons of an arm with the first.
fn found(results: &Results) -> Vec<Found<'_>> {
    let mut found: Vec<Found> = Vec::new();
    for cell in &results.cells {
        let compared = cell.arms().into_iter();
        found.extend(compared.filter_map(|arm| {
            Some(Found {
                cell: format!("{}, {}", cell.guest, cell.workload),
                arm,
                comparison: cell.comparison(arm)?,
            })
        }));
    }
    found
}

/// For each arm, the number of cells in which it took less or more than the first.
pub(crate) fn arms_in_words(results: &Results) -> Vec<String> {
    let found = found(results);
    let first = results.about.arms.first().map_or("", |arm| arm.name);
    let arms = results.about.arms.iter().skip(1);
    arms.filter_map(|arm| {
        let of_arm = found.iter().filter(|it| it.arm == arm.name);
        let comparisons: Vec<&Comparison> = of_arm.map(|it| &it.comparison).collect();
        let ratios: Vec<f64> = comparisons.iter().map(|it| it.ratio).collect();
        let ratios = Quartiles::of(&ratios)?;
        let count = |verdict| {
            comparisons
                .iter()
                .filter(|it| it.verdict == verdict)
                .count()
        };
        Some(format!(
            "{} beside {first}: less in {}, more in {}, no difference measured in {}{} of {}; median ratio {:.2}.",
            arm.name,
            count(Verdict::Less),
            count(Verdict::More),
            count(Verdict::NoDifferenceMeasured),
            match count(Verdict::NotJudged) {
                0 => String::new(),
                count => format!(", not judged in {count}"),
            },
            comparisons.len(),
            ratios.median
        ))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::test_experiment::Scripted;
    use super::super::{Observer, Options, Stop, run};
    use super::*;

    struct Silent;

    impl Observer for Silent {
        fn progress(&mut self, _: usize, _: usize, _: &str) {}
    }

    #[test]
    fn the_summary_says_what_each_arm_came_to() {
        let options = Options::quick();
        let results = run(&Scripted::default(), &options, &Stop::new(), &mut Silent).unwrap();
        let text = summary(&results, &["It does.".to_owned()]);
        assert!(
            text.starts_with(
                "Does half the time take half the time?\nQuick: little work, 3 repetitions"
            ),
            "{text}"
        );
        assert!(text.contains("\nIt does.\n"), "{text}");
        assert!(text.contains("\n  b: in half the time\n"), "{text}");
        let line = "b beside a: less in 2, more in 0, no difference measured in 0 of 2; median ratio 0.50.";
        assert!(text.contains(line), "{text}");
        assert!(
            text.contains("Most: ours, spin: b takes 50.0 % less."),
            "{text}"
        );
        assert!(
            text.contains("1 of 3 cells were not run.\nNot run: "),
            "{text}"
        );
    }
}
