//! Systems that are neither Linux nor DOS: lines at the prompt, and the boot.

use super::counts::timed;
use crate::experiment::{Arm, Bench, LabError, Options, Stop, Timed};
use crate::other_guest::{OtherGuest, OtherSystem};
use tollgate_machine::config::VmConfig;

/// How many lines a measurement types.
const LINES: u64 = 60;
const QUICK_LINES: u64 = 3;

/// Lines at the prompt of a booted system.
pub struct Lines {
    guest: OtherGuest,
    lines: u64,
}

impl Lines {
    /// Boots the system.
    ///
    /// # Errors
    ///
    /// It is missing, or does not show its prompt.
    pub fn open(guest: &str, options: &Options, stop: &Stop) -> Result<Self, LabError> {
        let system = OtherSystem::open(guest, options)?;
        Ok(Self {
            guest: OtherGuest::boot(&system, &VmConfig::default(), stop)?,
            lines: if options.quick { QUICK_LINES } else { LINES },
        })
    }
}

impl Bench for Lines {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, _stop: &Stop) -> Result<Timed, LabError> {
        self.guest.turn(arm)?;
        // Setting the knob drops all translations, so some lines run first, which are not timed.
        self.guest.lines((self.lines / 10).max(1))?;
        timed(&self.guest.lines(self.lines)?, self.lines)
    }
}

/// A boot up to the prompt.
pub struct Boot(OtherSystem);

impl Boot {
    /// Opens the system's files.
    ///
    /// # Errors
    ///
    /// They are missing.
    pub fn open(guest: &str, options: &Options) -> Result<Self, LabError> {
        Ok(Self(OtherSystem::open(guest, options)?))
    }
}

impl Bench for Boot {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, stop: &Stop) -> Result<Timed, LabError> {
        let config = arm.config(&VmConfig::default())?;
        timed(OtherGuest::boot(&self.0, &config, stop)?.booted(), 1)
    }
}
