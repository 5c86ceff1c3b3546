//! How much longer exits take because they are timed, and how samples are corrected for it.
//!
//! Reading the clock takes time, which is known and subtracted. But the processor also overlaps
//! less around a reading: an exit of 300 cycles takes 325 when it is timed. A sample stands for
//! hundreds of exits that are not timed, so without a correction the report would be too high by a
//! twelfth.
//!
//! The difference is measured continuously. Right before a burst of timed exits, the same number of
//! exits pass as the *control*: the clock is read only before the first and after the last of them.
//!
//! ```text
//! exits   . . . . . . . . . . . . . . . . . . . . . . . . . . . . .
//!               |---- control ----|- w w w -|---- burst ----|
//! clock         ^                 ^         ^^^^^^^^^^^^^^^^^
//! ```
//!
//! If samples are corrected exactly, either of the two is longer by chance. So the amount that is
//! subtracted from each timed interval grows a little when the burst was longer, and shrinks a
//! little when the control was longer: it settles at the median. The median is used because exits
//! differ a lot: a page fault in one of the two says nothing about the clock.

/// Units of the correction in one cycle.
const PARTS: u64 = 64;
/// Maximum of the correction. No processor loses more cycles at a reading; a larger difference
/// comes from the guest.
const MOST: u64 = 100 * PARTS;
/// The first step of the correction: two cycles.
const FIRST_STEP: u64 = 2 * PARTS;
/// The last step of the correction: a thirty-second of a cycle.
const LAST_STEP: u64 = PARTS / 32;
/// Number of steps of one size, before the size is halved.
const STEPS: u32 = 16;

/// How much a reading of the clock adds to the time between two readings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disturbance {
    /// What it adds to each interval, in units of 1/[`PARTS`] cycle.
    each: u64,
    /// The number of comparisons so far that still determine the step.
    compared: u32,
    /// The correction that intervals of this burst were too short to subtract.
    owed: u64,
    stretch: Stretch,
}

/// The phase of the present comparison.
#[derive(Clone, Debug, Default)]
enum Stretch {
    #[default]
    None,
    /// The next reading of the clock starts a control.
    Due,
    /// A control has started at this time.
    Control(u64),
    /// The control has ended and took this number of cycles. The first exits of the burst warm up.
    Ended(u64),
    /// The burst is being timed.
    Burst {
        control: u64,
        cycles: u64,
        intervals: u64,
    },
}

impl Disturbance {
    /// What one reading of the clock adds to an interval, in cycles.
    pub fn of_each(&self) -> u64 {
        self.each / PARTS
    }

    /// Requests that a control starts when the ledger has finished its work.
    pub fn ask_for_control(&mut self) {
        self.stretch = Stretch::Due;
    }

    /// The ledger has finished its work at this time. Starts a control if one was requested.
    #[inline]
    pub fn begin_control(&mut self, now: u64) {
        if matches!(self.stretch, Stretch::Due) {
            self.stretch = Stretch::Control(now);
        }
    }

    /// A burst starts, and the control before it ends. Reading the clock takes `clock_cost` cycles.
    pub fn end_control(&mut self, now: u64, clock_cost: u64) {
        self.owed = 0;
        self.stretch = match self.stretch {
            Stretch::Control(began) => {
                Stretch::Ended(now.wrapping_sub(began).saturating_sub(clock_cost))
            }
            _ => Stretch::None,
        };
    }

    /// A timed exit starts that is not only a warm-up.
    pub fn begin_exit(&mut self) {
        if let Stretch::Ended(control) = self.stretch {
            self.stretch = Stretch::Burst {
                control,
                cycles: 0,
                intervals: 0,
            };
        }
    }

    /// The guest code after the last timed exit of a burst has ended.
    pub fn end_burst(&mut self) {
        if let Stretch::Burst {
            control,
            cycles,
            intervals,
        } = std::mem::take(&mut self.stretch)
        {
            // The control itself is one timed interval, too.
            let added = intervals.saturating_sub(1) * self.each;
            self.compare(cycles * PARTS, control * PARTS + added);
        }
    }

