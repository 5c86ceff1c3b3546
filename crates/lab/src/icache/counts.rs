//! How exits found their instructions, as values of a measurement.

use crate::experiment::{LabError, Timed};
use crate::linux_guest::Ran;
use tollgate_exits::reading::Reading;

/// The time and the counts of a run with this number of events.
pub fn timed(ran: &Ran, events: u64) -> Result<Timed, LabError> {
    let mut timed = Timed::of_events(events, ran.processor_cycles(), &ran.reading);
    timed.work.insert("events".to_owned(), events);
    add_counts(&mut timed, &ran.reading, &ran.reading.instruction_cache)?;
    Ok(timed)
}

/// Adds how exits found their instructions, and the cost of each step.
///
/// # Errors
///
/// The counts do not add up to the number of emulated instructions.
pub fn add_counts(
    timed: &mut Timed,
    reading: &Reading,
    counts: &[(&'static str, u64)],
) -> Result<(), LabError> {
    let count = |name: &str| {
        counts
            .iter()
            .find(|row| row.0 == name)
            .map_or(0, |row| row.1)
    };
    let found = count("found-anew");
    let parts = ["hits", "missed-new", "missed-void", "walked"];
    let sum: u64 = parts.into_iter().map(count).sum();
    if found != sum {
        return Err(LabError::WorkNotDone(format!(
            "{found} instructions were looked up, but the ways to find them add up to {sum}"
        )));
    }
    timed.add_counts(counts);
    for step in &reading.instruction_steps {
        let name = format!("step-{}", step.step.name());
        timed.values.insert(name, f64::from(step.p50 as u32));
    }
    let fast_paths: u64 = reading.fast_paths.iter().map(|row| row.1).sum();
    timed
        .values
        .insert("fast-paths".to_owned(), fast_paths as f64);
    Ok(())
}
