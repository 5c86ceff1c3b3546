//! Checks that all runs of a cell did the same work, by the guest's own counts.

use super::{LabError, Sample};
use std::collections::BTreeMap;

/// Checks that the latest sample did the same work as the first of its cell.
pub(super) fn check_work(samples: &[Sample]) -> Result<(), LabError> {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return Ok(());
    };
    let (expected, found) = (&first.timed.work, &last.timed.work);
    if expected == found {
        return Ok(());
    }
    Err(LabError::WorkNotDone(format!(
        "repetition {} with {} did other work than repetition {} with {}: {}",
        last.repetition,
        last.arm,
        first.repetition,
        first.arm,
        differences(found, expected)
    )))
}

fn differences(found: &BTreeMap<String, u64>, expected: &BTreeMap<String, u64>) -> String {
    let names = found.keys().chain(expected.keys());
    let mut texts: Vec<String> = names
        .filter(|name| found.get(*name) != expected.get(*name))
        .map(|name| {
            let text = |work: &BTreeMap<String, u64>| {
                work.get(name).map_or("nothing".into(), u64::to_string)
            };
            format!("{name} {} instead of {}", text(found), text(expected))
        })
        .collect();
    texts.sort();
    texts.dedup();
    texts.join(", ")
}
