//! The time-stamp counter, read inline: an indirect call would disturb the measured code.

/// The host's time-stamp counter, in cycles.
#[cfg(not(test))]
#[inline(always)]
pub fn counter() -> u64 {
    // SAFETY: RDTSC has no preconditions in user mode on Linux.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
thread_local! {
    /// The simulated time of unit tests.
    pub(crate) static TIME: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// The part of the simulated time in which the thread did not run.
    pub(crate) static LOST: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// Called at each reading of the clock, which may let time pass.
    pub(crate) static AT_READING: std::cell::Cell<fn()> = const { std::cell::Cell::new(|| ()) };
}

/// Lets simulated time pass, in cycles.
#[cfg(test)]
pub(crate) fn pass(cycles: u64) {
    TIME.set(TIME.get() + cycles);
}

/// The simulated time-stamp counter of unit tests, in cycles.
#[cfg(test)]
pub fn counter() -> u64 {
    AT_READING.get()();
    TIME.get()
}
