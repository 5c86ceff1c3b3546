//! A disk on a channel: its image and its geometry.

use super::unit::{Registers, Settings};
use crate::devices::medium::Medium;
use tollgate_disk::{DiskError, DriveOptions};

/// How a disk's sectors are named by cylinder, head and sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// At most 16383.
    pub cylinders: u16,
    /// At most 16.
    pub heads: u8,
    /// Sectors of a track, at most 63.
    pub sectors: u8,
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

    /// The geometry that it begins with.
    pub fn geometry(&self) -> Geometry {
        let (heads, sectors) = (Self::HEADS, Self::SECTORS);
        Geometry {
            cylinders: self.cylinders(heads, sectors),
            heads,
            sectors,
        }
    }

    /// Cylinders of a geometry with these heads and sectors of a track.
    pub(super) fn cylinders(&self, heads: u8, sectors: u8) -> u16 {
        let cylinder = u64::from(heads) * u64::from(sectors);
        let cylinders = self.sectors().checked_div(cylinder).unwrap_or(0);
        cylinders.min(16_383) as u16
    }
}
