//! A floppy drive with its heads and its disk.

use super::format::{DriveKind, Format};
use crate::bus::completion::Completer;
use crate::devices::medium::Medium;
use serde::{Deserialize, Serialize};
use tollgate_disk::{DiskError, DriveOptions};

/// The saved state of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mechanics {
    /// The cylinder of the heads.
    pub cylinder: u8,
    /// Whether the disk was removed since the heads last moved (DSKCHG).
    pub changed: bool,
}

/// A disk in a drive: its image and its format.
#[derive(Debug)]
pub(super) struct Disk {
    pub medium: Medium,
    pub format: Format,
}

/// A drive, possibly with a disk.
#[derive(Debug)]
pub struct Drive {
    kind: DriveKind,
    pub(super) disk: Option<Disk>,
    pub(super) mechanics: Mechanics,
}

impl Drive {
    /// Makes a drive for the disk in `image`, of the kind that this disk needs, or an empty drive
    /// of 1.44 MB. `name` appears in lines on standard error about failures of the host.
    ///
    /// # Errors
    /// The image cannot be used, or does not have the size of a floppy disk.
    pub fn new(name: String, image: Option<&DriveOptions>) -> Result<Self, DiskError> {
        let disk = image.map(|options| open(name, options)).transpose()?;
        Ok(Self {
            kind: disk
                .as_ref()
                .map_or(DriveKind::Mb1_44, |disk| disk.format.drive),
            disk,
            mechanics: Mechanics {
                cylinder: 0,
                changed: true,
            },
        })
    }

    /// Returns the kind of the drive.
    pub const fn kind(&self) -> DriveKind {
        self.kind
    }

    /// Removes the disk.
    pub fn eject(&mut self) {
        self.mechanics.changed = true;
        // Dropping the disk waits until all written data has reached the file.
        self.disk = None;
    }

    /// Inserts a disk, in place of the present one.
    ///
    /// # Errors
    /// The image cannot be used, or this drive does not support it. The drive is empty then.
    pub fn insert(
        &mut self,
        name: String,
        image: &DriveOptions,
        completer: Option<&Completer>,
    ) -> Result<(), DiskError> {
        self.eject();
        let mut disk = open(name, image)?;
        if !self.kind.takes(&disk.format) {
            return Err(DiskError {
                path: image.path.clone(),
                why: format!(
                    "a drive of {} does not support a disk of {} KiB",
                    self.kind.name(),
                    disk.medium.bytes() / 1024
                ),
            });
        }
        if let Some(completer) = completer {
            disk.medium.connect(completer.clone());
        }
        self.disk = Some(disk);
        Ok(())
    }

    /// Moves the heads to another cylinder. If they are not there yet, that takes at least one
    /// step.
    pub(super) fn step(&mut self, cylinder: u8) {
        let mechanics = &mut self.mechanics;
        let cylinder = cylinder.min(self.kind.last_cylinder());
        if mechanics.cylinder != cylinder && self.disk.is_some() {
            mechanics.changed = false;
        }
        mechanics.cylinder = cylinder;
    }

    /// Returns the disk and the number of the cylinder under the heads, if the heads can read its
    /// tracks at a data rate. A drive of 80 cylinders makes two steps for each cylinder of a disk
    /// of 40.
    pub(super) fn readable(&mut self, rate: u8) -> Option<(&mut Disk, u8)> {
        let disk = self.disk.as_mut()?;
        let steps_twice = self.kind == DriveKind::Mb1_2 && disk.format.drive == DriveKind::Kb360;
        let cylinder = self.mechanics.cylinder;
        let cylinder = match (steps_twice, cylinder & 1) {
            (true, 0) => cylinder / 2,
            (true, _) => return None,
            (false, _) => cylinder,
        };
        let is_there = disk.format.has_rate(rate) && cylinder < disk.format.cylinders;
        is_there.then_some((disk, cylinder))
    }
}

fn open(name: String, options: &DriveOptions) -> Result<Disk, DiskError> {
    let medium = Medium::open(name, options)?;
    let format = Format::of_size(medium.bytes()).ok_or_else(|| DiskError {
        path: options.path.clone(),
        why: format!(
            "{} bytes is not the size of a floppy disk; sizes are {}",
            medium.bytes(),
            Format::sizes()
        ),
    })?;
    Ok(Disk { medium, format })
}
