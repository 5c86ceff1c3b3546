//! The bus master of a channel, which moves a device's bytes to and from the parts of memory in a
//! list of descriptors (82371SB data sheet, 2.7, "Bus Master IDE").

use super::registers::{
    MASTER_ACTIVE, MASTER_CAPABLE, MASTER_ERROR, MASTER_INTERRUPT, MASTER_START, MASTER_TO_MEMORY,
};
use serde::{Deserialize, Serialize};
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;

/// The size of a descriptor in bytes: an address, a length, and whether it is the last.
const DESCRIPTOR_BYTES: u32 = 8;
/// In a length: the list ends here.
const LAST: u32 = 1 << 31;

/// The registers of one channel, and the position in its list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BusMaster {
    command: u8,
    status: u8,
    table: u32,
    /// The address of the next descriptor.
    next: u32,
    /// The rest of the present part of memory.
    address: u32,
    left: u32,
    is_last: bool,
}

/// Why no more bytes are moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stopped {
    /// All bytes were moved.
    Done,
    /// The bus master is stopped, or its list has ended: the device waits.
    Waits,
}

impl BusMaster {
    /// Reads a byte at offset 0 to 7.
    pub fn read(&self, offset: u8) -> u8 {
        match offset {
            0 => self.command,
            2 => self.status,
            4..=7 => (self.table >> (8 * (offset - 4))) as u8,
            _ => 0,
        }
    }

    /// Writes a byte at offset 0 to 7.
    pub fn write(&mut self, offset: u8, value: u8) {
        match offset {
            0 => {
                let started = value & MASTER_START != 0 && self.command & MASTER_START == 0;
                self.command = value & (MASTER_START | MASTER_TO_MEMORY);
                if started {
                    self.status |= MASTER_ACTIVE;
                    self.next = self.table;
                    (self.left, self.is_last) = (0, false);
                } else if value & MASTER_START == 0 {
                    self.status &= !MASTER_ACTIVE;
                }
            }
            2 => {
                self.status &= !(value & (MASTER_ERROR | MASTER_INTERRUPT));
                self.status = self.status & !MASTER_CAPABLE | value & MASTER_CAPABLE;
            }
            4..=7 => {
                let shift = 8 * (offset - 4);
                let table = self.table & !(0xff << shift) | u32::from(value) << shift;
                self.table = table & !3;
            }
            _ => {}
        }
    }

    /// Records that the device has requested an interrupt.
    pub const fn note_interrupt(&mut self) {
        self.status |= MASTER_INTERRUPT;
    }

    /// Moves bytes of the device to memory, beginning at `moved`, or in the other direction if the
    /// device wants data.
    pub fn run(
        &mut self,
        data: &mut [u8],
        moved: &mut usize,
        to_memory: bool,
        memory: &mut GuestMemory,
    ) -> Stopped {
        let is_right_way = (self.command & MASTER_TO_MEMORY != 0) == to_memory;
        while *moved < data.len() {
            if self.status & MASTER_ACTIVE == 0 || !is_right_way {
                return Stopped::Waits;
            }
            if self.left == 0 && !self.load(memory) {
                return Stopped::Waits;
            }
            // Each page is moved separately, so that a hole in memory loses no other bytes.
            let to_page_end = 0x1000 - (self.address & 0xfff);
            let rest = data.len() - *moved;
            let bytes = self.left.min(to_page_end).min(rest.min(0x1000) as u32);
            let part = &mut data[*moved..*moved + bytes as usize];
            let address = PhysicalAddress(self.address.into());
            if to_memory {
                memory.write(address, part);
            } else if !memory.read(address, part) {
                part.fill(0xff);
            }
            *moved += bytes as usize;
            self.address = self.address.wrapping_add(bytes);
            self.left -= bytes;
        }
        if self.left == 0 && self.is_last {
            self.status &= !MASTER_ACTIVE;
        }
        Stopped::Done
    }

    /// Loads the next descriptor. Returns false if there is none.
    fn load(&mut self, memory: &GuestMemory) -> bool {
        let mut descriptor = [0; DESCRIPTOR_BYTES as usize];
        if self.is_last {
            self.status &= !MASTER_ACTIVE;
            return false;
        }
        if !memory.read(PhysicalAddress(self.next.into()), &mut descriptor) {
            self.status = self.status & !MASTER_ACTIVE | MASTER_ERROR;
            return false;
        }
        let [a0, a1, a2, a3, l0, l1, l2, l3] = descriptor;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        self.next = self.next.wrapping_add(DESCRIPTOR_BYTES);
        self.address = u32::from_le_bytes([a0, a1, a2, a3]) & !1;
        self.left = match length & 0xfffe {
            0 => 0x1_0000,
            bytes => bytes,
        };
        self.is_last = length & LAST != 0;
        true
    }
}
