//! Standard input as the guest's serial input: a terminal with keys of Tollgate's own,
//! or a file or pipe that passes unchanged.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use crate::failure::Failure;
use crate::host;
use crate::terminal::{self, RawTerminal};
use crate::terminal_keys::{KeyFilter, Typed};

/// How often a background process checks whether it was brought to the foreground.
const FOREGROUND_RETRY: Duration = Duration::from_millis(500);

/// Standard input, as the source of the guest's serial input.
pub struct Keyboard {
    input: Input,
    is_at_end: bool,
}

enum Input {
    /// A file or pipe, or nothing to read.
    Plain,
    /// A terminal, which is raw unless this process is in its background.
    Terminal {
        raw: Option<RawTerminal>,
        keys: KeyFilter,
    },
}

impl Keyboard {
    /// Opens standard input. A terminal becomes raw.
    ///
    /// # Errors
    /// The terminal cannot be switched.
    pub fn open() -> Result<Self, Failure> {
        let mut keyboard = Self {
            input: Input::Plain,
            is_at_end: false,
        };
        if io::stdin().is_terminal() {
            let raw = match terminal::is_in_foreground() {
                true => Some(RawTerminal::enter().map_err(|error| {
                    Failure::host(format!(
                        "cannot switch the terminal to raw mode: {error}; try --serial pty"
                    ))
                })?),
                false => None,
            };
            let keys = KeyFilter::default();
            keyboard.input = Input::Terminal { raw, keys };
        }
        Ok(keyboard)
    }

    /// Whether the terminal is raw and its keys work.
    pub fn is_interactive(&self) -> bool {
        matches!(self.input, Input::Terminal { raw: Some(_), .. })
    }

    /// The descriptor to wait for; negative if there is nothing to read.
    pub fn poll_fd(&self) -> RawFd {
        if self.is_at_end || self.is_in_background() {
            -1
        } else {
            io::stdin().as_fd().as_raw_fd()
        }
    }

    /// The time until [`Keyboard::attach_again`] must be called.
    pub fn retry(&self) -> Option<Duration> {
        self.is_in_background().then_some(FOREGROUND_RETRY)
    }

    /// Makes the terminal raw if this process came to the foreground.
    pub fn attach_again(&mut self) {
        if let Input::Terminal { raw, .. } = &mut self.input
            && raw.is_none()
            && terminal::is_in_foreground()
        {
            *raw = RawTerminal::enter().ok();
        }
    }

    /// Makes the terminal raw again when the process continues after it was stopped, because a
    /// shell has changed the terminal.
    pub fn continued(&mut self) {
        if let Input::Terminal { raw, .. } = &mut self.input
            && let Some(terminal) = raw
        {
            if terminal::is_in_foreground() {
                // A failure means that the terminal has gone, which the next read reports.
                let _ = terminal.reenter();
            } else {
                terminal::forget();
                *raw = None;
            }
        }
    }

    /// Reads the available bytes once.
    pub fn read(&mut self) -> Vec<Typed> {
        let mut bytes = [0; 1024];
        let bytes = match host::read(io::stdin().as_fd(), &mut bytes) {
            Ok(count) if count > 0 => &bytes[..count],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Vec::new(),
            // The input has ended, or the terminal has gone. The machine continues without input.
            _ => {
                self.is_at_end = true;
                return Vec::new();
            }
        };
        match &mut self.input {
            Input::Plain => vec![Typed::Input(bytes.to_vec())],
            Input::Terminal { keys, .. } => keys.take(bytes),
        }
    }

    fn is_in_background(&self) -> bool {
        matches!(self.input, Input::Terminal { raw: None, .. })
    }
}
