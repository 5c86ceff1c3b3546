//! A disk on a channel: its image, its geometry, and its own copy of the registers.

use crate::devices::medium::Medium;
use serde::{Deserialize, Serialize};
use tollgate_disk::{DiskError, DriveOptions};

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
    /// Heads and sectors of a track, as INITIALIZE DEVICE PARAMETERS said.
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
            heads: Disk::HEADS,
            sectors: Disk::SECTORS,
            multiple: 0,
            write_cache: true,
            transfer_mode: 0x22,
        }
    }
}

/// A disk.
#[derive(Debug)]
pub struct Disk {
    pub(super) medium: Medium,
    pub(super) serial: String,
    pub(super) registers: Registers,
    pub(super) settings: Settings,
}

impl Disk {
    /// Heads of the geometry that a disk begins with.
    pub(super) const HEADS: u8 = 16;
    /// Sectors of a track of that.
    pub(super) const SECTORS: u8 = 63;

    /// The disk that `options` name. `name`: as in lines on standard error about a host that fails.
    ///
    /// # Errors
    /// The image cannot be used.
    pub fn open(name: String, options: &DriveOptions) -> Result<Self, DiskError> {
        Ok(Self {
            medium: Medium::open(name, options)?,
            serial: options.serial.clone(),
            registers: Registers::default(),
            settings: Settings::default(),
        })
    }

    /// Sectors of the disk.
    pub(super) const fn sectors(&self) -> u64 {
        self.medium.sectors()
    }

    /// Cylinders of a geometry with these heads and sectors of a track.
    pub(super) fn cylinders(&self, heads: u8, sectors: u8) -> u16 {
        let cylinder = u64::from(heads) * u64::from(sectors);
        let cylinders = self.sectors().checked_div(cylinder).unwrap_or(0);
        cylinders.min(16_383) as u16
    }

    /// What the registers hold after a reset, or a diagnostic without a fault: the signature of a
    /// disk (9.12).
    pub(super) fn set_signature(&mut self) {
        let registers = &mut self.registers;
        *registers = Registers {
            error: 1,
            count: [1, 0],
            low: [1, 0],
            // The registers of both devices are one for the host.
            features: registers.features,
            ..Registers::default()
        };
    }
}