    fn compare(&mut self, burst: u64, expected: u64) {
        let step = (FIRST_STEP >> (self.compared / STEPS).min(16)).max(LAST_STEP);
        self.compared = self.compared.saturating_add(1);
        if burst > expected {
            self.each = (self.each + step).min(MOST);
        } else if burst < expected {
            self.each = self.each.saturating_sub(step);
        }
    }

    /// Abandons the comparison: long events are always timed and cannot be compared.
    #[inline]
    pub fn is_not_alike(&mut self) {
        self.stretch = Stretch::None;
    }

    /// Corrects a timed interval of `cycles`: returns what it would have taken without being timed.
    pub fn undisturbed(&mut self, cycles: u64) -> u64 {
        self.inside(cycles);
        let taken = (self.owed / PARTS).min(cycles);
        self.owed -= taken * PARTS;
        cycles - taken
    }

    /// Corrects an interval inside another one. If it is too short for the whole correction, the
    /// rest is subtracted from the outer interval.
    pub fn inside(&mut self, cycles_here: u64) {
        self.owed += self.each;
        if let Stretch::Burst {
            cycles, intervals, ..
        } = &mut self.stretch
        {
            *cycles = cycles.saturating_add(cycles_here);
            *intervals += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::BURST;

    /// The correction after many comparisons of exits whose cycles `exit` returns, and which take
    /// `more` cycles longer when they are timed.
    fn found(mut exit: impl FnMut() -> u64, more: u64) -> f64 {
        let mut disturbance = Disturbance::default();
        for _ in 0..4_000 {
            let control = (0..BURST).map(|_| exit()).sum::<u64>();
            disturbance.ask_for_control();
            disturbance.begin_control(5_000);
            disturbance.end_control(5_000 + control + more + 20, 20);
            disturbance.begin_exit();
            for _ in 0..BURST {
                let cycles = exit();
                // A sample consists of the exit, a device access in it, and guest code.
                disturbance.inside(40);
                disturbance.undisturbed(cycles - 140 + 2 * more);
                disturbance.undisturbed(100 + more);
            }
            disturbance.end_burst();
        }
        disturbance.each as f64 / PARTS as f64
    }

    /// Pseudo-random numbers, the same in each run.
    fn random() -> impl FnMut() -> u64 {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state >> 11
        }
    }

    #[test]
    fn what_readings_add_is_found() {
        for more in [0, 5, 12, 30] {
            let each = found(|| 300, more);
            assert!((each - more as f64).abs() < 0.1, "{each} of {more}");
        }
    }

    #[test]
    fn exits_that_differ_are_told_from_readings() {
        let mut random = random();
        // One exit in twenty is a hundred times as long.
        let exit = || match random() % 20 {
            0 => 30_000 + random() % 30_000,
            _ => 250 + random() % 100,
        };
        let each = found(exit, 12);
        assert!((each - 12.0).abs() < 2.0, "{each}");
    }

    #[test]
    fn what_one_interval_cannot_give_the_next_one_does() {
        let mut disturbance = Disturbance {
            each: 10 * PARTS,
            ..Disturbance::default()
        };
        let left = [3, 0, 100].map(|cycles| disturbance.undisturbed(cycles));
        assert_eq!(left, [0, 0, 73]);
    }

    #[test]
    fn work_that_is_always_timed_is_not_compared() {
        let mut disturbance = Disturbance::default();
        disturbance.ask_for_control();
        disturbance.begin_control(0);
        disturbance.is_not_alike();
        disturbance.end_control(1_000, 20);
        disturbance.begin_exit();
        disturbance.undisturbed(9_000);
        disturbance.end_burst();
        assert_eq!((disturbance.each, disturbance.compared), (0, 0));
    }
}
