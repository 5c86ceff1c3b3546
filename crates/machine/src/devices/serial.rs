//! The 16550A serial port.
//!
//! vm-superio's `Serial` was considered and is not sufficient: it has no FIFO control register, no
//! trigger levels, no line status or modem status interrupts, no errors or breaks, no back-pressure
//! on its output, and it triggers an edge where a PC has the level of an interrupt line.
//!
//! The line is infinitely fast: a transmitted byte is immediately in the output, from which the
//! owner takes it, and the transmitter is empty again. Only while the output holds
//! [`Serial::OUTPUT_LIMIT`] bytes that were not taken do bytes wait in the transmitter, and the
//! guest with them. Received bytes enter the FIFO from an input queue as the guest makes room, so
//! that none is lost. The character timeout is reported as soon as there are bytes but fewer than
//! the trigger level.
//!
//! A read of a character clears the receiver's interrupt. If characters are left, they interrupt
//! again after the time that the line would take: four character times for the timeout of the FIFO
//! (PC16550D data sheet, 8.10); one where the next character would reach the trigger level, or
//! without FIFOs fill the register. So the line falls after each character, and a driver that reads
//! only one for each interrupt gets all of them through an edge-triggered interrupt controller.
//!
//! On a PC's card OUT2 connects the interrupt to the bus. Here it is always connected, as in QEMU,
//! because small systems that were written for QEMU never set OUT2. Baud rate, parity and stop bits
//! are stored without effect.

mod bus;
mod registers;

use registers::{
    DATA, FIFOS_ENABLED, FifoControl, IDENTIFICATION, INTERRUPT_ENABLE, Interrupt, InterruptEnable,
    LINE_CONTROL, LINE_STATUS, LineControl, LineStatus, MODEM_CONTROL, MODEM_STATUS, ModemControl,
    NO_INTERRUPT, TRIGGER_LEVELS,
};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use tollgate_platform::GuestTime;

pub use registers::ModemStatus;

use crate::board::IrqLine;

/// The number of bytes in each FIFO.
const FIFO_SIZE: usize = 16;
/// The character timeout of the FIFO, in character times (PC16550D data sheet, 8.10).
const TIMEOUT: u64 = 4;
/// The duration of a bit with the divisor 1, in nanoseconds: 16 periods of 1.8432 MHz.
const BIT_TIME: u64 = 8681;

/// A received character with its errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Character {
    byte: u8,
    errors: LineStatus,
}

/// Which port of a PC it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Unit {
    /// COM1.
    #[default]
    First,
    /// COM2.
    Second,
}

impl Unit {
    /// Returns the ports.
    pub const fn ports(self) -> RangeInclusive<u16> {
        match self {
            Self::First => Serial::COM1_PORTS,
            Self::Second => 0x2F8..=0x2FF,
        }
    }

    /// Returns the ISA interrupt.
    pub const fn irq(self) -> u8 {
        match self {
            Self::First => Serial::COM1_IRQ,
            Self::Second => 3,
        }
    }
}

/// A serial port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Serial {
    #[serde(default)]
    unit: Unit,
    interrupt_enable: InterruptEnable,
    line_control: LineControl,
    modem_control: ModemControl,
    scratch: u8,
    divisor: u16,
    fifos_enabled: bool,
    trigger_level: usize,
    receiver: VecDeque<Character>,
    transmitter: VecDeque<u8>,
    /// The errors since the line status was last read.
    errors: LineStatus,
    /// Whether the transmitter has become empty and no interrupt has reported it yet.
    transmitter_interrupt: bool,
    modem_changes: ModemStatus,
    /// The modem inputs that the other end drives.
    modem_inputs: ModemStatus,
    /// Until when the characters that a read left in the receiver do not interrupt.
    quiet_until: Option<GuestTime>,
    /// Input from the other end that the receiver has no room for.
    input: VecDeque<Character>,
    output: Vec<u8>,
    breaks_sent: u64,
    irq: IrqLine,
}

