//! Port 61h, system control port B: the speaker, channel 2's gate and output, and the memory
//! refresh toggle that delay loops of the AT count.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use tollgate_platform::GuestTime;

use super::pit::{self, Pit};

bitflags! {
    /// Bits of port 61h.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    struct Control: u8 {
        /// Gate of timer channel 2.
        const TIMER_2_GATE = 1 << 0;
        /// Connects channel 2's output to the speaker.
        const SPEAKER_DATA = 1 << 1;
        /// Disables SERR# / parity errors.
        const PARITY_CHECK_DISABLE = 1 << 2;
        /// Disables IOCHK#.
        const CHANNEL_CHECK_DISABLE = 1 << 3;
        /// Read-only bit that toggles with each refresh request.
        const REFRESH_TOGGLE = 1 << 4;
        /// Read-only bit: output of timer channel 2.
        const TIMER_2_OUTPUT = 1 << 5;
        const WRITABLE = 0x0F;
    }
}

/// The number of the timer's clock pulses between two refresh requests (15.085 us).
const REFRESH_PERIOD: i64 = 18;

/// System control port B. None of the errors that it could report ever occurs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SpeakerPort {
    control: Control,
}

impl Default for SpeakerPort {
    fn default() -> Self {
        Self::new()
    }
}

impl SpeakerPort {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;
    /// The I/O port of the register.
    /// The port.
    pub const PORTS: RangeInclusive<u16> = 0x61..=0x61;

    /// Makes the port in its state after reset: gate low, speaker off.
    pub const fn new() -> Self {
        Self {
            control: Control::empty(),
        }
    }

    /// Reads port 61h.
    pub fn read(&self, pit: &mut Pit, now: GuestTime) -> u8 {
        let mut value = self.control & Control::WRITABLE;
        // The toggle depends only on the time, because no working guest reprograms channel 1.
        let refreshes = pit::ticks_at(now) / REFRESH_PERIOD;
        value.set(Control::REFRESH_TOGGLE, refreshes & 1 != 0);
        value.set(Control::TIMER_2_OUTPUT, pit.output2(now));
        value.bits()
    }

    /// Writes port 61h, which also sets the gate of channel 2.
    pub fn write(&mut self, value: u8, pit: &mut Pit, now: GuestTime) {
        self.control = Control::from_bits_truncate(value) & Control::WRITABLE;
        pit.set_gate2(self.control.contains(Control::TIMER_2_GATE), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_nibble_is_read_back_and_the_rest_is_not_writable() {
        let (mut port, mut pit) = (SpeakerPort::new(), Pit::new());
        port.write(0xCF, &mut pit, GuestTime(0));
        assert_eq!(port.read(&mut pit, GuestTime(0)) & 0xCF, 0x0F);
        assert!(port.control.contains(Control::SPEAKER_DATA));
    }

    #[test]
    fn channel_2_counts_down_through_port_61h() {
        let (mut port, mut pit) = (SpeakerPort::new(), Pit::new());
        port.write(0x01, &mut pit, GuestTime(0));
        pit.write(0x43, 0xB0, GuestTime(0));
        pit.write(0x42, 0xA9, GuestTime(0));
        pit.write(0x42, 0x04, GuestTime(0));
        // 04A9h are 1193 ticks, slightly less than a millisecond.
        assert_eq!(port.read(&mut pit, GuestTime(990_000)) & 0x20, 0);
        assert_eq!(port.read(&mut pit, GuestTime(1_001_000)) & 0x20, 0x20);
    }

    #[test]
    fn the_refresh_bit_toggles_every_15_microseconds() {
        let (port, mut pit) = (SpeakerPort::new(), Pit::new());
        let toggles = (0..1000)
            .map(|us| port.read(&mut pit, GuestTime(us * 1000)) & 0x10)
            .collect::<Vec<_>>()
            .windows(2)
            .filter(|pair| pair[0] != pair[1])
            .count();
        assert_eq!(toggles, 66);
    }
}
