//! The contents of the disks that the guest reads from, so that it can check what arrived.

use super::CostError;
use crate::nameless_file::NamelessFile;
use tollgate_disk::{DriveOptions, Format};

/// Size of a disk in bytes.
const DISK_BYTES: u32 = 1 << 20;
/// The guest's `DISK_WORD`: the first 32-bit word of a disk. Each next one is greater by 1.
const FIRST_WORD: u32 = 0x51d0_0000;

/// A disk of its own for one controller, in the folder for temporary files.
pub struct Disk {
    /// The file exists until this value is dropped or the controller has opened it.
    _file: NamelessFile,
    /// The options to open it with.
    pub options: DriveOptions,
}

impl Disk {
    /// Makes the file.
    ///
    /// # Errors
    ///
    /// The host refuses a file.
    pub fn new() -> Result<Self, CostError> {
        let file = NamelessFile::with(&content());
        let file = file.map_err(|error| CostError::Host(error.to_string()))?;
        let options = DriveOptions {
            format: Some(Format::Raw),
            ..DriveOptions::new(file.path())
        };
        Ok(Self {
            _file: file,
            options,
        })
    }
}

fn content() -> Vec<u8> {
    let words = FIRST_WORD..FIRST_WORD + DISK_BYTES / 4;
    words.flat_map(u32::to_le_bytes).collect()
}
