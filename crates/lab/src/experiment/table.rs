//! Formats the results of an experiment as text for people.

use super::busy;
use super::compare::chance_of_difference;
use super::kind_tables::{DIFFERS, exits, time_shares};
use super::section::{grouped, rounded};
use super::{CellOutcome, CellResult, REPETITIONS, Results, Section};
use std::fmt::Write;

/// All tables of an experiment, as text.
pub fn table(results: &Results, sections: &[Section]) -> String {
    let mut text = heading(results);
    for cell in &results.cells {
        let _ = write!(text, "\n{}", of_cell(results, cell));
    }
    for section in sections {
        let _ = write!(text, "\n{}", section.text());
    }
    let _ = write!(text, "\n{}", notes(results));
    if let Some(early) = early_end(results) {
        let _ = writeln!(text, "{early}");
    }
    text
}

/// Why not all samples were taken, and how many were; `None` if all were.
pub(crate) fn early_end(results: &Results) -> Option<String> {
    let why = match &results.refused {
        Some(why) => format!("the host refused: {why}"),
        None if results.interrupted => "interrupted".into(),
        None if results.out_of_time => "the time that was given was over".into(),
        None => return None,
    };
    Some(format!(
        "{why}: {} of {} samples",
        results.finished, results.planned
    ))
}

/// The host on which it was measured.
pub(crate) fn place(results: &Results) -> String {
    let counters = results.no_hardware_monitor.as_deref().unwrap_or("counted");
    format!("{}; hardware counters: {counters}.", results.host)
}

fn heading(results: &Results) -> String {
    let about = results.about;
    let mut notes: Vec<String> = busy::remark(results).into_iter().collect();
    notes.extend([
        about.question.to_owned(),
        format!("After {}.", about.source),
        place(results),
    ]);
    notes.extend(few_repetitions(results));
    notes.extend(early_end(results).map(|early| format!("NOT COMPLETE: {early}.")));
    let arms = results.arms.iter().map(|arm| {
        let settings: Vec<_> = arm
            .settings
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect();
        vec![arm.name.clone(), settings.join(" "), arm.what.clone()]
    });
    let heading = Section {
        title: format!("lab {}: {}", about.name, about.one_line),
        notes,
        ..Section::default()
    };
    let arms = Section {
        columns: ["arm", "knobs", "what it stands for"]
            .map(str::to_owned)
            .into(),
        rows: arms.collect(),
        ..Section::default()
    };
    format!("{}\n{}", heading.text(), arms.text())
}

/// A remark that there were few repetitions of little work, if so.
pub(crate) fn few_repetitions(results: &Results) -> Option<String> {
    let count = results.repetitions;
    match (results.quick, count < REPETITIONS) {
        (false, false) => None,
        (true, false) => Some(format!(
            "Quick: little work in each of the {count} repetitions, so that small differences may be chance."
        )),
        (quick, true) => Some(format!(
            "{}{count} repetitions, fewer than the {REPETITIONS} that a verdict should stand on.",
            if quick { "Quick: little work, " } else { "" },
        )),
    }
}

fn of_cell(results: &Results, cell: &CellResult) -> String {
    let workload = results.about.workloads.iter();
    let what = workload
        .filter(|workload| workload.name == cell.workload)
        .map(|workload| workload.what)
        .next()
        .unwrap_or_default();
    let title = format!("{}, {}: {what}", cell.guest, cell.workload);
    match &cell.outcome {
        CellOutcome::NotRun(why) => return format!("{title}\n  not run: {why}\n"),
        CellOutcome::Failed(why) => return format!("{title}\n  FAILED: {why}\n"),
        CellOutcome::Measured { samples, .. } if samples.is_empty() => {
            return format!("{title}\n  not run: the experiment ended before\n");
        }
        CellOutcome::Measured { .. } => {}
    }
    let mut text = Section {
        title,
        ..times(cell)
    }
    .text();
    let exits = exits(results.about.kinds, cell);
    let _ = write!(text, "\n{}", exits.text());
    let time = time_shares(results, cell);
    let _ = write!(text, "\n{}", time.text());
    if results.no_hardware_monitor.is_none() {
        let _ = write!(text, "\n{}", hardware(cell).text());
    }
    text
}

/// The compared value of every repetition.
pub(crate) fn times(cell: &CellResult) -> Section {
    let metric = format!("{} ({})", cell.metric.name(), cell.metric.unit());
    let rows = cell.arms().into_iter().filter_map(|arm| {
        let quartiles = cell.quartiles(arm)?;
        let comparison = cell.comparison(arm);
        let values: Vec<String> = cell.values(arm).into_iter().map(rounded).collect();
        Some(vec![
            arm.to_owned(),
            rounded(quartiles.median),
            rounded(quartiles.lower),
            rounded(quartiles.upper),
            comparison.as_ref().map_or(String::new(), |comparison| {
                format!("{:.3}", comparison.ratio)
            }),
            comparison.map_or_else(
                || "compared with".into(),
                |comparison| comparison.to_string(),
            ),
            values.join(" "),
        ])
    });
    Section {
        columns: [
            metric.as_str(),
            "median",
            "lower",
            "upper",
            "ratio",
            "verdict",
            "every repetition",
        ]
        .map(str::to_owned)
        .into(),
        rows: rows.collect(),
        ..Section::default()
    }
}

