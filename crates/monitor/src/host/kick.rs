//! How other threads make a vCPU look up: a flag and a signal.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tollgate_engine::requests::Requests;
use tollgate_engine::signals;

/// Lets other threads make a vCPU leave guest code.
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
    /// Aims at the calling thread, which will run the vCPU with these requests.
    pub(crate) fn arm(&self, requests: Arc<Requests>) {
        // SAFETY: neither call has preconditions.
        let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
        *self.slot() = Some(KickTarget {
            process,
            thread,
            requests,
        });
    }

    /// Removes the target, so that later kicks do nothing; when this returns no kick is under
    /// way.
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
                // It is on its way out, or a signal is on its way to it. More of them would
                // queue up faster than they are taken.
                return;
            }
            // SAFETY: plain system call; a thread that is gone yields ESRCH.
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
