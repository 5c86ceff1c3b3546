//! What is at a place of a channel: a disk, or a drive for CD-ROMs; and what both have.

use super::cd_drive::CdDrive;
use super::disk::Disk;
use super::geometry::Geometry;
use crate::devices::medium::Medium;
use serde::{Deserialize, Serialize};

/// The registers of a device, as the host has written them or the device answers. Count and address
/// have what was written before behind them (ATA/ATAPI-6, 6.19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Registers {
    pub error: u8,
    pub features: u8,
    pub count: [u8; 2],
    pub low: [u8; 2],
    pub mid: [u8; 2],
    pub high: [u8; 2],
    pub device: u8,
}

/// What the guest has set, beside the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    /// Heads and sectors of a track, as INITIALIZE DEVICE PARAMETERS said; 0 of what is no disk.
    pub heads: u8,
    pub sectors: u8,
    /// Sectors of a block of READ MULTIPLE; 0: not set.
    pub multiple: u8,
    pub write_cache: bool,
    /// The DMA mode, as SET FEATURES has it.
    pub transfer_mode: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            heads: 0,
            sectors: 0,
            multiple: 0,
            write_cache: true,
            transfer_mode: 0x22,
        }
    }
}

impl Settings {
    /// Those that a disk of this geometry begins with.
    pub(super) fn of_disk(geometry: Geometry) -> Self {
        Self {
            heads: geometry.heads,
            sectors: geometry.sectors,
            ..Self::default()
        }
    }
}

/// A unit.
#[derive(Debug)]
pub enum Unit {
    /// A disk, of the ATA command set.
    Disk(Disk),
    /// A drive for CD-ROMs, of the packet command set.
    CdDrive(CdDrive),
}

impl Unit {
    /// The geometry of a disk.
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

    /// What is in it. A drive may be empty.
    pub(super) const fn medium(&self) -> Option<&Medium> {
        match self {
            Self::Disk(disk) => Some(&disk.medium),
            Self::CdDrive(drive) => drive.medium(),
        }
    }

    /// What is in it.
    pub(super) const fn medium_mut(&mut self) -> Option<&mut Medium> {
        match self {
            Self::Disk(disk) => Some(&mut disk.medium),
            Self::CdDrive(drive) => drive.medium_mut(),
        }
    }

    /// What the registers hold after a reset, or a diagnostic without a fault: the signature
    /// by which a host tells packet devices from others (9.12).
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
            // The registers of both devices are one for the host.
            features: registers.features,
        };
    }
}
