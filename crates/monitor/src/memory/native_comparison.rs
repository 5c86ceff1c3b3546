//! Whether a program is faster natively than translated, found by running it both ways.
//!
//! What a program saves natively is an estimate: a loop that divides runs translated as fast as natively, and
//! then each entry is a loss. Programs that leave often are therefore compared with themselves. System calls
//! and reads of the clock measure how far a program gets; the kernel's are the same both ways.
//!
//! ```text
//! natively  | stretch |                    | settles | stretch |
//! translated          | settles | stretch |
//! ```
//!
//! A comparison counts if both native stretches are alike, so that it was not the program that has changed.

/// Nanoseconds of a stretch.
const STRETCH: u64 = 12_000_000;
/// Nanoseconds after a change, which are not counted: pages are mapped and code is translated.
const SETTLES: u64 = 4_000_000;
/// Nanoseconds after which programs are compared: since they run natively, since a comparison was
/// impossible, and since the first one that was won, which doubles with each.
const FIRST_AFTER: u64 = 30_000_000;
const AGAIN_AFTER: u64 = 100_000_000;
const WON_AFTER: u64 = 1_000_000_000;
const WON_AFTER_AT_MOST: u64 = 16_000_000_000;
/// What a program must do in a stretch to be compared. One that does less leaves so seldom that it loses
/// less than can be measured.
const LEAST_PROGRESS: u64 = 60;
/// Percent by which the two native stretches may differ.
const ALIKE: u64 = 20;
/// Percent by which the translated stretch must be better.
const BETTER: u64 = 3;
/// Comparisons in succession that a program must lose to be translated.
const LOST: u32 = 2;

/// A time in which a program ran in one way.
#[derive(Clone, Copy, Default, Debug)]
struct Stretch {
    nanoseconds: u64,
    progress: u64,
}

impl Stretch {
    const NONE: Self = Self {
        nanoseconds: 0,
        progress: 0,
    };

    /// How many nanoseconds the program took for a thousand steps.
    fn pace(self) -> u64 {
        self.nanoseconds.saturating_mul(1000) / self.progress.max(1)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Natively, as long as this.
    Waits(u64),
    Before,
    Turned,
    Translated,
    TurnedBack,
    After,
}

/// The comparisons of a program with itself during a trial.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    stage: Stage,
    /// The present stage.
    stretch: Stretch,
    before: Stretch,
    translated: Stretch,
    lost: u32,
    won_after: u64,
}

impl Comparison {
    pub(super) const NEW: Self = Self {
        stage: Stage::Waits(FIRST_AFTER),
        stretch: Stretch::NONE,
        before: Stretch::NONE,
        translated: Stretch::NONE,
        lost: 0,
        won_after: WON_AFTER,
    };

    /// Whether the program runs translated for the time being.
    pub(super) const fn translates(&self) -> bool {
        matches!(self.stage, Stage::Turned | Stage::Translated)
    }

    /// Follows what the program has done since the last call. Returns whether it has lost: it is faster
    /// translated.
    pub(super) fn ran(&mut self, nanoseconds: u64, progress: u64) -> bool {
        self.stretch.nanoseconds += nanoseconds;
        self.stretch.progress += progress;
        let lasts = match self.stage {
            Stage::Waits(time) => time,
            Stage::Turned | Stage::TurnedBack => SETTLES,
            Stage::Before | Stage::Translated | Stage::After => STRETCH,
        };
        if self.stretch.nanoseconds < lasts {
            return false;
        }
        let stretch = std::mem::take(&mut self.stretch);
        let is_comparable = stretch.progress >= LEAST_PROGRESS;
        self.stage = match self.stage {
            Stage::Waits(_) => Stage::Before,
            Stage::Before if is_comparable => {
                self.before = stretch;
                Stage::Turned
            }
            Stage::Turned => Stage::Translated,
            Stage::Translated if is_comparable => {
                self.translated = stretch;
                Stage::TurnedBack
            }
            Stage::TurnedBack => Stage::After,
            Stage::After if is_comparable => self.compared(stretch),
            Stage::Before | Stage::Translated | Stage::After => Stage::Waits(AGAIN_AFTER),
        };
        self.lost >= LOST
    }

    /// Compares the stretches, the last of which is `after`.
    fn compared(&mut self, after: Stretch) -> Stage {
        let (before, after) = (self.before.pace(), after.pace());
        let (least, most) = (before.min(after), before.max(after));
        if most > least + least * ALIKE / 100 {
            return Stage::Waits(AGAIN_AFTER);
        }
        let translated = self.translated.pace();
        if translated + translated * BETTER / 100 < least {
            self.lost += 1;
            return Stage::Before;
        }
        self.lost = 0;
        let wait = self.won_after;
        self.won_after = (2 * wait).min(WON_AFTER_AT_MOST);
        Stage::Waits(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = 4_000_000;

    /// Runs a program that makes a system call each `native` or `translated` nanoseconds, for some
    /// ticks. Returns how many of them it ran translated, and whether it has lost.
    fn run(
        comparison: &mut Comparison,
        ticks: u64,
        mut step: impl FnMut(u64, bool) -> u64,
    ) -> (u64, bool) {
        let mut translated = 0;
        for tick in 0..ticks {
            let translates = comparison.translates();
            translated += u64::from(translates);
            if comparison.ran(TICK, TICK / step(tick, translates)) {
                return (translated, true);
            }
        }
        (translated, false)
    }

    #[test]
    fn a_program_that_is_faster_translated_loses() {
        let mut comparison = Comparison::NEW;
        let step = |_, translates| if translates { 50_000 } else { 56_000 };
        let (translated, lost) = run(&mut comparison, 1000, step);
        assert!(lost);
        assert_eq!(translated, 2 * 4);
    }

    #[test]
    fn one_that_is_faster_natively_is_compared_ever_more_seldom() {
        let mut comparison = Comparison::NEW;
        let step = |_, translates| if translates { 100_000 } else { 56_000 };
        let (translated, lost) = run(&mut comparison, 4_000, step);
        assert!(!lost);
        // After 30 ms, 1 s, 3 s, 7 s and 15 s of 16 s.
        assert_eq!(translated, 5 * 4);
    }

    #[test]
    fn one_that_seldom_leaves_is_not_compared() {
        let mut comparison = Comparison::NEW;
        let (translated, lost) = run(&mut comparison, 4_000, |_, _| 300_000);
        assert_eq!((translated, lost), (0, false));
    }

    #[test]
    fn one_that_changes_is_not_judged() {
        let mut comparison = Comparison::NEW;
        // It does ever less for each system call, as a compiler that has read its input.
        let step = |tick: u64, translates| (20_000 + 300 * tick) / if translates { 2 } else { 1 };
        let (_, lost) = run(&mut comparison, 200, step);
        assert!(lost, "slowly");
        let mut comparison = Comparison::NEW;
        let step =
            |tick: u64, translates| (20_000_u64 << (tick / 6)) / if translates { 2 } else { 1 };
        let (_, lost) = run(&mut comparison, 24, step);
        assert!(!lost, "quickly");
    }
}
