//! Writes the results of an experiment for programs: every sample as CSV, everything as JSON.

use super::{Comparison, Results, Sample, Section};
use crate::statistics::Quartiles;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::{Display, Write};

/// One figure for each line: the sample, the name of the figure, its value. Figures that do not
/// belong to a sample (executed instructions, prices) have no repetition.
pub fn samples_csv(results: &Results) -> String {
    let mut text = String::from("guest,workload,arm,repetition,order,record,name,value\n");
    for cell in &results.cells {
        let place = format!("{},{}", cell.guest, cell.workload);
        if let Some(counted) = cell.counted() {
            for (kind, count) in &counted.executed {
                let _ = writeln!(text, "{place},,,,executed,{kind},{count}");
            }
            if let Some(count) = counted.instructions {
                let _ = writeln!(text, "{place},,,,executed,instructions,{count}");
            }
        }
        for sample in cell.samples() {
            of_sample(&mut text, &place, sample);
        }
    }
    for price in &results.prices {
        let (guest, arm, kind) = (&price.guest, &price.arm, &price.kind);
        for (index, cycles) in price.measured.iter().enumerate() {
            let run = index + 1;
            let _ = writeln!(
                text,
                "{guest},,{arm},{run},,price-cycles,{kind},{cycles:.2}"
            );
        }
    }
    text
}

fn of_sample(text: &mut String, place: &str, sample: &Sample) {
    let (arm, repetition, order) = (&sample.arm, sample.repetition, sample.order);
    let mut line = |record: &str, name: &str, value: &dyn Display| {
        let _ = writeln!(
            text,
            "{place},{arm},{repetition},{order},{record},{name},{value}"
        );
    };
    let timed = &sample.timed;
    line("time", "seconds", &timed.seconds);
    for (name, value) in &timed.values {
        line("value", name, value);
    }
    for (name, value) in &timed.work {
        line("work", name, value);
    }
    let ledger = &timed.ledger;
    line("cycles", "wall", &ledger.wall_cycles);
    line("cycles", "guest", &ledger.guest_cycles);
    line("cycles", "fast-paths", &ledger.fast_path_call_cycles);
    line("cycles", "exits", &ledger.exit_cycles);
    line("cycles", "devices", &ledger.device_cycles);
    line("cycles", "translating", &ledger.translating_cycles);
    line("cycles", "halted", &ledger.halted_cycles);
    line("cycles", "waiting", &ledger.waiting_cycles);
    line("cycles", "signals", &ledger.signal_cycles);
    line("cycles", "start-end", &ledger.start_end_cycles);
    line("cycles", "ledger", &ledger.ledger_cycles);
    for row in &ledger.exits {
        line("exits", &row.kind, &row.count);
        if row.samples > 0 {
            line("exit-cycles", &row.kind, &row.cycles);
            line("exit-p50", &row.kind, &row.p50);
        }
    }
    if let Some(hardware) = &sample.hardware {
        let counts = [
            ("cycles", hardware.cycles),
            ("instructions", hardware.instructions),
            ("dtlb-misses", hardware.dtlb_misses),
            ("kernel-cycles", hardware.kernel_cycles),
        ];
        for (name, count) in counts {
            if let Some(count) = count {
                line("hardware", name, &count);
            }
        }
    }
}

/// The figures of the table for an arm in a cell.
#[derive(Serialize)]
struct Summary<'a> {
    guest: &'a str,
    workload: &'a str,
    arm: &'a str,
    quartiles: Option<Quartiles>,
    comparison: Option<Comparison>,
}

/// All results: the samples, the comparisons, the sections.
pub fn to_json(results: &Results, sections: &[Section]) -> String {
    let cells = results.cells.iter();
    let summaries = cells.flat_map(|cell| {
        cell.arms().into_iter().map(|arm| Summary {
            guest: &cell.guest,
            workload: &cell.workload,
            arm,
            quartiles: cell.quartiles(arm),
            comparison: cell.comparison(arm),
        })
    });
    let summaries: Vec<Summary> = summaries.collect();
    let mut value = serde_json::to_value(results).unwrap_or(Value::Null);
    if let Value::Object(fields) = &mut value {
        fields.insert("summaries".into(), json!(summaries));
        fields.insert("sections".into(), json!(sections));
        fields.insert("question".into(), json!(results.about.question));
        fields.insert("source".into(), json!(results.about.source));
    }
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::super::test_experiment::{Scripted, Silent};
    use super::*;
    use crate::experiment::{Experiment, Options, Stop, run};

    fn results() -> Results {
        let experiment = Scripted::default();
        run(&experiment, &Options::quick(), &Stop::new(), &mut Silent).unwrap()
    }

    #[test]
    fn every_repetition_is_in_the_csv() {
        let text = samples_csv(&results());
        let fields = text.lines().map(|line| line.matches(',').count());
        assert!(fields.into_iter().all(|commas| commas == 7), "{text}");
        let seconds = text.lines().filter(|line| line.contains(",time,seconds,"));
        assert_eq!(seconds.count(), 12);
        assert!(text.contains("\nours,spin,a,2,4,exits,cli,10\n"), "{text}");
        assert!(text.contains("\nours,spin,,,,executed,cli,7\n"), "{text}");
        assert!(
            text.contains("\nours,,a,2,,price-cycles,cli,40.00\n"),
            "{text}"
        );
    }

    #[test]
    fn the_json_has_samples_comparisons_and_reasons() {
        let results = results();
        let text = to_json(&results, &Scripted::default().sections(&results));
        let value: Value = serde_json::from_str(&text).unwrap();
        let samples = &value["cells"][0]["outcome"]["measured"]["samples"];
        assert_eq!(samples.as_array().unwrap().len(), 6);
        assert_eq!(samples[1]["arm"], "b");
        let why = "no image: --guest-image theirs=FILE gives it (someone else's)";
        assert_eq!(value["cells"][2]["outcome"]["not-run"], why);
        assert_eq!(value["summaries"][1]["comparison"]["verdict"], "less");
        assert_eq!(value["sections"][0]["title"], "what stands for what");
    }
}