impl Default for Serial {
    fn default() -> Self {
        Self::new()
    }
}

impl Serial {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 2;

    /// Ports of COM1 (IRQ 4).
    pub const COM1_PORTS: RangeInclusive<u16> = 0x3F8..=0x3FF;
    /// The ISA interrupt of COM1.
    pub const COM1_IRQ: u8 = 4;

    /// The maximum number of bytes and breaks that wait for the receiver.
    pub const INPUT_LIMIT: usize = 4096;
    /// The maximum number of bytes that wait for the owner. When it is reached, the guest's
    /// transmitter stops.
    pub const OUTPUT_LIMIT: usize = 64 << 10;

    /// Makes a port as firmware leaves it (9600 baud, 8 data bits, nothing enabled), with a ready
    /// terminal at the other end.
    pub fn new() -> Self {
        Self {
            unit: Unit::First,
            interrupt_enable: InterruptEnable::empty(),
            line_control: LineControl::WORD_LENGTH_LOW | LineControl::WORD_LENGTH_HIGH,
            modem_control: ModemControl::empty(),
            scratch: 0,
            divisor: 12,
            fifos_enabled: false,
            trigger_level: 1,
            receiver: VecDeque::new(),
            transmitter: VecDeque::new(),
            errors: LineStatus::empty(),
            transmitter_interrupt: false,
            modem_changes: ModemStatus::empty(),
            modem_inputs: ModemStatus::CTS | ModemStatus::DSR | ModemStatus::DCD,
            quiet_until: None,
            input: VecDeque::new(),
            output: Vec::new(),
            breaks_sent: 0,
            irq: IrqLine::default(),
        }
    }

    /// Makes the second port, as [`Serial::new`] makes the first.
    pub fn second() -> Self {
        Self {
            unit: Unit::Second,
            ..Self::new()
        }
    }

    /// Whether the time matters to a read of this port: only the receiver's register starts the
    /// timer of [`Serial::next_deadline`].
    const fn read_needs_time(port: u16) -> bool {
        port & 7 == DATA
    }

    /// Reads a register. Only the lowest three bits of `port` count.
    pub fn read(&mut self, port: u16, now: GuestTime) -> u8 {
        let value = match port & 7 {
            DATA if self.latch_open() => self.divisor as u8,
            DATA => self.receive(now),
            INTERRUPT_ENABLE if self.latch_open() => (self.divisor >> 8) as u8,
            INTERRUPT_ENABLE => self.interrupt_enable.bits(),
            IDENTIFICATION => self.identify(),
            LINE_CONTROL => self.line_control.bits(),
            MODEM_CONTROL => self.modem_control.bits(),
            LINE_STATUS => self.read_line_status(),
            MODEM_STATUS => {
                let value = self.modem_lines() | self.modem_changes;
                self.modem_changes = ModemStatus::empty();
                value.bits()
            }
            _ => self.scratch,
        };
        self.update_irq();
        value
    }

    /// Writes a register. Only the lowest three bits of `port` count.
    pub fn write(&mut self, port: u16, value: u8, _now: GuestTime) {
        match port & 7 {
            DATA if self.latch_open() => self.divisor = self.divisor & 0xFF00 | u16::from(value),
            DATA => self.transmit(value),
            INTERRUPT_ENABLE if self.latch_open() => {
                self.divisor = self.divisor & 0x00FF | u16::from(value) << 8;
            }
            INTERRUPT_ENABLE => self.write_interrupt_enable(value),
            IDENTIFICATION => self.write_fifo_control(value),
            LINE_CONTROL => {
                let control = LineControl::from_bits_retain(value);
                let starts_break = control.difference(self.line_control);
                if starts_break.contains(LineControl::BREAK) {
                    self.breaks_sent = self.breaks_sent.wrapping_add(1);
                }
                self.line_control = control;
            }
            MODEM_CONTROL => {
                let before = self.modem_lines();
                self.modem_control = ModemControl::from_bits_truncate(value);
                self.note_modem_changes(before);
                self.fill_receiver();
            }
            LINE_STATUS | MODEM_STATUS => {} // read only
            _ => self.scratch = value,
        }
        self.update_irq();
    }

