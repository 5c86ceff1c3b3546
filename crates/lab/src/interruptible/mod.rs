//! `tollgate lab interruptible`: how long interrupts wait for the monitor, and what it costs to
//! stop its work for them.
//!
//! After Ito and Oikawa, "Improving Real-Time Performance of a Virtual Machine Monitor based
//! System". Linux runs a program ([`linux`]) in which one process waits for points in time while
//! others cause work for the monitor; the host runs it too ([`native`]). [`study`] compares the
//! study's figures with ours, [`paper`] has the other tables.

pub(crate) mod about;
mod answers;
mod flood;
mod host_folder;
pub(crate) mod linux;
mod load;
mod native;
mod native_load;
mod neighbour;
mod paper;
mod study;

use crate::experiment::{
    About, Bench, Cell, Experiment, LabError, Options, Results, Section, Stop,
};

/// The experiment `tollgate lab interruptible`.
pub struct Interruptible;

impl Experiment for Interruptible {
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
        let bench = linux::Latencies::open(guest, workload, options, stop)?;
        Ok(Box::new(bench))
    }

    fn answers(&self, results: &Results) -> Vec<String> {
        answers::answers(results)
    }

    fn sections(&self, results: &Results) -> Vec<Section> {
        paper::sections(results)
    }
}
