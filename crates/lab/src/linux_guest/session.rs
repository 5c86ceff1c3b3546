//! A running guest: its thread, its serial port, and command lines for its shell.

use super::System;
use crate::experiment::{Arm, LabError, Stop};
use crate::running_guest::{ANSWER, RunningGuest, tail};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tollgate_exits::books::Books;
use tollgate_machine::config::VmConfig;

/// What the first process prints before it starts the shell, and the shell's prompt.
const READY: &str = "tollgate-guest: ready";
const PROMPT: &str = "# ";

/// A guest with a shell that waits.
pub struct LinuxGuest {
    guest: RunningGuest,
    lines: u32,
    /// What it took to boot.
    booted: Option<Ran>,
}

/// What one command line came to.
pub struct Ran {
    /// What it printed.
    pub output: String,
    /// From the line's last key to the first byte behind what it printed.
    pub elapsed: Duration,
    /// The machine's books, begun anew before the line was typed.
    pub books: Arc<Books>,
}

impl Ran {
    /// Cycles of the processor for the guest and its monitor: all but sleep and what the host ran
    /// besides.
    pub fn processor_cycles(&self) -> u64 {
        let shares = &self.books.shares;
        shares
            .wall
            .saturating_sub(shares.halted)
            .saturating_sub(shares.waiting)
    }
}

impl LinuxGuest {
    /// Boots the system on a machine with these settings, to its shell.
    ///
    /// # Errors
    /// The machine cannot be built, the guest does not come to its shell, or the experiment is to
    /// end.
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
            books: linux.guest.books()?,
        });
        // The shell's echo and prompt would only cost exits.
        linux.run("stty -echo; PS1=")?;
        Ok(linux)
    }

    /// Turns the knobs of an arm, and waits until they are.
    ///
    /// # Errors
    /// The machine does not answer.
    pub fn turn(&self, arm: &Arm) -> Result<(), LabError> {
        self.guest.turn(arm)
    }

    /// Has the shell do a command line, and waits until it is done.
    ///
    /// # Errors
    /// The line's exit code is not zero, the guest ends or takes too long, or the experiment is to
    /// end.
    pub fn run(&mut self, line: &str) -> Result<Ran, LabError> {
        self.lines += 1;
        let number = self.lines;
        self.guest.reset_books()?;
        // What is typed does not contain what is waited for, in case it is echoed.
        self.type_text(&format!("{line}\necho \"lab-$(({number}+0)):$?;\"\n"))?;
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
            books: self.guest.books()?,
        })
    }

    /// What it took from the start to the shell.
    pub fn booted(&self) -> Option<&Ran> {
        self.booted.as_ref()
    }

    fn type_text(&self, text: &str) -> Result<(), LabError> {
        let mut left = text.as_bytes();
        let end = Instant::now() + ANSWER;
        while !left.is_empty() {
            left = &left[self.guest.handle().serial_input(left)..];
            if Instant::now() > end {
                return Err(LabError::WorkNotDone("the guest does not read".into()));
            }
            if !left.is_empty() {
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}
