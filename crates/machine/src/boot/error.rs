//! Errors in the files and options that a user wants to boot.

use std::fmt;
use std::path::PathBuf;

/// Why a guest could not be loaded. Each error prints as one line that names the file and says what
/// would be right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BootError {
    /// A file is missing or cannot be read.
    Unreadable {
        /// The flag that names the file.
        flag: &'static str,
        /// The path as it was given.
        path: PathBuf,
        /// The reason, see [`tollgate_host_facts::file_words`].
        reason: String,
    },
    /// The kernel file ends before a part that its headers announce.
    Truncated {
        /// The kernel file.
        kernel: String,
        /// The part that is missing.
        expected: String,
        /// The minimum size of the file in bytes.
        needed: u64,
        /// The size of the file in bytes.
        size: u64,
    },
    /// A firmware image has a size that a ROM cannot have.
    FirmwareSize {
        /// The path of the firmware image.
        path: PathBuf,
        /// The size in bytes, as far as it was counted.
        size: u64,
    },
    /// Firmware that is not UEFI firmware loads no kernel.
    NotUefi {
        /// The path of the firmware image.
        path: PathBuf,
    },
    /// The file has none of the known formats.
    NotAKernel {
        /// The name of the kernel file.
        kernel: String,
        /// The command that decompresses the file, if it is compressed.
        unpacked_by: Option<&'static str>,
    },
    /// The format is known, but the contents cannot be booted.
    Unsupported {
        /// The kernel file.
        kernel: String,
        /// A description of what is not supported.
        what: String,
    },
    /// The command line is longer than the kernel accepts.
    CommandLineTooLong {
        /// The length of the command line in bytes.
        length: u64,
        /// The maximum length in bytes.
        limit: u64,
    },
    /// There is no room for the initial RAM disk or a module.
    InitrdTooLarge {
        /// The size of the file in bytes.
        size: u64,
        /// The number of free bytes in the addresses that are allowed for it.
        room: u64,
    },
    /// This kind of kernel takes no initial RAM disk.
    InitrdUnsupported {
        /// The kernel file.
        kernel: String,
    },
    /// Several files were given for a kernel that takes one.
    SeveralInitrds {
        /// The paths, separated by commas.
        paths: String,
    },
    /// The machine has too little memory for the kernel.
    TooLittleMemory {
        /// The number of bytes that the kernel needs.
        needed: u64,
        /// The number of bytes that the machine has.
        memory: u64,
    },
}

/// Converts bytes to mebibytes, rounded up.
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
            Self::NotUefi { path } => write!(
                formatter,
                "'{}' is not UEFI firmware, which could load --kernel; without --bios and --pflash the kernel starts at once",
                path.display()
            ),
            Self::NotAKernel {
                kernel,
                unpacked_by: Some(command),
            } => write!(
                formatter,
                "{kernel} is not a kernel but a compressed file: if it contains a kernel, unpack it with '{command}'; an initial RAM disk is for --initrd"
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
                "--initrd: Linux takes one initial RAM disk, but '{paths}' is not a file; several archives can be joined: cat A B > BOTH"
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
