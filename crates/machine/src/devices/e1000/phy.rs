//! The transceiver between the adapter and its cable: a Marvell 88E1011 with a link that is always up (manual 317453,
//! section 13.4.4, and IEEE 802.3, clause 22).

use serde::{Deserialize, Serialize};

/// Bits of the register through which the transceiver's registers are reached.
mod mdi {
    pub const WRITE: u32 = 1 << 26;
    pub const READ: u32 = 2 << 26;
    pub const OPERATION: u32 = 3 << 26;
    pub const READY: u32 = 1 << 28;
    pub const INTERRUPT: u32 = 1 << 29;
    pub const ERROR: u32 = 1 << 30;
}

/// The transceiver's address.
const ADDRESS: u32 = 1;
/// The number of registers.
const REGISTERS: usize = 32;
/// Register 0: control.
const CONTROL: usize = 0;
/// In it: reset, and a new negotiation; both are over at once.
const CONTROL_PASSING: u16 = 1 << 15 | 1 << 9;

/// What the registers hold after a reset: number and value.
const AFTER_RESET: &[(usize, u16)] = &[
    // Negotiates, full duplex, 1000 Mbit/s.
    (CONTROL, 0x1140),
    // The link is up, and the negotiation is over.
    (1, 0x796d),
    (2, 0x0141),
    (3, 0x0c20),
    // What is offered, and what the other end offers.
    (4, 0x0de1),
    (5, 0x41e0),
    (9, 0x0e00),
    (10, 0x3c00),
    (15, 0x3000),
    // Marvell's own: control, status (1000 Mbit/s, full duplex, resolved, link), extended control.
    (16, 0x0360),
    (17, 0xac00),
    (20, 0x0d60),
];

/// The registers that the driver may change.
const WRITABLE: &[usize] = &[CONTROL, 4, 7, 9, 16, 18, 20, 24, 29, 30];

/// A transceiver, by its registers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Phy([u16; REGISTERS]);

impl Default for Phy {
    fn default() -> Self {
        let mut registers = [0; REGISTERS];
        for (number, value) in AFTER_RESET {
            registers[*number] = *value;
        }
        Self(registers)
    }
}

impl Phy {
    /// Carries out what is written to the adapter's register. Returns what the register then holds,
    /// and whether an interrupt is wanted.
    pub fn order(&mut self, value: u32) -> (u32, bool) {
        let number = (value >> 16) as usize % REGISTERS;
        let is_there = value >> 21 & 0x1f == ADDRESS;
        let operation = value & mdi::OPERATION;
        let wants = value & mdi::INTERRUPT != 0;
        let value = value & !(mdi::READY | mdi::ERROR);
        let result = match (is_there, operation) {
            (true, mdi::READ) => value & !0xffff | u32::from(self.0[number]),
            (true, mdi::WRITE) => {
                self.write(number, value as u16);
                value
            }
            _ => value | mdi::ERROR,
        };
        (result | mdi::READY, wants)
    }

    fn write(&mut self, number: usize, value: u16) {
        if number == CONTROL && value & 1 << 15 != 0 {
            *self = Self::default();
        }
        if WRITABLE.contains(&number) {
            self.0[number] = match number {
                CONTROL => value & !CONTROL_PASSING,
                _ => value,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(phy: &mut Phy, operation: u32, number: u32, value: u32) -> u32 {
        phy.order(operation | ADDRESS << 21 | number << 16 | value)
            .0
    }

    #[test]
    fn a_driver_finds_a_transceiver_with_a_link() {
        let mut phy = Phy::default();
        assert_eq!(order(&mut phy, mdi::READ, 2, 0) & 0xffff, 0x0141);
        assert_ne!(order(&mut phy, mdi::READ, 1, 0) & 1 << 2, 0);
        // A reset and a negotiation are over when they are read again.
        order(&mut phy, mdi::WRITE, 0, 0x9340);
        let control = order(&mut phy, mdi::READ, 0, 0);
        assert_eq!(control & 0xffff, 0x1140);
        assert_ne!(control & mdi::READY, 0);
        order(&mut phy, mdi::WRITE, 1, 0);
        assert_ne!(
            order(&mut phy, mdi::READ, 1, 0) & 1 << 2,
            0,
            "status is read only"
        );
    }

    #[test]
    fn no_other_transceiver_answers() {
        let (value, _) = Phy::default().order(mdi::READ | 2 << 21);
        assert_ne!(value & mdi::ERROR, 0);
    }
}
