//! The 8042 keyboard controller with a PS/2 keyboard, and a PS/2 mouse on its auxiliary port.
//!
//! The controller itself takes no time. A byte from the keyboard or the mouse arrives
//! [`I8042::BYTE_TIME`] after the output buffer was emptied, so that a second reader of port 60h (a
//! handler that calls the previous handler) still sees the byte of the first. The keyboard's bytes
//! have priority over the mouse's.
//!
//! The controller has two outputs: the reset line of the processor and the gate of address line 20.
//! The owner reads both after each write.

mod bios_buffer;
mod bus;
mod keyboard;
mod mouse;
mod registers;
mod scancodes;
pub mod us_layout;

use bios_buffer::BiosBuffer;
use keyboard::Keyboard;
use mouse::Mouse;
use registers::{
    Config, INPUT_PORT, INTERFACE_TEST_PASSED, NO_PASSWORD, OUTPUT_A20, OUTPUT_AUXILIARY_FULL,
    OUTPUT_IDLE_LINES, OUTPUT_KEYBOARD_FULL, OUTPUT_NO_RESET, SELF_TEST_PASSED, Status, command,
};
use serde::{Deserialize, Serialize};
use tollgate_platform::GuestTime;

use crate::board::IrqLine;
use crate::board::input::{Key, MouseEvent};

/// The sender of a byte in the output buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Source {
    /// The controller or the keyboard, which use IRQ 1.
    Keyboard,
    /// The mouse, or a command that writes in its place. They use IRQ 12.
    Auxiliary,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Output {
    byte: u8,
    source: Source,
}

/// The destination of the next byte written to port 60h.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Destination {
    Keyboard,
    Memory(u8),
    OutputPort,
    KeyboardBuffer,
    AuxiliaryBuffer,
    Auxiliary,
}

/// The keyboard controller, its keyboard and its mouse.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct I8042 {
    config: Config,
    memory: [u8; 32],
    output: Option<Output>,
    /// An answer of the controller that waits until the buffer has been read.
    answer: Option<Output>,
    /// The value of port 60h while the output buffer is empty.
    last_read: u8,
    destination: Destination,
    last_was_command: bool,
    /// Whether the keyboard has sent F0h, which translation holds back.
    breaking: bool,
    /// The earliest time at which the next byte of keyboard or mouse arrives.
    next_byte_at: GuestTime,
    a20: bool,
    a20_request: Option<bool>,
    reset_request: bool,
    keyboard: Keyboard,
    mouse: Mouse,
    keyboard_irq: IrqLine,
    auxiliary_irq: IrqLine,
    /// A key from outside for which the guest's BIOS has no room yet.
    #[serde(default)]
    waiting_key: Option<(Key, bool)>,
    /// What is known about the room in the BIOS's keyboard buffer.
    #[serde(skip)]
    bios_buffer: BiosBuffer,
}

impl Default for I8042 {
    fn default() -> Self {
        Self::new()
    }
}

impl I8042 {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 2;

    /// The data port and the command and status port.
    pub const PORTS: [u16; 2] = [Self::DATA_PORT, Self::COMMAND_PORT];
    /// The data port.
    pub const DATA_PORT: u16 = 0x60;
    /// The command and status port.
    pub const COMMAND_PORT: u16 = 0x64;

    /// The ISA interrupt of the keyboard.
    pub const KEYBOARD_IRQ: u8 = 1;
    /// The ISA interrupt of the auxiliary port.
    pub const AUXILIARY_IRQ: u8 = 12;

    /// The nanoseconds that a byte of keyboard or mouse takes. That is less than the millisecond of
    /// the real line, but enough for a handler to read a byte twice.
    pub const BYTE_TIME: u64 = 200_000;

    /// Makes a controller as firmware leaves it: tested, keyboard interrupt and translation
    /// enabled, auxiliary port disabled, A20 enabled.
    pub const fn new() -> Self {
        Self {
            config: Config::KEYBOARD_INTERRUPT
                .union(Config::SYSTEM)
                .union(Config::AUXILIARY_DISABLED)
                .union(Config::TRANSLATE),
            memory: [0; 32],
            output: None,
            answer: None,
            last_read: 0,
            destination: Destination::Keyboard,
            last_was_command: false,
            breaking: false,
            next_byte_at: GuestTime(0),
            a20: true,
            a20_request: None,
            reset_request: false,
            keyboard: Keyboard::new(),
            mouse: Mouse::new(),
            keyboard_irq: IrqLine::low(),
            auxiliary_irq: IrqLine::low(),
            waiting_key: None,
            bios_buffer: BiosBuffer::new(),
        }
    }

    /// Reads port 60h or 64h. Any other port returns FFh.
    pub fn read(&mut self, port: u16, now: GuestTime) -> u8 {
        self.advance(now);
        match port {
            Self::DATA_PORT => self.read_data(now),
            Self::COMMAND_PORT => self.status().bits(),
            _ => 0xFF,
        }
    }

