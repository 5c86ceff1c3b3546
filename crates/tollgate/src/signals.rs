//! Blocks the signals that ask for an end, and SIGCONT, in every thread. They arrive only while a
//! thread waits for them in [`Signals::poll`], so that a signal interrupts nothing else. Their
//! handler only notes which of them came.
//!
//! This does not use a descriptor of signalfd(2): while a thread waits for one, each signal to any
//! thread of the process wakes that thread, and the vCPU's timer sends many signals.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::host;

/// Signals that end the virtual machine.
pub const ENDING: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// Makes a write beyond the limit of a file's size (`ulimit -f`) fail with EFBIG, like a write to a
/// full disk, instead of ending the process by a signal. Guest RAM is a file too.
pub fn ignore_file_size_limit() {
    // SAFETY: the signal's number is valid, and ignoring it runs no code of this process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The request that a signal stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// This signal asks for the end.
    Signal(i32),
    /// The process continues after it was stopped, and a shell may have changed the terminal.
    Continued,
}

/// The signals that came and were not reported yet: bit n is signal n.
static CAME: AtomicU64 = AtomicU64::new(0);

extern "C" fn note(signal: libc::c_int) {
    CAME.fetch_or(1 << signal, Ordering::AcqRel);
}

/// The set of signals that are blocked and waited for.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks the signals in this thread, and so in all threads that it starts later. This must be
    /// called before the first other thread exists.
    ///
    /// # Errors
    ///
    /// The errors of sigaction(2).
    pub fn block() -> io::Result<Self> {
        Self::block_these(&ENDING)
    }

    /// Blocks these signals and SIGCONT, as [`Self::block`] does. A signal that would end the
    /// machine stays ignored if the parent process ignored it.
    ///
    /// # Errors
    ///
    /// The errors of sigaction(2).
    pub fn block_these(signals: &[libc::c_int]) -> io::Result<Self> {
        let is_wanted = |signal: &libc::c_int| !(ENDING.contains(signal) && is_ignored(*signal));
        let wanted: Vec<_> = signals
            .iter()
            .copied()
            .filter(is_wanted)
            .chain([libc::SIGCONT])
            .collect();
        let mut set = empty_set();
        for signal in &wanted {
            // SAFETY: `set` is a valid, writable signal set, and the signal number is valid.
            unsafe { libc::sigaddset(&mut set, *signal) };
        }
        // SAFETY: `set` is valid; the previous mask is not requested.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        for signal in wanted {
            // SAFETY: an all-zero sigaction is a valid starting value.
            let mut action = unsafe { std::mem::zeroed::<libc::sigaction>() };
            action.sa_sigaction = note as *const () as usize;
            // Blocking all of them lets only one handler run at a time.
            action.sa_mask = set;
            // SAFETY: the action is fully initialized, and its handler only sets a bit of an
            // atomic.
            host::check(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) })?;
        }
        Ok(Self(set))
    }

    /// Waits for an event of `fds` or a signal, at most until `timeout`. Afterwards [`Self::next`]
    /// reports the signals that came.
    ///
    /// # Errors
    ///
    /// The errors of ppoll(2), except for EINTR, after which no event is shown.
    pub fn poll(&self, fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
        let mut mask = empty_set();
        // SAFETY: a null new mask only reads the old one; `mask` is valid for writing.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask) };
        for signal in 1..=LAST_SIGNAL {
            // SAFETY: both sets are valid, and so is the signal's number.
            unsafe {
                if libc::sigismember(&self.0, signal) == 1 {
                    libc::sigdelset(&mut mask, signal);
                }
            }
        }
        // A signal may have come whose note was not read yet.
        let timeout = match CAME.load(Ordering::Acquire) {
            0 => timeout,
            _ => Some(Duration::ZERO),
        };
        host::poll_with_mask(fds, timeout, Some(&mask))
    }

    /// The next signal that waits, if any.
    pub fn next(&self) -> Option<Asked> {
        let came = CAME.load(Ordering::Acquire);
        let signal = if came != 0 {
            let lowest = came & came.wrapping_neg();
            CAME.fetch_and(!lowest, Ordering::AcqRel);
            lowest.trailing_zeros() as libc::c_int
        } else {
            let now = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // SAFETY: the set and the timeout are valid; no further information about the signal is
            // requested.
            unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), &now) }
        };
        match signal {
            libc::SIGCONT => Some(Asked::Continued),
            1.. => Some(Asked::Signal(signal)),
            _ => None,
        }
    }
}

