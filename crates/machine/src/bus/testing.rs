//! A board for the tests of devices.

use super::DeviceContext;
use crate::board::{Board, Console, GuestClock};
use std::io;
use tollgate_memory::GuestMemory;
use tollgate_platform::GuestTime;

/// The writes that program the 8259 pair: vectors from 20h and 28h, all lines unmasked.
pub const PIC_PROGRAM: [(u16, u8); 10] = [
    (0x20, 0x11),
    (0x21, 0x20),
    (0x21, 4),
    (0x21, 1),
    (0xa0, 0x11),
    (0xa1, 0x28),
    (0xa1, 2),
    (0xa1, 1),
    (0x21, 0),
    (0xa1, 0),
];

/// A board without a bus, whose time the test sets.
pub struct Bench {
    pub board: Board,
    pub clock: GuestClock,
}

impl Bench {
    pub fn new() -> Self {
        let memory = GuestMemory::new(1 << 20).unwrap();
        let console = || Console::new(Box::new(io::sink()));
        Self {
            board: Board::new(memory, console(), console()),
            clock: GuestClock::paused_at(GuestTime(0), 0),
        }
    }

    /// Returns the context of a device in `slot` of the bus.
    pub fn context(&mut self, slot: u8) -> DeviceContext<'_> {
        DeviceContext::new(&mut self.board, &self.clock, slot)
    }
}
