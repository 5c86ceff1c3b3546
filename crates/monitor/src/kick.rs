//! How other threads make a vCPU look up: a flag and a signal.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tollgate_engine::signals;

/// Lets other threads make a vCPU leave guest code.
#[derive(Clone, Default)]
pub struct Kick {
    target: Arc<Mutex<Option<KickTarget>>>,
}

#[derive(Clone, Copy)]
struct KickTarget {
    process: libc::pid_t,
    thread: libc::pid_t,
    pending: *const AtomicU32,
}

// SAFETY: the pointer is used only under the mutex and only while the vCPU that owns
// the atomic is alive: the vCPU clears the target before it goes away.
unsafe impl Send for KickTarget {}

impl Kick {
    /// Aims at the calling thread, which will run the vCPU with this `pending` word.
    /// [`Kick::disarm`] must be called before the word dies.
    pub(crate) fn arm(&self, pending: &AtomicU32) {
        // SAFETY: neither call has preconditions.
        let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
        *self.slot() = Some(KickTarget {
            process,
            thread,
            pending,
        });
    }

    /// Aims at nobody; when this returns no kick is under way.
    pub(crate) fn disarm(&self) {
        *self.slot() = None;
    }

    fn slot(&self) -> MutexGuard<'_, Option<KickTarget>> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the vCPU look for work at its next instruction boundary.
    pub fn kick(&self) {
        let guard = self.slot();
        if let Some(target) = *guard {
            // SAFETY: the target is cleared under this mutex before the atomic dies.
            let before = unsafe { (*target.pending).swap(1, Ordering::SeqCst) };
            if before != 0 {
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
