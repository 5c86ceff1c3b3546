//! The two 8237A DMA controllers of the AT, with their page registers (Intel 8237A data sheet; IBM
//! PC AT Technical Reference, "System Board: DMA").
//!
//! ```text
//!   channels 0 to 3   first controller, bytes     address = page << 16 | current address
//!   channel 4         leads to the first controller
//!   channels 5 to 7   second controller, words    address = (page & FEh) << 16 | address << 1
//! ```
//!
//! The controllers belong to the board, because devices on the bus use them. A device that wants
//! its bytes transferred calls [`DmaControllers::to_memory`] or [`DmaControllers::from_memory`]
//! with all bytes that it has or has room for. It gets back how many were transferred, and whether
//! the count reached its end. The processor programs the controllers through [`ports::DmaPorts`].
//!
//! A transfer takes no time. Software requests and transfers between two memory locations are not
//! implemented, because the AT's wiring has no use for them.

mod controller;
#[cfg(test)]
mod tests;

use controller::{Controller, Direction, Kind};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;

/// The result of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// The number of transferred bytes, from the first one on.
    pub bytes: usize,
    /// Whether the count reached its end with the last byte (TC).
    pub terminal_count: bool,
}

/// Both controllers and the page registers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DmaControllers {
    controllers: [Controller; 2],
    /// The page registers at ports 81h to 8Fh, by the lowest four bits of the port. The first
    /// element is unused.
    pages: [u8; 16],
}

impl DmaControllers {
    /// The registers of the first controller.
    pub const FIRST_PORTS: RangeInclusive<u16> = 0x00..=0x0f;
    /// The registers of the second controller, two ports each.
    pub const SECOND_PORTS: RangeInclusive<u16> = 0xc0..=0xdf;
    /// The page registers, and some bytes that are stored without effect. Port 80h shows POST
    /// codes.
    pub const PAGE_PORTS: RangeInclusive<u16> = 0x81..=0x8f;

    /// Makes the controllers as firmware leaves them: the second one passes requests of the first.
    pub fn cascaded() -> Self {
        let mut dma = Self::default();
        dma.write(0xd6, 0xc0);
        dma.write(0xd4, 0);
        dma
    }

    /// Reads a port.
    pub fn read(&mut self, port: u16) -> u8 {
        match port {
            0x00..=0x0f => self.controllers[0].read(port as u8),
            0xc0..=0xdf => self.controllers[1].read((port as u8 & 0x1f) >> 1),
            0x81..=0x8f => self.pages[usize::from(port & 0xf)],
            _ => 0xff,
        }
    }

    /// Writes a port.
    pub fn write(&mut self, port: u16, value: u8) {
        match port {
            0x00..=0x0f => self.controllers[0].write(port as u8, value),
            0xc0..=0xdf => self.controllers[1].write((port as u8 & 0x1f) >> 1, value),
            0x81..=0x8f => self.pages[usize::from(port & 0xf)] = value,
            _ => {}
        }
    }

    /// Asserts or releases DREQ of a channel, 0 to 7, on behalf of its device. The status registers
    /// show it.
    pub fn request(&mut self, channel: u8, requested: bool) {
        self.controllers[usize::from(channel >> 2 & 1)].request(channel & 3, requested);
    }

    /// Whether a request of a channel, 0 to 7, would be served now: the controllers are enabled,
    /// and neither the channel nor the cascade to the first controller is masked.
    pub fn is_open(&self, channel: u8) -> bool {
        let [first, second] = &self.controllers;
        match channel {
            0..=3 => first.is_open(channel) && second.lets_first_through(),
            5..=7 => second.is_open(channel & 3),
            _ => false,
        }
    }

    /// Transfers bytes of a channel's device to memory. Nothing is transferred while the channel is
    /// not open. A channel that is programmed for the other direction, or to verify, counts without
    /// transferring.
    pub fn to_memory(&mut self, channel: u8, data: &[u8], memory: &mut GuestMemory) -> Moved {
        self.run(channel, data.len(), |kind, place, range| {
            if kind == Kind::ToMemory {
                write(memory, place, &data[range]);
            }
        })
    }

