//! Linux with the workloads of the original study, and its boot.

use super::about::{COMPILE, COPY, GETUID, SHELL, TIMER};
use super::compile;
use super::counts::timed;
use crate::experiment::{Arm, Bench, LabError, Options, Stop, Timed};
use crate::linux_guest::{LinuxGuest, Program, System};
use tollgate_machine::config::VmConfig;

/// The program that repeats a system call.
const REPEAT: Program = Program {
    name: "repeat",
    narrow: include_bytes!(concat!(env!("OUT_DIR"), "/linux-repeat.bin")),
    wide: include_bytes!(concat!(env!("OUT_DIR"), "/linux-repeat-64.bin")),
};

/// A command line on a booted guest.
pub struct Line {
    guest: LinuxGuest,
    workload: &'static str,
    events: u64,
}

impl Line {
    /// Boots the guest.
    ///
    /// # Errors
    ///
    /// It is missing, or does not start its shell.
    pub fn open(
        guest: &str,
        workload: &'static str,
        options: &Options,
        stop: &Stop,
    ) -> Result<Self, LabError> {
        let system = match workload {
            COMPILE => compile::system(guest, options)?,
            _ => System::open(guest, &[REPEAT], options)?,
        };
        let events = match workload {
            COMPILE => 40,
            TIMER => 300,
            SHELL => 50_000,
            COPY => 20_000,
            _ => 200_000,
        };
        Ok(Self {
            guest: LinuxGuest::boot(&system, &VmConfig::default(), stop)?,
            workload,
            events: if options.quick { events / 20 } else { events },
        })
    }

    fn line(&self, events: u64) -> String {
        match self.workload {
            TIMER => format!("/lab/repeat sleep {events}"),
            SHELL => {
                format!("i=0; while [ $i -lt {events} ]; do i=$((i+1)); done; [ $i = {events} ]")
            }
            COPY => format!("dd if=/dev/zero of=/dev/null bs=4k count={events} 2>/dev/null"),
            COMPILE => format!("sh /lab/compile/build {events}"),
            GETUID => format!("/lab/repeat getuid {events}"),
            _ => "false".into(),
        }
    }
}

impl Bench for Line {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, _stop: &Stop) -> Result<Timed, LabError> {
        self.guest.turn(arm)?;
        // Setting the knob has dropped all translations, so the workload runs once before it is
        // timed.
        self.guest.run(&self.line((self.events / 10).max(1)))?;
        timed(&self.guest.run(&self.line(self.events))?, self.events)
    }
}

/// A boot up to the shell.
pub struct Boot(System);

impl Boot {
    /// Opens the guest's files.
    ///
    /// # Errors
    ///
    /// They are missing.
    pub fn open(guest: &str, options: &Options) -> Result<Self, LabError> {
        Ok(Self(System::open(guest, &[], options)?))
    }
}

impl Bench for Boot {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, stop: &Stop) -> Result<Timed, LabError> {
        let config = arm.config(&VmConfig::default())?;
        let guest = LinuxGuest::boot(&self.0, &config, stop)?;
        let booted = guest.booted();
        timed(
            booted.ok_or_else(|| LabError::WorkNotDone("it has not booted".into()))?,
            1,
        )
    }
}