    /// Writes port 60h or 64h.
    pub fn write(&mut self, port: u16, value: u8, now: GuestTime) {
        self.advance(now);
        match port {
            Self::DATA_PORT => {
                self.last_was_command = false;
                self.write_data(value, now);
            }
            Self::COMMAND_PORT => {
                self.last_was_command = true;
                self.destination = Destination::Keyboard;
                self.write_command(value);
            }
            _ => {}
        }
        self.fill_output(now);
    }

    fn status(&self) -> Status {
        let mut status = Status::UNLOCKED;
        status.set(Status::SYSTEM, self.config.contains(Config::SYSTEM));
        status.set(Status::COMMAND, self.last_was_command);
        if let Some(output) = self.output {
            status |= Status::OUTPUT_FULL;
            status.set(Status::AUXILIARY, output.source == Source::Auxiliary);
        }
        status
    }

    fn read_data(&mut self, now: GuestTime) -> u8 {
        if let Some(output) = self.output.take() {
            self.last_read = output.byte;
            self.next_byte_at = now.after(Self::BYTE_TIME);
            self.update_irqs();
            self.fill_output(now);
        }
        self.last_read
    }

    fn write_command(&mut self, value: u8) {
        match value {
            command::READ_MEMORY..=command::READ_MEMORY_LAST => {
                self.answer(match value & 0x1F {
                    0 => self.config.bits(),
                    address => self.memory[usize::from(address)],
                });
            }
            command::WRITE_MEMORY..=command::WRITE_MEMORY_LAST => {
                self.destination = Destination::Memory(value & 0x1F);
            }
            command::TEST_PASSWORD => self.answer(NO_PASSWORD),
            command::DISABLE_AUXILIARY => self.config.insert(Config::AUXILIARY_DISABLED),
            command::ENABLE_AUXILIARY => self.config.remove(Config::AUXILIARY_DISABLED),
            command::TEST_AUXILIARY | command::TEST_KEYBOARD => self.answer(INTERFACE_TEST_PASSED),
            command::SELF_TEST => {
                self.config.insert(Config::SYSTEM);
                self.answer(SELF_TEST_PASSED);
            }
            command::DISABLE_KEYBOARD => self.config.insert(Config::KEYBOARD_DISABLED),
            command::ENABLE_KEYBOARD => self.config.remove(Config::KEYBOARD_DISABLED),
            command::READ_INPUT_PORT => self.answer(INPUT_PORT),
            command::READ_OUTPUT_PORT => self.answer(self.output_port()),
            command::WRITE_OUTPUT_PORT => self.destination = Destination::OutputPort,
            command::WRITE_KEYBOARD_BUFFER => self.destination = Destination::KeyboardBuffer,
            command::WRITE_AUXILIARY_BUFFER => self.destination = Destination::AuxiliaryBuffer,
            command::WRITE_AUXILIARY => self.destination = Destination::Auxiliary,
            command::DISABLE_A20 => self.request_a20(false),
            command::ENABLE_A20 => self.request_a20(true),
            command::READ_TEST_INPUTS => self.answer(0),
            // The low four bits of the output port pulse low where the command has zeros.
            command::PULSE_OUTPUT_FIRST.. => self.reset_request |= value & OUTPUT_NO_RESET == 0,
            _ => {} // no such command
        }
    }

    fn write_data(&mut self, value: u8, now: GuestTime) {
        let answer = |source| Output {
            byte: value,
            source,
        };
        match std::mem::replace(&mut self.destination, Destination::Keyboard) {
            Destination::Keyboard => {
                // The line to the keyboard must be enabled for its answer.
                self.config.remove(Config::KEYBOARD_DISABLED);
                self.breaking = false;
                self.keyboard.receive(value);
                self.next_byte_at = now.after(Self::BYTE_TIME);
            }
            Destination::Memory(0) => self.config = Config::from_bits_truncate(value),
            Destination::Memory(address) => self.memory[usize::from(address & 0x1F)] = value,
            Destination::OutputPort => {
                self.reset_request |= value & OUTPUT_NO_RESET == 0;
                self.request_a20(value & OUTPUT_A20 != 0);
            }
            Destination::KeyboardBuffer => self.answer = Some(answer(Source::Keyboard)),
            Destination::AuxiliaryBuffer => self.answer = Some(answer(Source::Auxiliary)),
            Destination::Auxiliary => {
                // The line to the mouse must be enabled too.
                self.config.remove(Config::AUXILIARY_DISABLED);
                self.mouse.receive(value);
                self.next_byte_at = now.after(Self::BYTE_TIME);
            }
        }
    }

    fn answer(&mut self, byte: u8) {
        self.answer = Some(Output {
            byte,
            source: Source::Keyboard,
        });
    }

    fn output_port(&self) -> u8 {
        let mut value = OUTPUT_IDLE_LINES | OUTPUT_NO_RESET;
        if self.a20 {
            value |= OUTPUT_A20;
        }
        value
            | match self.output.map(|output| output.source) {
                Some(Source::Keyboard) => OUTPUT_KEYBOARD_FULL,
                Some(Source::Auxiliary) => OUTPUT_AUXILIARY_FULL,
                None => 0,
            }
    }