/// The last signal with a name. The others, for real-time use, are never waited for.
const LAST_SIGNAL: libc::c_int = 31;

fn empty_set() -> libc::sigset_t {
    // SAFETY: an all-zero sigset_t is a valid value.
    let mut set = unsafe { std::mem::zeroed::<libc::sigset_t>() };
    // SAFETY: `set` is a valid, writable signal set.
    unsafe { libc::sigemptyset(&mut set) };
    set
}

/// Whether the parent process had the signal ignored, as nohup does with SIGHUP and a shell with
/// SIGINT of background jobs. Such a signal stays ignored.
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: an all-zero sigaction is a valid value.
    let mut action = unsafe { std::mem::zeroed::<libc::sigaction>() };
    // SAFETY: a null new action only reads the old one; `action` is valid for writing.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
    use std::thread;

    /// Signals are noted for the whole process, so only one test may run at a time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn thread_id() -> libc::pid_t {
        // SAFETY: gettid has no preconditions.
        unsafe { libc::gettid() }
    }

    fn send(thread: libc::pid_t, signal: libc::c_int) {
        // SAFETY: the signals that these tests send have handlers or are blocked.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
        assert_eq!(sent, 0);
    }

    #[test]
    fn a_signal_is_told_once_whether_it_came_before_the_wait_or_in_it() {
        let _alone = alone();
        let signals = Signals::block_these(&[libc::SIGUSR1]).unwrap();
        send(thread_id(), libc::SIGUSR1);
        assert_eq!(signals.next(), Some(Asked::Signal(libc::SIGUSR1)));
        assert_eq!(signals.next(), None);
        send(thread_id(), libc::SIGUSR1);
        send(thread_id(), libc::SIGCONT);
        signals.poll(&mut [], None).unwrap();
        let told: Vec<_> = std::iter::from_fn(|| signals.next()).collect();
        assert_eq!(told, [Asked::Signal(libc::SIGUSR1), Asked::Continued]);
    }

    /// A line of /proc about a thread of this process.
    fn status(thread: libc::pid_t, name: &str) -> String {
        let text = fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].trim().to_owned()
    }

    #[test]
    fn signals_of_other_threads_do_not_wake_the_thread_that_waits_for_signals() {
        const SENT: u64 = 200;
        let _alone = alone();
        let (tell, told) = mpsc::channel();
        let waiter = thread::spawn(move || {
            let signals = Signals::block_these(&[libc::SIGUSR1]).unwrap();
            tell.send(thread_id()).unwrap();
            while signals.next().is_none() {
                signals.poll(&mut [], None).unwrap();
            }
        });
        let waiting = told.recv().unwrap();
        while !status(waiting, "State:").starts_with('S') {
            thread::yield_now();
        }
        let mine = libc::SIGRTMIN() + 6;
        let mut set = empty_set();
        // SAFETY: `set` is a valid signal set and the number is that of a signal.
        unsafe {
            libc::sigaddset(&mut set, mine);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        }
        let wakes = || -> u64 { status(waiting, "voluntary_ctxt_switches:").parse().unwrap() };
        let before = wakes();
        for _ in 0..SENT {
            send(thread_id(), mine);
            // SAFETY: `set` is valid, and the signal is pending.
            let taken = unsafe { libc::sigwaitinfo(&set, std::ptr::null_mut()) };
            assert_eq!(taken, mine);
        }
        let woken = wakes() - before;
        send(waiting, libc::SIGUSR1);
        waiter.join().unwrap();
        assert!(woken < SENT / 10, "woken {woken} times");
    }
}
