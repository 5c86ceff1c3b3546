//! The parent of a space process, which alone can learn how it ended, reap it, and bind it to a
//! processor: this process, or the launcher.

use crate::exit::Death;
use crate::host;
use crate::launcher::{self, Launcher};
use crate::make::{Made, make as make_here};
use crate::settings::Settings;
use crate::spawn::{self, death_of_child};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitIdOptions, pidfd_send_signal};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The parent of a process.
#[derive(Clone, Copy)]
pub enum Keeper {
    /// The process that runs this code, as in tests.
    Here,
    /// The launcher, which was asked to make it.
    Launcher(&'static Launcher),
}

/// Makes a process: by the launcher if it was begun.
///
/// # Errors
/// The host or the launcher refuses.
pub fn make(ram: BorrowedFd<'_>, settings: &Settings) -> io::Result<(Made, Keeper)> {
    match launcher::current()? {
        None => Ok((make_here(ram, settings)?, Keeper::Here)),
        Some(launcher) => Ok((launcher.make(ram, settings)?, Keeper::Launcher(launcher))),
    }
}

/// Has a process made in the meantime, for the next [`SpaceProcess::start`](crate::SpaceProcess::start) with
/// this memory and these settings. Without a launcher it does nothing.
pub fn prepare(ram: BorrowedFd<'_>, settings: &Settings) {
    if let Ok(Some(launcher)) = launcher::current() {
        launcher.prepare(ram, settings);
    }
}

impl Keeper {
    /// Why a process has ended; nothing while it lives.
    pub fn death(self, process: &OwnedFd, number: i32) -> Option<Death> {
        match self {
            Self::Here => death_of_child(process, WaitIdOptions::empty()),
            Self::Launcher(launcher) => {
                let mut polled = [PollFd::new(process, PollFlags::IN)];
                match poll(&mut polled, Some(&Timespec::default())) {
                    Ok(0) | Err(_) => None,
                    // All processes die with the launcher.
                    Ok(_) => Some(launcher.death(number).unwrap_or(Death::Signal(KILLED))),
                }
            }
        }
    }

    /// Says that a process whose end was found is no longer of interest.
    pub fn forget(self, number: i32) {
        if let Self::Launcher(launcher) = self {
            launcher.end(number);
        }
    }

    /// Kills and reaps a process.
    pub fn kill(self, process: &OwnedFd, number: i32) {
        match self {
            Self::Here => {
                let _ = pidfd_send_signal(process, Signal::KILL);
                let _ = spawn::reap(process);
            }
            Self::Launcher(launcher) => launcher.end(number),
        }
    }

    /// Binds the two tasks of a process to a processor, as far as the kernel allows it.
    pub fn bind(self, tasks: [i32; 2], processor: usize) {
        match self {
            Self::Here => {
                for task in tasks {
                    host::bind(task, processor);
                }
            }
            Self::Launcher(launcher) => launcher.bind(tasks, processor),
        }
    }
}

const KILLED: i32 = libc::SIGKILL;
