//! The processor time that a process has used.

use std::time::Duration;

/// The clock of a process's time on processors. The kernel brings it up to date when a task of the process
/// sleeps, and at each tick of the kernel's.
#[derive(Clone, Copy, Debug)]
pub struct ProcessorClock(libc::clockid_t);

impl ProcessorClock {
    /// The clock of the process with this number. It may be read by a thread that could not open a file
    /// of the process.
    pub const fn of(process: i32) -> Self {
        /// The clock that counts what the scheduler gave (`CPUCLOCK_SCHED`), of all tasks together.
        const SCHEDULED: i32 = 2;
        Self(!process << 3 | SCHEDULED)
    }

    /// The time used so far; zero if there is no such process.
    pub fn now(self) -> Duration {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the call writes to the time, which lives through it.
        match unsafe { libc::clock_gettime(self.0, &raw mut time) } {
            0 => Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32),
            _ => Duration::ZERO,
        }
    }
}

/// The processor time that the process with this number has used, in nanoseconds; 0 if there is no such
/// process.
pub fn nanoseconds_used(process: i32) -> u64 {
    ProcessorClock::of(process).now().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_the_processes_own() {
        let clock = ProcessorClock::of(std::process::id().cast_signed());
        let before = clock.now();
        let mut own = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the call writes to the time, which lives through it.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut own) };
        let own = Duration::new(own.tv_sec.cast_unsigned(), own.tv_nsec as u32);
        let after = clock.now();
        assert!(
            before <= own && own <= after,
            "{before:?} {own:?} {after:?}"
        );
        assert!(before > Duration::ZERO);
        assert_eq!(ProcessorClock::of(1 << 27).now(), Duration::ZERO);
    }
}
