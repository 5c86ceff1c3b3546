//! The signals that ask for an end, and SIGCONT: blocked in every thread and read from a
//! descriptor by the event loop, so that no code runs in a signal handler.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::host;

/// Signals that end the virtual machine.
pub const ENDING: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// What this signal asks for.
    Signal(i32),
    /// The process goes on after it was stopped: the terminal may have been changed.
    Continued,
}

/// The descriptor that signals are read from.
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks the signals in this thread, and so in all threads it starts later. To be
    /// called before the first other thread exists.
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub fn block() -> io::Result<Self> {
        Self::block_these(&ENDING)
    }

    /// The same with these signals, and SIGCONT. Those of them that end a virtual machine stay
    /// ignored if whoever started us had them ignored.
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub fn block_these(signals: &[libc::c_int]) -> io::Result<Self> {
        // SAFETY: an all-zero sigset_t is a valid value; sigemptyset makes it the empty set.
        let mut set = unsafe { std::mem::zeroed::<libc::sigset_t>() };
        // SAFETY: `set` is a valid, writable signal set.
        unsafe { libc::sigemptyset(&mut set) };
        for signal in signals {
            if ENDING.contains(signal) && is_ignored(*signal) {
                continue;
            }
            // SAFETY: as above, and the signal number is valid.
            unsafe { libc::sigaddset(&mut set, *signal) };
        }
        // SAFETY: as above.
        unsafe { libc::sigaddset(&mut set, libc::SIGCONT) };
        // SAFETY: `set` is valid; the previous mask is not asked for.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: `set` is valid; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        Ok(Self(host::owned(fd)?))
    }

    /// The next signal that waits, if any.
    pub fn next(&self) -> Option<Asked> {
        // SAFETY: signalfd_siginfo consists of integers, for which zero is valid.
        let mut info = unsafe { std::mem::zeroed::<libc::signalfd_siginfo>() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: `info` is plain data of `size` bytes, all of which may be overwritten.
        let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut info).cast::<u8>(), size) };
        match host::read(self.0.as_fd(), bytes) {
            Ok(count) if count == size => match info.ssi_signo as i32 {
                libc::SIGCONT => Some(Asked::Continued),
                signal => Some(Asked::Signal(signal)),
            },
            _ => None,
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Whether whoever started us had the signal ignored, as nohup does with SIGHUP and a
/// shell with SIGINT of background jobs. That is respected.
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: an all-zero sigaction is a valid value.
    let mut action = unsafe { std::mem::zeroed::<libc::sigaction>() };
    // SAFETY: a null new action only asks; `action` is valid for writing.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}
