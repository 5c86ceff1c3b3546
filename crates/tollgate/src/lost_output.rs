//! Output that was asked for and could not be written, on a full disk above all: said once, and
//! told by the exit code at the end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_machine::file_words::writing;

use crate::failure::say;

/// Whether one output has lost something.
pub struct LostOutput {
    flag: String,
    target: String,
    is_lost: AtomicBool,
}

impl LostOutput {
    /// Nothing is lost yet of what `flag` has written to `target`, which messages name.
    pub fn new(flag: impl Into<String>, target: String) -> Arc<Self> {
        Arc::new(Self {
            flag: flag.into(),
            target,
            is_lost: AtomicBool::new(false),
        })
    }

    /// A write failed. The first time that is said; the guest goes on.
    pub fn note(&self, error: &io::Error) {
        if !self.is_lost.swap(true, Ordering::Relaxed) {
            let (flag, target, why) = (&self.flag, &self.target, writing(error));
            say(&format!(
                "{flag}: cannot write {target}: {why}; what cannot be written is lost"
            ));
        }
    }

    /// Whether a write has failed.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}