/// The counts of the host's processor.
fn hardware(cell: &CellResult) -> Section {
    let rows = cell.arms().into_iter().map(|arm| {
        let median =
            |value: fn(&tollgate_host_facts::hardware_counters::HardwareCounts) -> Option<u64>| {
                let samples = cell.of_arm(arm).into_iter();
                let values: Option<Vec<f64>> = samples
                    .map(|sample| Some(value(sample.hardware.as_ref()?)? as f64))
                    .collect();
                let quartiles = crate::statistics::Quartiles::of(&values?)?;
                Some(grouped(quartiles.median))
            };
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        vec![
            arm.to_owned(),
            text(median(|counts| counts.cycles)),
            text(median(|counts| counts.instructions)),
            text(median(|counts| counts.dtlb_misses)),
            text(median(|counts| counts.kernel_cycles)),
        ]
    });
    Section {
        columns: [
            "hardware monitor",
            "cycles",
            "instructions",
            "dTLB misses",
            "kernel cycles",
        ]
        .map(str::to_owned)
        .into(),
        rows: rows.collect(),
        ..Section::default()
    }
}

fn notes(results: &Results) -> String {
    let mut notes = vec![
        format!(
            "Arms ran in turns, each round beginning with the next one. lower, upper: quartiles. ratio: of the medians. verdict: \"no \
             difference measured\" if the middle halves overlap, \"not judged\" where the host ran \
             something else for too long. With {} repetitions two arms \
             that are the same come out as different in about {:.1} % of comparisons.",
            results.repetitions,
            chance_of_difference(results.repetitions) * 100.0
        ),
        "exits: medians of the repetitions; the sums of a group stand below it. executed: in a \
         run of its own with the first arm, where each is an exit."
            .to_owned(),
        format!(
            "% of time (?: more than all of it would come out, so that the cost does not fit this run): \
             count x cost of one, the cost measured in loops apart / timed directly \
             in the run by the ledger; medians; {DIFFERS} where they differ by more than a \
             tenth. The ledger's clock starts when the monitor has the exit: how it got there \
             is in the cost, not in what was timed."
        ),
    ];
    if let Some(why) = &results.no_hardware_monitor {
        notes.push(format!("hardware monitor: {why}"));
    }
    Section {
        notes,
        ..Section::default()
    }
    .text()
}

#[cfg(test)]
mod tests {
    use super::super::test_experiment::{Scripted, Silent};
    use super::*;
    use crate::experiment::{Experiment, Options, Stop, run};

    fn text_of(experiment: &Scripted, options: &Options) -> String {
        let results = run(experiment, options, &Stop::new(), &mut Silent).unwrap();
        table(&results, &experiment.sections(&results))
    }

    #[test]
    fn the_table_has_times_exits_shares_and_what_the_experiment_adds() {
        let text = text_of(&Scripted::default(), &Options::default());
        for part in [
            "lab made-up: two settings of nothing",
            "50.0 % less",
            "what stands for what",
            " 0.0010 0.0010 0.0010 0.0010 0.0010 0.0010 0.0010 0.0010 0.0010\n",
            "theirs, spin: goes round\n  not run: no image: --guest-image theirs=FILE gives it",
            "executed: of 1,000 instructions, by hand",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        // Arm a has 10 exits at 40 cycles in 1000; timed 200. Arm b has exits at 400 cycles, and
        // 100 of 500.
        assert!(text.contains("40.0 / 20.0!  80.0 / 20.0!"), "{text}");
        assert!(!text.contains("NOT COMPLETE") && !text.contains("fewer than"));
    }

    #[test]
    fn few_repetitions_are_called_few() {
        let text = text_of(&Scripted::default(), &Options::quick());
        assert!(text.contains("3 repetitions, fewer than the 9"), "{text}");
    }

    #[test]
    fn little_work_with_enough_repetitions_is_not_called_few() {
        let options = Options {
            repetitions: 24,
            ..Options::quick()
        };
        let text = text_of(&Scripted::default(), &options);
        assert!(
            text.contains("Quick: little work in each of the 24"),
            "{text}"
        );
        assert!(!text.contains("fewer than"), "{text}");
    }

    #[test]
    fn an_interrupted_experiment_says_so_and_shows_what_it_has() {
        let experiment = Scripted {
            interrupted_in_run: Some(8),
            ..Scripted::default()
        };
        let text = text_of(&experiment, &Options::quick());
        assert!(text.ends_with("interrupted: 7 of 12 samples\n"), "{text}");
        assert!(text.contains("ours, count: counts\nlatency (us)"), "{text}");
    }

    #[test]
    fn a_failure_stands_where_its_figures_would() {
        let experiment = Scripted {
            fails_in_run: Some(1),
            ..Scripted::default()
        };
        let text = text_of(&experiment, &Options::quick());
        assert!(
            text.contains(
                "  FAILED: no result: the guest did not do its work: the guest fell asleep"
            )
        );
    }
}
