//! The name of a base in a difference, and opening it.

use super::header::read_header;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use tollgate_host_facts::file_words;

/// A base as a snapshot names it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BaseFile {
    /// The base's path.
    pub path: PathBuf,
    /// The checksum (CRC-32) of the base's description, which contains those of all its pieces.
    pub checksum: u32,
}

impl BaseFile {
    /// Opens the base and checks that it is still the same snapshot.
    ///
    /// # Errors
    /// What is wrong with it, as the end of a line of text.
    pub fn open(&self) -> Result<File, String> {
        // Without O_NONBLOCK, opening a pipe that has no writer would wait.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&self.path)
            .map_err(|error| format!("cannot be read: {}", file_words::cause(&error)))?;
        let header = match file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            true => read_header(&self.path, &file).ok(),
            false => None,
        };
        match header.is_some_and(|header| header.checksum == self.checksum) {
            true => Ok(file),
            false => Err("is another file than when this snapshot was written".into()),
        }
    }
}
