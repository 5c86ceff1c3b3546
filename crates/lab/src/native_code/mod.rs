//! `tollgate lab native`: a guest's programs are translated, or run as they are in processes of the
//! host.
//!
//! After VMware's first monitors, User-Mode Linux and gVisor, which all run programs directly and
//! pay at each way into the kernel. A program computes between two system calls, for longer and
//! longer, which finds the break-even ([`linux`]); others fault, start processes, compile, or are
//! interpreters and a just-in-time compiler. [`paper`] has the tables.

mod about;
mod answers;
mod linux;
mod paper;
mod programs;

use crate::experiment::{
    About, Bench, Cell, Experiment, LabError, Options, Results, Section, Stop,
};
use crate::interruptible::about::{FORK, PIPE};
use crate::interruptible::linux::Latencies;
use crate::linux_guest::check_folder;
use std::path::Path;

/// The experiment `tollgate lab native`.
pub struct NativeCode;

/// The workload of the experiment `interruptible` that a workload about timers is.
fn late(workload: &str) -> Option<&'static str> {
    match workload {
        about::LATE_FORK => Some(FORK),
        about::LATE_PIPE => Some(PIPE),
        _ => None,
    }
}

impl Experiment for NativeCode {
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
        if workload == about::MAKE {
            return Ok(Box::new(programs::Gcc::open(guest, options, stop)?));
        }
        if let Some(of) = late(workload) {
            let bench = Latencies::open(guest, of, options, stop)?;
            return Ok(Box::new(bench));
        }
        if about::INTERPRETED.contains(&workload) {
            let bench = programs::Interpreter::open(guest, workload, options, stop)?;
            return Ok(Box::new(bench));
        }
        let bench = linux::Line::open(guest, workload, options, stop)?;
        Ok(Box::new(bench))
    }

    fn check_image(&self, guest: &str, path: &Path) -> Result<(), LabError> {
        check_folder(guest, path)
    }

    fn answers(&self, results: &Results) -> Vec<String> {
        answers::answers(results)
    }

    fn sections(&self, results: &Results) -> Vec<Section> {
        paper::sections(results)
    }
}
