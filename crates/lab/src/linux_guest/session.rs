//! A running guest: its thread, its serial port, and command lines for its shell.

use super::System;
use crate::experiment::{Arm, LabError, Stop};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tollgate_exits::books::Books;
use tollgate_machine::config::VmConfig;
use tollgate_machine::knobs::Assignment;
use tollgate_machine::vm::{Consoles, RunOutcome, Vm};
use tollgate_machine::vm_handle::VmHandle;

/// How long the guest may take to its shell, or for one command line.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long its processor may take to answer.
const ANSWER: Duration = Duration::from_secs(20);
/// The guest looks whether somebody wants to end the experiment as often as this.
const LOOK: Duration = Duration::from_millis(200);
/// What the first process prints before it starts the shell, and the shell's prompt.
const READY: &str = "tollgate-guest: ready";
const PROMPT: &str = "# ";
/// Of what the guest printed, this much is shown if it fails.
const TAIL: usize = 300;

/// A guest with a shell that waits.
pub struct LinuxGuest {
    handle: VmHandle,
    printed: Receiver<Vec<u8>>,
    /// Its end, as words.
    thread: Option<JoinHandle<String>>,
    stop: Stop,
    /// What was printed and not looked at.
    text: Vec<u8>,
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

/// Sends what the guest prints.
struct Printer(Sender<Vec<u8>>);

impl Write for Printer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Nobody listens any more: then nobody wants to know.
        let _ = self.0.send(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LinuxGuest {
    /// Boots the system on a machine with these settings, to its shell.
    ///
    /// # Errors
    /// The machine cannot be built, the guest does not come to its shell, or the experiment is to
    /// end.
    pub fn boot(system: &System, config: &VmConfig, stop: &Stop) -> Result<Self, LabError> {
        let config = system.config(config);
        let (send, printed) = mpsc::channel();
        let handle = VmHandle::new();
        let thread = {
            let (handle, stop) = (handle.clone(), stop.clone());
            thread::spawn(move || run(&config, send, &handle, &stop))
        };
        let mut guest = Self {
            handle,
            printed,
            thread: Some(thread),
            stop: stop.clone(),
            text: Vec::new(),
            lines: 0,
            booted: None,
        };
        let begun = Instant::now();
        let output = guest.wait_for(|text| {
            let at = text.find(READY)? + READY.len();
            text[at..].find(PROMPT)
        })?;
        guest.booted = Some(Ran {
            output,
            elapsed: begun.elapsed(),
            books: guest.books()?,
        });
        // The shell's echo and prompt would only cost exits.
        guest.run("stty -echo; PS1=")?;
        Ok(guest)
    }

    /// Turns the knobs of an arm, and waits until they are.
    ///
    /// # Errors
    /// The machine does not answer.
    pub fn turn(&self, arm: &Arm) -> Result<(), LabError> {
        let assignments: Result<Vec<_>, _> = arm
            .settings
            .iter()
            .map(|(knob, value)| Assignment::of(knob, value))
            .collect();
        let assignments = assignments.map_err(|error| LabError::Host(error.to_string()))?;
        self.handle.turn_knobs(&assignments);
        self.reset_books()
    }

    fn reset_books(&self) -> Result<(), LabError> {
        match self.handle.reset_books(ANSWER) {
            true => Ok(()),
            false if self.stop.is_requested() => Err(LabError::Interrupted),
            false => Err(LabError::WorkNotDone("the machine does not answer".into())),
        }
    }

    /// Has the shell do a command line, and waits until it is done.
    ///
    /// # Errors
    /// The line's exit code is not zero, the guest ends or takes too long, or the experiment is to
    /// end.
    pub fn run(&mut self, line: &str) -> Result<Ran, LabError> {
        self.lines += 1;
        let number = self.lines;
        self.reset_books()?;
        // What is typed does not contain what is waited for, in case it is echoed.
        self.type_text(&format!("{line}\necho \"lab-$(({number}+0)):$?;\"\n"))?;
        let begun = Instant::now();
        let mark = format!("lab-{number}:");
        let output = self.wait_for(|text| {
            let at = text.find(&mark)?;
            text[at..].contains(';').then_some(at)
        })?;
        let elapsed = begun.elapsed();
        let rest = String::from_utf8_lossy(&self.text).into_owned();
        self.text.clear();
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
            books: self.books()?,
        })
    }

    fn books(&mut self) -> Result<Arc<Books>, LabError> {
        let books = self.handle.fresh_books(ANSWER);
        books.ok_or_else(|| self.ended())
    }

    /// What it took from the start to the shell.
    pub fn booted(&self) -> Option<&Ran> {
        self.booted.as_ref()
    }

    fn type_text(&self, text: &str) -> Result<(), LabError> {
        let mut left = text.as_bytes();
        let end = Instant::now() + ANSWER;
        while !left.is_empty() {
            left = &left[self.handle.serial_input(left)..];
            if Instant::now() > end {
                return Err(LabError::WorkNotDone("the guest does not read".into()));
            }
            if !left.is_empty() {
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// Waits until `found` finds something in what is printed: what was printed before that.
    fn wait_for(&mut self, found: impl Fn(&str) -> Option<usize>) -> Result<String, LabError> {
        let end = Instant::now() + PATIENCE;
        loop {
            let text = String::from_utf8_lossy(&self.text).into_owned();
            if let Some(at) = found(&text) {
                self.text = text.as_bytes()[at..].to_vec();
                return Ok(text[..at].to_owned());
            }
            if self.stop.is_requested() {
                return Err(LabError::Interrupted);
            }
            match self.printed.recv_timeout(LOOK) {
                Ok(bytes) => self.text.extend(bytes),
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(LabError::WorkNotDone(format!(
                        "the guest took more than {} s; it printed last: {}",
                        PATIENCE.as_secs(),
                        tail(&text)
                    )));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            }
        }
    }

    /// Why the guest ended.
    fn ended(&mut self) -> LabError {
        if self.stop.is_requested() {
            return LabError::Interrupted;
        }
        self.handle.quit();
        let how = self.thread.take().map(JoinHandle::join);
        let how = match how {
            Some(Ok(how)) => how,
            _ => "its thread failed".to_owned(),
        };
        let printed = String::from_utf8_lossy(&self.text).into_owned();
        LabError::WorkNotDone(format!("the guest ended: {how}: {}", tail(&printed)))
    }
}

impl Drop for LinuxGuest {
    fn drop(&mut self) {
        self.handle.quit();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The end of a text, as one line.
fn tail(text: &str) -> String {
    let mut from = text.len().saturating_sub(TAIL);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..]
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// The machine's thread: how it ended.
fn run(config: &VmConfig, send: Sender<Vec<u8>>, handle: &VmHandle, stop: &Stop) -> String {
    let consoles = Consoles {
        serial: Box::new(Printer(send)),
        debug: Box::new(io::sink()),
    };
    match Vm::build(config, consoles, handle) {
        Ok(mut vm) => match stop.while_running(handle, || vm.run()) {
            RunOutcome::PowerOff => "it switched itself off".into(),
            RunOutcome::Reset(cause) => format!("it was reset by {cause}"),
            RunOutcome::Panicked(_) => "its kernel panicked".into(),
            RunOutcome::TripleFault(registers) => format!("triple fault: {registers}"),
            RunOutcome::DebugExit(value) => format!("it wrote {value} to isa-debug-exit"),
            RunOutcome::Quit => "it was ended".into(),
            RunOutcome::Stopped(why) => why,
        },
        Err(error) => error.to_string(),
    }
}
