//! The disks of a snapshot: in which state they were, and whether they still are.

use crate::config::{DriveOptions, IdeDrive, VmConfig};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The state of a disk's image at the moment of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskState {
    /// The image's path.
    pub path: PathBuf,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// When the file was written last, in nanoseconds since 1970.
    pub written_ns: i128,
}

impl DiskState {
    /// Returns the present state of an image.
    ///
    /// # Errors
    /// The host's error.
    pub fn of(path: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        let metadata = fs::metadata(&path)?;
        Ok(Self {
            path,
            bytes: metadata.len(),
            written_ns: i128::from(metadata.mtime()) * 1_000_000_000
                + i128::from(metadata.mtime_nsec()),
        })
    }

    /// Checks that the image is as it was.
    ///
    /// # Errors
    /// What is different, as a line of text.
    pub fn check(&self) -> Result<(), String> {
        let path = self.path.display();
        let present = Self::of(&self.path).map_err(|error| format!("'{path}': {error}"))?;
        if present == *self {
            return Ok(());
        }
        let what = match present.bytes == self.bytes {
            true => "was written since",
            false => "has another size",
        };
        Err(format!(
            "the disk '{path}' {what}; the guest would meet a disk of another time"
        ))
    }
}

/// The paths of all images of a machine: disks, floppies and discs.
pub fn images(config: &VmConfig) -> Vec<&Path> {
    options(config).map(|options| &*options.path).collect()
}

fn options(config: &VmConfig) -> impl Iterator<Item = &DriveOptions> {
    let floppies = config.floppies.iter().flatten();
    let ide = config.ide_drives.iter().flatten();
    let ide = ide.filter_map(|drive| match drive {
        IdeDrive::Disk(options, ..) => Some(options),
        IdeDrive::CdRom(medium) => medium.as_ref(),
    });
    config.drives.iter().chain(floppies).chain(ide)
}

/// Checks that everything that the guest writes to its disks is in their images.
///
/// # Errors
/// A line of text that names a disk with `snapshot=on`.
pub fn check_kept(config: &VmConfig) -> Result<(), String> {
    let temporary = options(config).find(|disk| disk.snapshot && !disk.readonly);
    temporary.map_or(Ok(()), |disk| {
        Err(format!(
            "the disk '{}' has snapshot=on: what the guest writes is in a temporary file, which a \
             snapshot of the machine does not contain",
            disk.path.display()
        ))
    })
}
