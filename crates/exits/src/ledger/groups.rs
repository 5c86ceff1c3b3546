//! Groups of exits, by which long stretches of guest code are measured completely, not sampled.
//!
//! A few stretches of guest code without an exit, of milliseconds each, may make up most of a short
//! run. Samples that stand for others may or may not include them. So they must not be left to
//! chance, while exits in quick succession must not pay for it. The ledger looks at exits in
//! *groups* of up to [`GROUP`], and reads the clock at the end of each:
//!
//! ```text
//! exits   . . . . . . . . . . . . . . . .        .        .  .     .  . . . . . . . .
//! groups  |------|------|-------------|--|-------------------------|-----|-----|-----|
//!          quick  quick  a long stretch   every stretch is timed    quick
//! ```
//!
//! - A group that took long for its number of exits makes the ledger *attentive*: in the following
//!   groups, up to and including the first quick one, it times every stretch of guest code and
//!   every exit. Two readings of the clock for each exit are cheap there. Each stretch counts once,
//!   and so does each long exit; the other exits still count as the sampler says.
//! - The group that contains the first long stretch was not timed in detail. Its time, minus what
//!   is always measured, minus its exits, is guest code. Its exits are assumed to take their usual
//!   time, plus the excess seen in bursts that took that long.
//! - All other groups are similar enough for samples. The samples are the bursts: the next burst
//!   that is similar gives their time. A burst that is not similar, or that was timed attentively,
//!   stands only for itself.

use super::{Detail, LONG, Ledger};
use crate::counter::counter;
use crate::sampler::{Due, GROUP};

/// A group that takes more cycles than this for each of its exits is not quick; two readings of the
/// clock take two per cent of it.
const QUICK: u64 = 3_000;
/// A group whose guest code and exits take more cycles than this is not left to samples.
const NOT_ALIKE: u64 = GROUP as u64 * QUICK;
/// The number of exits over which the usual time is averaged.
const REMEMBERED: u64 = 1 << 16;

/// Successive exits, each with the guest code after it.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// The time at which the group started.
    start: u64,
    /// The number of exits up to its end, at the time it started.
    exits: u32,
    /// The measured time that was neither guest code nor exits, at the time it started.
    aside: u64,
    /// The known waiting time, at the time it started.
    waiting: u64,
    /// Whether the group is a burst, and so is timed.
    pub is_burst: bool,
    /// Time in guest code, if it is a burst.
    guest: u64,
    /// The time in guest code without the exits that only warm up the caches, and the number of the
    /// remaining exits.
    sampled: (u64, u32),
    /// Time in exits, if it is a burst.
    exit: u64,
}

/// The usual time of successive exits in groups that are similar.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usual {
    /// The number of exits that the averages are based on.
    exits: u64,
    /// The cycles of these exits.
    exit: u64,
    /// The cycles of the guest code after them.
    guest: u64,
    /// Number of exits in groups that were not timed, and for which no burst stands yet.
    untimed: u64,
    /// The number of bursts that took long.
    long: u64,
    /// By how many cycles the exits of long bursts exceeded the usual time.
    longer: u64,
}

impl Usual {
    fn add(&mut self, exits: u32, exit: u64, guest: u64) {
        if self.exits >= REMEMBERED {
            self.exits /= 2;
            self.exit /= 2;
            self.guest /= 2;
        }
        self.exits += u64::from(exits);
        self.exit += exit;
        self.guest += guest;
    }

    /// The usual cycles of `count` exits.
    fn exit_cycles(&self, count: u32) -> u64 {
        Self::scaled(self.exit, self.exits, count.into())
    }

    /// Scales `cycles` of `exits` exits to `count` exits.
    fn scaled(cycles: u64, exits: u64, count: u64) -> u64 {
        (u128::from(cycles) * u128::from(count) / u128::from(exits.max(1))) as u64
    }
}

impl Ledger {
    /// Starts a group of exits that the sampler has chosen.
    pub(super) fn begin_group(&mut self, now: u64, is_burst: bool) {
        let exits = match is_burst {
            true => self.sampler.left_of_burst() + 1,
            false => self.sampler.exits_to_next(),
        };
        self.group = Group {
            start: now,
            exits,
            aside: self.set_aside(),
            waiting: self.waiting_seen,
            is_burst,
            ..Group::default()
        };
    }

