//! One channel of the 8254: six modes, counted from the tick at which it was loaded.
//!
//! Nothing is decremented. A running channel remembers the tick of its load and the count that it
//! started from. Its count, its output and its next edge are arithmetic on the present tick. So it
//! never drifts, however rarely it is read.

use serde::{Deserialize, Serialize};

use super::mode::{Mode, Tick, high_half};

/// The bytes of the count that the data port transfers (control word bits 5-4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Access {
    Low,
    High,
    LowThenHigh,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Counting {
    /// No count was written since the control word.
    Stopped,
    /// A count was written, and counting starts when the gate rises.
    AwaitingGate,
    /// The channel has been counting down from `initial` since `start`.
    Running { start: Tick, initial: u32 },
    /// The gate stopped the channel in mode 0 or 4.
    Paused { elapsed: Tick, initial: u32 },
}

/// A new count for a periodic channel, which becomes active at the end of the (half) period.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct NextCount {
    at: Tick,
    start: Tick,
    initial: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Channel {
    /// Control word bits 5-0, as the status byte shows them.
    control: u8,
    mode: Mode,
    access: Access,
    gate: bool,
    counting: Counting,
    next_count: Option<NextCount>,
    /// The count register as written, still in BCD if the channel counts in BCD.
    count_register: u16,
    /// Whether a count was written that no trigger has loaded yet (modes 1 and 5).
    awaits_trigger: bool,
    /// The low byte, if the high byte is expected next.
    written_low: Option<u8>,
    read_high_next: bool,
    latched_count: Option<u16>,
    latched_status: Option<u8>,
    /// Rising edges of the output have been counted up to here.
    settled: Tick,
    rises: u64,
}

impl Channel {
    const COUNTS_IN_BCD: u8 = 1;

    pub(super) const fn new(gate: bool) -> Self {
        Self {
            control: 0x36,
            mode: Mode::SquareWave,
            access: Access::LowThenHigh,
            gate,
            counting: Counting::Stopped,
            next_count: None,
            count_register: 0,
            awaits_trigger: false,
            written_low: None,
            read_high_next: false,
            latched_count: None,
            latched_status: None,
            settled: 0,
            rises: 0,
        }
    }

    /// Sets a control word whose bits 5-4 are not zero.
    pub(super) fn set_control(&mut self, control: u8, tick: Tick) {
        self.settle(tick);
        let was_high = self.output(tick);
        self.control = control & 0x3F;
        self.mode = Mode::from_control(control);
        self.access = match (control >> 4) & 3 {
            1 => Access::Low,
            2 => Access::High,
            _ => Access::LowThenHigh,
        };
        self.counting = Counting::Stopped;
        self.next_count = None;
        self.awaits_trigger = false;
        self.written_low = None;
        self.read_high_next = false;
        self.latched_count = None;
        self.latched_status = None;
        self.count_rise_from(was_high, tick);
    }

    pub(super) fn write(&mut self, value: u8, tick: Tick) {
        let count = match (self.access, self.written_low.take()) {
            (Access::Low, _) => u16::from(value),
            (Access::High, _) => u16::from(value) << 8,
            (Access::LowThenHigh, Some(low)) => u16::from_le_bytes([low, value]),
            (Access::LowThenHigh, None) => {
                self.written_low = Some(value);
                if self.mode == Mode::InterruptOnTerminalCount {
                    // In this mode, the first of two bytes already stops counting and lowers OUT.
                    self.settle(tick);
                    self.counting = Counting::Stopped;
                }
                return;
            }
        };
        self.load(count, tick);
    }

