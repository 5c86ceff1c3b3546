//! Processes of Linux that hand on a token: `guests/linux-spaces.S`.

use super::about::{CODE_PAGES, UNMAPPING};
use crate::experiment::{Arm, Bench, LabError, Options, Stop, Timed};
use crate::linux_guest::{LinuxGuest, Program, System};
use tollgate_machine::config::VmConfig;

/// The program.
const SPACES: Program = Program {
    name: "spaces",
    narrow: include_bytes!(concat!(env!("OUT_DIR"), "/linux-spaces.bin")),
    wide: include_bytes!(concat!(env!("OUT_DIR"), "/linux-spaces-64.bin")),
};
/// Processes: with the kernel's own space and the shell's, as many spaces as amd64 Linux tells
/// apart by process-context identifiers.
const PROCESSES: u64 = 5;
/// Processes that hand the token to and fro between them, with many pages of code.
const PROCESSES_WITH_CODE: u64 = 2;
/// Pages that each uses.
const PAGES: u64 = 16;
/// Turns of each.
const ROUNDS: u64 = 2_000;
const QUICK_ROUNDS: u64 = 100;

/// A booted guest.
pub struct Processes {
    guest: LinuxGuest,
    rounds: u64,
    unmaps: bool,
    processes: u64,
    /// Pages of code that each has run.
    code: u64,
}

impl Processes {
    /// Boots the guest.
    ///
    /// # Errors
    /// It is not there, or does not come to its shell.
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
        // Turning a knob may have dropped translations.
        self.guest.run(&self.line(self.rounds / 10))?;
        let ran = self.guest.run(&self.line(self.rounds))?;
        let turns = self.rounds * self.processes;
        let mut timed = Timed::of_events(turns, ran.processor_cycles(), &ran.books);
        timed.work.insert("turns".to_owned(), turns);
        timed.add_counts(&ran.books.space_loads);
        timed.add_counts(&ran.books.shadow_tables);
        Ok(timed)
    }
}
