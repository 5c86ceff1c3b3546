//! The six counting modes of the 8254 as functions of the time since a count was loaded
//! (8254 data sheet, "Mode Definitions").

use serde::{Deserialize, Serialize};

/// Clock pulses of the 1.193182 MHz input since guest time zero.
pub(super) type Tick = i64;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Mode {
    InterruptOnTerminalCount,
    OneShot,
    RateGenerator,
    SquareWave,
    SoftwareStrobe,
    HardwareStrobe,
}

/// Returns the length of the high part of a square wave of `initial` ticks.
pub(super) const fn high_half(initial: i64) -> i64 {
    (initial + 1) / 2
}

impl Mode {
    /// Decodes control word bits 3-1; the third bit is ignored for modes 2 and 3.
    pub(super) const fn from_control(control: u8) -> Self {
        match (control >> 1) & 7 {
            0 => Self::InterruptOnTerminalCount,
            1 => Self::OneShot,
            2 | 6 => Self::RateGenerator,
            3 | 7 => Self::SquareWave,
            4 => Self::SoftwareStrobe,
            _ => Self::HardwareStrobe,
        }
    }

    /// Whether the mode starts again by itself. A count of 1 is illegal in such a mode: OUT then
    /// stays high here.
    pub(super) const fn is_periodic(self) -> bool {
        matches!(self, Self::RateGenerator | Self::SquareWave)
    }

    /// Whether a rising gate starts the count in this mode.
    pub(super) const fn is_triggered(self) -> bool {
        matches!(self, Self::OneShot | Self::HardwareStrobe)
    }

    /// Returns the counting element `elapsed` ticks after it was loaded with `initial`. It is below
    /// zero after it has wrapped.
    pub(super) fn remaining(self, elapsed: Tick, initial: u32) -> i64 {
        let (elapsed, initial) = (elapsed.max(0), i64::from(initial.max(1)));
        match self {
            Self::RateGenerator => initial - elapsed % initial,
            Self::SquareWave => {
                let phase = elapsed % initial;
                let high = high_half(initial);
                let in_half = if phase < high { phase } else { phase - high };
                // Odd counts are loaded minus one, and fall by two per tick.
                (initial & !1) - 2 * in_half
            }
            _ => initial.saturating_sub(elapsed),
        }
    }

    /// Returns the level of OUT `elapsed` ticks after the load. Below zero, the count is not loaded
    /// yet.
    pub(super) fn output(self, elapsed: Tick, initial: u32) -> bool {
        let initial = i64::from(initial.max(1));
        match self {
            Self::InterruptOnTerminalCount => elapsed >= initial,
            // OUT falls with the clock pulse that loads the count.
            Self::OneShot => elapsed < 0 || elapsed >= initial,
            Self::RateGenerator | Self::SquareWave if initial == 1 || elapsed < 0 => true,
            Self::RateGenerator => elapsed % initial != initial - 1,
            Self::SquareWave => elapsed % initial < high_half(initial),
            Self::SoftwareStrobe | Self::HardwareStrobe => elapsed != initial,
        }
    }

    /// Returns the number of rising edges of OUT in the first `elapsed` ticks after the load.
    pub(super) fn rises_after(self, elapsed: Tick, initial: u32) -> u64 {
        let initial = i64::from(initial.max(1));
        if elapsed <= 0 {
            return 0;
        }
        match self {
            Self::InterruptOnTerminalCount | Self::OneShot => u64::from(elapsed >= initial),
            Self::RateGenerator | Self::SquareWave if initial == 1 => 0,
            Self::RateGenerator | Self::SquareWave => (elapsed / initial) as u64,
            Self::SoftwareStrobe | Self::HardwareStrobe => u64::from(elapsed > initial),
        }
    }

    /// Returns the tick of the first rising edge after `tick`, for a load at `start`.
    pub(super) fn next_rise(self, start: Tick, initial: u32, tick: Tick) -> Option<Tick> {
        let initial = i64::from(initial.max(1));
        let rise = match self {
            Self::InterruptOnTerminalCount | Self::OneShot => start.saturating_add(initial),
            Self::SoftwareStrobe | Self::HardwareStrobe => {
                start.saturating_add(initial).saturating_add(1)
            }
            Self::RateGenerator | Self::SquareWave if initial == 1 => return None,
            Self::RateGenerator | Self::SquareWave => {
                let periods = tick.saturating_sub(start).max(0) / initial + 1;
                start.saturating_add(periods.saturating_mul(initial))
            }
        };
        (rise > tick).then_some(rise)
    }
}
