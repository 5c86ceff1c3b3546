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
use crate::signal_set::{self, SignalSet, is_ignored};

/// Signals that end the virtual machine.
pub const ENDING: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// Makes a write beyond the limit of a file's size (`ulimit -f`) fail with EFBIG, like a write to a
/// full disk, instead of ending the process by a signal. Guest RAM is a file too.
pub fn ignore_file_size_limit() {
    // The signal's number is valid, so this cannot fail.
    let _ = signal_set::ignore(libc::SIGXFSZ);
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
pub struct Signals {
    set: SignalSet,
    /// The signals that stay blocked during the wait.
    others: SignalSet,
}

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
        let set = SignalSet::of(wanted.iter().copied());
        let others = set.block().without(&wanted);
        for signal in wanted {
            // Blocking all of them lets only one handler run at a time.
            // SAFETY: the handler only sets a bit of an atomic.
            unsafe { signal_set::handle(signal, note, 0, &set)? };
        }
        Ok(Self { set, others })
    }

    /// Waits for an event of `fds` or a signal, at most until `timeout`. Afterwards [`Self::next`]
    /// reports the signals that came.
    ///
    /// # Errors
    ///
    /// The errors of ppoll(2), except for EINTR, after which no event is shown.
    pub fn poll(&self, fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
        // A signal may have come whose note was not read yet.
        let timeout = match CAME.load(Ordering::Acquire) {
            0 => timeout,
            _ => Some(Duration::ZERO),
        };
        host::poll_with_mask(fds, timeout, Some(&self.others))
    }

    /// The next signal that waits, if any.
    pub fn next(&self) -> Option<Asked> {
        let came = CAME.load(Ordering::Acquire);
        let signal = if came != 0 {
            let lowest = came & came.wrapping_neg();
            CAME.fetch_and(!lowest, Ordering::AcqRel);
            lowest.trailing_zeros() as libc::c_int
        } else {
            self.set.take_pending()?
        };
        match signal {
            libc::SIGCONT => Some(Asked::Continued),
            _ => Some(Asked::Signal(signal)),
        }
    }
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
        let set = SignalSet::of([mine]);
        set.block();
        let wakes = || -> u64 { status(waiting, "voluntary_ctxt_switches:").parse().unwrap() };
        let before = wakes();
        for _ in 0..SENT {
            send(thread_id(), mine);
            assert_eq!(set.take_pending(), Some(mine));
        }
        let woken = wakes() - before;
        send(waiting, libc::SIGUSR1);
        waiter.join().unwrap();
        assert!(woken < SENT / 10, "woken {woken} times");
    }
}
