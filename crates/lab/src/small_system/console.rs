//! The other end of the small system's serial line: it records the output, and types.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tollgate_machine::vm_handle::VmHandle;

/// The output of `echo` before each line.
const PROMPT: &[u8] = b"> ";

#[derive(Default)]
struct Line {
    received: Vec<u8>,
    to_type: VecDeque<String>,
    keyboard: Option<VmHandle>,
}

/// Records all output; clones share the record.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Line>>);

impl Recorder {
    /// A recorder that only listens.
    pub fn new() -> Self {
        Self::default()
    }

    /// A recorder that types the next of `lines` at each prompt of `echo`.
    pub fn typing(keyboard: VmHandle, lines: impl Iterator<Item = String>) -> Self {
        Self(Arc::new(Mutex::new(Line {
            received: Vec::new(),
            to_type: lines.collect(),
            keyboard: Some(keyboard),
        })))
    }

    /// The output so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.line().received).into_owned()
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Recorder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut line = self.line();
        line.received.extend_from_slice(bytes);
        if line.received.ends_with(PROMPT)
            && let Some(keyboard) = line.keyboard.clone()
            && let Some(text) = line.to_type.pop_front()
        {
            // There is always room for one line.
            keyboard.serial_input(format!("{text}\r").as_bytes());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
