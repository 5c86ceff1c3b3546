//! A running guest: its thread, its serial port, and command lines for its shell.

use super::System;
use crate::experiment::{Arm, LabError, Stop};
use crate::running_guest::{RunningGuest, tail};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tollgate_exits::reading::Reading;
use tollgate_machine::config::VmConfig;
use tollgate_machine::vm_handle::VmHandle;

/// The output of the first process before it starts the shell, and the shell's prompt.
const READY: &str = "tollgate-guest: ready";
const PROMPT: &str = "# ";

/// A guest whose shell waits for commands.
pub struct LinuxGuest {
    guest: RunningGuest,
    lines: u32,
    /// The costs of the boot.
    booted: Option<Ran>,
}

/// The result of one command line.
pub struct Ran {
    /// The output of the command line.
    pub output: String,
    /// The time from the last key of the line to the first byte after its output.
    pub elapsed: Duration,
    /// The machine's ledger, which was reset before the line was typed.
    pub reading: Arc<Reading>,
}

impl Ran {
    /// Processor cycles of the guest and its monitor: the wall time without sleep and without what
    /// the host ran in between.
    pub fn processor_cycles(&self) -> u64 {
        let shares = &self.reading.shares;
        shares
            .wall
            .saturating_sub(shares.halted)
            .saturating_sub(shares.waiting)
    }
}

impl LinuxGuest {
    /// Boots the system on a machine with these settings, up to its shell.
    ///
    /// # Errors
    ///
    /// The machine cannot be built, the guest does not start its shell, or the experiment should
    /// stop.
    pub fn boot(system: &System, config: &VmConfig, stop: &Stop) -> Result<Self, LabError> {
        let mut linux = Self {
            guest: RunningGuest::start(system.config(config), stop, || Ok(())),
            lines: 0,
            booted: None,
        };
        let begun = Instant::now();
        let (output, _) = linux.guest.wait_for(|text| {
            let at = text.find(READY)? + READY.len();
            text[at..].find(PROMPT)
        })?;
        linux.booted = Some(Ran {
            output,
            elapsed: begun.elapsed(),
            reading: linux.guest.reading()?,
        });
        // Echo and prompt of the shell would only cause exits.
        linux.run("stty -echo; PS1=")?;
        Ok(linux)
    }

    /// Sets the knobs of an arm, and waits until they are set.
    ///
    /// # Errors
    ///
    /// The machine does not respond.
    pub fn turn(&self, arm: &Arm) -> Result<(), LabError> {
        self.guest.turn(arm)
    }

    /// Makes the shell run a command line, and waits until it is done.
    ///
    /// # Errors
    ///
    /// The exit code of the line is not zero, the guest ends or takes too long, or the experiment
    /// should stop.
    pub fn run(&mut self, line: &str) -> Result<Ran, LabError> {
        self.lines += 1;
        let number = self.lines;
        self.guest.reset_ledger()?;
        // The typed text does not contain the awaited text, in case it is echoed.
        self.guest
            .type_text(&format!("{line}\necho \"lab-$(({number}+0)):$?;\"\n"))?;
        let begun = Instant::now();
        let mark = format!("lab-{number}:");
        let (output, _) = self.guest.wait_for(|text| {
            let at = text.find(&mark)?;
            text[at..].contains(';').then_some(at)
        })?;
        let elapsed = begun.elapsed();
        let rest = self.guest.take_text();
        let code = rest.trim_start_matches(&mark);
        if !code.starts_with("0;") {
            let code = code.split(';').next().unwrap_or_default();
            let tail = tail(&output);
            return Err(LabError::WorkNotDone(format!(
                "'{line}' ended with exit code {code} in the guest: {tail}"
            )));
        }
        Ok(Ran {
            output,
            elapsed,
            reading: self.guest.reading()?,
        })
    }

    /// The machine's handle.
    pub const fn handle(&self) -> &VmHandle {
        self.guest.handle()
    }

    /// The costs of the boot from the start to the shell.
    pub fn booted(&self) -> Option<&Ran> {
        self.booted.as_ref()
    }
}