    /// Ends a group that was not timed and is followed by another such group. Returns whether
    /// nothing else was necessary, as is the case for quick exits: a control should find the
    /// processor undisturbed.
    #[inline]
    pub(super) fn passes_quickly(&mut self, now: u64) -> bool {
        let whole = now.wrapping_sub(self.group.start);
        if self.is_attentive || whole >= u64::from(self.group.exits) * QUICK {
            return false;
        }
        self.usual.untimed += u64::from(self.group.exits);
        let due = self.sampler.begin(now);
        self.group.start = now;
        self.group.exits = self.sampler.exits_to_next();
        self.group.aside = self.set_aside();
        self.group.waiting = self.waiting_seen;
        self.accounts.own_cost += self.clock_cost;
        if due == Due::Control {
            self.disturbance.ask_for_control();
            self.disturbance.begin_control(counter());
        }
        true
    }

    /// The time that is always measured, and is neither guest code nor exits.
    fn set_aside(&self) -> u64 {
        self.accounts.translating + self.accounts.halted + self.accounts.own_cost
    }

    /// A timed stretch of guest code took `cycles`.
    pub(super) fn enter_stretch(&mut self, cycles: u64) {
        if self.is_attentive {
            self.accounts.guest += cycles;
        } else {
            self.group.guest += cycles;
            if self.weight > 0 {
                self.group.sampled.0 += cycles;
                self.group.sampled.1 += 1;
            }
        }
    }

    /// Adds a timed part of an exit that took `cycles`. Returns the number of parts that it
    /// represents.
    pub(super) fn piece_of_exit(&mut self, cycles: u64) -> u64 {
        self.group.exit += cycles;
        match self.is_attentive && cycles >= LONG {
            true => 1,
            false => self.weight,
        }
    }

    /// Ends the group, and decides whether the next one is timed in detail.
    pub(super) fn end_group(&mut self, now: u64) {
        let whole = now.wrapping_sub(self.group.start);
        let exits = self.group.exits;
        self.close_group(whole, exits);
        self.is_attentive = whole >= u64::from(exits) * QUICK;
    }

    /// Ends the group because the run ends.
    pub(super) fn end_last_group(&mut self, now: u64) {
        let left = match self.group.is_burst {
            true => self.sampler.left_of_burst(),
            false => self.sampler.exits_to_next(),
        };
        let whole = now.wrapping_sub(self.group.start);
        self.close_group(whole, self.group.exits.saturating_sub(left));
        let Usual { guest, exits, .. } = self.usual;
        let untimed = std::mem::take(&mut self.usual.untimed);
        self.accounts.guest += Usual::scaled(guest, exits, untimed);
        self.is_attentive = false;
    }

    fn close_group(&mut self, whole: u64, exits: u32) {
        if self.is_attentive || self.detail != Detail::Full {
            return;
        }
        let group = std::mem::take(&mut self.group);
        if group.is_burst {
            self.accounts.guest += group.guest;
            let (sampled, timed) = group.sampled;
            let whole = group.guest + group.exit;
            if whole >= NOT_ALIKE {
                self.usual.long += 1;
                self.usual.longer += group.exit.saturating_sub(self.usual.exit_cycles(exits));
            } else if timed > 0 {
                let untimed = std::mem::take(&mut self.usual.untimed);
                self.accounts.guest += Usual::scaled(sampled, timed.into(), untimed);
                self.usual.add(exits, group.exit, group.guest);
            }
            return;
        }
        let mut cycles = whole.saturating_sub(self.set_aside() - group.aside);
        if cycles >= NOT_ALIKE {
            let waiting = self.waiting_until_asked();
            self.waiting_seen = self.waiting_seen.max(waiting);
            cycles = cycles.saturating_sub(waiting.saturating_sub(group.waiting));
        }
        if cycles >= NOT_ALIKE {
            let longer = self.usual.longer / self.usual.long.max(1);
            let exit = self.usual.exit_cycles(exits) + longer;
            self.accounts.guest += cycles.saturating_sub(exit);
        } else {
            self.usual.untimed += u64::from(exits);
        }
    }
}
