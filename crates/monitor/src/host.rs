//! The two things that the vCPU asks of the host directly.

use std::sync::atomic::AtomicU32;

/// The host's time-stamp counter.
pub fn time_stamp() -> u64 {
    // SAFETY: RDTSC has no preconditions in user mode on Linux.
    unsafe { core::arch::x86_64::_rdtsc() }
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
