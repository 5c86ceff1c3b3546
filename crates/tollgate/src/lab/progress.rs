//! What an experiment shows while it runs.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use tollgate_lab::experiment::Observer;

use crate::failure::say;

/// Progress is not shown more often on a terminal, and in a file.
const ON_TERMINAL: Duration = Duration::from_millis(100);
const IN_FILE: Duration = Duration::from_secs(2);

/// Shows what is done on standard error.
pub struct Progress {
    is_terminal: bool,
    shown: Option<Instant>,
}

impl Progress {
    /// Nothing is shown yet.
    pub fn new() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            shown: None,
        }
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if self.is_terminal && self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Observer for Progress {
    fn progress(&mut self, done: usize, total: usize, next: &str) {
        let pause = if self.is_terminal {
            ON_TERMINAL
        } else {
            IN_FILE
        };
        if self.shown.is_some_and(|shown| shown.elapsed() < pause) {
            return;
        }
        self.shown = Some(Instant::now());
        let line = format!("[{}/{total}] {next}", (done + 1).min(total));
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[Ktollgate: {line}");
        } else {
            say(&line);
        }
    }
}
