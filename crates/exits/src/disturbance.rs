//! How much longer exits take because they are timed, and how samples get rid of it.
//!
//! Reading the clock takes time, which is known and subtracted. But the processor also overlaps
//! less around a reading: an exit of 300 cycles takes 325 when it is timed. A sample stands for
//! hundreds of exits that nobody timed, so these would be told too long by a twelfth.
//!
//! The difference is measured all the time. Right before a burst of timed exits as many others
//! pass, the *control*, with the clock read only before the first and behind the last:
//!
//! ```text
//! exits   . . . . . . . . . . . . . . . . . . . . . . . . . . . . .
//!               |---- control ----|- w w w -|---- burst ----|
//! clock         ^                 ^         ^^^^^^^^^^^^^^^^^
//! ```
//!
//! If samples say what the exits would have taken, it is by chance which of the two is the longer.
//! So what is subtracted from each timed interval grows a little when the burst is longer, and
//! shrinks a little when the control is: it comes to rest at the median. The median because exits
//! differ a lot: a page fault in one of the two says nothing about the clock.

/// Parts of a cycle in which it is kept.
const PARTS: u64 = 64;
/// No processor loses more cycles at a reading: what is more comes from the guest.
const MOST: u64 = 100 * PARTS;
/// The first step is two cycles.
const FIRST_STEP: u64 = 2 * PARTS;
/// The last one is a thirty-second of a cycle.
const LAST_STEP: u64 = PARTS / 32;
/// Steps of one length, before they are half as long.
const STEPS: u32 = 16;

/// What reading the clock adds to the time between two readings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disturbance {
    /// What it adds to each interval, in parts of a cycle.
    each: u64,
    /// Comparisons so far, of those that still count.
    compared: u32,
    /// What intervals of this burst were too short to give.
    owed: u64,
    stretch: Stretch,
}

/// What is being compared.
#[derive(Clone, Debug, Default)]
enum Stretch {
    #[default]
    None,
    /// A control begins here: the next reading of the clock is its first.
    Due,
    /// A control has begun: the clock.
    Control(u64),
    /// It has ended: its cycles. The first exits of the burst warm up.
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

    /// A control is to begin when the books have done their work.
    pub fn ask_for_control(&mut self) {
        self.stretch = Stretch::Due;
    }

    /// The books have done their work at this time. A control begins, if it is to.
    #[inline]
    pub fn begin_control(&mut self, now: u64) {
        if matches!(self.stretch, Stretch::Due) {
            self.stretch = Stretch::Control(now);
        }
    }

    /// A burst begins, and the control before it ends. Reading the clock takes `clock_cost`.
    pub fn end_control(&mut self, now: u64, clock_cost: u64) {
        self.owed = 0;
        self.stretch = match self.stretch {
            Stretch::Control(began) => {
                Stretch::Ended(now.wrapping_sub(began).saturating_sub(clock_cost))
            }
            _ => Stretch::None,
        };
    }

    /// A timed exit begins that does not only warm up.
    pub fn begin_exit(&mut self) {
        if let Stretch::Ended(control) = self.stretch {
            self.stretch = Stretch::Burst {
                control,
                cycles: 0,
                intervals: 0,
            };
        }
    }

    /// The guest code behind the last timed exit of a burst has ended.
    pub fn end_burst(&mut self) {
        if let Stretch::Burst {
            control,
            cycles,
            intervals,
        } = std::mem::take(&mut self.stretch)
        {
            // The control is an interval that was timed, too.
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

    /// What happens cannot be compared: it is long, and timed always.
    #[inline]
    pub fn is_not_alike(&mut self) {
        self.stretch = Stretch::None;
    }

    /// A timed interval took `cycles`. What it would have taken if nobody had looked.
    pub fn undisturbed(&mut self, cycles: u64) -> u64 {
        self.inside(cycles);
        let taken = (self.owed / PARTS).min(cycles);
        self.owed -= taken * PARTS;
        cycles - taken
    }

    /// The same inside another interval, which gives what both owe.
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

    /// What is subtracted from an interval after many comparisons of exits that take what `exit`
    /// says, and longer by `more` when they are timed.
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
                // The exit, a device in it, and guest code.
                disturbance.inside(40);
                disturbance.undisturbed(cycles - 140 + 2 * more);
                disturbance.undisturbed(100 + more);
            }
            disturbance.end_burst();
        }
        disturbance.each as f64 / PARTS as f64
    }

    /// Random numbers that are the same each time.
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
        // One in twenty is a hundred times as long.
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
