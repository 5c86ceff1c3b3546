//! Processes of Linux that pass a token on: `guests/linux-spaces.S`.

use super::about::{CODE_PAGES, UNMAPPING};
use crate::experiment::{Arm, Bench, LabError, Options, Stop, Timed};
use crate::linux_guest::{LinuxGuest, Program, System};
use tollgate_machine::config::VmConfig;

/// The program that starts these processes.
const SPACES: Program = Program {
    name: "spaces",
    narrow: include_bytes!(concat!(env!("OUT_DIR"), "/linux-spaces.bin")),
    wide: include_bytes!(concat!(env!("OUT_DIR"), "/linux-spaces-64.bin")),
};
/// Number of processes: together with the kernel's own space and the shell's, these are as many
/// spaces as amd64 Linux distinguishes by process-context identifiers.
const PROCESSES: u64 = 5;
/// Number of processes that pass the token on if they have many pages of code.
const PROCESSES_WITH_CODE: u64 = 2;
/// Number of pages that each process uses.
const PAGES: u64 = 16;
/// Number of turns of each process.
const ROUNDS: u64 = 2_000;
const QUICK_ROUNDS: u64 = 100;

/// A booted guest that runs the processes.
pub struct Processes {
    guest: LinuxGuest,
    rounds: u64,
    unmaps: bool,
    processes: u64,
    /// Number of pages of code that each process has run.
    code: u64,
}

impl Processes {
    /// Boots the guest.
    ///
    /// # Errors
    ///
    /// It is missing, or does not start its shell.
    pub fn open(
        guest: &str,
        workload: &str,
        options: &Options,
        stop: &Stop,
    ) -> Result<Self, LabError> {
        let system = System::open(guest, &[SPACES], options)?;
        let code = CODE_PAGES.iter().find(|(name, _)| *name == workload);
        let code = code.map_or(0, |&(_, pages)| pages);
        Ok(Self {
            processes: match code {
                0 => PROCESSES,
                _ => PROCESSES_WITH_CODE,
            },
            code,
            guest: LinuxGuest::boot(&system, &VmConfig::default(), stop)?,
            rounds: if options.quick { QUICK_ROUNDS } else { ROUNDS },
            unmaps: workload == UNMAPPING,
        })
    }

    fn line(&self, rounds: u64) -> String {
        let unmaps = u8::from(self.unmaps);
        let Self {
            processes, code, ..
        } = self;
        format!("/lab/spaces {processes} {rounds} {PAGES} {unmaps} {code}")
    }
}

impl Bench for Processes {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, _stop: &Stop) -> Result<Timed, LabError> {
        self.guest.turn(arm)?;
        // Setting a knob may have dropped translations, so some rounds run before the timed ones.
        self.guest.run(&self.line(self.rounds / 10))?;
        let ran = self.guest.run(&self.line(self.rounds))?;
        let turns = self.rounds * self.processes;
        let mut timed = Timed::of_events(turns, ran.processor_cycles(), &ran.reading);
        timed.work.insert("turns".to_owned(), turns);
        timed.add_counts(&ran.reading.space_loads);
        timed.add_counts(&ran.reading.shadow_tables);
        Ok(timed)
    }
}
