//! Registers and bits of the real-time clock (Motorola MC146818 data sheet, "Address Map" and
//! "Registers"), and the addresses where PC firmware stores sizes.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

/// CMOS addresses of the clock ("Address Map") and of PC firmware's data.
pub(super) mod register {
    pub(in super::super) const SECONDS: u8 = 0x00;
    pub(in super::super) const SECONDS_ALARM: u8 = 0x01;
    pub(in super::super) const MINUTES: u8 = 0x02;
    pub(in super::super) const MINUTES_ALARM: u8 = 0x03;
    pub(in super::super) const HOURS: u8 = 0x04;
    pub(in super::super) const HOURS_ALARM: u8 = 0x05;
    pub(in super::super) const WEEKDAY: u8 = 0x06;
    pub(in super::super) const DAY: u8 = 0x07;
    pub(in super::super) const MONTH: u8 = 0x08;
    pub(in super::super) const YEAR: u8 = 0x09;
    pub(in super::super) const A: u8 = 0x0A;
    pub(in super::super) const B: u8 = 0x0B;
    pub(in super::super) const C: u8 = 0x0C;
    pub(in super::super) const D: u8 = 0x0D;
    /// The kinds of the floppy drives, the first in the upper four bits.
    pub(in super::super) const FLOPPIES: u8 = 0x10;
    /// The types of the first two hard disks, the first in the upper four bits. Fh refers to the
    /// extended type.
    pub(in super::super) const DISKS: u8 = 0x12;
    pub(in super::super) const EQUIPMENT: u8 = 0x14;
    pub(in super::super) const BASE_MEMORY: u8 = 0x15;
    pub(in super::super) const EXTENDED_MEMORY: u8 = 0x17;
    /// The extended type of the first hard disk. That of the second follows.
    pub(in super::super) const DISK_TYPES: u8 = 0x19;
    /// The geometry of the first hard disk, 9 bytes. That of the second follows.
    pub(in super::super) const DISK_GEOMETRIES: u8 = 0x1B;
    pub(in super::super) const CHECKSUM_HIGH: u8 = 0x2E;
    pub(in super::super) const CHECKSUM_LOW: u8 = 0x2F;
    pub(in super::super) const EXTENDED_MEMORY_COPY: u8 = 0x30;
    pub(in super::super) const CENTURY: u8 = 0x32;
    pub(in super::super) const MEMORY_ABOVE_16_MIB: u8 = 0x34;
    /// The boot order of QEMU's firmware: the third choice in the upper four bits.
    pub(in super::super) const BOOT_THIRD: u8 = 0x38;
    /// The translations of the geometries of four IDE disks for QEMU's firmware, two bits each.
    pub(in super::super) const DISK_TRANSLATIONS: u8 = 0x39;
    /// The boot order: the first choice in the lower four bits, the second in the upper ones.
    pub(in super::super) const BOOT_FIRST: u8 = 0x3D;
    pub(in super::super) const MEMORY_ABOVE_4_GIB: u8 = 0x5B;
}

// Register A.
pub(super) const UPDATE_IN_PROGRESS: u8 = 1 << 7;
pub(super) const DIVIDER_MASK: u8 = 7 << 4;
pub(super) const DIVIDER_32768_HZ: u8 = 2 << 4;
pub(super) const RATE_MASK: u8 = 0xF;

bitflags! {
    /// Register B.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub(super) struct Control: u8 {
        /// Updates are stopped while the time is being set.
        const SET = 1 << 7;
        const PERIODIC_INTERRUPT = 1 << 6;
        const ALARM_INTERRUPT = 1 << 5;
        const UPDATE_ENDED_INTERRUPT = 1 << 4;
        const SQUARE_WAVE = 1 << 3;
        const BINARY = 1 << 2;
        const HOURS_24 = 1 << 1;
        const DAYLIGHT_SAVING = 1 << 0;
    }
}

bitflags! {
    /// Register C. The flags have the positions of their enable bits in register B.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub(super) struct Flags: u8 {
        const INTERRUPT_REQUEST = 1 << 7;
        const PERIODIC = 1 << 6;
        const ALARM = 1 << 5;
        const UPDATE_ENDED = 1 << 4;
    }
}

/// Register D: RAM and time are valid.
pub(super) const VALID: u8 = 1 << 7;
