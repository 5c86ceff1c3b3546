//! The few things that the vCPU asks the host for directly: time and sleep.

use std::sync::atomic::{AtomicU32, Ordering};
use tollgate_engine::requests::on_processor;
use tollgate_exits::ledger::HostTime;

/// Two readings of the clock that are less than this many nanoseconds apart were not interrupted.
const AT_ONCE: u64 = 5_000;
/// How often the clocks are read if every reading is interrupted.
const READINGS: usize = 3;

/// The host's time and the CPU time of the calling thread. Both clocks are read together: if the
/// thread lost its processor between the readings, the lost time would look like CPU time.
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

/// The host's monotonic clock, in nanoseconds.
fn passed() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Makes the calling thread's sleeps end on time, not up to 50 us later as is the host's default.
/// If the host refuses, sleeps end later.
pub fn sleep_exactly() {
    // SAFETY: the call sets a number of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

/// Sleeps until `signal` arrives or `nanoseconds` have passed. Does not sleep at all if `word` is
/// not zero, so a signal whose handler sets `word` just before the sleep is not lost. A signal that
/// arrives during the sleep ends it without a call of its handler, which would cost as much as the
/// sleep itself.
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
    // SAFETY: `set` is valid; the null pointer means that the previous mask is not wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    // From here on an arriving signal stays pending until `sigtimedwait` takes it.
    if word.load(Ordering::SeqCst) == 0 {
        // SAFETY: the set and the timeout are live; the null pointer means that details of the
        // signal are not wanted.
        unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &time) };
    }
    // SAFETY: as for SIG_BLOCK above.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tollgate_engine::requests::Requests;
    use tollgate_engine::signals::{self, kick_signal};

    /// Longer than any test may take, in nanoseconds.
    const FOR_EVER: u64 = 1_000_000_000_000;

    #[test]
    fn a_word_that_is_set_before_the_sleep_prevents_it() {
        sleep_while_zero(&AtomicU32::new(1), kick_signal(), FOR_EVER);
    }

    #[test]
    fn the_signal_ends_a_sleep_whether_it_comes_before_or_in_it() {
        signals::install().unwrap();
        let word = Arc::new(Requests::default());
        // Times that are shorter and longer than the code that leads to the sleep.
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
