//! The local APIC's timer: one-shot, periodic, or with a deadline of the time-stamp counter (SDM
//! volume 3, 11.5.4). It does not handle vectors and masks.

use serde::{Deserialize, Serialize};
use tollgate_platform::GuestTime;

/// One moment on both of the guest's clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    /// Guest time.
    pub now: GuestTime,
    /// The guest's time-stamp counter at the same moment.
    pub tsc: u64,
    /// The number of ticks of the time-stamp counter in a millisecond.
    pub tsc_khz: u64,
}

impl Clock {
    /// Returns when the time-stamp counter will reach `tsc`, rounded up, or the present time if it
    /// has.
    pub fn time_of_tsc(&self, tsc: u64) -> GuestTime {
        let ticks = u128::from(tsc.saturating_sub(self.tsc));
        let nanoseconds = (ticks * 1_000_000).div_ceil(u128::from(self.tsc_khz.max(1)));
        self.now
            .after(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

/// A source of the present time. Reading a clock costs more than accessing most registers, so only
/// the registers that need the time read it.
pub trait ClockSource {
    /// Returns the present time.
    fn clock(&self) -> Clock;
}

impl ClockSource for Clock {
    fn clock(&self) -> Clock {
        *self
    }
}

/// The timer's mode.
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
            // 3 is reserved; one-shot mode is harmless.
            _ => Self::OneShot,
        }
    }
}

/// The timer. Its count is stored for one moment, and the count at any other time is computed from
/// that.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Timer {
    mode: TimerMode,
    /// The divide configuration register.
    divide: u32,
    /// The initial-count register, which is reloaded in periodic mode.
    initial: u32,
    /// The count at `since`; zero means stopped.
    count: u32,
    since: GuestTime,
    /// The deadline in TSC ticks; zero means disarmed.
    tsc_deadline: u64,
    /// The guest time at which the counter is expected to reach `tsc_deadline`.
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

    /// Returns the divider of the input, 1 to 128 (SDM volume 3, figure 11-10).
    fn divider(&self) -> u64 {
        let code = self.divide & 3 | self.divide >> 1 & 4;
        1 << ((code + 1) & 7)
    }

    /// Returns the current-count register.
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
            // This transition disarms the timer (SDM volume 3, 11.5.4.1).
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

    /// Sets the deadline; zero disarms the timer. The call is ignored in other modes.
    pub(super) fn set_tsc_deadline(&mut self, value: u64, clock: &Clock) {
        if self.mode == TimerMode::TscDeadline {
            self.tsc_deadline = value;
            self.tsc_deadline_time = clock.time_of_tsc(value);
        }
    }

    /// Returns whether the timer has expired since the last call. Several periods that have passed
    /// count as one expiry, and the next one ends on the original grid.
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
            // The two clocks drift apart a little, and the counter decides.
            self.tsc_deadline_time = clock.time_of_tsc(self.tsc_deadline);
        }
        false
    }

    /// Returns when [`Timer::advance`] must be called next.
    pub(super) fn next_deadline(&self) -> Option<GuestTime> {
        if self.mode == TimerMode::TscDeadline {
            (self.tsc_deadline != 0).then_some(self.tsc_deadline_time)
        } else {
            self.expiry()
        }
    }
}
