//! Registers and bits of the 82077AA (data sheet, 2.1 and 6).

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

/// Ports (2.1).
pub(super) mod port {
    /// The digital output register.
    pub const DIGITAL_OUTPUT: u16 = 0x3f2;
    /// The tape drive register.
    pub const TAPE_DRIVE: u16 = 0x3f3;
    /// Reads return the main status, writes set the data rate select register.
    pub const STATUS: u16 = 0x3f4;
    /// Bytes of commands, data and results.
    pub const FIFO: u16 = 0x3f5;
    /// Reads return the digital input register, writes set the configuration control register,
    /// which is the data rate.
    pub const DIGITAL_INPUT: u16 = 0x3f7;
}

bitflags! {
    /// The digital output register (2.1.3).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
    pub(super) struct DigitalOutput: u8 {
        /// The number of the selected drive, two bits.
        const DRIVE = 3;
        /// The controller is not in reset.
        const NO_RESET = 1 << 2;
        /// The chip drives its interrupt and its DMA request.
        const GATE = 1 << 3;
        /// The motor of the first drive; those of the others follow.
        const MOTOR = 1 << 4;
        const OTHER_MOTORS = 7 << 5;
    }
}

bitflags! {
    /// The main status register (2.1.5).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct MainStatus: u8 {
        /// A byte can be transferred through the FIFO.
        const REQUEST = 1 << 7;
        /// The direction of that byte is to the processor.
        const TO_PROCESSOR = 1 << 6;
        /// The processor transfers the data of a command.
        const NO_DMA = 1 << 5;
        /// A command is in progress.
        const BUSY = 1 << 4;
    }
}

/// Digital input register: the disk was changed (2.1.8).
pub(super) const DISK_CHANGED: u8 = 1 << 7;
/// Data rate select register: reset.
pub(super) const RATE_SELECT_RESET: u8 = 1 << 7;
/// The lowest two bits hold the data rate.
pub(super) const RATE: u8 = 3;

/// Status register 0 (6.1): how a command ended.
pub(super) mod st0 {
    /// The command failed.
    pub const ABNORMAL: u8 = 1 << 6;
    /// The command does not exist.
    pub const INVALID: u8 = 2 << 6;
    /// Polling found a drive that became ready, as after a reset.
    pub const READY_CHANGED: u8 = 3 << 6;
    /// A seek has ended.
    pub const SEEK_END: u8 = 1 << 5;
    /// No track 0 was found.
    pub const EQUIPMENT_CHECK: u8 = 1 << 4;
}

/// Status register 1 (6.2).
pub(super) mod st1 {
    /// The last sector was transferred, but no terminal count came.
    pub const END_OF_CYLINDER: u8 = 1 << 7;
    /// A sector cannot be read or written (data error).
    pub const DATA_ERROR: u8 = 1 << 5;
    /// Bytes were not transferred in time.
    pub const OVERRUN: u8 = 1 << 4;
    /// The sector is not on the track.
    pub const NO_DATA: u8 = 1 << 2;
    /// The disk is write-protected.
    pub const NOT_WRITABLE: u8 = 1 << 1;
    /// The track has no sectors.
    pub const MISSING_ADDRESS_MARK: u8 = 1;
}

/// Status register 2 (6.3).
pub(super) mod st2 {
    /// The sector has the other kind of data, deleted or not.
    pub const CONTROL_MARK: u8 = 1 << 6;
    /// [`super::st1::DATA_ERROR`] occurred in the data, not in an address.
    pub const DATA_ERROR: u8 = 1 << 5;
    /// The track belongs to another cylinder.
    pub const WRONG_CYLINDER: u8 = 1 << 4;
}

/// Status register 3 (6.4).
pub(super) mod st3 {
    pub const WRITE_PROTECTED: u8 = 1 << 6;
    pub const TRACK_0: u8 = 1 << 4;
    /// These bits are always set: the drive is ready and has two sides.
    pub const ALWAYS: u8 = 1 << 5 | 1 << 3;
}

/// The bits of CONFIGURE (5.2.7): implied seeks, no FIFO, no polling, threshold.
pub(super) mod configuration {
    pub const IMPLIED_SEEK: u8 = 1 << 6;
    pub const NO_FIFO: u8 = 1 << 5;
    pub const NO_POLLING: u8 = 1 << 4;
    pub const THRESHOLD: u8 = 0xf;
}

/// In the second byte of SPECIFY: the processor transfers data (5.2.5).
pub(super) const SPECIFY_NO_DMA: u8 = 1;
