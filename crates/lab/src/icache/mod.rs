//! `tollgate lab icache`: the cost of finding the instruction that an exit emulates.
//!
//! After "Instruction caching for bhyve". A kernel of ours accesses the local APIC in a loop
//! ([`apic`]), as does a kernel module in Linux ([`apic_module`]); Linux runs the workloads of the original study ([`linux`]); other systems answer lines
//! at a prompt ([`other`]). [`paper`] compares the original verdict with ours, and shows the price of
//! each step.

mod about;
mod answers;
mod apic;
mod apic_module;
pub(crate) mod compile;
mod counts;
mod linux;
pub(crate) mod make;
mod other;
mod paper;

use crate::experiment::{
    About, Bench, Cell, Experiment, LabError, Options, Results, Section, Stop,
};
use crate::linux_guest::check_folder;
use crate::other_guest;
use std::path::Path;

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
        if other_guest::has(guest) {
            return Ok(match workload {
                about::BOOT => Box::new(other::Boot::open(guest, options)?),
                _ => Box::new(other::Lines::open(guest, options, stop)?),
            });
        }
        if workload == about::BOOT {
            return Ok(Box::new(linux::Boot::open(guest, options)?));
        }
        if workload == about::APIC_MODULE {
            return Ok(Box::new(apic_module::Module::open(guest, options, stop)?));
        }
        if workload == about::MAKE {
            return Ok(Box::new(make::Make::open(guest, options, stop)?));
        }
        if workload == about::MAKE_SMP {
            return Err(LabError::NotRun("the machine has one processor".into()));
        }
        let bench = linux::Line::open(guest, workload, options, stop)?;
        Ok(Box::new(bench))
    }

    fn check_image(&self, guest: &str, path: &Path) -> Result<(), LabError> {
        match [about::WIDE, about::NARROW].contains(&guest) {
            true => Err(LabError::NotRun(format!(
                "--guest-image: '{guest}' is part of tollgate and takes no image"
            ))),
            false if other_guest::has(guest) => other_guest::check_image(guest, path),
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
