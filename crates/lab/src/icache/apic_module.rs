//! A kernel module inside Linux that accesses the local APIC in a loop, as in the study:
//! `guests/modules/apic_loop.c`.

use super::apic::{ACCESSES, VERSION};
use super::counts::timed;
use crate::experiment::{Arm, Bench, LabError, Options, Stop, Timed};
use crate::linux_guest::{Extra, LinuxGuest, Ran, System};
use tollgate_machine::config::VmConfig;

/// The module's name.
const NAME: &str = "apic_loop";
const ROUNDS: u64 = 200_000;
const QUICK_ROUNDS: u64 = 10_000;

/// A booted guest that has loaded the module.
pub struct Module {
    guest: LinuxGuest,
    rounds: u64,
}

impl Module {
    /// Boots the guest and loads the module.
    ///
    /// # Errors
    ///
    /// The guest or the module is missing, or the guest does not load the module.
    pub fn open(guest: &str, options: &Options, stop: &Stop) -> Result<Self, LabError> {
        let system = System::open_with(guest, &[], options, |folder, is_wide| {
            Ok(vec![Extra::kernel_module(folder, is_wide, NAME)?])
        })?;
        // In x2APIC mode, which a 64-bit kernel prefers, the registers are not in memory.
        let system = system.with_word("nox2apic");
        let mut guest = LinuxGuest::boot(&system, &VmConfig::default(), stop)?;
        guest.run(&format!(
            "insmod /lab/{NAME}.ko || {{ dmesg | tail -n 2; false; }}"
        ))?;
        Ok(Self {
            guest,
            rounds: if options.quick { QUICK_ROUNDS } else { ROUNDS },
        })
    }

    /// Makes the module do this number of rounds. Returns the costs, and the cycles that the module
    /// has measured.
    fn run(&mut self, rounds: u64) -> Result<(Ran, u64), LabError> {
        let parameters = format!("/sys/module/{NAME}/parameters");
        let ran = self.guest.run(&format!(
            "echo {rounds} >{parameters}/rounds && cat {parameters}/result"
        ))?;
        let value = |name: &str| -> Option<u64> {
            let mut words = ran.output.split_whitespace();
            words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        let done = (value("accesses"), value("sum"));
        let (true, Some(cycles)) = (
            done == (Some(rounds * ACCESSES), Some(rounds * VERSION)),
            value("cycles"),
        ) else {
            return Err(LabError::WorkNotDone(format!(
                "the kernel module {NAME} did not do {rounds} rounds: {}",
                ran.output.trim()
            )));
        };
        Ok((ran, cycles))
    }
}

impl Bench for Module {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, _stop: &Stop) -> Result<Timed, LabError> {
        self.guest.turn(arm)?;
        // Setting the knob has dropped all translations.
        self.run(self.rounds / 20)?;
        let (ran, cycles) = self.run(self.rounds)?;
        let accesses = self.rounds * ACCESSES;
        let mut timed = timed(&ran, accesses)?;
        timed.work.insert("accesses".to_owned(), accesses);
        let in_guest = cycles as f64 / accesses as f64;
        timed.values.insert("cycles-in-guest".to_owned(), in_guest);
        Ok(timed)
    }
}
