//! The time-stamp counter, read in line: an indirect call would disturb what is timed.

/// Cycles of the host's time-stamp counter.
#[cfg(not(test))]
#[inline(always)]
pub fn counter() -> u64 {
    // SAFETY: RDTSC has no preconditions in user mode on Linux.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
thread_local! {
    /// The time that unit tests let pass.
    pub(crate) static TIME: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// What may happen each time that the clock is read.
    pub(crate) static AT_READING: std::cell::Cell<fn()> = const { std::cell::Cell::new(|| ()) };
}

/// Cycles as the test lets them pass.
#[cfg(test)]
pub fn counter() -> u64 {
    AT_READING.get()();
    TIME.get()
}
