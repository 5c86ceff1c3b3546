//! The monitor's side of the mapper: batches of changes go through shared pages, results come by a
//! pipe, which the program cannot write to.

use crate::layout::{COMMAND, COMMANDS, Layout, control};
use crate::mapping::{Cause, Command, MappingError};
use crate::results::read_byte;
use crate::shared_memory::{SharedPages, wake};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// What the mapper does when a batch is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It only reports.
    Report,
    /// It wakes the runner as well, unless a change has failed: one switch of tasks less than if the
    /// monitor did it.
    WakeRunner,
}

/// Why a batch was not made.
pub enum Failure {
    /// A change failed.
    Change(MappingError),
    /// The process is gone.
    Gone,
}

/// What the monitor knows of the mapper.
pub struct Mapper {
    results: OwnedFd,
    /// Number of the last batch.
    number: u32,
    /// The batch that the mapper was given and whose result was not read.
    batch: Vec<Command>,
}

impl Mapper {
    pub const fn new(results: OwnedFd) -> Self {
        Self {
            results,
            number: 0,
            batch: Vec::new(),
        }
    }

    /// Gives the mapper a batch. Its result must be read before the next.
    pub fn give(&mut self, pages: &SharedPages, layout: Layout, batch: Vec<Command>, next: Next) {
        let commands = layout.shared_offset(layout.place + COMMANDS);
        for (index, command) in batch.iter().enumerate() {
            let at = commands + index as u64 * COMMAND;
            for (word, value) in command.words().into_iter().enumerate() {
                pages.set(at + 8 * word as u64, value);
            }
        }
        let word = |word| pages.word(layout.shared_offset(layout.control(word)));
        word(control::COUNT).store(batch.len() as u32, Ordering::Relaxed);
        let wakes = u32::from(next == Next::WakeRunner);
        word(control::MAPPER_WAKES).store(wakes, Ordering::Relaxed);
        self.batch = batch;
        self.number = self.number.wrapping_add(1);
        let number = word(control::BATCH);
        number.store(self.number, Ordering::SeqCst);
        wake(number);
    }

    /// Whether a result is still to come or to be read.
    pub const fn is_busy(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Whether there is a result to be read.
    pub fn has_result(&self) -> bool {
        let mut polled = [PollFd::new(&self.results, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Waits for the result of the last batch.
    pub fn result(&mut self) -> Result<(), Failure> {
        let batch = std::mem::take(&mut self.batch);
        let result = match read_byte(&self.results) {
            Ok(Some(0)) => return Ok(()),
            Ok(Some(error)) => read_byte(&self.results).map(|number| number.zip(Some(error))),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        Err(match result {
            Ok(Some((number, error))) => Failure::Change(MappingError {
                command: batch.get(usize::from(number)).copied(),
                cause: Cause::Host(io::Error::from_raw_os_error(error.into())),
            }),
            // The process alone has the pipe's other end.
            Ok(None) => Failure::Gone,
            Err(error) => Failure::Change(MappingError {
                command: None,
                cause: Cause::Host(error),
            }),
        })
    }
}