    /// Transfers bytes from memory to a channel's device. Bytes without memory are ones, and so are
    /// all bytes if the channel is programmed for another kind of transfer.
    pub fn from_memory(&mut self, channel: u8, data: &mut [u8], memory: &GuestMemory) -> Moved {
        self.run(channel, data.len(), |kind, place, range| {
            let data = &mut data[range];
            data.fill(0xff);
            if kind == Kind::FromMemory {
                read(memory, place, data);
            }
        })
    }

    /// Advances a channel until the device has no more bytes or the channel's count is exhausted, and
    /// passes each run of consecutive addresses to `each`.
    fn run(
        &mut self,
        channel: u8,
        bytes: usize,
        mut each: impl FnMut(Kind, Place, std::ops::Range<usize>),
    ) -> Moved {
        let mut moved = Moved::default();
        if !self.is_open(channel) {
            return moved;
        }
        let page = self.pages[PAGE_OF_CHANNEL[usize::from(channel & 7)]];
        let is_wide = channel > 3;
        let unit = if is_wide { 2 } else { 1 };
        let controller = &mut self.controllers[usize::from(is_wide)];
        while moved.bytes + unit <= bytes && !moved.terminal_count {
            let run = controller.next_run(channel & 3, (bytes - moved.bytes) / unit);
            let place = Place {
                first: match is_wide {
                    false => u64::from(page) << 16 | u64::from(run.first),
                    true => u64::from(page & 0xfe) << 16 | u64::from(run.first) << 1,
                },
                unit,
                direction: run.direction,
            };
            let end = moved.bytes + run.units * unit;
            each(run.kind, place, moved.bytes..end);
            moved.bytes = end;
            moved.terminal_count = run.terminal_count;
            // An autoinitialized channel could continue, but the device has been notified of the
            // end.
        }
        moved
    }
}

/// The page register of each channel, by the lowest four bits of its port.
const PAGE_OF_CHANNEL: [usize; 8] = [7, 3, 1, 2, 0xf, 0xb, 9, 0xa];

/// The place of a run of units in memory.
#[derive(Clone, Copy)]
struct Place {
    first: u64,
    /// The size of a unit in bytes.
    unit: usize,
    direction: Direction,
}

impl Place {
    /// Returns the address of each unit if addresses decrease.
    fn backwards(
        self,
        bytes: usize,
    ) -> impl Iterator<Item = (PhysicalAddress, std::ops::Range<usize>)> {
        (0..bytes / self.unit).map(move |index| {
            let offset = index * self.unit;
            let address = self.first.wrapping_sub(offset as u64);
            (PhysicalAddress(address), offset..offset + self.unit)
        })
    }
}

/// The maximum number of bytes that are transferred together. If a piece has no memory, the pieces
/// next to it must not be lost.
const PIECE: usize = 4096;

fn write(memory: &mut GuestMemory, place: Place, data: &[u8]) {
    match place.direction {
        Direction::Up => {
            let mut address = place.first;
            for piece in pieces(place.first, data.len()) {
                // Bytes for addresses without memory are lost, as on the bus.
                memory.write(PhysicalAddress(address), &data[piece.clone()]);
                address += piece.len() as u64;
            }
        }
        Direction::Down => place.backwards(data.len()).for_each(|(address, range)| {
            memory.write(address, &data[range]);
        }),
    }
}

fn read(memory: &GuestMemory, place: Place, data: &mut [u8]) {
    match place.direction {
        Direction::Up => {
            let mut address = place.first;
            for piece in pieces(place.first, data.len()) {
                memory.read(PhysicalAddress(address), &mut data[piece.clone()]);
                address += piece.len() as u64;
            }
        }
        Direction::Down => place.backwards(data.len()).for_each(|(address, range)| {
            memory.read(address, &mut data[range]);
        }),
    }
}

/// Splits `bytes` bytes from an address on into pieces that lie in one page each.
fn pieces(first: u64, bytes: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let room = PIECE - ((first + start as u64) as usize & (PIECE - 1));
        let end = bytes.min(start + room);
        let piece = start..end;
        start = end;
        (!piece.is_empty()).then_some(piece)
    })
}
