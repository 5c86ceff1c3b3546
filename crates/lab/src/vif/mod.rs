//! `tollgate lab vif`: the cost of the interrupt flag in 16-bit systems.
//!
//! After D. Butterfield's proposal. Each workload runs on our small 16-bit system in each of its
//! modes, and on a DOS that the user supplies, with the six sensitive instructions as exits (by
//! three sorts of transition) and without. [`paper`] has the original figures and explains what
//! corresponds to what.

mod about;
mod answers;
mod concurrency;
mod dos_bench;
mod dos_concurrency;
mod findings;
mod machine;
mod paper;
mod prices;
mod small_system_bench;
mod table;
#[cfg(test)]
mod testing;
mod trap_cost;

use crate::dos;
use crate::experiment::{About, Arm, Bench, Cell, Experiment, Guest, LabError, Options};
use crate::experiment::{Price, Results, Section, Stop};
use crate::small_system::Mode;
use std::path::Path;

/// The experiment `tollgate lab vif`.
pub struct Vif;

impl Experiment for Vif {
    fn about(&self) -> &'static About {
        &about::ABOUT
    }

    fn open(
        &self,
        cell: &Cell,
        options: &Options,
        stop: &Stop,
    ) -> Result<Box<dyn Bench>, LabError> {
        if cell.guest.name == about::DOS {
            return self.open_dos(cell, options, stop);
        }
        let mode = mode(cell.guest)?;
        if cell.workload.name == about::FOUR_MACHINES {
            let bench = concurrency::FourMachines::open(mode, options.quick, stop)?;
            return Ok(Box::new(bench));
        }
        let arms = &about::ABOUT.arms;
        let bench =
            small_system_bench::Single::open(mode, cell.workload.name, arms, options.quick, stop)?;
        Ok(Box::new(bench))
    }

    fn check_image(&self, guest: &str, path: &Path) -> Result<(), LabError> {
        match guest == about::DOS {
            true => dos::check_image(path),
            false => Err(LabError::NotRun(format!(
                "--guest-image: guest '{guest}': it is part of tollgate and takes no image"
            ))),
        }
    }

    fn prices(
        &self,
        guest: &Guest,
        arm: &Arm,
        options: &Options,
        stop: &Stop,
    ) -> Result<Vec<Price>, LabError> {
        // The cost of an exit depends on the mode, and DOS runs in real mode.
        let mode = match guest.name == about::DOS {
            true => Mode::Real,
            false => mode(guest)?,
        };
        prices::prices(guest.name, mode, arm, options.quick, stop)
    }

    fn answers(&self, results: &Results) -> Vec<String> {
        answers::answers(results)
    }

    fn sections(&self, results: &Results) -> Vec<Section> {
        let mut sections = findings::sections(results);
        sections.push(table::table(results));
        sections
    }
}

impl Vif {
    fn open_dos(
        &self,
        cell: &Cell,
        options: &Options,
        stop: &Stop,
    ) -> Result<Box<dyn Bench>, LabError> {
        let image = options.images.path(about::DOS);
        let image = image.ok_or_else(|| LabError::NotRun("no image".into()))?;
        let (workload, arms) = (cell.workload.name, about::ABOUT.arms);
        if workload == about::FOUR_MACHINES {
            let bench = dos_concurrency::FourDosMachines::open(image, options.quick, stop)?;
            return Ok(Box::new(bench));
        }
        let bench = dos_bench::Dos::open(image, workload, arms, options.quick, stop)?;
        Ok(Box::new(bench))
    }
}

/// The mode of the small system that a guest stands for.
fn mode(guest: &Guest) -> Result<Mode, LabError> {
    let mut modes = Mode::ALL.into_iter();
    modes
        .find(|mode| mode.name() == guest.name)
        .ok_or_else(|| LabError::NotRun(format!("guest '{}' has no such mode", guest.name)))
}
