//! A guest that runs on a separate thread: its output on the serial port, its knobs and its ledger.

use crate::experiment::{Arm, LabError, Stop};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tollgate_exits::reading::Reading;
use tollgate_machine::config::VmConfig;
use tollgate_machine::knobs::Assignment;
use tollgate_machine::vm::{Consoles, RunOutcome, Vm};
use tollgate_machine::vm_handle::VmHandle;

/// How long the guest may take to boot, or for one task.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// How long its processor may take to respond.
pub const ANSWER: Duration = Duration::from_secs(20);
/// How often the waiting thread checks whether the experiment should stop.
pub const LOOK: Duration = Duration::from_millis(200);
/// If the guest fails, this many of its last bytes of output are shown.
const TAIL: usize = 300;

/// A machine that runs on its own thread.
pub struct RunningGuest {
    handle: VmHandle,
    printed: Receiver<Printed>,
    /// The thread, which returns how the machine ended, in words.
    thread: Option<JoinHandle<String>>,
    stop: Stop,
    /// Output that has not been processed yet.
    text: Vec<u8>,
}

/// A part of the guest's output, and when it arrived.
type Printed = (Instant, Vec<u8>);

/// Sends the guest's output to the waiting thread.
struct Printer(Sender<Printed>);

impl Write for Printer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // This fails only if the receiver is gone, and then the output is not needed.
        let _ = self.0.send((Instant::now(), bytes.to_vec()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl RunningGuest {
    /// Starts a machine; `prepare` is called on its thread before it is built.
    pub fn start(
        config: VmConfig,
        stop: &Stop,
        prepare: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Self {
        let (send, printed) = mpsc::channel();
        let handle = VmHandle::new();
        let thread = {
            let (handle, stop) = (handle.clone(), stop.clone());
            thread::spawn(move || match prepare() {
                Ok(()) => run(&config, send, &handle, &stop),
                Err(why) => why,
            })
        };
        Self {
            handle,
            printed,
            thread: Some(thread),
            stop: stop.clone(),
            text: Vec::new(),
        }
    }

    /// The machine's handle.
    pub const fn handle(&self) -> &VmHandle {
        &self.handle
    }

    /// Sets the knobs of an arm, and waits until they are set.
    ///
    /// # Errors
    ///
    /// The machine does not respond.
    pub fn turn(&self, arm: &Arm) -> Result<(), LabError> {
        let assignments: Result<Vec<_>, _> = arm
            .settings
            .iter()
            .map(|(knob, value)| Assignment::of(knob, value))
            .collect();
        let assignments = assignments.map_err(|error| LabError::Host(error.to_string()))?;
        self.handle.turn_knobs(&assignments);
        self.reset_ledger()
    }

    /// Resets the ledger.
    ///
    /// # Errors
    ///
    /// The machine does not respond.
    pub fn reset_ledger(&self) -> Result<(), LabError> {
        match self.handle.reset_ledger(ANSWER) {
            true => Ok(()),
            false => Err(self.silent("the machine does not answer")),
        }
    }

    /// The error for a machine that does not do what is expected, or for an experiment that should
    /// stop.
    pub fn silent(&self, why: &str) -> LabError {
        match self.stop.is_requested() {
            true => LabError::Interrupted,
            false => LabError::WorkNotDone(why.into()),
        }
    }

    /// The present content of the ledger.
    ///
    /// # Errors
    ///
    /// The machine has ended.
    pub fn reading(&mut self) -> Result<Arc<Reading>, LabError> {
        let reading = self.handle.fresh_reading(ANSWER);
        reading.ok_or_else(|| self.ended())
    }

    /// Waits until `found` finds something in the output. Returns the output before that, and the
    /// arrival time of the last part that was needed.
    ///
    /// # Errors
    ///
    /// It takes too long, the machine ends, or the experiment should stop.
    pub fn wait_for(
        &mut self,
        found: impl Fn(&str) -> Option<usize>,
    ) -> Result<(String, Instant), LabError> {
        let end = Instant::now() + PATIENCE;
        let mut latest = Instant::now();
        loop {
            let text = String::from_utf8_lossy(&self.text).into_owned();
            if let Some(at) = found(&text) {
                self.text = text.as_bytes()[at..].to_vec();
                return Ok((text[..at].to_owned(), latest));
            }
            if self.stop.is_requested() {
                return Err(LabError::Interrupted);
            }
            match self.printed.recv_timeout(LOOK) {
                Ok((when, bytes)) => {
                    self.text.extend(bytes);
                    latest = when;
                }
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

    /// Types a text at the serial port.
    ///
    /// # Errors
    ///
    /// The guest does not take it.
    pub fn type_text(&self, text: &str) -> Result<(), LabError> {
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

    /// Takes the output that has not been processed yet.
    pub fn take_text(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.text)).into_owned()
    }

    /// An error that says why the machine ended.
    pub fn ended(&mut self) -> LabError {
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

    /// Checks that the machine is still running.
    ///
    /// # Errors
    ///
    /// It has ended; the error says why.
    pub fn check_running(&mut self) -> Result<(), LabError> {
        let thread = self.thread.as_ref();
        match thread.is_none_or(JoinHandle::is_finished) {
            true => Err(self.ended()),
            false => Ok(()),
        }
    }

    /// Whether the experiment should stop.
    pub fn is_to_end(&self) -> bool {
        self.stop.is_requested()
    }
}

impl Drop for RunningGuest {
    fn drop(&mut self) {
        self.handle.quit();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The end of a text, on one line.
pub fn tail(text: &str) -> String {
    let mut from = text.len().saturating_sub(TAIL);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..]
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs the machine on this thread. Returns how it ended.
fn run(config: &VmConfig, send: Sender<Printed>, handle: &VmHandle, stop: &Stop) -> String {
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
