//! The few things that the vCPU asks of the host directly.

use std::sync::atomic::{AtomicU32, Ordering};
use tollgate_engine::requests::on_processor;
use tollgate_exits::ledger::HostTime;

/// Nanoseconds between two readings of the clock that were not interrupted.
const AT_ONCE: u64 = 5_000;
/// How often the clocks are read if they are interrupted each time.
const READINGS: usize = 3;

/// What the calling thread has had of the host's time. The two clocks are read together: if
/// the thread loses its processor between them, that would look as if it had gained it.
pub fn thread_time() -> HostTime {
    let mut time = HostTime {
        passed: passed(),
        on_processor: on_processor(),
    };
    for _ in 1..READINGS {
        let now = passed();
        if now.saturating_sub(time.passed) < AT_ONCE {
            break;
        }
        time = HostTime {
            passed: now,
            on_processor: on_processor(),
        };
    }
    time
}

/// Nanoseconds of the host's time.
fn passed() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Has the calling thread's sleeps end when they should, not up to 50 us later as the host's
/// default is. If the host refuses, they end later.
pub fn sleep_exactly() {
    // SAFETY: sets a number of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

/// Sleeps until `signal` arrives, until `nanoseconds` have passed, or not at all if `word` is
/// not zero: a signal that sets it just before loses nothing. One that arrives during the
/// sleep ends it without a call of its handler, which would cost as much again as the sleep.
pub fn sleep_while_zero(word: &AtomicU32, signal: i32, nanoseconds: u64) {
    let time = libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000).min(i64::MAX as u64) as i64,
        tv_nsec: (nanoseconds % 1_000_000_000) as i64,
    };
    // SAFETY: an all-zero sigset_t is a valid value.
    let mut set = unsafe { std::mem::zeroed::<libc::sigset_t>() };
    // SAFETY: `set` is a valid, writable signal set, and the caller's signal a valid one.
    unsafe {
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
    }
    // SAFETY: `set` is valid; the previous mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    // From here on a signal waits for the call, which takes it.
    if word.load(Ordering::SeqCst) == 0 {
        // SAFETY: the set and the timeout are live; what else is known of the signal is not
        // asked for.
        unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &time) };
    }
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tollgate_engine::requests::Requests;
    use tollgate_engine::signals::{self, kick_signal};

    /// Longer than any test may take.
    const FOR_EVER: u64 = 1_000_000_000_000;

    #[test]
    fn a_word_that_is_set_before_the_sleep_prevents_it() {
        sleep_while_zero(&AtomicU32::new(1), kick_signal(), FOR_EVER);
    }

    #[test]
    fn the_signal_ends_a_sleep_whether_it_comes_before_or_in_it() {
        signals::install().unwrap();
        let word = Arc::new(Requests::default());
        // Shorter and longer than the way into the sleep.
        for nanoseconds in [1, 1_000, 10_000, 100_000, 1_000_000].repeat(20) {
            word.store(0, Ordering::SeqCst);
            let mut timer = crate::host::timer::HostTimer::new(Arc::clone(&word)).unwrap();
            timer.arm(nanoseconds);
            sleep_while_zero(&word, kick_signal(), FOR_EVER);
        }
    }

    #[test]
    fn the_signal_reaches_its_handler_again_behind_a_sleep() {
        signals::install().unwrap();
        let word = Arc::new(Requests::default());
        sleep_while_zero(&word, kick_signal(), 1);
        let mut timer = crate::host::timer::HostTimer::new(Arc::clone(&word)).unwrap();
        timer.arm(1);
        while word.load(Ordering::SeqCst) == 0 {
            std::hint::spin_loop();
        }
    }
}
