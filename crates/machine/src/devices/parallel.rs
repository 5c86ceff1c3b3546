//! The parallel port of a printer (LPT1): what the guest prints is output; the printer is always ready.
//!
//! A program writes a byte to the data register, waits until the printer is not busy, and pulses STROBE
//! (IEEE 1284, compatibility mode). The printer takes the byte when STROBE becomes active.

use crate::bus::{Claims, Device, DeviceContext, SavedState, StateError};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// The ports of LPT1: data, status, control.
pub const PORTS: RangeInclusive<u16> = 0x378..=0x37a;

const DATA: u16 = 0;
const STATUS: u16 = 1;
/// Not busy, no acknowledgement, with paper, selected, without error.
const READY: u8 = 0x80 | 0x40 | 0x10 | 0x08;
const STROBE: u8 = 1 << 0;
/// The bits of the control register that are stored; the others read as one.
const CONTROL: u8 = 0x3f;

/// A parallel port with a printer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Parallel {
    data: u8,
    control: u8,
}

impl Parallel {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// Reads a register.
    const fn read(&self, register: u16) -> u8 {
        match register {
            DATA => self.data,
            STATUS => READY,
            _ => self.control | !CONTROL,
        }
    }

    /// Writes a register. Returns the byte that the printer takes.
    const fn write(&mut self, register: u16, value: u8) -> Option<u8> {
        match register {
            DATA => self.data = value,
            STATUS => {}
            _ => {
                let was_active = self.control & STROBE != 0;
                self.control = value & CONTROL;
                if !was_active && value & STROBE != 0 {
                    return Some(self.data);
                }
            }
        }
        None
    }
}

impl Device for Parallel {
    fn name(&self) -> &str {
        "lpt1"
    }

    fn claims(&self) -> Claims {
        Claims::none().with_byte_ports(PORTS)
    }

    fn port_read(&mut self, port: u16, _size: u8, _context: &mut DeviceContext<'_>) -> u32 {
        self.read(port - PORTS.start()).into()
    }

    fn port_write(&mut self, port: u16, _size: u8, value: u32, context: &mut DeviceContext<'_>) {
        if let Some(byte) = self.write(port - PORTS.start(), value as u8) {
            context.printer_output(byte);
        }
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        *self = Self::default();
    }

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        *self = saved.read(Self::STATE_VERSION)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printer_takes_a_byte_when_strobe_becomes_active() {
        let mut port = Parallel::default();
        assert_eq!(port.read(STATUS) & 0x80, 0x80);
        assert_eq!(port.write(DATA, b'a'), None);
        assert_eq!(port.read(DATA), b'a');
        assert_eq!(port.write(2, 0x0c), None);
        assert_eq!(port.write(2, 0x0d), Some(b'a'));
        assert_eq!(port.write(2, 0x0d), None);
        assert_eq!(port.read(2), 0xcd);
    }
}
