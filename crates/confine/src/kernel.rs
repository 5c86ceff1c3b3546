//! The system calls with which a thread gives up what it does not need.

use std::io;

use seccompiler::BpfProgram;

/// Version 3 of capset's structures: two words for each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    process: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityWords {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn check(result: libc::c_long) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives up, for the calling thread and those that it starts, to gain privileges by executing a
/// program.
///
/// # Errors
/// The kernel refuses.
pub fn no_new_privileges() -> io::Result<()> {
    // SAFETY: this prctl takes integers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())
}

/// Keeps, of the calling thread's capabilities, only those whose bits are set in `kept`.
///
/// # Errors
/// The kernel refuses.
pub fn keep_capabilities(kept: u64) -> io::Result<()> {
    let mut header = CapabilityHeader {
        version: CAPABILITY_VERSION,
        process: 0,
    };
    let mut words = [CapabilityWords::default(); 2];
    // SAFETY: both point to live structures of the version that the header names.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) })?;
    for (words, kept) in words.iter_mut().zip([kept as u32, (kept >> 32) as u32]) {
        words.effective &= kept;
        words.permitted &= kept;
        words.inheritable = 0;
    }
    // SAFETY: as above; the call only reads them.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, words.as_ptr()) })
}

/// Holds the calling thread, and those that it starts, to a filter.
///
/// # Errors
/// The kernel refuses.
pub fn install_filter(program: &BpfProgram) -> io::Result<()> {
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(too_long)?,
        filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    // Without the flag, kernels before 5.16 take a filter as a request to stop speculation past
    // stores, which makes all code of the thread slower, the guest's above all.
    // SAFETY: the program is live for the call, which copies it; both types of instruction are the
    // kernel's.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            &raw const program,
        )
    })
}

/// Whether the kernel has filters that send a signal.
pub fn has_filters() -> bool {
    let action: u32 = libc::SECCOMP_RET_TRAP;
    // SAFETY: the action is live; the call reads it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        )
    };
    result == 0
}

/// The version of the rules for files that the kernel has; 0 if it has none.
pub fn version_of_file_rules() -> i64 {
    /// LANDLOCK_CREATE_RULESET_VERSION.
    const VERSION: u32 = 1;
    // SAFETY: with this flag the call takes no structure.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            VERSION,
        )
    };
    result.max(0)
}

/// Settles how many pools of memory the C library makes. Otherwise it reads the number of processors
/// from a file, at the moment when some thread needs the ninth pool.
pub fn settle_pools() {
    const MOST: libc::c_int = 32;
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes integers and locks what it changes.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, MOST);
    }
}

/// No core file is written if the process dies: it would hold the guest's memory.
pub fn no_core_file() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the limits are live; the call reads them. If it fails, the old limit remains.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
}