    fn load(&mut self, count: u16, tick: Tick) {
        self.settle(tick);
        self.count_register = count;
        let initial = self.initial_count();
        // The counting element loads the count with the next clock pulse.
        let start = tick.saturating_add(1);
        match self.mode {
            Mode::InterruptOnTerminalCount | Mode::SoftwareStrobe => {
                self.counting = if self.gate {
                    Counting::Running { start, initial }
                } else {
                    Counting::Paused {
                        elapsed: 0,
                        initial,
                    }
                };
            }
            Mode::OneShot | Mode::HardwareStrobe => {
                self.awaits_trigger = true;
                if self.counting == Counting::Stopped {
                    self.counting = Counting::AwaitingGate;
                }
            }
            Mode::RateGenerator | Mode::SquareWave => match self.counting {
                Counting::Running {
                    start: old_start,
                    initial: old,
                } if tick >= old_start => {
                    self.next_count = Some(self.takeover(old_start, old, initial, tick));
                }
                _ if self.gate => self.counting = Counting::Running { start, initial },
                _ => self.counting = Counting::AwaitingGate,
            },
        }
    }

    /// Returns when `initial` becomes active in a periodic channel that has been counting `old`
    /// since `start`.
    fn takeover(&self, start: Tick, old: u32, initial: u32, tick: Tick) -> NextCount {
        let (period, new) = (i64::from(old.max(1)), i64::from(initial));
        let phase = tick.saturating_sub(start).rem_euclid(period);
        let period_start = tick.saturating_sub(phase);
        let high = high_half(period);
        if self.mode == Mode::SquareWave && phase < high {
            // The low half is the first part that has the length of the new count.
            let at = period_start.saturating_add(high);
            NextCount {
                at,
                start: at.saturating_sub(high_half(new)),
                initial,
            }
        } else {
            let at = period_start.saturating_add(period);
            NextCount {
                at,
                start: at,
                initial,
            }
        }
    }

    pub(super) fn set_gate(&mut self, gate: bool, tick: Tick) {
        if gate == self.gate {
            return;
        }
        self.settle(tick);
        let was_high = self.output(tick);
        self.gate = gate;
        let next_pulse = tick.saturating_add(1);
        self.counting = match self.counting {
            Counting::AwaitingGate | Counting::Running { .. }
                if gate && self.mode.is_triggered() =>
            {
                self.awaits_trigger = false;
                Counting::Running {
                    start: next_pulse,
                    initial: self.initial_count(),
                }
            }
            Counting::AwaitingGate if gate => Counting::Running {
                start: next_pulse,
                initial: self.initial_count(),
            },
            Counting::Running { .. } if !gate && self.mode.is_periodic() => {
                self.next_count = None;
                Counting::AwaitingGate
            }
            Counting::Running { start, initial } if !gate && !self.mode.is_triggered() => {
                Counting::Paused {
                    elapsed: tick.saturating_sub(start),
                    initial,
                }
            }
            Counting::Paused { elapsed, initial } if gate => Counting::Running {
                start: tick.saturating_sub(elapsed),
                initial,
            },
            other => other,
        };
        self.count_rise_from(was_high, tick);
    }

    /// Latches the count, unless an unread count is latched.
    pub(super) fn latch_count(&mut self, tick: Tick) {
        self.settle(tick);
        if self.latched_count.is_none() {
            self.latched_count = Some(self.count(tick));
        }
    }

    /// Latches the status, unless an unread status is latched.
    pub(super) fn latch_status(&mut self, tick: Tick) {
        const OUTPUT: u8 = 1 << 7;
        const NULL_COUNT: u8 = 1 << 6;
        self.settle(tick);
        if self.latched_status.is_none() {
            let mut status = self.control;
            if self.output(tick) {
                status |= OUTPUT;
            }
            if self.is_null_count(tick) {
                status |= NULL_COUNT;
            }
            self.latched_status = Some(status);
        }
    }

    pub(super) fn read(&mut self, tick: Tick) -> u8 {
        if let Some(status) = self.latched_status.take() {
            return status;
        }
        self.settle(tick);
        let count = self.latched_count.unwrap_or_else(|| self.count(tick));
        let [low, high] = count.to_le_bytes();
        let reads_low_first = self.access == Access::LowThenHigh && !self.read_high_next;
        self.read_high_next = reads_low_first;
        if !reads_low_first {
            self.latched_count = None;
        }
        match self.access {
            Access::Low => low,
            Access::High => high,
            Access::LowThenHigh if reads_low_first => low,
            Access::LowThenHigh => high,
        }
    }

