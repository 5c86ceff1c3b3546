//! Making a program leave native code, from any thread or signal handler.

use crate::frame::KICK;
use rustix::process::{Signal, pidfd_send_signal};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a process and its kickers share.
#[derive(Debug)]
pub struct KickState {
    /// A kick that no run has reported yet.
    kicked: AtomicBool,
    /// Whether the program may be in native code.
    is_running: AtomicBool,
    /// Descriptor of the process.
    pub process: OwnedFd,
}

/// Makes [`crate::SpaceProcess::run`] return [`crate::Exit::Kicked`].
#[derive(Clone, Debug)]
pub struct Kicker(Arc<KickState>);

impl KickState {
    pub fn new(process: OwnedFd) -> Arc<Self> {
        Arc::new(Self {
            kicked: AtomicBool::new(false),
            is_running: AtomicBool::new(false),
            process,
        })
    }

    /// Says that the program will run from now on. From here a kick sends a signal; one that came
    /// before is found by [`Self::take`] afterwards.
    pub fn begin(&self) {
        self.is_running.store(true, Ordering::SeqCst);
    }

    /// Says that the program has left native code.
    pub fn end(&self) {
        self.is_running.store(false, Ordering::SeqCst);
    }

    /// Whether there was a kick, which is thereby reported.
    pub fn take(&self) -> bool {
        self.kicked.swap(false, Ordering::SeqCst)
    }

    /// Whether there is a kick that was not reported.
    pub fn is_kicked(&self) -> bool {
        self.kicked.load(Ordering::SeqCst)
    }

    /// Sends the signal. While the runner is in its handler, the signal waits; the mapper blocks it.
    pub fn signal(&self) {
        let signal = Signal::from_named_raw(KICK).expect("a named signal");
        // If the process is gone, the run that waits for it finds out by itself.
        let _ = pidfd_send_signal(&self.process, signal);
    }
}

impl Kicker {
    pub(crate) const fn new(state: Arc<KickState>) -> Self {
        Self(state)
    }

    /// Makes the run that is under way, or else the next one, return soon. This can be called in a
    /// signal handler.
    pub fn kick(&self) {
        self.0.kicked.store(true, Ordering::SeqCst);
        if self.0.is_running.load(Ordering::SeqCst) {
            self.0.signal();
        }
    }
}
