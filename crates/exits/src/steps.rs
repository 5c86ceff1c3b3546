//! What the steps of one exit cost that finds its instruction anew: to walk the guest's tables, to
//! find the page, to fetch, to decode, to look up. One exit in [`EVERY`] is timed.

use crate::counter::counter;

/// One exit in so many is timed.
pub const EVERY: u32 = 32;
/// Samples of each step that are kept, the newest.
const KEPT: usize = 1024;

/// A step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Walking the guest's page tables to the instruction.
    Walk,
    /// Finding the host's memory of the page that holds it.
    Map,
    /// Copying its bytes.
    Fetch,
    /// Decoding them.
    Decode,
    /// Looking for it in the dictionary of instructions.
    LookUp,
    /// Entering it there, and having all pages watched that it came from.
    Note,
}

impl Step {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Walk,
        Self::Map,
        Self::Fetch,
        Self::Decode,
        Self::LookUp,
        Self::Note,
    ];

    /// Its name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Walk => "walk",
            Self::Map => "map",
            Self::Fetch => "fetch",
            Self::Decode => "decode",
            Self::LookUp => "look-up",
            Self::Note => "note",
        }
    }
}

/// The newest samples of one step, in cycles of the time-stamp counter.
#[derive(Clone, Debug, Default)]
struct Samples {
    cycles: Vec<u32>,
    taken: u64,
}

impl Samples {
    fn add(&mut self, cycles: u64) {
        let cycles = u32::try_from(cycles).unwrap_or(u32::MAX);
        let place = (self.taken % KEPT as u64) as usize;
        match self.cycles.get_mut(place) {
            Some(oldest) => *oldest = cycles,
            None => self.cycles.push(cycles),
        }
        self.taken += 1;
    }
}

/// What a step costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepCost {
    /// Which.
    pub step: Step,
    /// How often it was timed.
    pub samples: u64,
    /// Median of the newest samples, in cycles, without what reading the counter costs.
    pub p50: u64,
}

/// The samples of all steps.
#[derive(Clone, Debug)]
pub struct Steps {
    samples: [Samples; Step::ALL.len()],
    until_next: u32,
    /// Cycles between two readings of the counter with nothing between them.
    overhead: u64,
}

impl Default for Steps {
    fn default() -> Self {
        let overhead = (0..16).map(|_| {
            let begun = counter();
            counter().saturating_sub(begun)
        });
        Self {
            samples: Default::default(),
            until_next: EVERY,
            overhead: overhead.min().unwrap_or(0),
        }
    }
}

/// Times the steps of one exit, if it is one of those that are timed.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Option<u64>);

impl Steps {
    /// An exit begins its first step.
    #[inline]
    pub fn begin(&mut self) -> Stopwatch {
        self.until_next -= 1;
        if self.until_next != 0 {
            return Stopwatch(None);
        }
        self.until_next = EVERY;
        Stopwatch(Some(counter()))
    }

    /// A step has ended, and the next begins.
    #[inline]
    pub fn end(&mut self, step: Step, stopwatch: &mut Stopwatch) {
        if let Stopwatch(Some(begun)) = stopwatch {
            let now = counter();
            let cycles = now.saturating_sub(*begun).saturating_sub(self.overhead);
            self.samples[step as usize].add(cycles);
            *begun = counter();
        }
    }

    /// What each step costs that was timed.
    pub fn costs(&self) -> impl Iterator<Item = StepCost> {
        Step::ALL.into_iter().filter_map(|step| {
            let samples = &self.samples[step as usize];
            let mut cycles = samples.cycles.clone();
            cycles.sort_unstable();
            let p50 = *cycles.get(cycles.len() / 2)?;
            Some(StepCost {
                step,
                samples: samples.taken,
                p50: p50.into(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::TIME;

    fn pass(cycles: u64) {
        TIME.set(TIME.get() + cycles);
    }

    #[test]
    fn one_exit_in_so_many_is_timed_step_by_step() {
        let mut steps = Steps::default();
        for _ in 0..3 * EVERY {
            let mut stopwatch = steps.begin();
            pass(70);
            steps.end(Step::Walk, &mut stopwatch);
            pass(5);
            steps.end(Step::Map, &mut stopwatch);
        }
        let costs: Vec<_> = steps
            .costs()
            .map(|it| (it.step, it.samples, it.p50))
            .collect();
        assert_eq!(costs, [(Step::Walk, 3, 70), (Step::Map, 3, 5)]);
    }

    #[test]
    fn the_median_is_that_of_the_newest_samples() {
        let mut samples = Samples::default();
        for cycles in 0..3 * KEPT as u64 {
            samples.add(cycles);
        }
        assert_eq!(
            (samples.cycles.len(), samples.taken),
            (KEPT, 3 * KEPT as u64)
        );
        assert!(samples.cycles.iter().all(|&it| it >= 2 * KEPT as u32));
        samples.add(u64::MAX);
        assert!(samples.cycles.contains(&u32::MAX));
    }
}
