//! A unit of an IDE channel: a disk or a CD-ROM drive, and what both have in common.

use super::cd_drive::CdDrive;
use super::device_registers::{Registers, Settings};
use super::disk::Disk;
use super::geometry::Geometry;
use crate::devices::medium::Medium;

/// What is at a place of a channel.
#[derive(Debug)]
pub enum Unit {
    /// A disk with the ATA command set.
    Disk(Disk),
    /// A CD-ROM drive with the packet command set.
    CdDrive(CdDrive),
}

impl Unit {
    /// Returns the geometry of a disk.
    pub fn geometry(&self) -> Option<Geometry> {
        match self {
            Self::Disk(disk) => Some(disk.geometry()),
            Self::CdDrive(_) => None,
        }
    }

    pub(super) const fn registers(&self) -> &Registers {
        match self {
            Self::Disk(disk) => &disk.registers,
            Self::CdDrive(drive) => &drive.registers,
        }
    }

    pub(super) const fn registers_mut(&mut self) -> &mut Registers {
        match self {
            Self::Disk(disk) => &mut disk.registers,
            Self::CdDrive(drive) => &mut drive.registers,
        }
    }

    pub(super) const fn settings(&self) -> &Settings {
        match self {
            Self::Disk(disk) => &disk.settings,
            Self::CdDrive(drive) => &drive.settings,
        }
    }

    pub(super) const fn settings_mut(&mut self) -> &mut Settings {
        match self {
            Self::Disk(disk) => &mut disk.settings,
            Self::CdDrive(drive) => &mut drive.settings,
        }
    }

    /// Returns the unit's medium. A drive may be empty.
    pub(super) const fn medium(&self) -> Option<&Medium> {
        match self {
            Self::Disk(disk) => Some(&disk.medium),
            Self::CdDrive(drive) => drive.medium(),
        }
    }

    /// Returns the unit's medium for changes.
    pub(super) const fn medium_mut(&mut self) -> Option<&mut Medium> {
        match self {
            Self::Disk(disk) => Some(&mut disk.medium),
            Self::CdDrive(drive) => drive.medium_mut(),
        }
    }

    /// Sets the registers to their values after a reset, or after a diagnostic without a fault.
    /// They form the signature by which a host distinguishes packet devices from others (9.12).
    pub(super) const fn set_signature(&mut self) {
        let (mid, high) = match self {
            Self::Disk(_) => (0, 0),
            Self::CdDrive(drive) => {
                drive.is_ready = false;
                CdDrive::SIGNATURE
            }
        };
        let registers = self.registers_mut();
        *registers = Registers {
            error: 1,
            count: [1, 0],
            low: [1, 0],
            mid: [mid, 0],
            high: [high, 0],
            device: 0,
            // The host sees the registers of both devices as one set.
            features: registers.features,
        };
    }
}
