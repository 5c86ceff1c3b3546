//! Writes the results of `tollgate cost` for programs: CSV of the rows, CSV of every value, JSON of
//! everything.

use super::{BatchContents, Report, kinds, table};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write;

/// One line for each row, with the figures of the table and the counts.
pub fn summary_csv(report: &Report) -> String {
    let mut text = String::from(
        "kind,mode,pinned,batch_mean_cycles,batch_median_cycles,batches,batch_repeat,batch_contents,\
samples,min_cycles,p50_cycles,p95_cycles,p99_cycles,max_cycles,\
min_ns,p50_ns,p95_ns,p99_ns,max_ns,no_op_cycles,exits_each,exits_expected,exits_counted\n",
    );
    for row in &report.rows {
        let single = &row.single;
        let (mean, median, batches, repeat, contents) =
            row.batch.as_ref().map_or_else(Default::default, |batch| {
                (
                    format!("{:.2}", batch.mean),
                    format!("{:.2}", batch.median),
                    batch.batches.to_string(),
                    batch.repeat.to_string(),
                    match batch.contents {
                        BatchContents::EventOnly => "event-only",
                        BatchContents::WithPreparation => "with-preparation",
                    },
                )
            });
        let cycles = [single.min, single.p50, single.p95, single.p99, single.max];
        let _ = write!(
            text,
            "{},{},{},{mean},{median},{batches},{repeat},{contents},{}",
            row.kind,
            row.mode.name(),
            row.pinned,
            single.count
        );
        for value in cycles {
            let _ = write!(text, ",{value}");
        }
        for value in cycles {
            let _ = write!(text, ",{:.2}", report.nanoseconds(value as f64));
        }
        let expected: u64 = row.counts.iter().map(|count| count.expected).sum();
        let counted: u64 = row.counts.iter().map(|count| count.counted).sum();
        let _ = writeln!(
            text,
            ",{},{:.2},{expected},{counted}",
            row.baseline, row.exits_each
        );
    }
    text
}

/// Every value of every row, with its number of occurrences.
pub fn samples_csv(report: &Report) -> String {
    let mut text = String::from("kind,mode,pinned,cycles,times\n");
    for row in &report.rows {
        for (cycles, times) in &row.distribution {
            let (kind, mode, pinned) = (&row.kind, row.mode.name(), row.pinned);
            let _ = writeln!(text, "{kind},{mode},{pinned},{cycles},{times}");
        }
    }
    text
}

/// The report in the JSON that [`to_json`] has made.
///
/// # Errors
///
/// A description of what is wrong with the text.
pub fn from_json(text: &[u8]) -> Result<Report, String> {
    serde_json::from_slice(text)
        .map_err(|error| format!("it is not a result of 'tollgate cost --json': {error}"))
}

/// Results as JSON that says in which unit they are.
fn in_cycles(results: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(results).unwrap_or(Value::Null);
    if let Value::Object(fields) = &mut value {
        fields.insert("unit".into(), json!("cycles of the time-stamp counter"));
    }
    value
}

/// The text of results in JSON that says in which unit they are.
pub(super) fn json_in_cycles(results: &impl Serialize) -> String {
    format!("{:#}\n", in_cycles(results))
}

/// The whole report, and the kinds that this version does not have.
pub fn to_json(report: &Report) -> String {
    let mut value = in_cycles(report);
    if let Value::Object(fields) = &mut value {
        fields.insert(
            "meaning".into(),
            json!(table::WHAT_IT_IS.replace('\n', " ")),
        );
        let missing = kinds::NOT_IN_THIS_VERSION.iter().map(|(name, _)| *name);
        fields.insert("not_in_this_version".into(), missing.collect());
    }
    format!("{value:#}\n")
}
