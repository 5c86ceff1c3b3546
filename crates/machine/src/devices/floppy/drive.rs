//! A drive with its heads and what is in it.

use super::format::{DriveKind, Format};
use crate::bus::completion::Completer;
use crate::devices::medium::Medium;
use serde::{Deserialize, Serialize};
use tollgate_disk::{DiskError, DriveOptions};

/// What of a drive is saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mechanics {
    /// The cylinder over which the heads stand.
    pub cylinder: u8,
    /// The disk was taken out since the heads last moved (DSKCHG).
    pub changed: bool,
}

/// A disk.
#[derive(Debug)]
pub(super) struct Disk {
    pub medium: Medium,
    pub format: Format,
}

/// A drive.
#[derive(Debug)]
pub struct Drive {
    kind: DriveKind,
    pub(super) disk: Option<Disk>,
    pub(super) mechanics: Mechanics,
}

impl Drive {
    /// A drive with the disk that `image` holds, of the kind that it needs; or an empty one
    /// of 1.44 MB. `name`: as in lines on standard error about a host that fails.
    ///
    /// # Errors
    /// The image cannot be used, or has no floppy disk's size.
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

    /// Which kind it is.
    pub const fn kind(&self) -> DriveKind {
        self.kind
    }

    /// Takes the disk out.
    pub fn eject(&mut self) {
        self.mechanics.changed = true;
        // Waits until all that was written has reached the file.
        self.disk = None;
    }

    /// Puts a disk in, in place of the one that is there.
    ///
    /// # Errors
    /// The image cannot be used, or this drive does not take it: then the drive is empty.
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
                    "a drive of {} does not take a disk of {} KiB",
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

    /// The heads go to another cylinder, which takes at least one step if they are not there.
    pub(super) fn step(&mut self, cylinder: u8) {
        let mechanics = &mut self.mechanics;
        let cylinder = cylinder.min(self.kind.last_cylinder());
        if mechanics.cylinder != cylinder && self.disk.is_some() {
            mechanics.changed = false;
        }
        mechanics.cylinder = cylinder;
    }

    /// The disk, if the heads read its tracks at a data rate, and the number of the cylinder there.
    /// A drive of 80 cylinders steps twice for each of a disk of 40.
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
            "its {} bytes are no floppy disk's; there are disks of {}",
            medium.bytes(),
            Format::sizes()
        ),
    })?;
    Ok(Disk { medium, format })
}
