//! A second guest next to the one that is measured, on the same processor of the host or on another
//! one: neither may reach the other's memory, and when one is killed the other goes on.

use super::about::ONE_CORE;
use super::linux::told;
use crate::experiment::{Arm, LabError, Stop, Timed};
use crate::linux_guest::{LinuxGuest, Ran, System};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use tollgate_host_facts::processors::Affinity;
use tollgate_machine::config::VmConfig;

/// Makes a file whose content must not change, and its checksum.
const CANARY: &str = "dd if=/dev/urandom of=/canary bs=64k count=32 2>/dev/null; \
                      sha256sum /canary > /canary.sum";
const CHECK_CANARY: &str = "sha256sum -c /canary.sum > /dev/null";
/// What a neighbour does until it is killed, or until the run ends.
const ENDLESS: &str = "/lab/latency fork 10000000";
const BUSY: &str = "/lab/latency fork 200";

/// The measured guest's neighbour.
pub struct Neighbour {
    guest: LinuxGuest,
    /// How the measured guest went on after its first neighbour was killed.
    after_kill: AfterKill,
    /// How often both had their canaries unchanged.
    canaries: u32,
}

/// What the measured guest did after its neighbour was killed in the middle of its work.
#[derive(Clone, Copy)]
struct AfterKill {
    /// Cycles of one event.
    event: f64,
    /// How often its process waited.
    count: f64,
    /// By how many microseconds its process was late: median, 99th percentile, longest.
    late: [f64; 3],
}

/// Boots a guest whose machine may use only these processors.
fn boot(system: &System, affinity: &Affinity, stop: &Stop) -> Result<LinuxGuest, LabError> {
    let refused = |error| LabError::Host(format!("sched_setaffinity: {error}"));
    // The machine's thread inherits the affinity of this one.
    let before = Affinity::current().map_err(refused)?;
    affinity.apply().map_err(refused)?;
    let guest = LinuxGuest::boot(system, &VmConfig::default(), stop);
    before.apply().map_err(refused)?;
    guest
}

/// The processors of the two machines.
fn places(workload: &str) -> Result<[Affinity; 2], LabError> {
    let current = Affinity::current().map_err(|error| LabError::Host(error.to_string()))?;
    let processors = current.processors();
    let (first, second) = match (processors.as_slice(), workload) {
        ([only, ..], ONE_CORE) => (*only, *only),
        ([first, second, ..], _) => (*first, *second),
        _ => return Err(LabError::NotRun("this host has one processor".into())),
    };
    match [first, second].map(Affinity::only) {
        [Some(first), Some(second)] => Ok([first, second]),
        _ => Err(LabError::Host("a processor's number is too large".into())),
    }
}

impl Neighbour {
    /// Boots a guest to measure and its neighbour, kills that in the middle of its work while the
    /// other runs `line` with `events` events, and boots another neighbour.
    ///
    /// # Errors
    ///
    /// A guest does not start or does not do its work, or the host has too few processors.
    pub fn open(
        system: &System,
        workload: &str,
        (line, events): (&str, u64),
        stop: &Stop,
    ) -> Result<(LinuxGuest, Self), LabError> {
        let [first, second] = places(workload)?;
        let mut guest = boot(system, &first, stop)?;
        let mut killed = boot(system, &second, stop)?;
        guest.run(CANARY)?;
        killed.run(CANARY)?;
        kill_at_work(&mut guest, killed, line)?;
        let ran = guest.run(line)?;
        guest.run(CHECK_CANARY)?;
        let [count, late @ ..] =
            told(&ran.output).ok_or_else(|| LabError::WorkNotDone(ran.output.clone()))?;
        let after_kill = AfterKill {
            event: ran.processor_cycles() as f64 / events as f64,
            count,
            late: late.map(|nanoseconds| nanoseconds / 1e3),
        };
        let mut other = boot(system, &second, stop)?;
        other.run(CANARY)?;
        let neighbour = Self {
            guest: other,
            after_kill,
            canaries: 1,
        };
        Ok((guest, neighbour))
    }

    /// Runs `line` in the measured guest with this arm while the neighbour works. Both canaries
    /// must be unchanged afterwards.
    ///
    /// # Errors
    ///
    /// A guest did not do its work, or a canary has changed.
    pub fn beside(
        &mut self,
        guest: &mut LinuxGuest,
        arm: &Arm,
        line: &str,
    ) -> Result<Ran, LabError> {
        self.guest.turn(arm)?;
        let done = AtomicBool::new(false);
        let neighbour = &mut self.guest;
        let ran = thread::scope(|scope| {
            let busy = scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    neighbour.run(BUSY)?;
                }
                Ok(())
            });
            let ran = guest.run(line);
            done.store(true, Ordering::SeqCst);
            let failed = || LabError::Host("a thread failed".into());
            busy.join().unwrap_or_else(|_| Err(failed()))?;
            ran
        })?;
        guest.run(CHECK_CANARY)?;
        self.guest.run(CHECK_CANARY)?;
        self.canaries += 1;
        Ok(ran)
    }

    /// Adds how the measured guest went on after the kill, and how often the canaries were
    /// unchanged.
    pub fn add_to(&self, timed: &mut Timed) {
        let [p50, p99, max] = self.after_kill.late;
        for (name, value) in [
            ("alone-event", self.after_kill.event),
            ("alone-count", self.after_kill.count),
            ("alone-p50", p50),
            ("alone-p99", p99),
            ("alone-max", max),
            ("canaries", f64::from(self.canaries)),
        ] {
            timed.values.insert(name.to_owned(), value);
        }
    }
}

/// Kills a machine in the middle of its guest's work, like a power cut, while another guest runs
/// `line`.
fn kill_at_work(
    guest: &mut LinuxGuest,
    mut killed: LinuxGuest,
    line: &str,
) -> Result<(), LabError> {
    let handle = killed.handle().clone();
    thread::scope(|scope| {
        // The guest ends when the thread does, with all its memory.
        let busy = scope.spawn(move || killed.run(ENDLESS));
        let ran = guest.run(line);
        handle.quit();
        let ended = busy.join();
        ran?;
        match ended {
            Ok(Err(LabError::WorkNotDone(_))) => Ok(()),
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) => Err(LabError::WorkNotDone(
                "the guest to be killed had ended its work".into(),
            )),
            Err(_) => Err(LabError::Host("a thread failed".into())),
        }
    })
}
