//! The 8254 programmable interval timer: three counters at 1.193182 MHz.
//!
//! Channel 0 drives IRQ 0. Channel 1, which once timed memory refresh, is not connected. Channel 2
//! drives the speaker and can be read at port 61h ([`super::speaker_port`]). All times are
//! multiples of the input clock's period, counted from guest time zero: guest time is converted to
//! ticks, never accumulated.
//!
//! After [`Pit::new`] no channel counts, as after power-on of the chip.

mod channel;
mod mode;

use channel::Channel;
use mode::Tick;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use tollgate_platform::GuestTime;

use crate::board::IrqLine;

/// Frequency of the input clock in hertz.
pub const FREQUENCY: u64 = 1_193_182;

/// The number of nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// The port of the control word register. The ports before it are the counters.
const CONTROL: u16 = 0x43;

// The control word (8254 data sheet, "Control Word Format", "Read-Back Command").
const SELECT_SHIFT: u8 = 6;
const SELECT_READ_BACK: u8 = 3;
const ACCESS_MASK: u8 = 3 << 4;
const READ_BACK_NO_COUNT: u8 = 1 << 5;
const READ_BACK_NO_STATUS: u8 = 1 << 4;

/// Returns the whole clock pulses from guest time zero to `now`. Seconds and the remainder are
/// converted separately, so that all products fit in 64 bits.
pub(super) const fn ticks_at(now: GuestTime) -> i64 {
    let (seconds, rest) = (now.0 / SECOND, now.0 % SECOND);
    (seconds * FREQUENCY + rest * FREQUENCY / SECOND) as i64
}

/// Returns the first nanosecond at which `ticks_at` returns `tick`.
const fn time_of(tick: Tick) -> GuestTime {
    let ticks = if tick > 0 { tick.unsigned_abs() } else { 0 };
    let (seconds, rest) = (ticks / FREQUENCY, ticks % FREQUENCY);
    GuestTime(seconds.saturating_mul(SECOND)).after((rest * SECOND).div_ceil(FREQUENCY))
}

/// The timer chip.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pit {
    channels: [Channel; 3],
    irq: IrqLine,
}

impl Default for Pit {
    fn default() -> Self {
        Self::new()
    }
}

impl Pit {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// Ports of the three counters and the control word.
    pub const PORTS: RangeInclusive<u16> = 0x40..=0x43;

    /// The ISA interrupt line that channel 0's output drives.
    pub const IRQ: u8 = 0;

    /// Makes a timer on which nothing has been programmed. The gates of channels 0 and 1 are tied
    /// high; that of channel 2 is low until port 61h raises it.
    pub fn new() -> Self {
        Self {
            channels: [Channel::new(true), Channel::new(true), Channel::new(false)],
            irq: IrqLine::default(),
        }
    }

    /// Reads a counter or its latched value. The control word cannot be read and returns FFh, as
    /// does any other port.
    pub fn read(&mut self, port: u16, now: GuestTime) -> u8 {
        self.advance(now);
        let tick = ticks_at(now);
        match Self::channel_of(port) {
            Some(index) => self.channels[index].read(tick),
            None => 0xFF,
        }
    }

    /// Writes a counter or the control word.
    pub fn write(&mut self, port: u16, value: u8, now: GuestTime) {
        let tick = ticks_at(now);
        if port == CONTROL {
            self.write_control(value, tick);
        } else if let Some(index) = Self::channel_of(port) {
            self.channels[index].write(value, tick);
        }
        self.advance(now);
    }

    fn write_control(&mut self, value: u8, tick: Tick) {
        let select = value >> SELECT_SHIFT;
        if select == SELECT_READ_BACK {
            for (index, channel) in self.channels.iter_mut().enumerate() {
                if value & (2 << index) == 0 {
                    continue;
                }
                if value & READ_BACK_NO_COUNT == 0 {
                    channel.latch_count(tick);
                }
                if value & READ_BACK_NO_STATUS == 0 {
                    channel.latch_status(tick);
                }
            }
            return;
        }
        let channel = &mut self.channels[usize::from(select)];
        if value & ACCESS_MASK == 0 {
            channel.latch_count(tick);
        } else {
            channel.set_control(value, tick);
        }
    }

    /// Whether a write changes the counting of channel 0; latching its count does not.
    pub const fn sets_timer_interrupt(port: u16, value: u8) -> bool {
        match port {
            0x40 => true,
            CONTROL => value >> SELECT_SHIFT == 0 && value & ACCESS_MASK != 0,
            _ => false,
        }
    }

    const fn channel_of(port: u16) -> Option<usize> {
        match port {
            0x40 => Some(0),
            0x41 => Some(1),
            0x42 => Some(2),
            _ => None,
        }
    }

    /// Drives the gate of channel 2 (port 61h bit 0).
    pub fn set_gate2(&mut self, gate: bool, now: GuestTime) {
        self.channels[2].set_gate(gate, ticks_at(now));
    }

    /// Returns the output of channel 2 (port 61h bit 5).
    pub fn output2(&mut self, now: GuestTime) -> bool {
        let tick = ticks_at(now);
        self.channels[2].settle(tick);
        self.channels[2].output(tick)
    }

    /// Returns when channel 0's output rises next after the last call with a time. That time may
    /// have passed, so that no single rise is missed.
    pub fn next_deadline(&self) -> Option<GuestTime> {
        self.channels[0].next_rise().map(time_of)
    }

    /// Counts the edges of channel 0's output up to `now`.
    pub fn advance(&mut self, now: GuestTime) {
        let tick = ticks_at(now);
        let channel = &mut self.channels[0];
        channel.settle(tick);
        let rises = channel.take_rises();
        self.irq.record(rises, channel.output(tick));
    }

    /// Returns the level of IRQ 0 at the last access or advance.
    pub fn irq(&self) -> bool {
        self.irq.level()
    }

    /// Returns the line of IRQ 0 with its uncollected rising edges.
    pub fn irq_line(&mut self) -> &mut IrqLine {
        &mut self.irq
    }
}

#[cfg(test)]
mod tests;
