//! Shows the progress of an experiment while it runs.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use tollgate_lab::experiment::Observer;

use crate::failure::say;

/// The shortest time between two progress messages on a terminal, and in a file.
const ON_TERMINAL: Duration = Duration::from_millis(100);
const IN_FILE: Duration = Duration::from_secs(2);

/// Shows progress on standard error.
pub struct Progress {
    is_terminal: bool,
    shown: Option<Instant>,
    begun: Instant,
}

impl Progress {
    /// Makes a display that shows nothing yet.
    pub fn new() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            shown: None,
            begun: Instant::now(),
        }
    }

    /// Erases the progress line.
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
        let left = left(done, total, self.begun.elapsed());
        let line = format!("[{}/{total}{left}] {next}", (done + 1).min(total));
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[Ktollgate: {line}");
        } else {
            say(&line);
        }
    }
}

/// The estimated time for the remaining work, if it takes as long as the finished work; empty
/// before an estimate is possible.
fn left(done: usize, total: usize, elapsed: Duration) -> String {
    if done == 0 || done >= total {
        return String::new();
    }
    let each = elapsed.as_secs_f64() / done as f64;
    let seconds = (each * (total - done) as f64).ceil() as u64;
    match seconds {
        0..60 => format!(", {seconds} s left"),
        60..3600 => format!(", {} min left", seconds.div_ceil(60)),
        _ => {
            let minutes = seconds.div_ceil(60);
            format!(", {} h {} min left", minutes / 60, minutes % 60)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_what_is_done() {
        let seconds = Duration::from_secs;
        assert_eq!(left(0, 10, seconds(5)), "");
        assert_eq!(left(10, 10, seconds(5)), "");
        assert_eq!(left(2, 10, seconds(5)), ", 20 s left");
        assert_eq!(left(1, 10, seconds(19)), ", 3 min left");
        assert_eq!(left(1, 101, seconds(70)), ", 1 h 57 min left");
    }
}
