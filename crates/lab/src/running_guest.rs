//! A guest that runs on a thread of its own: what it prints on its serial port, its knobs and its books.

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

/// How long the guest may take to boot, or for one piece of work.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// How long its processor may take to answer.
pub const ANSWER: Duration = Duration::from_secs(20);
/// The guest looks whether somebody wants to end the experiment as often as this.
pub const LOOK: Duration = Duration::from_millis(200);
/// Of what the guest printed, this much is shown if it fails.
const TAIL: usize = 300;

/// A machine that runs.
pub struct RunningGuest {
    handle: VmHandle,
    printed: Receiver<Printed>,
    /// Its end, as words.
    thread: Option<JoinHandle<String>>,
    stop: Stop,
    /// What was printed and not looked at.
    text: Vec<u8>,
}

/// A piece of what the guest printed, and when.
type Printed = (Instant, Vec<u8>);

/// Sends what the guest prints.
struct Printer(Sender<Printed>);

impl Write for Printer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Nobody listens any more: then nobody wants to know.
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

    /// Begins the books anew.
    ///
    /// # Errors
    /// The machine does not answer.
    pub fn reset_books(&self) -> Result<(), LabError> {
        match self.handle.reset_books(ANSWER) {
            true => Ok(()),
            false => Err(self.silent("the machine does not answer")),
        }
    }

    /// What to say of a machine that does not do what is expected; that nobody expects it any more
    /// if the experiment is to end.
    pub fn silent(&self, why: &str) -> LabError {
        match self.stop.is_requested() {
            true => LabError::Interrupted,
            false => LabError::WorkNotDone(why.into()),
        }
    }

    /// The books as they are.
    ///
    /// # Errors
    /// The machine has ended.
    pub fn books(&mut self) -> Result<Arc<Books>, LabError> {
        let books = self.handle.fresh_books(ANSWER);
        books.ok_or_else(|| self.ended())
    }

    /// Waits until `found` finds something in what is printed: what was printed before that, and when the
    /// last piece came that was needed.
    ///
    /// # Errors
    /// It takes too long, the machine ends, or the experiment is to end.
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

    /// Takes what was printed and not looked at.
    pub fn take_text(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.text)).into_owned()
    }

    /// Why the machine ended.
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

    /// That the machine still runs.
    ///
    /// # Errors
    /// It has ended; why.
    pub fn check_running(&mut self) -> Result<(), LabError> {
        let thread = self.thread.as_ref();
        match thread.is_none_or(JoinHandle::is_finished) {
            true => Err(self.ended()),
            false => Ok(()),
        }
    }

    /// Whether the experiment is to end.
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

/// The end of a text, as one line.
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

/// The machine's thread: how it ended.
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
