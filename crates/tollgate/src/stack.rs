//! Runs the command on a stack that is large enough, whatever `ulimit -s` says.

use std::io;
use std::mem::MaybeUninit;

use rustix::process::{Resource, getrlimit};

/// The size that the deepest calls need, with a margin.
const ENOUGH: u64 = 1 << 20;
/// The size of the stack of the thread that is made if the first one is too small.
const OWN: usize = 8 << 20;

/// Calls `work`, in a thread of its own if the process's first thread has too small a stack. The
/// first thread then takes no signals and waits.
pub fn with_enough(work: fn() -> u8) -> u8 {
    if getrlimit(Resource::Stack)
        .current
        .is_none_or(|bytes| bytes >= ENOUGH)
    {
        return work();
    }
    let old = set_mask(&all_signals());
    let thread = std::thread::Builder::new().stack_size(OWN).spawn(move || {
        set_mask(&old);
        work()
    });
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        // The panic hook has reported the panic.
        Ok(Err(_)) => crate::exit_code::STOPPED,
        Err(error) => no_thread(&error),
    }
}

fn no_thread(error: &io::Error) -> u8 {
    let message = format!("the stack is too small ('ulimit -s'), and there is no thread: {error}");
    crate::failure::Failure::host(message).report()
}

fn all_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset initializes the set that it is given.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Sets the calling thread's signal mask and returns the previous mask.
fn set_mask(mask: &libc::sigset_t) -> libc::sigset_t {
    let mut old = MaybeUninit::uninit();
    // SAFETY: with a valid mask the call cannot fail, and it fills in the old one.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, old.as_mut_ptr());
        old.assume_init()
    }
}
