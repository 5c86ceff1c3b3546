//! Gives a hint if the guest's console stays silent: most users have forgotten `console=ttyS0`.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::failure::say;

/// How long a guest may be silent.
const PATIENCE: Duration = Duration::from_secs(5);

/// The watch on a console that the kernel's command line does not name.
pub struct Silence {
    is_used: Arc<AtomicBool>,
    /// The time of the hint; `None` after that.
    due: Option<Instant>,
}

impl Silence {
    /// Watches for the first byte of a console, unless the kernel's command line names it.
    pub fn of(is_used: Option<Arc<AtomicBool>>, command_line: &str) -> Option<Self> {
        let is_named = |word: &str| word.starts_with("console=ttyS0");
        if command_line.split_whitespace().any(is_named) {
            return None;
        }
        Some(Self {
            is_used: is_used?,
            due: Instant::now().checked_add(PATIENCE),
        })
    }

    /// The time at which [`Self::look`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Gives the hint if it is due and needed.
    pub fn look(&mut self) {
        if self.due.is_some_and(|due| due <= Instant::now()) {
            self.due = None;
            if !self.is_used.load(Ordering::Relaxed) {
                say("the guest has written nothing to its serial port yet; \
                     if it is Linux, it does so with --append \"console=ttyS0\"");
            }
        }
    }
}

/// A writer that notes that something was written.
pub struct Noting<W> {
    inner: W,
    is_used: Arc<AtomicBool>,
}

impl<W: Write> Noting<W> {
    /// Wraps a writer and notes its writes in `is_used`.
    pub fn new(inner: W, is_used: Arc<AtomicBool>) -> Self {
        Self { inner, is_used }
    }
}

impl<W: Write> Write for Noting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_used.store(true, Ordering::Relaxed);
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_was_told_where_to_write_is_not_waited_for() {
        let flag = || Some(Arc::new(AtomicBool::new(false)));
        assert!(Silence::of(flag(), "quiet console=ttyS0,115200").is_none());
        assert!(Silence::of(None, "quiet").is_none());
        assert!(Silence::of(flag(), "console=tty0").is_some());
    }

    #[test]
    fn the_hint_is_given_once_at_most() {
        let mut silence = Silence::of(Some(Arc::default()), "").unwrap();
        silence.look();
        assert!(silence.deadline().is_some());
        silence.due = Some(Instant::now());
        silence.look();
        assert_eq!(silence.deadline(), None);
    }

    #[test]
    fn a_byte_is_noted() {
        let is_used = Arc::new(AtomicBool::new(false));
        let mut noting = Noting::new(io::sink(), Arc::clone(&is_used));
        noting.write_all(b"x").unwrap();
        assert!(is_used.load(Ordering::Relaxed));
    }
}