    /// Whether the count register is newer than the active count.
    fn is_null_count(&self, tick: Tick) -> bool {
        self.awaits_trigger
            || self.next_count.is_some()
            || match self.counting {
                Counting::Stopped | Counting::AwaitingGate => true,
                Counting::Running { start, .. } => tick < start,
                Counting::Paused { .. } => false,
            }
    }

    const fn modulus(&self) -> u32 {
        if self.control & Self::COUNTS_IN_BCD != 0 {
            10_000
        } else {
            0x1_0000
        }
    }

    /// Returns the count register as a number of ticks; zero stands for the largest count.
    fn initial_count(&self) -> u32 {
        let raw = u32::from(self.count_register);
        let count = if self.control & Self::COUNTS_IN_BCD == 0 {
            raw
        } else {
            (0..4)
                .rev()
                .fold(0, |value, digit| value * 10 + ((raw >> (4 * digit)) & 0xF))
        };
        if count == 0 { self.modulus() } else { count }
    }

    /// Returns the counting element in the form of the data port.
    fn count(&self, tick: Tick) -> u16 {
        let (elapsed, initial) = match self.counting {
            Counting::Stopped | Counting::AwaitingGate => return self.count_register,
            Counting::Running { start, initial } => (tick.saturating_sub(start), initial),
            Counting::Paused { elapsed, initial } => (elapsed, initial),
        };
        let remaining = self.mode.remaining(elapsed, initial);
        let value = remaining.rem_euclid(i64::from(self.modulus())) as u16;
        if self.control & Self::COUNTS_IN_BCD == 0 {
            value
        } else {
            [1, 10, 100, 1000]
                .into_iter()
                .enumerate()
                .fold(0, |bcd, (digit, weight)| {
                    bcd | (value / weight % 10) << (4 * digit)
                })
        }
    }

    /// Returns the level of OUT. The channel must have been settled to `tick`.
    pub(super) fn output(&self, tick: Tick) -> bool {
        let (elapsed, initial) = match self.counting {
            Counting::Stopped => return self.mode != Mode::InterruptOnTerminalCount,
            Counting::AwaitingGate => return true,
            Counting::Running { start, initial } => (tick.saturating_sub(start), initial),
            Counting::Paused { elapsed, initial } => (elapsed, initial),
        };
        self.mode.output(elapsed, initial)
    }

    fn count_rises_until(&mut self, tick: Tick) {
        if let Counting::Running { start, initial } = self.counting {
            let before = self
                .mode
                .rises_after(self.settled.saturating_sub(start), initial);
            let after = self.mode.rises_after(tick.saturating_sub(start), initial);
            self.rises = self.rises.saturating_add(after.saturating_sub(before));
        }
        self.settled = self.settled.max(tick);
    }

    fn count_rise_from(&mut self, was_high: bool, tick: Tick) {
        if !was_high && self.output(tick) {
            self.rises = self.rises.saturating_add(1);
        }
    }

    /// Counts edges up to `tick`, and activates a waiting count if its time has come.
    pub(super) fn settle(&mut self, tick: Tick) {
        if let Some(next) = self.next_count
            && next.at <= tick
        {
            self.count_rises_until(next.at);
            self.counting = Counting::Running {
                start: next.start,
                initial: next.initial,
            };
            self.next_count = None;
        }
        self.count_rises_until(tick);
    }

    /// Returns the rising edges of OUT that were counted since the last call.
    pub(super) fn take_rises(&mut self) -> u64 {
        std::mem::take(&mut self.rises)
    }

    /// Returns the tick of the next rising edge after those that have been counted.
    pub(super) fn next_rise(&self) -> Option<Tick> {
        let tick = self.settled;
        let Counting::Running { start, initial } = self.counting else {
            return None;
        };
        let rise = self.mode.next_rise(start, initial, tick);
        match self.next_count {
            Some(next) if rise.is_none_or(|rise| rise > next.at) => {
                self.mode.next_rise(next.start, next.initial, next.at)
            }
            _ => rise,
        }
    }
}
