//! `tollgate lab shadow`: the cost of keeping tables that are derived from the guest's page tables.
//!
//! After Umeno, Kubo and Takasaki. Kernels of ours switch spaces, invalidate pages and spaces, and
//! read what must then be filled again ([`work`]); processes of Linux pass a token on ([`linux`]).
//! [`paper`] has the original figures and explains what corresponds to what.

mod about;
mod answers;
mod bench;
mod linux;
mod paper;
mod work;

use crate::experiment::{
    About, Bench, Cell, Experiment, LabError, Options, Results, Section, Stop,
};
use crate::linux_guest::check_folder;
use std::path::Path;

/// The experiment `tollgate lab shadow`.
pub struct Shadow;

impl Experiment for Shadow {
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
            let bench = bench::Single::open(guest, workload, options.quick);
            return Ok(Box::new(bench));
        }
        let bench = linux::Processes::open(guest, workload, options, stop)?;
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
