//! The serial console of the guest of `tollgate exec`: shown if requested, and its end kept for
//! error messages.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use crate::lost_output::LostOutput;

/// The number of bytes that are kept.
const KEPT_BYTES: usize = 8 << 10;
/// The number of the kept lines that are shown.
const SHOWN_LINES: usize = 24;

/// The serial console of a guest that runs a command.
#[derive(Clone, Default)]
pub struct Console {
    end: Arc<Mutex<VecDeque<u8>>>,
    /// Notes the output that standard error did not take, if the console is shown there.
    shown: Option<Arc<LostOutput>>,
}

impl Console {
    /// A console that is written to standard error, or only kept.
    pub fn new(is_shown: bool) -> Self {
        let lost = || LostOutput::new("--verbose", "standard error".into());
        Self {
            shown: is_shown.then(lost),
            ..Self::default()
        }
    }

    /// Whether console output that should be shown could not be written, which was reported.
    pub fn has_lost_output(&self) -> bool {
        self.shown.as_ref().is_some_and(|lost| lost.is_lost())
    }

    /// The last lines, each indented; empty if they were shown already.
    pub fn last_lines(&self) -> String {
        if self.shown.is_some() {
            return String::new();
        }
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = end.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        let lines = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
        let plain = |character: char| {
            if character.is_control() {
                '?'
            } else {
                character
            }
        };
        lines
            .iter()
            .map(|line| format!("    {}\n", line.chars().map(plain).collect::<String>()))
            .collect()
    }
}

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(lost) = &self.shown
            && let Err(error) = io::stderr().write_all(bytes)
        {
            lost.note_unless_gone(&error, &io::stderr());
        }
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        end.extend(bytes);
        let surplus = end.len().saturating_sub(KEPT_BYTES);
        end.drain(..surplus);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_without_control_characters() {
        let mut console = Console::new(false);
        for number in 0..5000 {
            write!(console, "line {number}\r\n").unwrap();
        }
        write!(console, "end\x1b[2J").unwrap();
        let lines = console.last_lines();
        assert_eq!(lines.lines().count(), SHOWN_LINES);
        assert!(lines.ends_with("    line 4999\n    end?[2J\n"), "{lines}");
    }
}
