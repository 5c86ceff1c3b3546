//! Switches the terminal to raw mode while the guest uses it, and always restores it.
//!
//! The settings found at the start are kept in one place of the process, because they must be
//! restored wherever the process ends: a normal return ([`RawTerminal`] is dropped), `exit` (a
//! handler of atexit), a panic (a hook, so that the message is readable), or abort (a handler of
//! SIGABRT). SIGTERM, SIGINT and SIGHUP end the process in an orderly way (see [`crate::signals`]).
//! Only SIGKILL leaves the terminal raw.

use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{
    ControlModes, InputModes, LocalModes, OptionalActions, OutputModes, SpecialCodeIndex, Termios,
    tcgetattr, tcgetpgrp, tcsetattr,
};

use crate::signal_set::{self, SignalSet};

struct Saved {
    settings: Termios,
    raw: Termios,
}

/// The settings to restore, noted when the terminal first became raw.
static SAVED: OnceLock<Saved> = OnceLock::new();

/// Whether the terminal is raw now.
static IS_RAW: AtomicBool = AtomicBool::new(false);

/// Standard input in raw mode. Dropping this restores it.
pub struct RawTerminal(());

impl RawTerminal {
    /// Switches standard input to raw mode.
    ///
    /// # Errors
    ///
    /// The errors of tcgetattr and tcsetattr.
    pub fn enter() -> io::Result<Self> {
        Self::enter_as(raw)
    }

    /// Switches the terminal to the settings that `change` makes from its present ones.
    ///
    /// # Errors
    ///
    /// The errors of tcgetattr and tcsetattr.
    pub fn enter_as(change: fn(Termios) -> Termios) -> io::Result<Self> {
        if SAVED.get().is_none() {
            let settings = settings(stdin())?;
            let raw = change(settings.clone());
            let saved = Saved { settings, raw };
            if SAVED.set(saved).is_ok() {
                restore_at_every_end()?;
            }
        }
        let terminal = Self(());
        terminal.reenter()?;
        Ok(terminal)
    }

    /// Makes the terminal raw again, after a shell has changed it while the process was stopped.
    ///
    /// # Errors
    ///
    /// The errors of tcsetattr.
    pub fn reenter(&self) -> io::Result<()> {
        if let Some(saved) = SAVED.get() {
            // The flag is set first: if a signal ends the process between the two, an unnecessary
            // restore does no harm.
            IS_RAW.store(true, Ordering::SeqCst);
            apply(stdin(), &saved.raw)?;
        }
        Ok(())
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal to its original settings, if it is raw. This may be called from anywhere,
/// even from a signal handler.
pub fn restore() {
    if IS_RAW.swap(false, Ordering::SeqCst)
        && let Some(saved) = SAVED.get()
    {
        // If the terminal has gone, there is nothing to restore.
        let _ = apply(stdin(), &saved.settings);
    }
}

/// Leaves the terminal as it is now. It belongs to another process group, which has chosen its
/// settings, and changing them would stop this process.
pub fn forget() {
    IS_RAW.store(false, Ordering::SeqCst);
}

/// Whether standard input is a terminal and this process is in its foreground. A background process
/// would be stopped if it read from the terminal or changed its settings.
pub fn is_in_foreground() -> bool {
    tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
}

/// Raw settings made from `settings`: no echo, no lines, no signals and no flow control
/// from keys. Output processing stays on, so that the line ends of our own messages and
/// of simple guests come out right.
pub fn raw(mut settings: Termios) -> Termios {
    settings.input_modes -= InputModes::IGNBRK
        | InputModes::BRKINT
        | InputModes::PARMRK
        | InputModes::ISTRIP
        | InputModes::INLCR
        | InputModes::IGNCR
        | InputModes::ICRNL
        | InputModes::IXON;
    settings.output_modes |= OutputModes::OPOST;
    settings.local_modes -= LocalModes::ECHO
        | LocalModes::ECHONL
        | LocalModes::ICANON
        | LocalModes::ISIG
        | LocalModes::IEXTEN;
    settings.control_modes -= ControlModes::CSIZE | ControlModes::PARENB;
    settings.control_modes |= ControlModes::CS8;
    settings.special_codes[SpecialCodeIndex::VMIN] = 1;
    settings.special_codes[SpecialCodeIndex::VTIME] = 0;
    settings
}

/// The present settings of a terminal.
///
/// # Errors
///
/// The errors of tcgetattr; ENOTTY if the descriptor is not a terminal.
pub fn settings(terminal: impl AsFd) -> io::Result<Termios> {
    Ok(tcgetattr(terminal)?)
}

/// Changes the settings of a terminal immediately.
///
/// # Errors
///
/// The errors of tcsetattr.
pub fn apply(terminal: impl AsFd, settings: &Termios) -> io::Result<()> {
    Ok(tcsetattr(terminal, OptionalActions::Now, settings)?)
}

fn restore_at_every_end() -> io::Result<()> {
    extern "C" fn at_exit() {
        restore();
    }
    extern "C" fn on_abort(_signal: libc::c_int) {
        // When this returns, abort() ends the process.
        restore();
    }

    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        print(panic);
    }));

    // SAFETY: `at_exit` touches only statics that are never destroyed.
    unsafe { libc::atexit(at_exit) };

    let flags = libc::SA_RESETHAND | libc::SA_ONSTACK;
    // SAFETY: the handler only calls tcsetattr and touches atomics, both of which signal handlers
    // may do.
    unsafe { signal_set::handle(libc::SIGABRT, on_abort, flags, &SignalSet::of([])) }
}
