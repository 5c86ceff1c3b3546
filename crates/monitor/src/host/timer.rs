//! The host timer of a vCPU, which sends the kick signal to the vCPU's thread.

use std::io;
use std::sync::Arc;
use tollgate_engine::requests::Requests;
use tollgate_engine::signals::kick_signal;

/// A POSIX timer on the monotonic clock, directed at one thread.
pub struct HostTimer {
    timer: libc::timer_t,
    /// The word that the signal's handler writes to, kept alive for as long as the timer exists.
    _requests: Arc<Requests>,
}

impl HostTimer {
    /// Creates a timer for the calling thread. The handler of its signal makes a request.
    ///
    /// # Errors
    /// `timer_create` failed.
    pub fn new(requests: Arc<Requests>) -> io::Result<Self> {
        // SAFETY: an all-zero sigevent is a valid starting value.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = kick_signal();
        event.sigev_value.sival_ptr = Arc::as_ptr(&requests).cast_mut().cast();
        // SAFETY: gettid has no preconditions.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: both pointers are to live, initialised values.
        if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            timer,
            _requests: requests,
        })
    }

    /// Makes the timer fire once, `nanoseconds` from now (at least one).
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
        // Every signal that the timer has sent is for this thread and is taken before the call
        // returns.
        // SAFETY: the timer is ours and nothing uses it any more.
        unsafe { libc::timer_delete(self.timer) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_a_timer_sets_lives_as_long_as_the_timer() {
        tollgate_engine::signals::install().unwrap();
        let requests = Arc::new(Requests::default());
        let seen = Arc::downgrade(&requests);
        // The vCPU no longer exists, as after an unwinding, but its timer still does.
        let mut timer = HostTimer::new(requests).unwrap();
        timer.arm(1);
        while seen.upgrade().unwrap().load(Ordering::SeqCst) == 0 {
            std::hint::spin_loop();
        }
        drop(timer);
        assert!(seen.upgrade().is_none());
    }
}
