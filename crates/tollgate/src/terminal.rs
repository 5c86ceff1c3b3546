//! The terminal in raw mode while the guest has it, and always put back.
//!
//! The settings found at the start are kept in one process-wide place, because they must
//! be restored from wherever the process ends: a normal return ([`RawTerminal`] is
//! dropped), `exit` (a handler of atexit), a panic (a hook, so that the message is
//! readable), or abort (a handler of SIGABRT). SIGTERM, SIGINT and SIGHUP end the process
//! in an orderly way (see [`crate::signals`]). Only SIGKILL leaves the terminal raw.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::host;

struct Saved {
    fd: RawFd,
    settings: libc::termios,
    raw: libc::termios,
}

/// The settings to go back to, from the first time the terminal was made raw.
static SAVED: OnceLock<Saved> = OnceLock::new();

/// The terminal is raw now.
static IS_RAW: AtomicBool = AtomicBool::new(false);

/// Standard input in raw mode; restores it when dropped.
pub struct RawTerminal(());

impl RawTerminal {
    /// Switches standard input to raw mode.
    ///
    /// # Errors
    /// Those of tcgetattr and tcsetattr.
    pub fn enter() -> io::Result<Self> {
        Self::enter_as(raw)
    }

    /// Switches it to settings that `change` makes of those that it has.
    ///
    /// # Errors
    /// Those of tcgetattr and tcsetattr.
    pub fn enter_as(change: fn(libc::termios) -> libc::termios) -> io::Result<Self> {
        if SAVED.get().is_none() {
            let fd = io::stdin().as_fd().as_raw_fd();
            let settings = settings(fd)?;
            let saved = Saved {
                fd,
                settings,
                raw: change(settings),
            };
            if SAVED.set(saved).is_ok() {
                restore_at_every_end()?;
            }
        }
        let terminal = Self(());
        terminal.reenter()?;
        Ok(terminal)
    }

    /// Makes the terminal raw again: a shell changes it when the process was stopped.
    ///
    /// # Errors
    /// Those of tcsetattr.
    pub fn reenter(&self) -> io::Result<()> {
        if let Some(saved) = SAVED.get() {
            // Set first: if a signal ends us between the two, restoring once too often
            // does no harm.
            IS_RAW.store(true, Ordering::SeqCst);
            apply(saved.fd, &saved.raw)?;
        }
        Ok(())
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Puts the terminal back as it was found, if it is raw. May be called from anywhere, a
/// signal handler too.
pub fn restore() {
    if IS_RAW.swap(false, Ordering::SeqCst)
        && let Some(saved) = SAVED.get()
    {
        // If the terminal has gone away there is nothing to restore.
        let _ = apply(saved.fd, &saved.settings);
    }
}

/// Leaves the terminal as it is now: it belongs to another process group, which has set
/// it as it wants it, and touching it would stop this process.
pub fn forget() {
    IS_RAW.store(false, Ordering::SeqCst);
}

/// Standard input is a terminal, and this process is in its foreground: a process in the
/// background would be stopped if it read from the terminal or changed its settings.
pub fn is_in_foreground() -> bool {
    // SAFETY: both calls take and return integers only.
    unsafe { libc::tcgetpgrp(libc::STDIN_FILENO) == libc::getpgrp() }
}

/// Raw settings made from `settings`: no echo, no lines, no signals and no flow control
/// from keys. Output processing stays on, so that the line ends of our own messages and
/// of simple guests come out right.
pub fn raw(mut settings: libc::termios) -> libc::termios {
    settings.c_iflag &= !(libc::IGNBRK
        | libc::BRKINT
        | libc::PARMRK
        | libc::ISTRIP
        | libc::INLCR
        | libc::IGNCR
        | libc::ICRNL
        | libc::IXON);
    settings.c_oflag |= libc::OPOST;
    settings.c_lflag &= !(libc::ECHO | libc::ECHONL | libc::ICANON | libc::ISIG | libc::IEXTEN);
    settings.c_cflag &= !(libc::CSIZE | libc::PARENB);
    settings.c_cflag |= libc::CS8;
    settings.c_cc[libc::VMIN] = 1;
    settings.c_cc[libc::VTIME] = 0;
    settings
}

/// The present settings of a terminal.
///
/// # Errors
/// Those of tcgetattr; ENOTTY if it is none.
pub fn settings(fd: RawFd) -> io::Result<libc::termios> {
    // SAFETY: termios consists of integers, for which zero is valid.
    let mut settings = unsafe { std::mem::zeroed() };
    // SAFETY: `settings` is valid for writing.
    host::check(unsafe { libc::tcgetattr(fd, &mut settings) })?;
    Ok(settings)
}

/// Changes the settings of a terminal at once.
///
/// # Errors
/// Those of tcsetattr.
pub fn apply(fd: RawFd, settings: &libc::termios) -> io::Result<()> {
    // SAFETY: `settings` is valid for reading.
    host::check(unsafe { libc::tcsetattr(fd, libc::TCSANOW, settings) })?;
    Ok(())
}

fn restore_at_every_end() -> io::Result<()> {
    extern "C" fn at_exit() {
        restore();
    }
    extern "C" fn on_abort(_signal: libc::c_int) {
        // abort() goes on to end the process when this returns.
        restore();
    }

    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        print(panic);
    }));

    // SAFETY: `at_exit` touches only statics that are never destroyed.
    unsafe { libc::atexit(at_exit) };

    // SAFETY: an all-zero sigaction is valid: no flags, an empty mask.
    let mut action = unsafe { std::mem::zeroed::<libc::sigaction>() };
    action.sa_sigaction = on_abort as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESETHAND | libc::SA_ONSTACK;
    // SAFETY: the handler only calls tcsetattr and touches atomics, which signal handlers may.
    host::check(unsafe { libc::sigaction(libc::SIGABRT, &action, std::ptr::null_mut()) })?;
    Ok(())
}