    const fn latch_open(&self) -> bool {
        self.line_control.contains(LineControl::DIVISOR_LATCH)
    }

    const fn loops_back(&self) -> bool {
        self.modem_control.contains(ModemControl::LOOPBACK)
    }

    const fn depth(&self) -> usize {
        if self.fifos_enabled { FIFO_SIZE } else { 1 }
    }

    fn receive(&mut self, now: GuestTime) -> u8 {
        let byte = self
            .receiver
            .pop_front()
            .map_or(0, |character| character.byte);
        self.raise_errors_of_first();
        self.fill_receiver();
        let quiet = self.quiet_characters() * self.character_time();
        self.quiet_until = (!self.receiver.is_empty()).then(|| now.after(quiet));
        byte
    }

    /// For how many character times the receiver does not interrupt after a read that left
    /// characters.
    fn quiet_characters(&self) -> u64 {
        match self.receiver.len() >= self.trigger_level {
            true => 1,
            false => TIMEOUT,
        }
    }

    /// The duration of one character on the line, in nanoseconds.
    fn character_time(&self) -> u64 {
        // Two stop bits of a character of five bits last one and a half; nothing depends on that.
        let bits = 1 + self.line_control.data_bits() + self.line_control.parity_and_stop_bits();
        bits * u64::from(self.divisor.max(1)) * BIT_TIME
    }

    /// Reports the errors of the character that has reached the top of the FIFO.
    fn raise_errors_of_first(&mut self) {
        if let Some(first) = self.receiver.front_mut() {
            self.errors |= first.errors & LineStatus::CHARACTER_ERRORS;
            first.errors = LineStatus::empty();
        }
    }

    fn push_received(&mut self, character: Character) {
        if self.receiver.len() >= self.depth() {
            self.errors |= LineStatus::OVERRUN;
            if self.fifos_enabled {
                return; // the FIFO keeps what it has
            }
            self.receiver.clear(); // the buffer register is overwritten
        }
        self.receiver.push_back(character);
        self.raise_errors_of_first();
    }

    /// Moves waiting input to the receiver as far as there is room. In loopback mode there is no
    /// input.
    fn fill_receiver(&mut self) {
        while !self.loops_back()
            && self.receiver.len() < self.depth()
            && let Some(mut character) = self.input.pop_front()
        {
            character.byte &= self.line_control.data_mask();
            self.push_received(character);
        }
    }

    fn transmit(&mut self, byte: u8) {
        let byte = byte & self.line_control.data_mask();
        self.transmitter_interrupt = false;
        // The line falls here if nothing else asserts it, and rises when the byte has been sent.
        self.update_irq();
        if self.transmitter.len() >= self.depth() {
            // A full FIFO keeps its bytes; without FIFOs the single register is overwritten.
            if !self.fifos_enabled {
                self.transmitter.clear();
                self.transmitter.push_back(byte);
            }
        } else {
            self.transmitter.push_back(byte);
        }
        self.drain_transmitter();
    }

    fn drain_transmitter(&mut self) {
        if self.transmitter.is_empty() {
            return;
        }
        while let Some(&byte) = self.transmitter.front() {
            if self.loops_back() {
                self.push_received(Character {
                    byte,
                    errors: LineStatus::empty(),
                });
            } else if self.output.len() < Self::OUTPUT_LIMIT {
                self.output.push(byte);
            } else {
                return;
            }
            self.transmitter.pop_front();
        }
        self.transmitter_interrupt = true;
    }

