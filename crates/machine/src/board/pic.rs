//! The pair of 8259A interrupt controllers, with the slave at input 2 of the master, and the
//! edge/level control registers (ELCR) that the PCI chip sets added.
//!
//! An edge-triggered request stays latched until it is acknowledged, as in the chip sets that Linux
//! knows; the stand-alone 8259A drops it if the line falls first. A level-triggered request, and
//! that of the cascade, has the level of its line: if it disappears before the acknowledge, the
//! processor gets the spurious vector (7 of the chip) and nothing is in service.
//!
//! After [`Pic::new`] all inputs are masked until the guest initializes the chips.
//! [`Pic::as_firmware_leaves_it`] is for guests that are started without firmware.

mod chip;

use chip::Chip;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// The master's input to which the slave is connected.
const CASCADE: u8 = 2;
/// The vector of a request that has disappeared, relative to the chip's base.
const SPURIOUS: u8 = 7;

const MASTER_COMMAND: u16 = 0x20;
const MASTER_DATA: u16 = 0x21;
const SLAVE_COMMAND: u16 = 0xA0;
const SLAVE_DATA: u16 = 0xA1;
const MASTER_EDGE_LEVEL: u16 = 0x4D0;
const SLAVE_EDGE_LEVEL: u16 = 0x4D1;

/// The writable ELCR bits: IRQ 0, 1, 2, 8 and 13 are always edge-triggered.
const MASTER_EDGE_LEVEL_WRITABLE: u8 = 0xF8;
const SLAVE_EDGE_LEVEL_WRITABLE: u8 = 0xDE;

/// Both interrupt controllers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pic {
    master: Chip,
    slave: Chip,
}

impl Default for Pic {
    fn default() -> Self {
        Self::new()
    }
}

impl Pic {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// The master's ports.
    pub const MASTER_PORTS: RangeInclusive<u16> = 0x20..=0x21;
    /// The slave's ports.
    pub const SLAVE_PORTS: RangeInclusive<u16> = 0xA0..=0xA1;
    /// The edge/level control registers.
    pub const EDGE_LEVEL_PORTS: RangeInclusive<u16> = 0x4D0..=0x4D1;

    /// The registers of both chips, a line each, the slave first.
    pub fn described(&self) -> String {
        let (slave, master) = (self.slave.described(), self.master.described());
        format!("pic1: {slave}\npic0: {master}\n")
    }

    /// Makes two chips with every input masked.
    pub const fn new() -> Self {
        Self {
            master: Chip::new(1 << CASCADE),
            slave: Chip::new(0),
        }
    }

    /// Makes two chips as SeaBIOS and other firmware leave them: vectors 08h and 70h, with timer,
    /// keyboard, floppy drives, clock, mouse and disks unmasked.
    pub fn as_firmware_leaves_it() -> Self {
        const INITIALIZE: u8 = 0x11;
        const PROCESSOR_8086: u8 = 0x01;
        const SLAVE_AT_2: [u8; 2] = [1 << CASCADE, CASCADE];
        let mut pic = Self::new();
        for (chip, (command, data)) in [(MASTER_COMMAND, MASTER_DATA), (SLAVE_COMMAND, SLAVE_DATA)]
            .into_iter()
            .enumerate()
        {
            let (vectors, mask) = [(0x08, 0xb8), (0x70, 0x8e)][chip];
            pic.write(command, INITIALIZE);
            for value in [vectors, SLAVE_AT_2[chip], PROCESSOR_8086, mask] {
                pic.write(data, value);
            }
        }
        pic
    }

    /// Drives ISA interrupt line `irq`, 0 to 15. Line 2 is the cascade and cannot be
    /// driven; it and lines above 15 are ignored.
    pub fn set_line(&mut self, irq: u8, level: bool) {
        match irq {
            CASCADE => {}
            0..=7 => self.master.set_line(irq, level),
            8..=15 => self.slave.set_line(irq - 8, level),
            _ => {}
        }
        self.update_cascade();
    }

    /// Returns INTR: whether an interrupt is pending for the processor.
    pub fn pending(&self) -> bool {
        self.master.next_request().is_some()
    }

    /// Performs the processor's interrupt acknowledge cycle and returns the vector. If the request
    /// has been withdrawn, that is the spurious vector of the chip that made it.
    pub fn acknowledge(&mut self) -> u8 {
        let Some(input) = self.master.next_request() else {
            return self.master.vector(SPURIOUS);
        };
        self.master.begin_service(input);
        if input != CASCADE {
            return self.master.vector(input);
        }
        let vector = match self.slave.next_request() {
            Some(input) => {
                self.slave.begin_service(input);
                self.slave.vector(input)
            }
            None => self.slave.vector(SPURIOUS),
        };
        self.update_cascade();
        vector
    }

    fn update_cascade(&mut self) {
        let requests = self.slave.next_request().is_some();
        self.master.set_line(CASCADE, requests);
    }

    /// Reads a port. A read after the poll command acknowledges the interrupt that it reports. Any
    /// other port returns FFh.
    pub fn read(&mut self, port: u16) -> u8 {
        let chip = match port {
            MASTER_COMMAND | MASTER_DATA => &mut self.master,
            SLAVE_COMMAND | SLAVE_DATA => &mut self.slave,
            MASTER_EDGE_LEVEL => return self.master.edge_level(),
            SLAVE_EDGE_LEVEL => return self.slave.edge_level(),
            _ => return 0xFF,
        };
        if chip.take_poll() {
            let value = chip.poll_read();
            self.update_cascade();
            return value;
        }
        if port & 1 == 0 {
            chip.read_status()
        } else {
            chip.read_mask()
        }
    }

    /// Writes a port.
    pub fn write(&mut self, port: u16, value: u8) {
        match port {
            MASTER_COMMAND => self.master.write_command(value),
            MASTER_DATA => self.master.write_data(value),
            SLAVE_COMMAND => self.slave.write_command(value),
            SLAVE_DATA => self.slave.write_data(value),
            MASTER_EDGE_LEVEL => self
                .master
                .set_edge_level(value & MASTER_EDGE_LEVEL_WRITABLE),
            SLAVE_EDGE_LEVEL => self.slave.set_edge_level(value & SLAVE_EDGE_LEVEL_WRITABLE),
            _ => {}
        }
        self.update_cascade();
    }
}

#[cfg(test)]
mod tests;
