//! An ATA disk on an IDE channel: its image and its geometry.

use super::device_registers::{Registers, Settings};
use super::geometry::{self, DiskGeometry, Geometry};
use crate::devices::medium::Medium;
use tollgate_disk::{DiskError, DriveOptions};

/// The number of sectors that are moved together between image and buffer.
pub(super) const PIECE: u64 = 256;

/// An ATA disk with its image.
#[derive(Debug)]
pub struct Disk {
    pub(super) medium: Medium,
    geometry: Geometry,
    pub(super) serial: String,
    pub(super) registers: Registers,
    pub(super) settings: Settings,
}

impl Disk {
    /// Opens the disk described by `options`, with the geometry `wanted` or else with a guessed
    /// one. `name` appears in lines on standard error about failures of the host.
    ///
    /// # Errors
    /// The image cannot be used.
    pub fn open(
        name: String,
        options: &DriveOptions,
        wanted: Option<DiskGeometry>,
    ) -> Result<Self, DiskError> {
        let mut first_sector = [0; 512];
        let medium = Medium::open_after(name, options, |image| {
            // A first sector that cannot be read gives no hint about the geometry.
            let _ = image.read(0, &mut first_sector);
        })?;
        let geometry = match wanted {
            Some(wanted) => Geometry::given(wanted),
            None => Geometry::guess(&first_sector, medium.sectors()),
        };
        Ok(Self {
            medium,
            geometry,
            serial: options.serial.clone(),
            registers: Registers::default(),
            settings: Settings::of_disk(geometry),
        })
    }

    /// Returns the number of sectors of the disk.
    pub(super) const fn sectors(&self) -> u64 {
        self.medium.sectors()
    }

    /// Returns the disk's initial geometry.
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the number of cylinders of the geometry that the guest has set, or else of the
    /// initial one.
    pub(super) fn cylinders(&self) -> u16 {
        let Settings { heads, sectors, .. } = self.settings;
        if (heads, sectors) == (self.geometry.heads, self.geometry.sectors) {
            return self.geometry.cylinders;
        }
        geometry::cylinders(self.sectors(), heads, sectors)
    }
}
