//! A DOS with one workload: booted once; all arms run in turns by setting knobs.

use super::about::{ABOUT, BUSY, IDLE, OFF, POLL};
use super::small_system_bench::{QUICK_TICKS, TICKS, counted, rounds};
use crate::dos::{Done, DosGuest, Media, Work, works};
use crate::experiment::{Arm, Bench, Counted, LabError, Stop, Timed};
use std::path::Path;
use tollgate_machine::config::VmConfig;

/// DOS at its prompt, with a workload.
pub struct Dos {
    media: Media,
    stop: Stop,
    guest: DosGuest,
    /// A second DOS with handlers of ours, booted when an arm needs it.
    hooked: Option<DosGuest>,
    work: Work,
    rounds: u16,
    ticks: u16,
}

/// The work for a workload by its name.
///
/// # Errors
///
/// There is no such workload.
pub fn work(workload: &str) -> Result<Work, LabError> {
    let works = works().into_iter();
    let mut named = works.filter(|work| work.name == workload);
    named
        .next()
        .ok_or_else(|| LabError::NotRun(format!("DOS has no work '{workload}'")))
}

impl Dos {
    /// Boots DOS, and determines how many rounds take a reasonable time with all `arms`.
    ///
    /// # Errors
    ///
    /// Programs are missing; DOS does not boot, or does not do its work.
    pub fn open(
        image: &Path,
        workload: &str,
        arms: &[Arm],
        quick: bool,
        stop: &Stop,
    ) -> Result<Self, LabError> {
        let work = work(workload)?;
        let media = Media::of(image, &work)?;
        let mut bench = Self {
            stop: stop.clone(),
            guest: DosGuest::boot(&media, &VmConfig::default(), stop, || Ok(()))?,
            hooked: None,
            media,
            work,
            rounds: 1,
            ticks: 0,
        };
        if workload == IDLE {
            bench.ticks = if quick { QUICK_TICKS } else { TICKS };
        } else if !quick {
            let (mut fastest, mut slowest) = (f64::INFINITY, 0.0f64);
            for arm in arms {
                let seconds = bench.run(arm)?.seconds();
                fastest = fastest.min(seconds);
                slowest = slowest.max(seconds);
            }
            bench.rounds = rounds(fastest, slowest);
        }
        Ok(bench)
    }

    fn run(&mut self, arm: &Arm) -> Result<Done, LabError> {
        let guest = match (arm.hooks, &mut self.hooked) {
            (None, _) => &mut self.guest,
            (Some(_), Some(hooked)) => hooked,
            (Some(_), hooked) => {
                let config = arm.config(&VmConfig::default())?;
                let guest = DosGuest::boot(&self.media, &config, &self.stop, || Ok(()))?;
                hooked.insert(guest)
            }
        };
        guest.turn(arm)?;
        guest.run(&self.work, self.rounds, self.ticks)
    }
}

impl Bench for Dos {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn count(&mut self, stop: &Stop) -> Result<Option<Counted>, LabError> {
        let off = ABOUT.arms.iter().find(|arm| arm.name == OFF);
        let Some(off) = off else { return Ok(None) };
        let config = VmConfig {
            count_instructions: true,
            ..off.config(&VmConfig::default())?
        };
        let mut guest = DosGuest::boot(&self.media, &config, stop, || Ok(()))?;
        let done = guest.run(&self.work, self.rounds, self.ticks)?;
        Ok(Some(counted(&done.reading)))
    }

    fn measure(&mut self, arm: &Arm, _stop: &Stop) -> Result<Timed, LabError> {
        let done = self.run(arm)?;
        let mut timed = Timed::new(done.seconds(), &done.reading);
        for (name, value) in &done.counters {
            // The number of calls that wait depends on the time available, so only other counters
            // are compared.
            match &**name {
                "rounds" | "typed" => drop(timed.work.insert(name.clone(), *value)),
                _ => drop(timed.values.insert(name.clone(), *value as f64)),
            }
        }
        if self.work.name == IDLE {
            let polls = done.count("polls");
            if polls == 0 {
                return Err(LabError::WorkNotDone("it never polled the keyboard".into()));
            }
            // Time in HLT is not a cost of a poll.
            let busy = 1.0 - timed.ledger.halted_cycles as f64 / timed.ledger.wall_cycles as f64;
            let poll = timed.seconds * busy * 1e6 / polls as f64;
            timed.values.insert(POLL.to_owned(), poll);
            timed.values.insert(BUSY.to_owned(), busy);
        }
        Ok(timed)
    }
}
