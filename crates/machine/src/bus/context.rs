//! What a device may touch during a call.

use super::board::Board;
use super::clock::GuestClock;
use super::interrupts::Interrupts;
use super::message;
use crate::devices::IrqLine;
use crate::devices::dma::{DmaControllers, Moved};
use crate::devices::fpu_error::FpuError;
use crate::devices::i8042::{Key, MouseEvent};
use crate::devices::local_apic::{Clock, REGISTER_BYTES};
use std::cell::Cell;
use tollgate_memory::{GuestMemory, Region, RegionKind};
use tollgate_platform::{GuestTime, StopRequest};
use tollgate_x86::PhysicalAddress;

/// The machine as one device sees it during one call.
pub struct DeviceContext<'a> {
    board: &'a mut Board,
    clock: &'a GuestClock,
    /// The present, once the device has asked for it.
    now: Cell<Option<GuestTime>>,
    /// The device's place on the bus, which tells its drive of a shared line from others'.
    slot: u8,
    claims_changed: bool,
}

impl<'a> DeviceContext<'a> {
    /// For the device in `slot` of the bus.
    pub(super) const fn new(board: &'a mut Board, clock: &'a GuestClock, slot: u8) -> Self {
        Self {
            board,
            clock,
            now: Cell::new(None),
            slot,
            claims_changed: false,
        }
    }

    /// Guest time; the same during one call. Reading it costs some 25 ns the first time.
    pub fn now(&self) -> GuestTime {
        self.now.get().unwrap_or_else(|| {
            let now = self.clock.now();
            self.now.set(Some(now));
            now
        })
    }

    /// Guest time and the guest's time-stamp counter at the same moment.
    pub fn clock(&self) -> Clock {
        self.clock.paired()
    }

    /// Guest memory. Writes pass the gate, so that they may hit translated code.
    pub const fn memory(&mut self) -> &mut GuestMemory {
        &mut self.board.memory
    }

    /// Has a part of guest memory be as `region` says, but for the page where the processor
    /// reaches its local APIC: that is looked at first. A region that cannot be had is left out.
    pub fn place_region(&mut self, region: Region) {
        if self.board.memory.set_region(region).is_err() {
            return;
        }
        let apic = self.board.interrupts.local_apic.page();
        if let Some(page) = apic.filter(|page| page.wrapping_sub(region.start.0) < region.bytes) {
            // The page was part of what has just been set.
            let _ = self.board.memory.set_region(Region {
                start: PhysicalAddress(page),
                bytes: REGISTER_BYTES,
                kind: RegionKind::Device,
                block: None,
            });
        }
    }

    /// Drives an interrupt line: 0 to 15 are the ISA bus's, 16 to 23 lead to the I/O APIC
    /// alone; others do not exist. A line that several devices drive is asserted while any
    /// of them asserts it.
    pub fn set_line(&mut self, line: u8, asserted: bool) {
        self.board.interrupts.drive(self.slot, line, asserted);
    }

    /// Lines 0 and 8, of the 8254 and the real-time clock, are this device's alone, or again as
    /// usual.
    pub fn replace_legacy_lines(&mut self, replaces: bool) {
        self.board
            .interrupts
            .replace_legacy_lines(replaces.then_some(self.slot));
    }

    /// Hands a line on with the edges that it has collected. Returns how many there were;
    /// the controllers saw one for them all.
    pub fn forward(&mut self, number: u8, line: &mut IrqLine) -> u64 {
        line.forward(|asserted| self.set_line(number, asserted))
    }

    /// Sends a message-signalled interrupt: a write of `data` to `address`. False: no interrupt
    /// controller accepted it.
    pub fn send_message(&mut self, address: u64, data: u32) -> bool {
        message::decode(address, data)
            .is_some_and(|message| self.board.interrupts.deliver(&message))
    }

    /// Whether address line 20 is passed through.
    pub const fn a20(&self) -> bool {
        self.board.a20
    }

    /// Sets the gate of address line 20.
    pub const fn set_a20(&mut self, enabled: bool) {
        self.board.a20 = enabled;
    }

    /// Holds NMIs back, or lets them through.
    pub const fn set_nmi_masked(&mut self, masked: bool) {
        self.board.nmi_masked = masked;
    }

    /// Asks for the processor to stop. An earlier request stands.
    pub fn request_stop(&mut self, request: StopRequest) {
        self.board.request_stop(request);
    }

    /// Sends output of the first serial port on.
    pub fn serial_output(&mut self, bytes: &[u8]) {
        let now = self.now();
        self.board.serial_output.push(bytes, now);
    }

    /// Takes at most `room` bytes that were sent to the first serial port.
    pub fn serial_input(&mut self, room: usize) -> Vec<u8> {
        self.board.outside.serial_input(room)
    }

    /// Takes the oldest key that was pressed (true) or released from outside.
    pub fn key(&mut self) -> Option<(Key, bool)> {
        self.board.outside.key()
    }

    /// Takes the oldest thing that was done with the mouse from outside.
    pub fn mouse(&mut self) -> Option<MouseEvent> {
        self.board.outside.mouse()
    }

    /// Sends output of a debug console on.
    pub fn debug_output(&mut self, bytes: &[u8]) {
        let now = self.now();
        self.board.debug_output.push(bytes, now);
    }

    /// The device answers elsewhere from the end of this call on.
    pub const fn claims_changed(&mut self) {
        self.claims_changed = true;
    }

    pub(super) const fn has_changed_claims(&self) -> bool {
        self.claims_changed
    }

    /// The interrupt controllers, for their windows on the bus.
    pub(crate) const fn interrupts(&mut self) -> &mut Interrupts {
        &mut self.board.interrupts
    }

    /// The DMA controllers, for their ports and for the requests of devices.
    pub(crate) const fn dma(&mut self) -> &mut DmaControllers {
        &mut self.board.dma
    }

    /// Offers bytes to the DMA controller for memory, as the device of a channel.
    pub fn dma_to_memory(&mut self, channel: u8, data: &[u8]) -> Moved {
        let board = &mut *self.board;
        board.dma.to_memory(channel, data, &mut board.memory)
    }

    /// Asks the DMA controller for bytes from memory, as the device of a channel.
    pub fn dma_from_memory(&mut self, channel: u8, data: &mut [u8]) -> Moved {
        let board = &mut *self.board;
        board.dma.from_memory(channel, data, &board.memory)
    }

    /// The x87's error lines, for their ports.
    pub(crate) fn with_fpu_error(&mut self, change: impl FnOnce(&mut FpuError)) {
        change(&mut self.board.fpu_error);
        self.board.forward_fpu_error();
    }
}
