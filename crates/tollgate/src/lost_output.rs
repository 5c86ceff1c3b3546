//! Output that was asked for and could not be written, on a full disk above all: reported once when
//! it happens, and by the exit code at the end.

use std::io::{self, ErrorKind, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_host_facts::file_words::writing;

use crate::failure::say;

/// Whether one output has lost something.
pub struct LostOutput {
    /// What messages begin with: a flag and a colon, or nothing for a standard stream.
    prefix: String,
    target: String,
    is_lost: AtomicBool,
}

impl LostOutput {
    /// Nothing is lost yet of what `flag` has written to `target`, which messages name.
    pub fn new(flag: impl Into<String>, target: String) -> Arc<Self> {
        Arc::new(Self {
            prefix: format!("{}: ", flag.into()),
            target,
            is_lost: AtomicBool::new(false),
        })
    }

    /// Nothing is lost yet of a standard stream that no flag has asked for.
    pub fn of_stream(name: &str) -> Arc<Self> {
        Arc::new(Self {
            prefix: String::new(),
            target: name.to_owned(),
            is_lost: AtomicBool::new(false),
        })
    }

    /// A write failed. The first failure is reported; the guest continues.
    pub fn note(&self, error: &io::Error) {
        if !self.is_lost.swap(true, Ordering::AcqRel) {
            let (prefix, target, why) = (&self.prefix, &self.target, writing(error));
            say(&format!(
                "{prefix}cannot write {target}: {why}; what cannot be written is lost"
            ));
        }
    }

    /// A write to `output` failed. That is a loss unless the reader has gone.
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

/// Whether a write failed because the reader went away, which is the reader's choice and no loss. A
/// terminal that was hung up has no reader either.
pub fn is_reader_gone(error: &io::Error, output: &impl IsTerminal) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected) || output.is_terminal()
}
