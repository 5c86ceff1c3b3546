//! Shows the progress of `tollgate cost` on standard error, and notices signals that end it.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use tollgate_lab::cost::Observer;

use crate::exit_code;
use crate::failure::say;
use crate::signals::{Asked, Signals};

/// The shortest time between two updates of the progress line on a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Shows progress and notices signals.
pub struct Watcher {
    signals: Signals,
    signal: Option<i32>,
    is_terminal: bool,
    shown: Option<Instant>,
    last_tenth: usize,
}

impl Watcher {
    /// Nothing is shown yet.
    pub fn new(signals: Signals) -> Self {
        Self {
            signals,
            signal: None,
            is_terminal: std::io::stderr().is_terminal(),
            shown: None,
            last_tenth: 0,
        }
    }

    /// Erases the progress line.
    pub fn clear(&mut self) {
        if self.is_terminal && self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    /// That of a run that ends now.
    pub fn exit_code(&self) -> u8 {
        self.signal
            .map_or(exit_code::SUCCESS, exit_code::for_signal)
    }
}

impl Observer for Watcher {
    fn progress(&mut self, done: usize, total: usize, next: &str) {
        if self.is_terminal {
            if self
                .shown
                .is_none_or(|shown| shown.elapsed() >= PROGRESS_INTERVAL)
            {
                self.shown = Some(Instant::now());
                let _ = write!(
                    std::io::stderr(),
                    "\r\x1b[Ktollgate: {done} of {total}: {next}"
                );
            }
            return;
        }
        let tenth = done * 10 / total.max(1);
        if tenth > self.last_tenth {
            self.last_tenth = tenth;
            say(&format!("{done} of {total} rows measured"));
        }
    }

    fn is_interrupted(&mut self) -> bool {
        while let Some(asked) = self.signals.next() {
            if let Asked::Signal(signal) = asked {
                self.signal.get_or_insert(signal);
            }
        }
        self.signal.is_some()
    }
}
