//! What the host's kernel is asked, and told, about processes and processors.

use std::time::Duration;

/// A word of those that the kernel gave this program when it started; 0 if there is none.
pub fn auxiliary(kind: libc::c_ulong) -> u64 {
    // SAFETY: getauxval only reads what the kernel has passed to this process.
    unsafe { libc::getauxval(kind) }
}

/// Whether the processor has user-mode instruction prevention (CPUID leaf 7), which Linux switches on
/// where it is.
pub fn has_umip() -> bool {
    const UMIP: u32 = 1 << 2;
    std::arch::x86_64::__cpuid_count(7, 0).ecx & UMIP != 0
}

/// The processor that the calling thread runs on.
pub fn current_processor() -> Option<usize> {
    // SAFETY: it takes nothing.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Binds a task to a processor. If the kernel refuses, it stays where it was.
pub fn bind(task: i32, processor: usize) {
    if processor >= libc::CPU_SETSIZE as usize {
        return;
    }
    // SAFETY: an all-zero set is an empty one, the number is within it, and the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(task, size_of_val(&set), &raw const set);
    }
}

/// The processor time that a process has used, as far as the kernel says.
pub fn processor_time(process: i32) -> Duration {
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both calls write to what they are given, which lives through them.
    let result = unsafe {
        match libc::clock_getcpuclockid(process, &raw mut clock) {
            0 => libc::clock_gettime(clock, &raw mut time),
            error => error,
        }
    };
    if result != 0 {
        return Duration::ZERO;
    }
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}
