//! `tollgate lab icache`: the cost of finding the instruction that an exit emulates.
//!
//! After "Instruction caching for bhyve". A kernel of ours accesses the local APIC in a loop
//! ([`apic`]); Linux runs the workloads of the original study ([`linux`]). [`paper`] compares the
//! original verdict with ours, and shows the price of each step.

mod about;
mod answers;
mod apic;
mod compile;
mod linux;
mod paper;

use crate::experiment::{
    About, Bench, Cell, Experiment, LabError, Options, Results, Section, Stop, Timed,
};
use crate::linux_guest::check_folder;
use std::path::Path;
use tollgate_exits::reading::Reading;

/// The experiment `tollgate lab icache`.
pub struct InstructionCache;

impl Experiment for InstructionCache {
    fn about(&self) -> &'static About {
        &about::ABOUT
    }

    fn open(
        &self,
        cell: &Cell,
        options: &Options,
        stop: &Stop,
    ) -> Result<Box<dyn Bench>, LabError> {
        let (guest, workload) = (cell.guest.name, cell.workload.name);
        if [about::WIDE, about::NARROW].contains(&guest) {
            let bench = apic::Loop::open(guest, workload, options.quick);
            return Ok(Box::new(bench));
        }
        if workload == about::BOOT {
            return Ok(Box::new(linux::Boot::open(guest, options)?));
        }
        let bench = linux::Line::open(guest, workload, options, stop)?;
        Ok(Box::new(bench))
    }

    fn check_image(&self, guest: &str, path: &Path) -> Result<(), LabError> {
        match [about::WIDE, about::NARROW].contains(&guest) {
            true => Err(LabError::NotRun(format!(
                "--guest-image: '{guest}' is part of tollgate and takes no image"
            ))),
            false => check_folder(guest, path),
        }
    }

    fn answers(&self, results: &Results) -> Vec<String> {
        answers::answers(results)
    }

    fn sections(&self, results: &Results) -> Vec<Section> {
        paper::sections(results)
    }
}

/// Adds how exits found their instructions, and the cost of each step.
///
/// # Errors
///
/// The counts do not add up to the number of emulated instructions.
fn add_counts(
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
