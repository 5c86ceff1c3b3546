//! What can be wrong with what the user wants to boot.

use std::fmt;
use std::path::PathBuf;

/// Why a guest could not be loaded. Each prints as one line that names the file and
/// says what would be right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BootError {
    /// A file is missing or cannot be read.
    Unreadable {
        /// The flag that names it.
        flag: &'static str,
        /// The file as it was given.
        path: PathBuf,
        /// Why, see [`crate::file_words`].
        reason: String,
    },
    /// The kernel file ends before something that its headers promise.
    Truncated {
        /// The kernel file.
        kernel: String,
        /// What should have been there.
        expected: String,
        /// Bytes that the file should have at least.
        needed: u64,
        /// Bytes that it has.
        size: u64,
    },
    /// A firmware image that cannot be a ROM.
    FirmwareSize {
        /// The file.
        path: PathBuf,
        /// Its bytes, as far as they were counted.
        size: u64,
    },
    /// None of the known formats.
    NotAKernel {
        /// The file.
        kernel: String,
        /// The command that unpacks it, if it is compressed.
        unpacked_by: Option<&'static str>,
    },
    /// A known format, but with contents that cannot be booted.
    Unsupported {
        /// The kernel file.
        kernel: String,
        /// What is not supported.
        what: String,
    },
    /// The command line is longer than the kernel takes.
    CommandLineTooLong {
        /// Bytes given.
        length: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The initial RAM disk, or a module, finds no room.
    InitrdTooLarge {
        /// Bytes needed.
        size: u64,
        /// Bytes free where it may lie.
        room: u64,
    },
    /// This kind of kernel takes no initial RAM disk.
    InitrdUnsupported {
        /// The kernel file.
        kernel: String,
    },
    /// Several files for a kernel that takes one.
    SeveralInitrds {
        /// The files, with commas between them.
        paths: String,
    },
    /// The machine has too little memory for the kernel.
    TooLittleMemory {
        /// Bytes that the kernel needs.
        needed: u64,
        /// Bytes that the machine has.
        memory: u64,
    },
}

/// Mebibytes, rounded up.
fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

impl fmt::Display for BootError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { flag, path, reason } => {
                let path = path.display();
                write!(formatter, "{flag}: cannot read '{path}': {reason}")
            }
            Self::Truncated {
                kernel,
                expected,
                needed,
                size,
            } => write!(
                formatter,
                "{kernel} is truncated: {expected} needs {needed} bytes, the file has {size}"
            ),
            Self::FirmwareSize { path, size } => write!(
                formatter,
                "{} has {size} bytes: a firmware image has a multiple of 4096, at most 16 MiB",
                path.display()
            ),
            Self::NotAKernel {
                kernel,
                unpacked_by: Some(command),
            } => write!(
                formatter,
                "{kernel} is not a kernel but a compressed file: if a kernel is in it, give what '{command}' makes of it; an initial RAM disk is for --initrd"
            ),
            Self::NotAKernel {
                kernel,
                unpacked_by: None,
            } => write!(
                formatter,
                "{kernel} is not a kernel: expected a Linux bzImage, an ELF file for x86, a multiboot kernel, a boot sector or flat code"
            ),
            Self::Unsupported { kernel, what } => write!(formatter, "cannot boot {kernel}: {what}"),
            Self::CommandLineTooLong { length, limit } => write!(
                formatter,
                "--append: the kernel command line has {length} bytes; this kernel takes at most {limit}"
            ),
            Self::InitrdTooLarge { size, room } => write!(
                formatter,
                "--initrd: the initial RAM disk of {size} bytes does not fit: {room} bytes are free for it (more --memory may help)"
            ),
            Self::InitrdUnsupported { kernel } => write!(
                formatter,
                "{kernel} is a boot sector or flat code, which takes no --initrd"
            ),
            Self::SeveralInitrds { paths } => write!(
                formatter,
                "--initrd: Linux takes one initial RAM disk, and there is no file '{paths}'; several archives make one: cat A B > BOTH"
            ),
            Self::TooLittleMemory { needed, memory } => write!(
                formatter,
                "--memory: too little: the kernel needs {} MiB, the machine has {} MiB",
                mebibytes(*needed),
                memory >> 20
            ),
        }
    }
}

impl std::error::Error for BootError {}
