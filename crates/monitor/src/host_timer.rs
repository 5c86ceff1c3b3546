//! One host timer per vCPU, which sends the kick signal to its thread.

use std::io;
use tollgate_engine::Context;
use tollgate_engine::signals::kick_signal;

/// A POSIX timer on the monotonic clock, directed at one thread.
pub struct HostTimer {
    timer: libc::timer_t,
}

impl HostTimer {
    /// A timer for the calling thread; its signal carries the context's address.
    ///
    /// # Errors
    /// timer_create failed.
    pub fn new(context: *mut Context) -> io::Result<Self> {
        // SAFETY: an all-zero sigevent is a valid starting value.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = kick_signal();
        event.sigev_value.sival_ptr = context.cast();
        // SAFETY: gettid has no preconditions.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: both pointers are to live, initialised values.
        if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { timer })
    }

    /// Fires once, `nanoseconds` from now (at least one).
    pub fn arm(&mut self, nanoseconds: u64) {
        let nanoseconds = nanoseconds.max(1);
        let zero = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = libc::itimerspec {
            it_interval: zero,
            it_value: libc::timespec {
                tv_sec: (nanoseconds / 1_000_000_000).min(i64::MAX as u64) as i64,
                tv_nsec: (nanoseconds % 1_000_000_000) as i64,
            },
        };
        // SAFETY: the timer is ours and the value is initialised.
        unsafe { libc::timer_settime(self.timer, 0, &value, std::ptr::null_mut()) };
    }
}

impl Drop for HostTimer {
    fn drop(&mut self) {
        // SAFETY: the timer is ours and nothing uses it any more.
        unsafe { libc::timer_delete(self.timer) };
    }
}
