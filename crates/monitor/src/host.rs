//! The few things that the vCPU asks of the host directly.

use std::sync::atomic::AtomicU32;
use tollgate_exits::ledger::HostTime;

/// What the calling thread has had of the host's time.
pub fn thread_time() -> HostTime {
    HostTime {
        passed: nanoseconds(libc::CLOCK_MONOTONIC),
        on_processor: nanoseconds(libc::CLOCK_THREAD_CPUTIME_ID),
    }
}

fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Has the calling thread's sleeps end when they should, not up to 50 us later as the host's
/// default is. If the host refuses, they end later.
pub fn sleep_exactly() {
    // SAFETY: sets a number of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

/// Sleeps until a signal arrives, until `nanoseconds` have passed, or not at all if
/// `word` is not zero: a signal handler that sets it just before loses nothing.
pub fn sleep_while_zero(word: &AtomicU32, nanoseconds: u64) {
    let time = libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000).min(i64::MAX as u64) as i64,
        tv_nsec: (nanoseconds % 1_000_000_000) as i64,
    };
    // SAFETY: the word and the timeout are live; the kernel only reads both.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            0,
            &time,
        )
    };
}
