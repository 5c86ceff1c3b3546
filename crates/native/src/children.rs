//! The processes of which the launcher is the parent.

use crate::exit::Death;
use crate::host;
use crate::make::{Made, make};
use crate::settings::Settings;
use crate::spawn::{self, Child, death_of_child};
use rustix::process::{Signal, WaitIdOptions, pidfd_send_signal};
use std::io;
use std::os::fd::BorrowedFd;

/// Processes that exist at a time at most: far more than the spaces that a monitor keeps.
const MOST: usize = 64;

/// The launcher's processes.
#[derive(Default)]
pub struct Children(Vec<Child>);

impl Children {
    /// Makes a process, which the caller must [keep](Self::keep).
    ///
    /// # Errors
    /// The host refuses, or there are too many.
    pub fn make(&self, ram: BorrowedFd<'_>, settings: &Settings) -> io::Result<Made> {
        if self.0.len() >= MOST {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        make(ram, settings)
    }

    /// Keeps a process that was made.
    pub fn keep(&mut self, child: Child) {
        self.0.push(child);
    }

    /// Why a process has ended; nothing if it lives or is not one of these.
    pub fn death(&self, number: i32) -> Option<Death> {
        let child = self.0.iter().find(|child| child.number == number)?;
        death_of_child(&child.descriptor, WaitIdOptions::NOWAIT)
    }

    /// Kills, reaps and forgets a process.
    pub fn end(&mut self, number: i32) {
        self.0.retain(|child| {
            let is_meant = child.number == number;
            if is_meant {
                end(child);
            }
            !is_meant
        });
    }

    /// Binds the two tasks of a process to a processor. The second one must really be of that process.
    pub fn bind(&self, tasks: [i32; 2], processor: usize) {
        let [process, other] = tasks;
        let is_child = self.0.iter().any(|child| child.number == process);
        if is_child && host::is_task_of(process, other) {
            host::bind(process, processor);
            host::bind(other, processor);
        }
    }
}

fn end(child: &Child) {
    let _ = pidfd_send_signal(&child.descriptor, Signal::KILL);
    let _ = spawn::reap(&child.descriptor);
}

impl Drop for Children {
    fn drop(&mut self) {
        self.0.iter().for_each(end);
    }
}
