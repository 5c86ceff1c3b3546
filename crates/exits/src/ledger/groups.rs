//! Guest code that runs long is measured whole, not sampled.
//!
//! A few stretches of guest code without an exit, of milliseconds each, may make most of a short
//! run. Samples that stand for others meet them or miss them. So they must not be left to chance,
//! and exits that follow each other quickly must not pay for it. Exits are looked at in *groups*
//! of up to [`GROUP`], and the clock is read at the end of each:
//!
//! ```text
//! exits   . . . . . . . . . . . . . . . .        .        .  .     .  . . . . . . . .
//! groups  |------|------|-------------|--|-------------------------|-----|-----|-----|
//!          quick  quick  a long stretch   every stretch is timed    quick
//! ```
//!
//! - A group that took long for its exits makes the ledger *attentive*: it times every stretch of
//!   guest code, and every exit, of the groups that follow, up to and with the first that is quick
//!   again. Two readings of the clock for an exit are little there. Each stretch counts once, and each
//!   exit that is long; exits that are not long still count as the sampler has them.
//! - The group in which the first long stretch lies was not timed in detail. Of what it took, less
//!   what is always measured, less what its exits take, is guest code. Exits take there what they
//!   usually take, and as much more as in bursts that took that long.
//! - All other groups are alike enough for samples. These are the bursts: the next one that is like
//!   them tells what they took. A burst that is not, or that was timed attentively, stands for
//!   itself alone.

use super::{Detail, LONG, Ledger};
use crate::counter::counter;
use crate::sampler::{Due, GROUP};

/// A group that takes more cycles for each of its exits is not quick: two readings of the clock are
/// two per cent of that.
const QUICK: u64 = 3_000;
/// A group whose guest code and exits take more cycles is not left to samples.
const NOT_ALIKE: u64 = GROUP as u64 * QUICK;
/// Exits that what they usually take is remembered of.
const REMEMBERED: u64 = 1 << 16;

/// Successive exits, each with the guest code behind it.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// When it began.
    start: u64,
    /// Exits up to its end, when it began.
    exits: u32,
    /// What was measured and is no guest code nor exit, when it began.
    aside: u64,
    /// What was known to be lost to the host's other work, when it began.
    waiting: u64,
    /// It is a burst, and so is timed.
    pub is_burst: bool,
    /// In guest code, of a burst.
    guest: u64,
    /// The same without the exits that only warm up, and how many are left.
    sampled: (u64, u32),
    /// In exits, of a burst.
    exit: u64,
}

/// What successive exits take in groups that are alike.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usual {
    /// How many it is known of.
    exits: u64,
    /// Cycles of these.
    exit: u64,
    /// Cycles of the guest code behind them.
    guest: u64,
    /// Exits of groups that nobody has timed, and that no burst stands for yet.
    untimed: u64,
    /// Bursts that took long.
    long: u64,
    /// Cycles by which their exits took longer than usual.
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

    /// Cycles that so many exits take.
    fn exit_cycles(&self, count: u32) -> u64 {
        Self::scaled(self.exit, self.exits, count.into())
    }

    /// What of so many `exits` took `cycles` takes for `count` of them.
    fn scaled(cycles: u64, exits: u64, count: u64) -> u64 {
        (u128::from(cycles) * u128::from(count) / u128::from(exits.max(1))) as u64
    }
}

impl Ledger {
    /// A group begins, of exits that the sampler has chosen.
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

    /// A group that nobody timed ends now, and the next one passes untimed too. Whether that was all, as it
    /// is where exits are quick: a control should find the processor as if nothing had happened.
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
        self.accounts.books += self.clock_cost;
        if due == Due::Control {
            self.disturbance.ask_for_control();
            self.disturbance.begin_control(counter());
        }
        true
    }

    /// What is always measured, and is neither guest code nor an exit.
    fn set_aside(&self) -> u64 {
        self.accounts.translating + self.accounts.halted + self.accounts.books
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

    /// A timed piece of an exit took `cycles`. How many such pieces it stands for.
    pub(super) fn piece_of_exit(&mut self, cycles: u64) -> u64 {
        self.group.exit += cycles;
        match self.is_attentive && cycles >= LONG {
            true => 1,
            false => self.weight,
        }
    }

    /// The group ends. It says whether what comes next is timed in detail.
    pub(super) fn end_group(&mut self, now: u64) {
        let whole = now.wrapping_sub(self.group.start);
        let exits = self.group.exits;
        self.close_group(whole, exits);
        self.is_attentive = whole >= u64::from(exits) * QUICK;
    }

    /// The run ends in this group.
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
