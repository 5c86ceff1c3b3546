//! Registers and bits of ATA devices (ATA/ATAPI-6, 7) and of the bus master (82371SB data sheet,
//! 2.7).

use bitflags::bitflags;

/// Offsets from the first port of the command block (7.2).
pub(super) mod register {
    pub const DATA: u16 = 0;
    /// Reads return errors, writes set features.
    pub const ERROR: u16 = 1;
    pub const COUNT: u16 = 2;
    pub const LBA_LOW: u16 = 3;
    pub const LBA_MID: u16 = 4;
    pub const LBA_HIGH: u16 = 5;
    pub const DEVICE: u16 = 6;
    /// Reads return the status, writes start a command.
    pub const STATUS: u16 = 7;
}

bitflags! {
    /// The status register (7.15).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct Status: u8 {
        const BUSY = 1 << 7;
        const READY = 1 << 6;
        /// Service of a packet device, or a completed seek of a disk.
        const SEEK_DONE = 1 << 4;
        const DATA_REQUEST = 1 << 3;
        const ERROR = 1;
    }
}

/// The error register (7.9).
pub(super) mod error {
    pub const UNCORRECTABLE: u8 = 1 << 6;
    pub const ID_NOT_FOUND: u8 = 1 << 4;
    pub const ABORTED: u8 = 1 << 2;
}

/// The device register (7.8).
pub(super) mod device {
    pub const LBA: u8 = 1 << 6;
    pub const SECOND: u8 = 1 << 4;
    pub const HEAD: u8 = 0xf;
}

/// The device control register (7.7).
pub(super) mod control {
    pub const HIGH_ORDER: u8 = 1 << 7;
    pub const RESET: u8 = 1 << 2;
    pub const NO_INTERRUPT: u8 = 1 << 1;
}

/// In the bus master's command: it runs.
pub(super) const MASTER_START: u8 = 1;
/// In the bus master's command: it writes memory.
pub(super) const MASTER_TO_MEMORY: u8 = 1 << 3;
/// In the bus master's status: it runs.
pub(super) const MASTER_ACTIVE: u8 = 1;
/// In the bus master's status: memory could not be accessed.
pub(super) const MASTER_ERROR: u8 = 1 << 1;
/// In the bus master's status: the device has requested an interrupt.
pub(super) const MASTER_INTERRUPT: u8 = 1 << 2;
/// In the bus master's status: software's note of which devices support it.
pub(super) const MASTER_CAPABLE: u8 = 3 << 5;
