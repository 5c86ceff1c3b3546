//! The disks of a snapshot: in which state they were, and whether they still are.

use crate::config::VmConfig;
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

/// Finds a disk whose contents are not all in its image: what the guest writes to it is in a
/// temporary file.
pub fn temporary(config: &VmConfig) -> Option<&Path> {
    let mut images = config.images();
    let temporary = images.find(|disk| disk.snapshot && !disk.readonly);
    temporary.map(|disk| &*disk.path)
}