    fn write_interrupt_enable(&mut self, value: u8) {
        let enable = InterruptEnable::from_bits_truncate(value);
        let enabled = enable.difference(self.interrupt_enable);
        self.interrupt_enable = enable;
        // Enabling the interrupt while the transmitter is empty requests it again.
        if enabled.contains(InterruptEnable::TRANSMITTER_EMPTY) && self.transmitter.is_empty() {
            self.transmitter_interrupt = true;
        }
    }

    fn write_fifo_control(&mut self, value: u8) {
        let control = FifoControl::from_bits_truncate(value);
        let enable = control.contains(FifoControl::ENABLE);
        let switches = enable != self.fifos_enabled;
        self.fifos_enabled = enable;
        self.trigger_level = if enable {
            TRIGGER_LEVELS[usize::from(value >> 6)]
        } else {
            1
        };
        // Enabling or disabling the FIFOs clears both; the reset bits count only with the enable
        // bit.
        if switches || enable && control.contains(FifoControl::RESET_RECEIVER) {
            self.receiver.clear();
        }
        if (switches || enable && control.contains(FifoControl::RESET_TRANSMITTER))
            && !self.transmitter.is_empty()
        {
            self.transmitter.clear();
            self.transmitter_interrupt = true;
        }
        self.fill_receiver();
    }

    fn line_status(&self) -> LineStatus {
        let mut status = self.errors & LineStatus::ERRORS;
        status.set(LineStatus::DATA_READY, !self.receiver.is_empty());
        let empty = self.transmitter.is_empty();
        status.set(LineStatus::HOLDING_EMPTY, empty);
        status.set(LineStatus::TRANSMITTER_EMPTY, empty);
        let waiting_error = self
            .receiver
            .iter()
            .any(|character| character.errors.intersects(LineStatus::CHARACTER_ERRORS));
        let error = waiting_error || status.intersects(LineStatus::CHARACTER_ERRORS);
        status.set(LineStatus::ERROR_IN_FIFO, self.fifos_enabled && error);
        status
    }

    fn read_line_status(&mut self) -> u8 {
        let status = self.line_status();
        self.errors = LineStatus::empty();
        status.bits()
    }

    /// Returns the four modem inputs, which in loopback mode are the port's own outputs.
    fn modem_lines(&self) -> ModemStatus {
        if !self.loops_back() {
            return self.modem_inputs & ModemStatus::INPUTS;
        }
        [
            (ModemControl::RTS, ModemStatus::CTS),
            (ModemControl::DTR, ModemStatus::DSR),
            (ModemControl::OUT1, ModemStatus::RI),
            (ModemControl::OUT2, ModemStatus::DCD),
        ]
        .into_iter()
        .filter(|(output, _)| self.modem_control.contains(*output))
        .fold(ModemStatus::empty(), |lines, (_, input)| lines | input)
    }

    fn note_modem_changes(&mut self, before: ModemStatus) {
        let after = self.modem_lines();
        let changed = before ^ after;
        for (input, change) in [
            (ModemStatus::CTS, ModemStatus::DELTA_CTS),
            (ModemStatus::DSR, ModemStatus::DELTA_DSR),
            (ModemStatus::DCD, ModemStatus::DELTA_DCD),
        ] {
            if changed.contains(input) {
                self.modem_changes |= change;
            }
        }
        if before.difference(after).contains(ModemStatus::RI) {
            self.modem_changes |= ModemStatus::TRAILING_RI;
        }
    }

    /// Returns the receiver's interrupt, if there are characters and no read has just cleared it.
    fn receiver_interrupt(&self) -> Option<Interrupt> {
        if self.receiver.is_empty() || self.quiet_until.is_some() {
            return None;
        }
        Some(match self.receiver.len() >= self.trigger_level {
            true => Interrupt::ReceivedData,
            false => Interrupt::CharacterTimeout,
        })
    }

