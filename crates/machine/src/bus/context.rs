//! The parts of the machine that a device may access during a call.

use crate::board::dma::{DmaControllers, Moved};
use crate::board::fpu_error::FpuError;
use crate::board::input::{Key, MouseEvent};
use crate::board::local_apic::{Clock, REGISTER_BYTES, message};
use crate::board::{Board, GuestClock, Interrupts, IrqLine};
use std::cell::Cell;
use tollgate_memory::{GuestMemory, Region, RegionKind};
use tollgate_platform::{GuestTime, StopRequest};
use tollgate_x86::PhysicalAddress;

/// The machine as one device sees it during one call.
pub struct DeviceContext<'a> {
    board: &'a mut Board,
    clock: &'a GuestClock,
    /// The present time, once the device has asked for it.
    now: Cell<Option<GuestTime>>,
    /// The device's slot on the bus, which distinguishes its contribution to a shared line from
    /// those of other devices.
    slot: u8,
    claims_changed: bool,
}

impl<'a> DeviceContext<'a> {
    /// Makes the context of the device in `slot` of the bus.
    pub(super) const fn new(board: &'a mut Board, clock: &'a GuestClock, slot: u8) -> Self {
        Self {
            board,
            clock,
            now: Cell::new(None),
            slot,
            claims_changed: false,
        }
    }

    /// Returns guest time, which is constant during one call. The first read takes some 25 ns.
    pub fn now(&self) -> GuestTime {
        self.now.get().unwrap_or_else(|| {
            let now = self.clock.now();
            self.now.set(Some(now));
            now
        })
    }

    /// Returns guest time and the guest's time-stamp counter at the same moment.
    pub fn clock(&self) -> Clock {
        self.clock.paired()
    }

    /// Returns guest memory. Writes pass the gate, so they may hit translated code.
    pub const fn memory(&mut self) -> &mut GuestMemory {
        &mut self.board.memory
    }

    /// Changes a part of guest memory to what `region` describes, except for the page of the local
    /// APIC, which takes precedence. A region that guest memory refuses is ignored.
    pub fn place_region(&mut self, region: Region) {
        if self.board.memory.set_region(region).is_err() {
            return;
        }
        let apic = self.board.interrupts.local_apic.page();
        if let Some(page) = apic.filter(|page| page.wrapping_sub(region.start.0) < region.bytes) {
            // The page was part of the region that has just been set, so setting it cannot fail.
            let _ = self.board.memory.set_region(Region {
                start: PhysicalAddress(page),
                bytes: REGISTER_BYTES,
                kind: RegionKind::Device,
                block: None,
            });
        }
    }

    /// Drives an interrupt line: 0 to 15 are those of the ISA bus, 16 to 23 lead only to the I/O
    /// APIC, and no others exist. A line that several devices drive is asserted while any of them
    /// asserts it.
    pub fn set_line(&mut self, line: u8, asserted: bool) {
        self.board.interrupts.drive(self.slot, line, asserted);
    }

    /// Gives lines 0 and 8, which are those of the 8254 and of the real-time clock, to this device
    /// alone, or returns them to their usual devices.
    pub fn replace_legacy_lines(&mut self, replaces: bool) {
        self.board
            .interrupts
            .replace_legacy_lines(replaces.then_some(self.slot));
    }

    /// Forwards the collected edges of a line, and returns how many there were. The controllers see
    /// a single edge for all of them.
    pub fn forward(&mut self, number: u8, line: &mut IrqLine) -> u64 {
        line.forward(|asserted| self.set_line(number, asserted))
    }

    /// Sends a message-signalled interrupt: a write of `data` to `address`. Returns whether an
    /// interrupt controller accepted it.
    pub fn send_message(&mut self, address: u64, data: u32) -> bool {
        message::decode(address, data)
            .is_some_and(|message| self.board.interrupts.deliver(&message))
    }

    /// Whether address line 20 is enabled.
    pub const fn a20(&self) -> bool {
        self.board.a20
    }

    /// Sets the gate of address line 20.
    pub const fn set_a20(&mut self, enabled: bool) {
        self.board.a20 = enabled;
    }

    /// Masks or unmasks NMIs.
    pub const fn set_nmi_masked(&mut self, masked: bool) {
        self.board.nmi_masked = masked;
    }

    /// Reports to ACPI's fixed hardware that the real-time clock's alarm has gone off.
    pub const fn report_alarm(&mut self) {
        self.board.alarm_rang = true;
    }

    /// Requests that the processor stop. An earlier request is kept.
    pub fn request_stop(&mut self, request: StopRequest) {
        self.board.request_stop(request);
    }

    /// Writes output of the first serial port.
    pub fn serial_output(&mut self, bytes: &[u8]) {
        let now = self.now();
        self.board.serial_output.push(bytes, now);
    }

    /// Takes at most `room` bytes that were sent to the first serial port from outside.
    pub fn serial_input(&mut self, room: usize) -> Vec<u8> {
        self.board.outside.serial_input(room)
    }

    /// Writes output of the second serial port.
    pub fn second_serial_output(&mut self, bytes: &[u8]) {
        let now = self.now();
        self.board.second_serial_output.push(bytes, now);
    }

    /// Takes at most `room` bytes that were sent to the second serial port from outside.
    pub fn second_serial_input(&mut self, room: usize) -> Vec<u8> {
        self.board.outside.second_serial_input(room)
    }

    /// Writes a byte that the printer at the parallel port took.
    pub fn printer_output(&mut self, byte: u8) {
        let now = self.now();
        self.board.printer_output.push(&[byte], now);
    }

    /// Takes the oldest key event from outside: a key, and whether it was pressed.
    pub fn key(&mut self) -> Option<(Key, bool)> {
        self.board.outside.key()
    }

    /// Takes the oldest mouse event from outside.
    pub fn mouse(&mut self) -> Option<MouseEvent> {
        self.board.outside.mouse()
    }

    /// Writes output of a debug console.
    pub fn debug_output(&mut self, bytes: &[u8]) {
        let now = self.now();
        self.board.debug_output.push(bytes, now);
    }

    /// Reports that the device answers at other addresses from the end of this call on.
    pub const fn claims_changed(&mut self) {
        self.claims_changed = true;
    }

    pub(super) const fn has_changed_claims(&self) -> bool {
        self.claims_changed
    }

    /// Returns the interrupt controllers, for their registers on the bus.
    pub(crate) const fn interrupts(&mut self) -> &mut Interrupts {
        &mut self.board.interrupts
    }

    /// Returns the DMA controllers, for their ports and for requests of devices.
    pub(crate) const fn dma(&mut self) -> &mut DmaControllers {
        &mut self.board.dma
    }

    /// Offers bytes to the DMA controller for memory, on behalf of the device of a channel.
    pub fn dma_to_memory(&mut self, channel: u8, data: &[u8]) -> Moved {
        let board = &mut *self.board;
        board.dma.to_memory(channel, data, &mut board.memory)
    }

    /// Requests bytes in memory from the DMA controller, on behalf of the device of a channel.
    pub fn dma_from_memory(&mut self, channel: u8, data: &mut [u8]) -> Moved {
        let board = &mut *self.board;
        board.dma.from_memory(channel, data, &board.memory)
    }

    /// Changes the x87's error lines, for a write to their ports.
    pub(crate) fn with_fpu_error(&mut self, change: impl FnOnce(&mut FpuError)) {
        change(&mut self.board.fpu_error);
        self.board.forward_fpu_error();
    }
}
