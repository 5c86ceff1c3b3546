//! `tollgate lab shadow`: the cost of keeping tables that are derived from the guest's page tables.
//!
//! After Umeno, Kubo and Takasaki. Kernels of ours switch spaces, invalidate pages and spaces, and
//! read what must then be filled again ([`work`]); processes of Linux pass a token on ([`linux`]);
//! databases write in guests that page ([`database`]).
//! [`paper`] has the original figures and explains what corresponds to what.

mod about;
mod answers;
mod arms;
mod bench;
mod database;
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
        if workload == about::ONE_SPACE {
            return Ok(Box::new(database::OneSpace::open(options.quick)));
        }
        if guest == about::NO_PAGING {
            return Ok(Box::new(database::Files::open(options.quick)));
        }
        if let Some(task) = database::workloads::task_of(workload) {
            let bench = database::DatabaseBench::open(guest, task, options, stop)?;
            return Ok(Box::new(bench));
        }
        let bench = linux::Processes::open(guest, workload, options, stop)?;
        Ok(Box::new(bench))
    }

    fn check_image(&self, guest: &str, path: &Path) -> Result<(), LabError> {
        if database::workloads::GUESTS.contains(&guest) {
            return database::check_folder(guest, path);
        }
        match [about::WIDE, about::NARROW, about::NO_PAGING].contains(&guest) {
            true => Err(LabError::NotRun(format!(
                "--guest-image: '{guest}' is part of tollgate and takes no image"
            ))),
            false => check_folder(guest, path),
        }
    }

    fn answers(&self, results: &Results) -> Vec<String> {
        let mut answers = answers::answers(results);
        answers.extend(database::answers(results));
        answers
    }

    fn sections(&self, results: &Results) -> Vec<Section> {
        let mut sections = paper::sections(results);
        sections.extend(database::sections(results));
        sections
    }
}
