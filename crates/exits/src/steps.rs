//! The cost of each step of an exit that looks its instruction up again: walking the guest's page
//! tables, finding the page, fetching, decoding, looking it up in the dictionary. One exit in
//! [`EVERY`] is timed.

use crate::counter::counter;

/// One exit in this number is timed.
pub const EVERY: u32 = 32;
/// Number of samples of each step that are kept; the newest ones.
const KEPT: usize = 1024;

/// A step of looking an instruction up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Walking the guest's page tables to the instruction.
    Walk,
    /// Finding the host memory of the page that contains it.
    Map,
    /// Copying its bytes.
    Fetch,
    /// Decoding the bytes.
    Decode,
    /// Looking for it in the dictionary of instructions.
    LookUp,
    /// Adding it to the dictionary, and watching all pages that it depends on.
    Note,
}

impl Step {
    /// All steps, in their order.
    pub const ALL: [Self; 6] = [
        Self::Walk,
        Self::Map,
        Self::Fetch,
        Self::Decode,
        Self::LookUp,
        Self::Note,
    ];

    /// The step's name in statistics.
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

/// The cost of one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepCost {
    /// The step that was timed.
    pub step: Step,
    /// How often it was timed.
    pub samples: u64,
    /// Median of the newest samples, in cycles, without the cost of reading the counter.
    pub p50: u64,
}

/// The samples of all steps.
#[derive(Clone, Debug)]
pub struct Steps {
    samples: [Samples; Step::ALL.len()],
    until_next: u32,
    /// Cycles between two successive readings of the counter.
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
    /// An exit starts its first step.
    #[inline]
    pub fn begin(&mut self) -> Stopwatch {
        self.until_next -= 1;
        if self.until_next != 0 {
            return Stopwatch(None);
        }
        self.until_next = EVERY;
        Stopwatch(Some(counter()))
    }

    /// A step has ended, and the next one starts.
    #[inline]
    pub fn end(&mut self, step: Step, stopwatch: &mut Stopwatch) {
        if let Stopwatch(Some(begun)) = stopwatch {
            let now = counter();
            let cycles = now.saturating_sub(*begun).saturating_sub(self.overhead);
            self.samples[step as usize].add(cycles);
            *begun = counter();
        }
    }

    /// The cost of each step that was timed.
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
