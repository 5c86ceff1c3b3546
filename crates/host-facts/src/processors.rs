//! The host and its processors: a description, and the processors on which the calling thread may
//! run, with the time that it has used.

use serde::{Deserialize, Serialize};
use std::{fmt, io};

/// The host that an experiment ran on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostDescription {
    /// The processor's name.
    pub processor: String,
    /// The kernel's name and release.
    pub kernel: String,
    /// The number of processors that this process may use.
    pub processors: usize,
    /// Frequency of the time-stamp counter, in kHz.
    pub tsc_khz: u64,
}

impl HostDescription {
    /// Describes this host.
    pub fn here(tsc_khz: u64) -> Self {
        Self {
            processor: processor_name(),
            kernel: read_line("/proc/sys/kernel/ostype")
                + " "
                + &read_line("/proc/sys/kernel/osrelease"),
            processors: Affinity::current().map_or(1, |affinity| affinity.processors().len()),
            tsc_khz,
        }
    }

    /// The number of processors, in words.
    pub fn processors_in_words(&self) -> String {
        match self.processors {
            1 => "1 processor".to_owned(),
            count => format!("{count} processors"),
        }
    }
}

impl fmt::Display for HostDescription {
    /// Writes everything in one line, the clock only if its frequency is known.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processors = self.processors_in_words();
        write!(
            formatter,
            "{}, {processors}, {}",
            self.processor, self.kernel
        )?;
        match self.tsc_khz {
            0 => Ok(()),
            khz => write!(
                formatter,
                ", time-stamp counter {:.3} GHz",
                khz as f64 / 1e6
            ),
        }
    }
}

fn read_line(path: &str) -> String {
    std::fs::read_to_string(path).map_or_else(|_| "?".into(), |text| text.trim().to_owned())
}

fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("model name"))
        .and_then(|rest| rest.split_once(':'))
        .map_or_else(
            || "unknown processor".into(),
            |(_, name)| name.trim().to_owned(),
        )
}

/// Processor time in seconds of all processes that this one has started and that have ended.
pub fn time_of_children() -> f64 {
    // SAFETY: rusage consists of numbers, for which zero is valid.
    let mut usage = unsafe { std::mem::zeroed::<libc::rusage>() };
    // SAFETY: `usage` is writable; the request for children cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// A set of processors that a thread may run on.
#[derive(Clone)]
pub struct Affinity(libc::cpu_set_t);

impl PartialEq for Affinity {
    fn eq(&self, other: &Self) -> bool {
        // SAFETY: it only reads both sets.
        unsafe { libc::CPU_EQUAL(&self.0, &other.0) }
    }
}

impl std::fmt::Debug for Affinity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_set().entries(self.processors()).finish()
    }
}

impl Affinity {
    /// The processors of the calling thread.
    ///
    /// # Errors
    ///
    /// Those of sched_getaffinity(2).
    pub fn current() -> io::Result<Self> {
        Self::of(0)
    }

    /// The processors of a task of this host, by its number.
    ///
    /// # Errors
    ///
    /// Those of sched_getaffinity(2), such as EINVAL if they do not fit into a set.
    pub fn of(task: i32) -> io::Result<Self> {
        // SAFETY: cpu_set_t is an array of integers, for which zero is valid.
        let mut set = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
        // SAFETY: `set` is writable and has the size that is passed.
        let result = unsafe { libc::sched_getaffinity(task, size_of_val(&set), &mut set) };
        if result == 0 {
            Ok(Self(set))
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// A set of one processor; `None` if the number is too large for a set.
    pub fn only(processor: usize) -> Option<Self> {
        // SAFETY: cpu_set_t is an array of integers, for which zero is valid.
        let mut set = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
        (processor < libc::CPU_SETSIZE as usize).then(|| {
            // SAFETY: the number lies inside the set.
            unsafe { libc::CPU_SET(processor, &mut set) };
            Self(set)
        })
    }

    /// The numbers of the processors.
    pub fn processors(&self) -> Vec<usize> {
        (0..libc::CPU_SETSIZE as usize)
            // SAFETY: the numbers lie inside the set.
            .filter(|&processor| unsafe { libc::CPU_ISSET(processor, &self.0) })
            .collect()
    }

    /// Restricts the calling thread to these processors.
    ///
    /// # Errors
    ///
    /// Those of sched_setaffinity(2), such as EINVAL if the host has no such processor.
    pub fn apply(&self) -> io::Result<()> {
        self.apply_to(0)
    }

    /// Restricts a task of this host to these processors, by its number.
    ///
    /// # Errors
    ///
    /// Those of sched_setaffinity(2), such as EPERM if the task is another user's.
    pub fn apply_to(&self, task: i32) -> io::Result<()> {
        // SAFETY: the set is readable and has the size that is passed.
        let result = unsafe { libc::sched_setaffinity(task, size_of_val(&self.0), &self.0) };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// The processor on which the calling thread runs now.
pub fn current_processor() -> usize {
    // SAFETY: the call has no preconditions.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Processor time that the calling thread has used, in nanoseconds.
pub fn thread_time() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable; the clock exists for every thread.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_pinned_and_let_go() {
        std::thread::spawn(|| {
            let before = Affinity::current().unwrap();
            let processor = before.processors()[0];
            Affinity::only(processor).unwrap().apply().unwrap();
            assert_eq!(Affinity::current().unwrap().processors(), [processor]);
            assert_eq!(current_processor(), processor);
            before.apply().unwrap();
            assert_eq!(
                Affinity::current().unwrap().processors(),
                before.processors()
            );
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_host_is_described_in_one_line() {
        let mut host = HostDescription {
            processor: "Z80".into(),
            kernel: "CP/M 2.2".into(),
            processors: 1,
            tsc_khz: 4000,
        };
        assert_eq!(
            host.to_string(),
            "Z80, 1 processor, CP/M 2.2, time-stamp counter 0.004 GHz"
        );
        (host.processors, host.tsc_khz) = (2, 0);
        assert_eq!(host.to_string(), "Z80, 2 processors, CP/M 2.2");
    }

    #[test]
    fn there_is_no_processor_beyond_the_set() {
        assert!(Affinity::only(usize::MAX).is_none());
    }
}
