//! What the host's processor counts while a thread runs: cycles, instructions and TLB misses, in
//! user mode and in the kernel, by perf_event_open(2).
//!
//! Many hosts, for instance virtual machines, offer no counters or only offer them to root: then
//! there is a reason instead of counts, never a zero.

use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

// From linux/perf_event.h.
const TYPE_HARDWARE: u32 = 0;
const TYPE_CACHE: u32 = 3;
const CPU_CYCLES: u64 = 0;
const INSTRUCTIONS: u64 = 1;
/// Read misses of the data TLB.
const DTLB_READ_MISSES: u64 = 3 | 1 << 16;
const EXCLUDE_USER: u64 = 1 << 4;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
/// PERF_FORMAT_TOTAL_TIME_ENABLED and PERF_FORMAT_TOTAL_TIME_RUNNING.
const READ_TIMES: u64 = 3;
const FLAG_CLOSE_ON_EXEC: libc::c_ulong = 8;

/// `perf_event_attr` in its first published version, which every later kernel accepts.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

/// Events of the calling thread since some moment. Events that are not counted here are `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HardwareCounts {
    /// Cycles in user mode.
    pub cycles: Option<u64>,
    /// Instructions in user mode.
    pub instructions: Option<u64>,
    /// Loads in user mode that missed the data TLB.
    pub dtlb_misses: Option<u64>,
    /// Cycles in the kernel.
    pub kernel_cycles: Option<u64>,
}

impl HardwareCounts {
    /// The events counted after `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Self {
            cycles: less(self.cycles, earlier.cycles),
            instructions: less(self.instructions, earlier.instructions),
            dtlb_misses: less(self.dtlb_misses, earlier.dtlb_misses),
            kernel_cycles: less(self.kernel_cycles, earlier.kernel_cycles),
        }
    }
}

/// Counters of the calling thread, which count from the time they were opened.
pub struct HardwareCounters {
    cycles: OwnedFd,
    instructions: Option<OwnedFd>,
    dtlb_misses: Option<OwnedFd>,
    kernel_cycles: Option<OwnedFd>,
}

impl HardwareCounters {
    /// Starts counting.
    ///
    /// # Errors
    ///
    /// Why this host does not even count cycles, in words.
    pub fn open() -> Result<Self, String> {
        let user = EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR;
        let cycles =
            open(TYPE_HARDWARE, CPU_CYCLES, user).map_err(|error| match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => {
                    "no PMU for this user (kernel.perf_event_paranoid)".to_owned()
                }
                _ => "no PMU on this host".to_owned(),
            })?;
        let kernel = EXCLUDE_USER | EXCLUDE_HYPERVISOR;
        Ok(Self {
            cycles,
            instructions: instruction_counter().ok(),
            dtlb_misses: open(TYPE_CACHE, DTLB_READ_MISSES, user).ok(),
            kernel_cycles: open(TYPE_HARDWARE, CPU_CYCLES, kernel).ok(),
        })
    }

    /// The counts so far.
    pub fn read(&self) -> HardwareCounts {
        HardwareCounts {
            cycles: read(&self.cycles),
            instructions: self.instructions.as_ref().and_then(read),
            dtlb_misses: self.dtlb_misses.as_ref().and_then(read),
            kernel_cycles: self.kernel_cycles.as_ref().and_then(read),
        }
    }
}

/// Opens a counter of the calling thread's instructions in user mode.
///
/// # Errors
///
/// The host refuses.
pub fn instruction_counter() -> io::Result<OwnedFd> {
    let user = EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR;
    open(TYPE_HARDWARE, INSTRUCTIONS, user)
}

fn open(kind: u32, config: u64, flags: u64) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        kind,
        size: size_of::<Attributes>() as u32,
        config,
        read_format: READ_TIMES,
        flags,
        ..Attributes::default()
    };
    // SAFETY: the attributes are readable and of the size that they contain; the calling thread (0)
    // on any processor (-1), in no group (-1).
    let result = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            0,
            -1,
            -1,
            FLAG_CLOSE_ON_EXEC,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system call has made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(result as libc::c_int) })
}

/// The count, scaled up for the time in which other counters used the hardware.
fn read(counter: &OwnedFd) -> Option<u64> {
    let mut values = [0u64; 3];
    let size = size_of_val(&values);
    // SAFETY: `values` is writable for `size` bytes.
    let result = unsafe { libc::read(counter.as_raw_fd(), values.as_mut_ptr().cast(), size) };
    let [count, enabled, running] = values;
    if result != size as isize || running == 0 {
        return None;
    }
    let scaled = u128::from(count) * u128::from(enabled) / u128::from(running);
    u64::try_from(scaled).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attributes_have_their_published_size() {
        assert_eq!(size_of::<Attributes>(), 64);
    }

    #[test]
    fn there_are_counts_that_grow_or_a_reason() {
        match HardwareCounters::open() {
            Err(why) => assert!(why.starts_with("no PMU"), "{why}"),
            Ok(monitor) => {
                let before = monitor.read();
                let after = monitor.read();
                assert!(after.cycles >= before.cycles);
            }
        }
    }

    #[test]
    fn what_was_not_counted_stays_unknown() {
        let before = HardwareCounts {
            cycles: Some(5),
            ..HardwareCounts::default()
        };
        let after = HardwareCounts {
            cycles: Some(7),
            instructions: Some(3),
            ..HardwareCounts::default()
        };
        let since = after.since(&before);
        assert_eq!((since.cycles, since.instructions), (Some(2), None));
    }
}