    fn request_a20(&mut self, enabled: bool) {
        self.a20 = enabled;
        self.a20_request = Some(enabled);
    }

    /// Moves the next byte into the empty output buffer: an answer of the controller immediately, a
    /// byte of keyboard or mouse when its time has come.
    fn fill_output(&mut self, now: GuestTime) {
        if self.output.is_none() {
            self.output = self.answer.take();
        }
        if self.output.is_none() && self.next_byte_at <= now {
            let keyboard = self.keyboard_byte().map(|byte| (byte, Source::Keyboard));
            let next = keyboard.or_else(|| Some((self.mouse_byte(now)?, Source::Auxiliary)));
            self.output = next.map(|(byte, source)| Output { byte, source });
        }
        self.update_irqs();
    }

    fn keyboard_byte(&mut self) -> Option<u8> {
        while !self.config.contains(Config::KEYBOARD_DISABLED) {
            let byte = self.keyboard.next_byte()?;
            if !self.config.contains(Config::TRANSLATE) {
                return Some(byte);
            }
            if byte == scancodes::BREAK {
                self.breaking = true;
                continue;
            }
            let release = if self.breaking { 0x80 } else { 0 };
            self.breaking = false;
            return Some(scancodes::translate(byte) | release);
        }
        None
    }

    fn mouse_byte(&mut self, now: GuestTime) -> Option<u8> {
        if self.config.contains(Config::AUXILIARY_DISABLED) {
            return None;
        }
        self.mouse.advance(now);
        self.mouse.next_byte()
    }

    fn update_irqs(&mut self) {
        let source = self.output.map(|output| output.source);
        self.keyboard_irq.set(
            source == Some(Source::Keyboard) && self.config.contains(Config::KEYBOARD_INTERRUPT),
        );
        self.auxiliary_irq.set(
            source == Some(Source::Auxiliary) && self.config.contains(Config::AUXILIARY_INTERRUPT),
        );
    }

    /// Presses (`down`) or releases a key.
    pub fn key(&mut self, key: Key, down: bool, now: GuestTime) {
        self.keyboard.key(key, down, now);
        self.fill_output(now);
    }

    /// Moves the mouse, or presses or releases its buttons.
    pub fn move_mouse(&mut self, event: MouseEvent, now: GuestTime) {
        self.mouse.event(event);
        self.fill_output(now);
    }

    /// Returns the keyboard's lamps: bit 0 Scroll Lock, 1 Num Lock, 2 Caps Lock.
    pub const fn leds(&self) -> u8 {
        self.keyboard.leds()
    }

    /// Returns whether the guest has pulsed the processor's reset line since the last call.
    pub fn take_reset_request(&mut self) -> bool {
        std::mem::take(&mut self.reset_request)
    }

    /// Returns the level of the A20 gate that the guest has set since the last call.
    pub fn take_a20_request(&mut self) -> Option<bool> {
        self.a20_request.take()
    }

    /// Sets the level of the A20 gate that the output port shows, because port 92h drives the gate
    /// as well.
    pub fn set_a20(&mut self, enabled: bool) {
        self.a20 = enabled;
    }

    /// Returns when a byte of keyboard or mouse arrives, or a held key repeats.
    pub fn next_deadline(&self, now: GuestTime) -> Option<GuestTime> {
        let is_open = |disabled| self.output.is_none() && !self.config.contains(disabled);
        let has_key = is_open(Config::KEYBOARD_DISABLED) && self.keyboard.has_byte();
        let byte_of_mouse = match self.mouse.has_byte() {
            true => Some(self.next_byte_at),
            false => self.mouse.next_report().map(|at| at.max(self.next_byte_at)),
        };
        let arrivals = [
            has_key.then_some(self.next_byte_at),
            byte_of_mouse.filter(|_| is_open(Config::AUXILIARY_DISABLED)),
        ];
        let arrival = arrivals.into_iter().flatten().min().map(|at| at.max(now));
        [arrival, self.keyboard.next_repeat()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Lets a byte arrive, makes a report of the mouse, and repeats a held key, if they are due.
    pub fn advance(&mut self, now: GuestTime) {
        // The waiting key may be the release of the held one.
        self.keyboard.advance(now, self.waiting_key.is_none());
        self.fill_output(now);
    }

    /// Returns how many bytes of the keyboard the guest has not read.
    fn unread_bytes(&self) -> usize {
        let is_key = |output: Output| output.source == Source::Keyboard;
        self.keyboard.waiting_scancodes() + usize::from(self.output.is_some_and(is_key))
    }

    /// Returns the level of IRQ 1.
    pub fn keyboard_irq(&self) -> bool {
        self.keyboard_irq.level()
    }

    /// Returns the level of IRQ 12.
    pub fn auxiliary_irq(&self) -> bool {
        self.auxiliary_irq.level()
    }
}

#[cfg(test)]
mod tests;
