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
pub struct Children {
    kept: Vec<Child>,
    spare: Option<Spare>,
}

/// A process that was made ahead.
struct Spare {
    made: Made,
    settings: Settings,
    /// The device and number of the file with its guest RAM.
    ram: (u64, u64),
}

impl Spare {
    fn new(ram: BorrowedFd<'_>, settings: &Settings) -> io::Result<Self> {
        Ok(Self {
            made: make(ram, settings)?,
            settings: *settings,
            ram: file_of(ram)?,
        })
    }

    /// Whether it is such a process, and lives.
    fn is_like(&self, ram: BorrowedFd<'_>, settings: &Settings) -> bool {
        self.settings == *settings
            && file_of(ram).is_ok_and(|file| file == self.ram)
            && death_of_child(&self.made.child.descriptor, WaitIdOptions::NOWAIT).is_none()
    }
}

fn file_of(descriptor: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let status = rustix::fs::fstat(descriptor)?;
    Ok((status.st_dev, status.st_ino))
}

impl Children {
    /// Makes a process, or takes the one that was made ahead. The caller must [keep](Self::keep) it.
    ///
    /// # Errors
    /// The host refuses, or there are too many.
    pub fn make(&mut self, ram: BorrowedFd<'_>, settings: &Settings) -> io::Result<Made> {
        if let Some(spare) = self.spare.take_if(|it| it.is_like(ram, settings)) {
            return Ok(spare.made);
        }
        self.end_spare();
        if self.kept.len() >= MOST {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        make(ram, settings)
    }

    /// Makes a process ahead, in place of another one. If that is refused, so will the request be that needs
    /// it.
    pub fn prepare(&mut self, ram: BorrowedFd<'_>, settings: &Settings) {
        let is_there = (self.spare.as_ref()).is_some_and(|it| it.is_like(ram, settings));
        if is_there || self.kept.len() >= MOST {
            return;
        }
        self.end_spare();
        self.spare = Spare::new(ram, settings).ok();
    }

    fn end_spare(&mut self) {
        if let Some(spare) = self.spare.take() {
            end(&spare.made.child);
        }
    }

    /// Keeps a process that was made.
    pub fn keep(&mut self, child: Child) {
        self.kept.push(child);
    }

    /// Why a process has ended; nothing if it lives or is not one of these.
    pub fn death(&self, number: i32) -> Option<Death> {
        let child = self.kept.iter().find(|child| child.number == number)?;
        death_of_child(&child.descriptor, WaitIdOptions::NOWAIT)
    }

    /// Kills, reaps and forgets a process.
    pub fn end(&mut self, number: i32) {
        self.kept.retain(|child| {
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
        let is_child = self.kept.iter().any(|child| child.number == process);
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
        self.end_spare();
        self.kept.iter().for_each(end);
    }
}
