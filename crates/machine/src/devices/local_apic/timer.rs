//! The local APIC's timer: one-shot, periodic, or a deadline of the time-stamp
//! counter (SDM volume 3, 11.5.4). It knows nothing of vectors and masks.

use serde::{Deserialize, Serialize};
use tollgate_platform::GuestTime;

/// One instant on both of the guest's clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    /// Guest time.
    pub now: GuestTime,
    /// The guest's time-stamp counter at the same instant.
    pub tsc: u64,
    /// Time-stamp counter ticks in a millisecond.
    pub tsc_khz: u64,
}

impl Clock {
    /// When the time-stamp counter will reach `tsc`, rounded up; now if it has.
    pub fn time_of_tsc(&self, tsc: u64) -> GuestTime {
        let ticks = u128::from(tsc.saturating_sub(self.tsc));
        let nanoseconds = (ticks * 1_000_000).div_ceil(u128::from(self.tsc_khz.max(1)));
        self.now
            .after(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

/// What can say what time it is. Reading a clock costs more than reaching most
/// registers, so only those that need it ask.
pub trait ClockSource {
    /// The present instant.
    fn clock(&self) -> Clock;
}

impl ClockSource for Clock {
    fn clock(&self) -> Clock {
        *self
    }
}

/// What the timer does with its count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) enum TimerMode {
    #[default]
    OneShot,
    Periodic,
    TscDeadline,
}

impl TimerMode {
    /// Decodes bits 17 and 18 of the timer's LVT entry.
    pub(super) const fn of_entry(entry: u32) -> Self {
        match entry >> 17 & 3 {
            1 => Self::Periodic,
            2 => Self::TscDeadline,
            // 3 is reserved; a timer that runs once is harmless.
            _ => Self::OneShot,
        }
    }
}

/// The timer. Its count is known at one moment; any other count follows from that.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Timer {
    mode: TimerMode,
    /// Divide configuration register.
    divide: u32,
    /// Initial-count register; reloaded in periodic mode.
    initial: u32,
    /// Count at `since`; zero is stopped.
    count: u32,
    since: GuestTime,
    /// Deadline in TSC ticks; zero is disarmed.
    tsc_deadline: u64,
    /// Guest time at which `tsc_deadline` is expected.
    tsc_deadline_time: GuestTime,
}

impl Timer {
    pub(super) const fn initial(&self) -> u32 {
        self.initial
    }

    pub(super) const fn divide(&self) -> u32 {
        self.divide
    }

    pub(super) const fn tsc_deadline(&self) -> u64 {
        self.tsc_deadline
    }

    /// Divider of the input, 1 to 128 (SDM volume 3, figure 11-10).
    fn divider(&self) -> u64 {
        let code = self.divide & 3 | self.divide >> 1 & 4;
        1 << ((code + 1) & 7)
    }

    /// Current-count register.
    pub(super) fn current_count(&self, now: GuestTime) -> u32 {
        if self.count == 0 || self.mode == TimerMode::TscDeadline {
            return 0;
        }
        let elapsed = now.since(self.since) / self.divider();
        let count = u64::from(self.count);
        if elapsed < count {
            (count - elapsed) as u32
        } else if self.mode == TimerMode::Periodic {
            let beyond = (elapsed - count) % u64::from(self.initial.max(1));
            self.initial - beyond as u32
        } else {
            0
        }
    }

    fn expiry(&self) -> Option<GuestTime> {
        (self.count != 0).then(|| self.since.after(u64::from(self.count) * self.divider()))
    }

    pub(super) fn set_mode(&mut self, mode: TimerMode, now: GuestTime) {
        if mode == self.mode {
            return;
        }
        if mode == TimerMode::TscDeadline || self.mode == TimerMode::TscDeadline {
            // SDM volume 3, 11.5.4.1: this transition disarms the timer.
            *self = Self {
                divide: self.divide,
                ..Self::default()
            };
        } else {
            self.count = self.current_count(now);
            self.since = now;
        }
        self.mode = mode;
    }

    pub(super) fn set_initial_count(&mut self, value: u32, now: GuestTime) {
        if self.mode != TimerMode::TscDeadline {
            self.initial = value;
            self.count = value;
            self.since = now;
        }
    }

    pub(super) fn set_divide(&mut self, value: u32, now: GuestTime) {
        self.count = self.current_count(now);
        self.since = now;
        self.divide = value & 0b1011;
    }

    /// Ignored in other modes; zero disarms.
    pub(super) fn set_tsc_deadline(&mut self, value: u64, clock: &Clock) {
        if self.mode == TimerMode::TscDeadline {
            self.tsc_deadline = value;
            self.tsc_deadline_time = clock.time_of_tsc(value);
        }
    }

    /// Whether the timer has expired since the last call. Periods that were missed
    /// altogether are merged; the next one ends on the original grid.
    pub(super) fn advance(&mut self, clock: &Clock) -> bool {
        if self.mode == TimerMode::TscDeadline {
            return self.advance_deadline(clock);
        }
        let Some(expiry) = self.expiry().filter(|expiry| *expiry <= clock.now) else {
            return false;
        };
        if self.mode == TimerMode::Periodic {
            let period = (u64::from(self.initial) * self.divider()).max(1);
            let late = clock.now.since(expiry);
            self.since = expiry.after(late - late % period);
            self.count = self.initial;
        } else {
            self.count = 0;
        }
        true
    }

    fn advance_deadline(&mut self, clock: &Clock) -> bool {
        if self.tsc_deadline == 0 {
            return false;
        }
        if clock.tsc >= self.tsc_deadline {
            self.tsc_deadline = 0;
            return true;
        }
        if clock.now >= self.tsc_deadline_time {
            // The two clocks drift apart a little: the counter decides.
            self.tsc_deadline_time = clock.time_of_tsc(self.tsc_deadline);
        }
        false
    }

    /// When [`Timer::advance`] must be called next.
    pub(super) fn next_deadline(&self) -> Option<GuestTime> {
        if self.mode == TimerMode::TscDeadline {
            (self.tsc_deadline != 0).then_some(self.tsc_deadline_time)
        } else {
            self.expiry()
        }
    }
}
