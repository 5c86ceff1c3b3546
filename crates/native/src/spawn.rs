//! Starting a process from an executable file in memory, with nothing of ours but three descriptors.

use crate::exit::Death;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What the process is given as descriptors 0, 1 and 2, and the file that it executes.
pub struct Descriptors<'a> {
    /// Guest RAM.
    pub ram: BorrowedFd<'a>,
    /// Where the mapper writes its results.
    pub results: BorrowedFd<'a>,
    /// The pages shared with the monitor.
    pub shared: BorrowedFd<'a>,
    /// The executable file.
    pub image: BorrowedFd<'a>,
}

/// A process that was started.
pub struct Child {
    /// Number of the process.
    pub number: i32,
    /// Descriptor of the process.
    pub descriptor: OwnedFd,
}

/// What the new process needs between clone and execve. It shares our memory until then, and our
/// thread waits.
struct Plan {
    descriptors: [c_int; 4],
    parent: i32,
    error: c_int,
}

/// The first descriptor number that is out of the way of those that the process will have.
const HIGH: c_int = 16;
const STACK_SIZE: usize = 64 << 10;

/// Starts the process. It is killed when the calling thread ends.
pub fn spawn(descriptors: &Descriptors<'_>) -> io::Result<Child> {
    let mut plan = Plan {
        descriptors: [
            descriptors.ram.as_raw_fd(),
            descriptors.results.as_raw_fd(),
            descriptors.shared.as_raw_fd(),
            descriptors.image.as_raw_fd(),
        ],
        parent: std::process::id().cast_signed(),
        error: 0,
    };
    let mut stack = vec![0u128; STACK_SIZE / 16];
    let top = stack.as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut descriptor: c_int = -1;
    // SAFETY: an all-zero set is a value that sigfillset overwrites.
    let (mut all, mut before) = unsafe { std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>() };
    // No handler of ours may run in the new process, which shares our memory. So all signals are
    // blocked; the process inherits that.
    // SAFETY: the sets live through the calls. CLONE_VFORK suspends this thread until the child has
    // executed or ended, so `plan` and `stack` are the child's alone until then.
    let (number, error) = unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let number = libc::clone(
            child,
            top.cast(),
            flags,
            (&raw mut plan).cast(),
            &raw mut descriptor,
        );
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        (number, error)
    };
    if number < 0 {
        return Err(error);
    }
    // SAFETY: CLONE_PIDFD has stored a new descriptor that nothing else owns.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let child = Child { number, descriptor };
    if plan.error != 0 {
        let _ = reap(&child.descriptor);
        return Err(io::Error::from_raw_os_error(plan.error));
    }
    Ok(child)
}

/// Why a child of this process has ended; nothing while it lives. With `WaitIdOptions::NOWAIT` it is not
/// reaped.
pub fn death_of_child(process: &OwnedFd, options: WaitIdOptions) -> Option<Death> {
    let options = options | WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    match waitid(WaitId::PidFd(process.as_fd()), options) {
        Ok(None) | Err(rustix::io::Errno::INTR) => None,
        Ok(Some(status)) => Some(match status.terminating_signal() {
            Some(signal) => Death::Signal(signal),
            None => Death::Ended(status.exit_status().unwrap_or_default()),
        }),
        // Another part of the program has reaped it.
        Err(_) => Some(Death::Ended(0)),
    }
}

/// Waits for the end of a process that has been killed or has ended.
pub fn reap(process: &OwnedFd) -> io::Result<()> {
    loop {
        match waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map(|_| ()).map_err(io::Error::from),
        }
    }
}

/// The new process up to execve. It runs on a stack of its own in our memory, so it only makes
/// system calls: no allocation, no lock, no panic.
extern "C" fn child(plan: *mut c_void) -> c_int {
    // SAFETY: `spawn` passed its plan, which nothing else uses until we have executed or ended.
    let plan = unsafe { &mut *plan.cast::<Plan>() };
    plan.error = execute(plan);
    127
}

/// Becomes the new program; returns the error if that fails.
fn execute(plan: &Plan) -> c_int {
    // SAFETY: system calls on this process's own descriptors (CLONE_FILES was not given), on its
    // own attributes, and on constant strings and structures that live through the calls.
    unsafe {
        let errno = || *libc::__errno_location();
        if libc::setpgid(0, 0) != 0 || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return errno();
        }
        if libc::getppid() != plan.parent {
            // Our parent ended before the line above, or is in another name space of processes,
            // from where 0 is seen. Only in the first case does nothing wait for us.
            if libc::getppid() == 1 {
                return libc::ESRCH;
            }
        }
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        let mut high = [0; 4];
        for (to, from) in high.iter_mut().zip(plan.descriptors) {
            *to = libc::fcntl(from, libc::F_DUPFD, HIGH);
            if *to < 0 {
                return errno();
            }
        }
        for (low, from) in high.into_iter().enumerate() {
            let flags = if low == 3 { libc::O_CLOEXEC } else { 0 };
            if libc::dup3(from, low as c_int, flags) < 0 {
                return errno();
            }
        }
        if libc::syscall(libc::SYS_close_range, 4, libc::c_uint::MAX, 0) != 0 {
            return errno();
        }
        let arguments = [c"guest-program".as_ptr(), std::ptr::null()];
        let environment: [*const libc::c_char; 1] = [std::ptr::null()];
        libc::syscall(
            libc::SYS_execveat,
            3,
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
        errno()
    }
}
