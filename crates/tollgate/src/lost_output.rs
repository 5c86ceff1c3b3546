//! Output that was requested and could not be written, usually because a disk is full: reported
//! once when it happens, and by the exit code at the end.

use std::io::{self, ErrorKind, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_host_facts::file_words::writing;

use crate::failure::say;

/// Notes whether one output has lost something.
pub struct LostOutput {
    /// The beginning of messages: a flag and a colon, or nothing for a standard stream.
    prefix: String,
    target: String,
    is_lost: AtomicBool,
}

impl LostOutput {
    /// A note for what `flag` writes to `target`, which messages name. Nothing is lost yet.
    pub fn new(flag: impl Into<String>, target: String) -> Arc<Self> {
        Arc::new(Self {
            prefix: format!("{}: ", flag.into()),
            target,
            is_lost: AtomicBool::new(false),
        })
    }

    /// A note for a standard stream that no flag has requested. Nothing is lost yet.
    pub fn of_stream(name: &str) -> Arc<Self> {
        Arc::new(Self {
            prefix: String::new(),
            target: name.to_owned(),
            is_lost: AtomicBool::new(false),
        })
    }

    /// Notes that a write failed. The first failure is reported; the guest continues.
    pub fn note(&self, error: &io::Error) {
        if !self.is_lost.swap(true, Ordering::AcqRel) {
            let (prefix, target, why) = (&self.prefix, &self.target, writing(error));
            say(&format!(
                "{prefix}cannot write {target}: {why}; what cannot be written is lost"
            ));
        }
    }

    /// Notes that a write to `output` failed, unless the reader has gone.
    pub fn note_unless_gone(&self, error: &io::Error, output: &impl IsTerminal) {
        if !is_reader_gone(error, output) {
            self.note(error);
        }
    }

    /// Whether a write has failed.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }
}

/// Whether a write failed because the reader went away, which is the reader's choice and not a
/// loss. A terminal that was hung up has no reader either.
pub fn is_reader_gone(error: &io::Error, output: &impl IsTerminal) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected) || output.is_terminal()
}
