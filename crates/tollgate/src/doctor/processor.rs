//! Checks of the host's processor: instructions, hardware counters and protection keys.

use super::check::{Check, read_setting};

/// The bit of AT_HWCAP2 that the kernel sets when FSGSBASE works in user mode.
const HWCAP2_FSGSBASE: usize = 1 << 1;

/// The checks of the instructions that generated code needs.
pub fn required() -> Vec<Check> {
    let offered = |is_offered: bool| if is_offered { "offered" } else { "not offered" };
    let avx2 = std::is_x86_feature_detected!("avx2");
    let bmi1 = std::is_x86_feature_detected!("bmi1");
    let bmi2 = std::is_x86_feature_detected!("bmi2");
    let (fsgsbase, fsgsbase_found) = fsgsbase();
    vec![
        Check::required(
            "AVX2",
            avx2,
            offered(avx2),
            "tollgate does not start; guests' vector state could not be kept",
        ),
        Check::required(
            "BMI1",
            bmi1,
            offered(bmi1),
            "tollgate does not start; translated code uses its instructions",
        ),
        Check::required(
            "BMI2",
            bmi2,
            offered(bmi2),
            "tollgate does not start; translated code computes without touching flags",
        ),
        Check::required(
            "FSGSBASE",
            fsgsbase,
            fsgsbase_found,
            "tollgate does not start; switching to guest code would take a system call",
        ),
    ]
}

/// The checks of what makes guests faster or measurements possible.
pub fn optional() -> Vec<Check> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    vec![
        Check::optional(
            "processors",
            processors >= 2,
            format!("{processors} for this process"),
            "the guest's processor and the event loop share one: interrupts arrive later",
        ),
        pmu(),
        protection_keys(),
    ]
}

/// Checks for protection keys. The processor must have them and the kernel must have enabled them:
/// CPUID leaf 7, ECX bits 3 (PKU) and 4 (OSPKE) (Intel SDM volume 2, CPUID).
fn protection_keys() -> Check {
    const ENABLED: u32 = 1 << 3 | 1 << 4;
    let has_leaf = std::arch::x86_64::__cpuid_count(0, 0).eax >= 7;
    let bits = match has_leaf {
        true => std::arch::x86_64::__cpuid_count(7, 0).ecx,
        false => 0,
    };
    let is_enabled = bits & ENABLED == ENABLED;
    Check::optional(
        "protection keys",
        is_enabled,
        match is_enabled {
            true => "offered, enabled by the kernel",
            false => "not offered",
        },
        "nothing is lost today: what guests access is checked, with keys or without",
    )
}

/// Checks for FSGSBASE. The processor must have it and the kernel must have enabled it (Linux 5.9).
fn fsgsbase() -> (bool, &'static str) {
    if std::arch::x86_64::__cpuid_count(0, 0).eax < 7 {
        return (false, "not offered");
    }
    // The processor lacks FSGSBASE: CPUID leaf 7, EBX bit 0 (Intel SDM volume 2, CPUID).
    if std::arch::x86_64::__cpuid_count(7, 0).ebx & 1 == 0 {
        return (false, "not offered");
    }
    // The second word of capabilities, which needs no /proc.
    if rustix::param::linux_hwcap().1 & HWCAP2_FSGSBASE != 0 {
        (true, "offered, enabled by the kernel")
    } else {
        (false, "offered, but the kernel has not enabled it")
    }
}

fn pmu() -> Check {
    let counter = tollgate_host_facts::hardware_counters::instruction_counter();
    let found = match &counter {
        Ok(_) => "counts instructions".into(),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::EOPNOTSUPP) => "the host offers no hardware counters".into(),
            Some(libc::EACCES | libc::EPERM) => format!(
                "not permitted (kernel.perf_event_paranoid is {})",
                read_setting("/proc/sys/kernel/perf_event_paranoid")
            ),
            _ => format!("not usable: {error}"),
        },
    };
    Check::optional(
        "PMU",
        counter.is_ok(),
        found,
        "measurements count time only, not instructions or cache misses",
    )
}
