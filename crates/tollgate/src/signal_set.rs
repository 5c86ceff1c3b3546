//! Sets of signals, signal masks and handlers, each as a small function over the C library's.

use std::io;
use std::mem::MaybeUninit;

use libc::c_int;

use crate::host;

/// A set of signals.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl SignalSet {
    /// The set of these signals. Numbers that are those of no signal are left out.
    pub fn of(signals: impl IntoIterator<Item = c_int>) -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initializes the set that it is given.
        let mut set = Self(unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        });
        for signal in signals {
            set.put(signal, true);
        }
        set
    }

    /// The set of all signals, except those that the C library keeps for itself.
    pub fn all() -> Self {
        Self::of(1..=libc::SIGRTMAX())
    }

    /// The set without these signals.
    pub fn without(mut self, signals: &[c_int]) -> Self {
        for signal in signals {
            self.put(*signal, false);
        }
        self
    }

    /// Adds or removes a signal.
    fn put(&mut self, signal: c_int, is_member: bool) {
        let put = match is_member {
            true => libc::sigaddset,
            false => libc::sigdelset,
        };
        // SAFETY: the set is initialized. A number that is not a signal's is refused.
        unsafe { put(&mut self.0, signal) };
    }

    /// The set as system calls take it.
    pub fn raw(&self) -> &libc::sigset_t {
        &self.0
    }

    /// Blocks these signals in the calling thread too. Returns the set that was blocked before.
    pub fn block(&self) -> Self {
        self.change_mask(libc::SIG_BLOCK)
    }

    /// Blocks these signals in the calling thread, and no others. Returns the set that was blocked
    /// before.
    pub fn block_only(&self) -> Self {
        self.change_mask(libc::SIG_SETMASK)
    }

    fn change_mask(&self, how: c_int) -> Self {
        let mut old = MaybeUninit::uninit();
        // SAFETY: with a valid set and a valid `how` the call cannot fail, and it fills in the old
        // set.
        Self(unsafe {
            libc::pthread_sigmask(how, &self.0, old.as_mut_ptr());
            old.assume_init()
        })
    }

    /// Takes one of these signals that is pending and blocked, if there is one.
    pub fn take_pending(&self) -> Option<c_int> {
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the set and the timeout are valid; no further information about the signal is
        // requested.
        let signal = unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), &now) };
        (signal > 0).then_some(signal)
    }
}

/// Has `handler` called when the signal arrives, and the signals of `mask` are blocked while it runs.
///
/// # Errors
///
/// The errors of sigaction(2).
///
/// # Safety
///
/// The handler may interrupt any code, so it must do only what signal-safety(7) permits.
pub unsafe fn handle(
    signal: c_int,
    handler: extern "C" fn(c_int),
    flags: c_int,
    mask: &SignalSet,
) -> io::Result<()> {
    act(signal, handler as usize, flags, mask)
}

/// Ignores the signal.
///
/// # Errors
///
/// The errors of sigaction(2).
pub fn ignore(signal: c_int) -> io::Result<()> {
    act(signal, libc::SIG_IGN, 0, &SignalSet::of([]))
}

fn act(signal: c_int, action: usize, flags: c_int, mask: &SignalSet) -> io::Result<()> {
    let action = libc::sigaction {
        sa_sigaction: action,
        sa_mask: mask.0,
        sa_flags: flags,
        sa_restorer: None,
    };
    // SAFETY: the action is initialized. It ignores the signal, or its handler may run at any time,
    // as the caller of `handle` promises.
    host::check(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }).map(drop)
}

/// Whether the parent process had the signal ignored, as nohup does with SIGHUP and a shell with
/// SIGINT of background jobs.
pub fn is_ignored(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null new action only reads the old one, which the call fills in if it succeeds.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}
