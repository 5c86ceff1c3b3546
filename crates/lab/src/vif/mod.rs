//! `tollgate lab vif`: what the interrupt flag costs 16-bit systems.
//!
//! After D. Butterfield's proposal. Each workload runs on our small 16-bit system in each
//! of its modes, with the six sensitive instructions as exits (by three sorts of
//! transition) and without. [`paper`] has the original figures and what stands for what.

mod about;
mod concurrency;
mod findings;
mod machine;
mod paper;
mod prices;
mod small_system_bench;

use crate::experiment::{About, Arm, Bench, Cell, Experiment, Guest, LabError, Options};
use crate::experiment::{Price, Results, Section, Stop};
use crate::small_system::Mode;
use std::path::Path;

/// The experiment.
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

    fn check_image(&self, guest: &str, _path: &Path) -> Result<(), LabError> {
        let why = match Mode::ALL.into_iter().any(|mode| mode.name() == guest) {
            true => "it is part of tollgate and takes no image",
            false => NO_DISK,
        };
        Err(LabError::NotRun(format!(
            "--guest-image: guest '{guest}': {why}"
        )))
    }

    fn prices(
        &self,
        guest: &Guest,
        arm: &Arm,
        options: &Options,
        stop: &Stop,
    ) -> Result<Vec<Price>, LabError> {
        prices::prices(guest.name, mode(guest)?, arm, options.quick, stop)
    }

    fn sections(&self, results: &Results) -> Vec<Section> {
        let mut sections = findings::sections(results);
        sections.push(paper::beside_ours(results));
        sections
    }
}

const NO_DISK: &str = "it needs a BIOS and a disk, with which this experiment does not work yet";

/// The mode of the small system that a guest stands for.
fn mode(guest: &Guest) -> Result<Mode, LabError> {
    let mut modes = Mode::ALL.into_iter();
    modes
        .find(|mode| mode.name() == guest.name)
        .ok_or_else(|| LabError::NotRun(NO_DISK.into()))
}
