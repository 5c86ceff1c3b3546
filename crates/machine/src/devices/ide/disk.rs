//! A disk on a channel: its image and its geometry.

use super::geometry::{self, Geometry};
use super::unit::{Registers, Settings};
use crate::config::DiskGeometry;
use crate::devices::medium::Medium;
use tollgate_disk::{DiskError, DriveOptions};

/// A disk.
#[derive(Debug)]
pub struct Disk {
    pub(super) medium: Medium,
    geometry: Geometry,
    pub(super) serial: String,
    pub(super) registers: Registers,
    pub(super) settings: Settings,
}

impl Disk {
    /// The disk that `options` name, with the geometry that is `wanted`, or else a guess. `name`: as
    /// in lines on standard error about a host that fails.
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
            // A disk that cannot be read, or is shorter, tells nothing.
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

    /// Sectors of the disk.
    pub(super) const fn sectors(&self) -> u64 {
        self.medium.sectors()
    }

    /// The geometry that it begins with.
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Cylinders of the geometry that the guest has set, or of the one that the disk begins with.
    pub(super) fn cylinders(&self) -> u16 {
        let Settings { heads, sectors, .. } = self.settings;
        if (heads, sectors) == (self.geometry.heads, self.geometry.sectors) {
            return self.geometry.cylinders;
        }
        geometry::cylinders(self.sectors(), heads, sectors)
    }
}
