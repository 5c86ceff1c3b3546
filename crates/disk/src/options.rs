//! How an image is used: plain data, as a command line gives it.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The format of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The file contains the bytes of the disk and nothing else.
    Raw,
    /// QEMU's format, version 2 or 3.
    Qcow2,
}

impl Format {
    /// Returns the name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// What happens to writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Writes stay in the host's page cache until the guest flushes, and are then on stable
    /// storage.
    #[default]
    Writeback,
    /// Writes bypass the host's page cache (O_DIRECT). A flush makes them reach stable storage.
    None,
    /// A flush has no effect: if the host fails, the image may be lost.
    Unsafe,
}

/// The files of the host that an image may name: backing files, and external data files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backing {
    /// All files that the user may read.
    #[default]
    Any,
    /// Files in the image's own folder, after symbolic links are resolved.
    SameDir,
    /// No files: an image that names one is refused.
    None,
}

impl Backing {
    /// The names on a command line, for messages.
    pub const NAMES: &'static str = "any, same-dir or none";

    /// Parses the word of a command line. Returns `None` if it is unknown.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "any" => Some(Self::Any),
            "same-dir" => Some(Self::SameDir),
            "none" => Some(Self::None),
            _ => None,
        }
    }
}

/// The options of a drive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DriveOptions {
    /// The image's path.
    pub path: PathBuf,
    /// The image's format. `None` determines it from the name, which never makes a file with
    /// another name qcow2.
    pub format: Option<Format>,
    /// Whether the guest cannot write.
    pub readonly: bool,
    /// Whether the guest's writes are discarded at the end.
    pub snapshot: bool,
    /// What happens to writes.
    pub cache: Cache,
    /// Whether the host gets back the storage that the guest discards.
    pub discard: bool,
    /// The serial number that the guest reads, at most 20 bytes.
    pub serial: String,
    /// The files that the image may name.
    #[serde(default)]
    pub backing: Backing,
}

impl DriveOptions {
    /// The maximum length of a serial number in bytes (virtio 1.2, 5.2.6).
    pub const MAX_SERIAL_BYTES: usize = 20;

    /// Makes the options of a writable drive with defaults for everything else.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            format: None,
            readonly: false,
            snapshot: false,
            cache: Cache::Writeback,
            discard: false,
            serial: String::new(),
            backing: Backing::Any,
        }
    }
}
