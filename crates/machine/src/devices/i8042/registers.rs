//! Registers, bits and commands of the keyboard controller (IBM PS/2 Hardware Interface
//! Technical Reference, "Keyboard and Auxiliary Device Controller").

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

bitflags! {
    /// The status register, port 64h.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct Status: u8 {
        const OUTPUT_FULL = 1 << 0;
        /// This bit is always clear: the controller accepts every byte immediately.
        const INPUT_FULL = 1 << 1;
        /// The self-test has passed.
        const SYSTEM = 1 << 2;
        /// The last write went to port 64h.
        const COMMAND = 1 << 3;
        /// The keyboard is not locked.
        const UNLOCKED = 1 << 4;
        /// The byte in the output buffer is from the auxiliary device.
        const AUXILIARY = 1 << 5;
    }
}

bitflags! {
    /// The command byte, byte 0 of the controller's memory.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub(super) struct Config: u8 {
        const KEYBOARD_INTERRUPT = 1 << 0;
        const AUXILIARY_INTERRUPT = 1 << 1;
        /// The bit of the same name in the status register has this value.
        const SYSTEM = 1 << 2;
        const KEYBOARD_DISABLED = 1 << 4;
        const AUXILIARY_DISABLED = 1 << 5;
        /// Scancodes are translated from set 2 to set 1.
        const TRANSLATE = 1 << 6;
    }
}

/// Commands to port 64h.
pub(super) mod command {
    pub(in super::super) const READ_MEMORY: u8 = 0x20;
    pub(in super::super) const READ_MEMORY_LAST: u8 = 0x3F;
    pub(in super::super) const WRITE_MEMORY: u8 = 0x60;
    pub(in super::super) const WRITE_MEMORY_LAST: u8 = 0x7F;
    pub(in super::super) const TEST_PASSWORD: u8 = 0xA4;
    pub(in super::super) const DISABLE_AUXILIARY: u8 = 0xA7;
    pub(in super::super) const ENABLE_AUXILIARY: u8 = 0xA8;
    pub(in super::super) const TEST_AUXILIARY: u8 = 0xA9;
    pub(in super::super) const SELF_TEST: u8 = 0xAA;
    pub(in super::super) const TEST_KEYBOARD: u8 = 0xAB;
    pub(in super::super) const DISABLE_KEYBOARD: u8 = 0xAD;
    pub(in super::super) const ENABLE_KEYBOARD: u8 = 0xAE;
    pub(in super::super) const READ_INPUT_PORT: u8 = 0xC0;
    pub(in super::super) const READ_OUTPUT_PORT: u8 = 0xD0;
    pub(in super::super) const WRITE_OUTPUT_PORT: u8 = 0xD1;
    pub(in super::super) const WRITE_KEYBOARD_BUFFER: u8 = 0xD2;
    pub(in super::super) const WRITE_AUXILIARY_BUFFER: u8 = 0xD3;
    pub(in super::super) const WRITE_AUXILIARY: u8 = 0xD4;
    pub(in super::super) const DISABLE_A20: u8 = 0xDD;
    pub(in super::super) const ENABLE_A20: u8 = 0xDF;
    pub(in super::super) const READ_TEST_INPUTS: u8 = 0xE0;
    pub(in super::super) const PULSE_OUTPUT_FIRST: u8 = 0xF0;
}

pub(super) const SELF_TEST_PASSED: u8 = 0x55;
pub(super) const INTERFACE_TEST_PASSED: u8 = 0x00;
pub(super) const NO_PASSWORD: u8 = 0xF1;
/// The keyboard is not locked; the display is a colour one.
pub(super) const INPUT_PORT: u8 = 0x80;

// Bits of the output port.
/// A low level resets the processor.
pub(super) const OUTPUT_NO_RESET: u8 = 1 << 0;
pub(super) const OUTPUT_A20: u8 = 1 << 1;
pub(super) const OUTPUT_KEYBOARD_FULL: u8 = 1 << 4;
pub(super) const OUTPUT_AUXILIARY_FULL: u8 = 1 << 5;
/// The keyboard's clock and data lines are idle.
pub(super) const OUTPUT_IDLE_LINES: u8 = 0xC0;
