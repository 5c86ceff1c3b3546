//! How an image is to be used: plain data, as a command line says it.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The format of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The bytes of the disk, and nothing else.
    Raw,
    /// QEMU's format, version 2 or 3.
    Qcow2,
}

impl Format {
    /// The name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// What becomes of writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// They are in the host's page cache until the guest flushes, then on stable storage.
    #[default]
    Writeback,
    /// They pass the host's page cache (O_DIRECT); a flush is one.
    None,
    /// A flush does nothing: if the host fails, so does the image.
    Unsafe,
}

/// Which files of the host an image may name: backing files, and files for its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backing {
    /// All that the user may read.
    #[default]
    Any,
    /// Those in the image's own folder, once symbolic links are followed.
    SameDir,
    /// None: an image that names a file is refused.
    None,
}

impl Backing {
    /// The names on a command line, for messages.
    pub const NAMES: &'static str = "any, same-dir or none";

    /// What a command line says, `None` if the word is unknown.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "any" => Some(Self::Any),
            "same-dir" => Some(Self::SameDir),
            "none" => Some(Self::None),
            _ => None,
        }
    }
}

/// A drive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DriveOptions {
    /// The image.
    pub path: PathBuf,
    /// Its format; `None`: as its name says, and never qcow2 that has another name.
    pub format: Option<Format>,
    /// The guest cannot write.
    pub readonly: bool,
    /// What the guest writes is forgotten at the end.
    pub snapshot: bool,
    /// What becomes of writes.
    pub cache: Cache,
    /// What the guest discards is given back to the host.
    pub discard: bool,
    /// What the guest reads as serial number: 20 bytes at most.
    pub serial: String,
    /// Which files the image may name.
    #[serde(default)]
    pub backing: Backing,
}

impl DriveOptions {
    /// Bytes of a serial number at most (virtio 1.2, 5.2.6).
    pub const MAX_SERIAL_BYTES: usize = 20;

    /// A drive that can be written, with nothing special about it.
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
