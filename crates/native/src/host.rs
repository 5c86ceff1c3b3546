//! What the host's kernel is asked, and told, about processes and processors.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use tollgate_host_facts::processors::Affinity;

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
    if let Some(processor) = Affinity::only(processor) {
        let _ = processor.apply_to(task);
    }
}

/// Whether a process has a task with this number.
pub fn is_task_of(process: i32, task: i32) -> bool {
    // SAFETY: with signal 0 the call only asks.
    unsafe { libc::syscall(libc::SYS_tgkill, process, task, 0) == 0 }
}

/// The descriptor of the socket in a process that became a server.
const SOCKET: libc::c_int = 3;
/// Above all descriptors that such a process keeps.
const HIGH: libc::c_int = 16;

/// Makes this process, which was forked from `monitor`, one that has nothing but a socket, ends with its
/// monitor, and gets no signal that is meant for others.
///
/// # Errors
/// The kernel refuses, or the monitor has ended.
pub fn become_server(socket: BorrowedFd<'_>, monitor: u32) -> io::Result<BorrowedFd<'static>> {
    let check = |result: libc::c_int| match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    };
    // SAFETY: calls on this process's own attributes and descriptors, on live structures and constant
    // strings. The process has one thread, and owners of the descriptors that are closed here never
    // run again, because it ends without running the code that it was forked from.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        if libc::getppid().cast_unsigned() != monitor {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        check(libc::setpgid(0, 0))?;
        check(libc::chdir(c"/".as_ptr()))?;
        libc::prctl(libc::PR_SET_NAME, c"tollgate-launch".as_ptr());
        let null = check(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR))?;
        let null = check(libc::fcntl(null, libc::F_DUPFD, HIGH))?;
        let socket = check(libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD, HIGH))?;
        for standard in 0..SOCKET {
            check(libc::dup2(null, standard))?;
        }
        check(libc::dup3(socket, SOCKET, libc::O_CLOEXEC))?;
        let first = (SOCKET + 1) as libc::c_uint;
        check(libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) as libc::c_int)?;
        Ok(BorrowedFd::borrow_raw(SOCKET))
    }
}

/// Ends this process, without running anything that was prepared for its end.
pub fn end(code: i32) -> ! {
    // SAFETY: _exit takes an integer and runs no code of this process.
    unsafe { libc::_exit(code) }
}
