//! Chooses which calls of fast paths are timed.

use crate::ExitKind;

/// If calls take this number of cycles on average, each is timed.
const WORTH_TIMING: u64 = 3_000;

/// On average, at least one call in this number is timed.
const LONGEST_INTERVAL: u64 = 128;

/// The average moves towards each new call by one part in this number.
const FOLLOWS: u64 = 8;

/// Chooses which calls of one sort are timed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Countdown {
    /// The number of calls up to and including the next one that is timed.
    pub(super) left: u32,
    /// The number of calls that the next timed one stands for.
    stands_for: u32,
    /// Average cycles of the calls that were timed last.
    average: u64,
}

/// Chooses which calls are timed.
#[derive(Clone, Debug)]
pub(super) struct FastPathSampler {
    pub(super) countdowns: [Countdown; ExitKind::ALL.len()],
    random: u32,
}

impl Default for FastPathSampler {
    fn default() -> Self {
        let first = Countdown {
            left: 1,
            stands_for: 1,
            average: WORTH_TIMING,
        };
        Self {
            countdowns: [first; ExitKind::ALL.len()],
            random: 0x9e37_79b9,
        }
    }
}

impl FastPathSampler {
    /// A call of this sort took `cycles`. Returns the number of calls that it stands for, and
    /// chooses the next one to be timed.
    pub(super) fn timed(&mut self, sort: ExitKind, cycles: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        let countdown = &mut self.countdowns[sort as usize];
        let stood_for = countdown.stands_for;
        countdown.average = (countdown.average * (FOLLOWS - 1) + cycles) / FOLLOWS;
        let interval = WORTH_TIMING / countdown.average.max(1);
        let interval = interval.clamp(1, LONGEST_INTERVAL) as u32;
        // From 1 to twice the interval minus 1: the interval on average.
        let distance = 1 + self.random % (2 * interval - 1);
        countdown.left = distance;
        countdown.stands_for = distance;
        stood_for.into()
    }
}
