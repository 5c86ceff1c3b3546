//! How other threads interrupt a vCPU: a flag and a signal.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tollgate_engine::requests::Requests;
use tollgate_engine::signals;

/// A handle by which other threads make a vCPU leave guest code.
#[derive(Clone, Default)]
pub struct Kick {
    target: Arc<Mutex<Option<KickTarget>>>,
}

struct KickTarget {
    process: libc::pid_t,
    thread: libc::pid_t,
    requests: Arc<Requests>,
}

impl Kick {
    /// Makes the calling thread the target. The thread will run the vCPU that has these requests.
    pub(crate) fn arm(&self, requests: Arc<Requests>) {
        // SAFETY: neither call has preconditions.
        let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
        *self.slot() = Some(KickTarget {
            process,
            thread,
            requests,
        });
    }

    /// Removes the target, so that later kicks do nothing. When this returns, no kick is in
    /// progress.
    pub(crate) fn disarm(&self) {
        *self.slot() = None;
    }

    fn slot(&self) -> MutexGuard<'_, Option<KickTarget>> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the vCPU look for work at its next instruction boundary.
    pub fn kick(&self) {
        let guard = self.slot();
        if let Some(target) = &*guard {
            if !target.requests.ask() {
                // The vCPU is already leaving guest code, or a signal is on its way to it. More
                // signals would queue up faster than the thread takes them.
                return;
            }
            // SAFETY: plain system call; if the thread no longer exists, the call fails with ESRCH.
            unsafe {
                libc::syscall(
                    libc::SYS_tgkill,
                    target.process,
                    target.thread,
                    signals::kick_signal(),
                )
            };
        }
    }
}
