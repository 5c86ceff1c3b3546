//! Why guest RAM could not be made.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// The maximum RAM of a machine: 64 GiB, which is what PAE's 36 bits address.
pub const MAX_RAM_BYTES: u64 = 64 << 30;

/// Why guest RAM could not be made.
#[derive(Debug)]
pub enum MemoryError {
    /// The size is zero, not a multiple of 4096 bytes, or above [`MAX_RAM_BYTES`].
    InvalidSize(u64),
    /// memfd_create or ftruncate failed.
    Create(io::Error),
    /// The file for guest RAM would be larger than this process may make a file.
    FileLimit {
        /// The requested size in bytes.
        bytes: u64,
        /// The maximum size in bytes of a file (RLIMIT_FSIZE), if the process has such a limit.
        limit: Option<u64>,
    },
    /// The folder has no room for the file, or does not permit to create one.
    File {
        /// The folder that was chosen for the file.
        folder: PathBuf,
        /// The requested size in bytes.
        bytes: u64,
        /// The host's error.
        error: io::Error,
    },
    /// mlock failed.
    Lock {
        /// The number of bytes that could not be locked.
        bytes: u64,
        /// The number of bytes that the process may lock (RLIMIT_MEMLOCK).
        limit: Option<u64>,
        /// The host's error.
        error: io::Error,
    },
    /// memfd_secret failed.
    Secret(io::Error),
    /// mmap failed: address space or the limit on it is exhausted.
    Map(io::Error),
}

impl fmt::Display for MemoryError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidSize(bytes) => write!(
                formatter,
                "{bytes} bytes of guest memory: must be a multiple of 4096, at least 4096 and at most {MAX_RAM_BYTES}"
            ),
            Self::Create(error) => write!(formatter, "cannot create guest memory: {error}"),
            Self::FileLimit { bytes, limit } => {
                write!(
                    formatter,
                    "cannot create {} MiB of guest memory: it is a file, and this process may \
                     write files of ",
                    bytes >> 20
                )?;
                match limit {
                    Some(limit) => write!(formatter, "{} KiB", limit >> 10)?,
                    None => write!(formatter, "less")?,
                }
                write!(formatter, " (raise it by 'ulimit -f')")
            }
            Self::File {
                folder,
                bytes,
                error,
            } => write!(
                formatter,
                "cannot keep {} MiB of guest memory in a file in {}: {error}",
                bytes >> 20,
                folder.display()
            ),
            Self::Lock {
                bytes,
                limit: Some(limit),
                ..
            } if limit < bytes => write!(
                formatter,
                "cannot lock {} MiB of guest memory: this process may lock {} KiB (raise it by 'ulimit -l')",
                bytes >> 20,
                limit >> 10
            ),
            Self::Lock { bytes, error, .. } => write!(
                formatter,
                "cannot lock {} MiB of guest memory: {error}",
                bytes >> 20
            ),
            Self::Secret(error) => write!(
                formatter,
                "this host has no secret memory (memfd_secret: {error}): it takes Linux 5.14, and before \
                 6.5 the kernel's parameter secretmem.enable=1"
            ),
            Self::Map(error) => write!(formatter, "cannot map guest memory: {error}"),
        }
    }
}

impl std::error::Error for MemoryError {}
