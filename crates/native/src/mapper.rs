//! The monitor's side of the mapper: batches of changes go through shared pages, results come by a
//! pipe, which the program cannot write to.

use crate::layout::{COMMAND, COMMANDS, Layout, control};
use crate::mapping::{Cause, Command, MappingError};
use crate::results::read_byte;
use crate::shared_memory::{SharedPages, wake};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

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
}

impl Mapper {
    pub const fn new(results: OwnedFd) -> Self {
        Self { results, number: 0 }
    }

    /// Has the mapper make a batch of changes, and waits for the result.
    pub fn make(
        &mut self,
        pages: &SharedPages,
        layout: Layout,
        batch: &[Command],
    ) -> Result<(), Failure> {
        let commands = layout.shared_offset(layout.place + COMMANDS);
        for (index, command) in batch.iter().enumerate() {
            let at = commands + index as u64 * COMMAND;
            for (word, value) in command.words().into_iter().enumerate() {
                pages.set(at + 8 * word as u64, value);
            }
        }
        let word = |word| pages.word(layout.shared_offset(layout.control(word)));
        word(control::COUNT).store(batch.len() as u32, Ordering::Relaxed);
        self.number = self.number.wrapping_add(1);
        let number = word(control::BATCH);
        number.store(self.number, Ordering::SeqCst);
        wake(number);
        self.result(batch)
    }

    /// Waits for the result of a batch.
    fn result(&self, batch: &[Command]) -> Result<(), Failure> {
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
