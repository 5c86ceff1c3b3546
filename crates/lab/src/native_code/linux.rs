//! Linux with the program `guests/linux-user-work.S`, busybox and tcc.

use super::about::{
    AWK, CALLS, COMPILE, FORK, LOOPS, NATIVE, PAGES, PIPES, SHELL, TRANSLATED, WRITTEN,
};
use crate::experiment::{Arm, Bench, LabError, Options, Stop, Timed};
use crate::icache::compile;
use crate::linux_guest::{LinuxGuest, Program, Ran, System};
use tollgate_machine::config::VmConfig;

/// The program that computes between system calls.
const WORK: Program = Program {
    name: "work",
    // Only 64-bit programs run natively, and the guest has 64 bits.
    narrow: &[],
    wide: include_bytes!(concat!(env!("OUT_DIR"), "/linux-user-work.bin")),
};
/// Rounds that a step of a ladder computes together, and those that a system call counts for.
const ROUNDS: u64 = 100_000_000;
const CALL_COUNTS: u64 = 4_000;
/// How much less a quick run does.
const QUICK: u64 = 5;

/// The name of the value with the microseconds that an event took.
pub const MICROSECONDS: &str = "us";

/// A run of this number of events with this arm, with the counts of native programs.
///
/// # Errors
///
/// No program ran natively though all should, or one did though none should.
pub fn timed(ran: &Ran, events: u64, arm: &Arm) -> Result<Timed, LabError> {
    // The ledger takes the time in a native program's process for waiting, so the clock must do.
    let cycles = ran.elapsed.as_secs_f64() * ran.reading.tsc_khz as f64 * 1e3;
    let mut timed = Timed::of_events(events, cycles as u64, &ran.reading);
    timed.work.insert("events".to_owned(), events);
    let each = timed.seconds * 1e6 / events as f64;
    timed.values.insert(MICROSECONDS.to_owned(), each);
    timed.add_counts(&ran.reading.space_loads);
    timed.add_counts(&ran.reading.shadow_tables);
    match (arm.name, timed.values.contains_key("native-entries")) {
        (NATIVE, false) => Err(LabError::NotRun(
            "no program ran natively: this host does not allow it, or the programs do not".into(),
        )),
        (TRANSLATED, true) => Err(LabError::WorkNotDone(
            "programs ran natively that should be translated".into(),
        )),
        _ => Ok(timed),
    }
}

/// A command line on a booted guest.
pub struct Line {
    guest: LinuxGuest,
    workload: &'static str,
    events: u64,
}

/// The rounds of a step of a ladder, and the program's word for that ladder.
fn step(workload: &str) -> Option<(&'static str, u64)> {
    let of = |ladder: &[(&str, u32)]| {
        let found = ladder.iter().find(|(name, _)| *name == workload);
        found.map(|&(_, rounds)| u64::from(rounds))
    };
    let calls = || of(CALLS).map(|rounds| ("calls", rounds));
    of(LOOPS).map(|rounds| ("loop", rounds)).or_else(calls)
}

/// The number of events of a workload.
fn events(workload: &str) -> u64 {
    match workload {
        WRITTEN => 2_000,
        PAGES => 500,
        FORK => 400,
        SHELL => 100_000,
        PIPES => 40,
        AWK => 400_000,
        COMPILE => 20,
        _ => step(workload).map_or(1, |(_, rounds)| ROUNDS / (rounds + CALL_COUNTS)),
    }
}

impl Line {
    /// Boots the guest.
    ///
    /// # Errors
    ///
    /// It is missing, or does not start its shell.
    pub fn open(
        guest: &str,
        workload: &'static str,
        options: &Options,
        stop: &Stop,
    ) -> Result<Self, LabError> {
        let system = match workload {
            COMPILE => compile::system(guest, options)?,
            _ => System::open(guest, &[WORK], options)?,
        };
        let events = events(workload);
        Ok(Self {
            guest: LinuxGuest::boot(&system, &VmConfig::default(), stop)?,
            workload,
            events: if options.quick {
                events / QUICK
            } else {
                events
            },
        })
    }

    fn line(&self, events: u64) -> String {
        match self.workload {
            WRITTEN => format!("/lab/work code {events} 10"),
            PAGES => format!("/lab/work pages {events} 64"),
            FORK => format!("/lab/work fork {events} 0"),
            SHELL => {
                format!("i=0; while [ $i -lt {events} ]; do i=$((i+1)); done; [ $i = {events} ]")
            }
            PIPES => format!(
                "i=0; while [ $i -lt {events} ]; do \
                 [ $(seq 1 500 | sort -r -n | head -n 1) = 500 ] || exit 1; i=$((i+1)); done"
            ),
            AWK => format!(
                "[ $(awk 'BEGIN {{ for (i = 0; i < {events}; i++) {{ t[i % 97] += i; s += t[i % 97] % 7 }} \
                 print i }}') = {events} ]"
            ),
            COMPILE => format!("sh /lab/compile/build {events}"),
            _ => match step(self.workload) {
                Some((word, rounds)) => format!("/lab/work {word} {events} {rounds}"),
                None => "false".into(),
            },
        }
    }
}

impl Bench for Line {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, _stop: &Stop) -> Result<Timed, LabError> {
        self.guest.turn(arm)?;
        // Setting the knob has dropped translations, so some of the work is done before.
        self.guest.run(&self.line((self.events / 10).max(1)))?;
        let ran = self.guest.run(&self.line(self.events))?;
        timed(&ran, self.events, arm)
    }
}