    /// Returns the pending interrupt of the highest priority.
    fn interrupt(&self) -> Option<Interrupt> {
        let enabled = |source| self.interrupt_enable.contains(source);
        if enabled(InterruptEnable::LINE_STATUS) && self.errors.intersects(LineStatus::ERRORS) {
            return Some(Interrupt::LineStatus);
        }
        if enabled(InterruptEnable::RECEIVED_DATA)
            && let Some(interrupt) = self.receiver_interrupt()
        {
            return Some(interrupt);
        }
        if enabled(InterruptEnable::TRANSMITTER_EMPTY) && self.transmitter_interrupt {
            return Some(Interrupt::TransmitterEmpty);
        }
        if enabled(InterruptEnable::MODEM_STATUS)
            && self.modem_changes.intersects(ModemStatus::CHANGES)
        {
            return Some(Interrupt::ModemStatus);
        }
        None
    }

    fn identify(&mut self) -> u8 {
        let interrupt = self.interrupt();
        if interrupt == Some(Interrupt::TransmitterEmpty) {
            self.transmitter_interrupt = false;
        }
        let fifos = if self.fifos_enabled { FIFOS_ENABLED } else { 0 };
        fifos | interrupt.map_or(NO_INTERRUPT, |interrupt| interrupt as u8)
    }

    fn update_irq(&mut self) {
        self.irq.set(self.interrupt().is_some());
    }

    /// Returns how many more bytes [`Serial::push_input`] would accept.
    pub fn input_space(&self) -> usize {
        Self::INPUT_LIMIT.saturating_sub(self.input.len())
    }

    /// Sends bytes to the guest and returns how many were accepted.
    pub fn push_input(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.input_space());
        self.input
            .extend(bytes.iter().take(taken).map(|&byte| Character {
                byte,
                errors: LineStatus::empty(),
            }));
        let was_below = self.receiver.len() < self.trigger_level;
        self.fill_receiver();
        if was_below && self.receiver.len() >= self.trigger_level {
            self.quiet_until = None;
        }
        self.update_irq();
        taken
    }

    /// Sends a break to the guest. Returns `false` if the input queue is full.
    pub fn push_break(&mut self) -> bool {
        if self.input_space() == 0 {
            return false;
        }
        self.input.push_back(Character {
            byte: 0,
            errors: LineStatus::BREAK,
        });
        self.fill_receiver();
        self.update_irq();
        true
    }

    /// Returns the output that the guest has sent and the owner has not taken.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Takes the output that the guest has sent. Bytes that waited for room follow and may
    /// interrupt, so the interrupt line must be forwarded afterwards.
    pub fn take_output(&mut self) -> Vec<u8> {
        let output = std::mem::take(&mut self.output);
        self.drain_transmitter();
        self.update_irq();
        output
    }

    /// Returns how many breaks the guest has begun to send (modulo 2^64).
    pub const fn breaks_sent(&self) -> u64 {
        self.breaks_sent
    }

    /// Drives the four modem inputs; the change bits of `inputs` are ignored.
    pub fn set_modem_inputs(&mut self, inputs: ModemStatus) {
        let before = self.modem_lines();
        self.modem_inputs = inputs & ModemStatus::INPUTS;
        self.note_modem_changes(before);
        self.update_irq();
    }

    /// Returns when characters that a read left in the receiver interrupt again.
    pub const fn next_deadline(&self) -> Option<GuestTime> {
        self.quiet_until
    }

    /// Lets the characters interrupt whose time has come.
    pub fn advance(&mut self, now: GuestTime) {
        if self.quiet_until.is_some_and(|until| until <= now) {
            self.quiet_until = None;
            self.update_irq();
        }
    }

    /// Returns the level of the interrupt line.
    pub fn irq(&self) -> bool {
        self.irq.level()
    }

    /// Returns the interrupt line with its uncollected rising edges.
    pub fn irq_line(&mut self) -> &mut IrqLine {
        &mut self.irq
    }
}

#[cfg(test)]
mod tests;
