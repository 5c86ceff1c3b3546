//! The header of a qcow2 image (QEMU's `docs/interop/qcow2.rst`), and the checks that it must pass
//! before anything else of the image is read.
//!
//! Every use of an image begins here, so a damaged header is refused with the same words by all of
//! them: running a machine, copying, showing and checking.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The first bytes of a qcow2 image.
pub(crate) const MAGIC: [u8; 4] = *b"QFI\xfb";
/// The maximum number of entries of an L1 table, as in QEMU: 32 MiB of them.
pub(crate) const MAX_L1_ENTRIES: u64 = 4 << 20;
/// The maximum number of snapshots, as in QEMU.
const MAX_SNAPSHOTS: u32 = 65_536;
/// The maximum size of the table of reference counts in bytes, as in QEMU.
const MAX_REFCOUNT_TABLE_BYTES: u64 = 8 << 20;
/// The header extension with the backing file's format.
const BACKING_FORMAT: u32 = 0xe279_2aca;
/// The header extension for persistent bitmaps.
const BITMAPS: u32 = 0x2385_2875;
/// The header extension with the name of the external data file.
const DATA_FILE: u32 = 0x4441_5441;
/// The header extension with the offset of the LUKS header.
const LUKS_HEADER: u32 = 0x0537_be77;
/// The maximum length of a backing file's name in bytes.
const MAX_NAME_BYTES: usize = 1023;
/// The size in bytes of a version 2 header, which contains neither its length nor the width of
/// counts.
const VERSION_2_BYTES: usize = 72;
/// The minimum size of a version 3 header in bytes.
const VERSION_3_BYTES: usize = 104;
/// The offset of the incompatible features in a version 3 header.
pub(crate) const INCOMPATIBLE_OFFSET: u64 = 72;

/// The incompatible features. An image with other ones is refused.
pub(crate) mod incompatible {
    /// Reference counts may be wrong.
    pub const DIRTY: u64 = 1 << 0;
    /// The image is known to be damaged.
    pub const CORRUPT: u64 = 1 << 1;
    /// The data are in an external file.
    pub const EXTERNAL_DATA: u64 = 1 << 2;
    /// The header contains the compression type.
    pub const COMPRESSION: u64 = 1 << 3;
    /// Entries of L2 tables have 16 bytes.
    pub const EXTENDED_L2: u64 = 1 << 4;
    /// All features above.
    pub const KNOWN: u64 = DIRTY | CORRUPT | EXTERNAL_DATA | COMPRESSION | EXTENDED_L2;
}

/// How the data of an image are encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encryption {
    /// QEMU's first method, AES-CBC with a password as the key.
    Aes,
    /// Linux Unified Key Setup.
    Luks,
}

impl Encryption {
    /// Returns the name that QEMU's tools print.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes => "aes",
            Self::Luks => "luks",
        }
    }
}

/// A qcow2 header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub version: u32,
    /// The name of the backing file as stored in the image.
    pub backing: Option<String>,
    pub backing_format: Option<String>,
    /// The name of the external data file as stored in the image.
    pub data_file: Option<String>,
    /// The size of a cluster in bytes, as a power of two: 9 to 21.
    pub cluster_bits: u32,
    /// The size of the disk in bytes.
    pub size: u64,
    pub encryption: Option<Encryption>,
    /// The number of entries of the active L1 table.
    pub l1_entries: u32,
    pub l1_offset: u64,
    pub refcount_table_offset: u64,
    pub refcount_table_clusters: u32,
    pub snapshots: u32,
    pub snapshots_offset: u64,
    pub incompatible: u64,
    /// The number of bits of a reference count, as a power of two: 0 to 6.
    pub refcount_order: u32,
    pub has_bitmaps: bool,
}

/// Reads the four-byte number at `at`. Its bytes must exist.
fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4]
        .iter()
        .fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// Reads the eight-byte number at `at`. Its bytes must exist.
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

fn damaged(why: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("damaged qcow2 header: {why}"))
}

/// Reads `bytes` at `offset`. Bytes beyond the end of the file are zero.
pub(crate) fn read_padded(file: &File, offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let mut data = vec![0; bytes as usize];
    let mut filled = 0;
    while filled < data.len() {
        let Some(at) = offset.checked_add(filled as u64) else {
            break;
        };
        match file.read_at(&mut data[filled..], at) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // No file can have this offset.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(data)
}

impl Header {
    /// Returns the size of a cluster in bytes.
    pub const fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Whether all bits of `features` are set.
    pub const fn has(&self, features: u64) -> bool {
        self.incompatible & features == features
    }

    /// Reads the header of a file of `file_bytes`. Returns `None` if the file is not qcow2.
    ///
    /// # Errors
    /// An error of the host, or the header is damaged or has an unknown version.
    pub fn read(file: &File, file_bytes: u64) -> io::Result<Option<Self>> {
        let start = read_padded(file, 0, VERSION_3_BYTES as u64)?;
        if !start.starts_with(&MAGIC) {
            return Ok(None);
        }
        if file_bytes < VERSION_3_BYTES as u64 {
            return Err(damaged("the file ends in it"));
        }
        let cluster_bits = be32(&start, 20);
        if !(9..=21).contains(&cluster_bits) {
            return Err(damaged("its cluster size is not 512 bytes to 2 MiB"));
        }
        // The header, including its extensions and the backing file's name, is at most one cluster
        // long.
        let header = Self::parse(&read_padded(file, 0, 1 << cluster_bits)?)?;
        header.check_sizes()?;
        header.check_places(file_bytes)?;
        Ok(Some(header))
    }

    fn parse(bytes: &[u8]) -> io::Result<Self> {
        let version = be32(bytes, 4);
        let (header_bytes, incompatible, refcount_order) = match version {
            2 => (VERSION_2_BYTES, 0, 4),
            3 => (be32(bytes, 100) as usize, be64(bytes, 72), be32(bytes, 96)),
            _ => {
                let why = format!("qcow2 version {version} is unknown; 2 and 3 are supported");
                return Err(io::Error::other(why));
            }
        };
        let header = Self {
            version,
            backing: None,
            backing_format: None,
            data_file: None,
            cluster_bits: be32(bytes, 20),
            size: be64(bytes, 24),
            encryption: match be32(bytes, 32) {
                0 => None,
                1 => Some(Encryption::Aes),
                2 => Some(Encryption::Luks),
                method => return Err(damaged(format!("encryption method {method} is unknown"))),
            },
            l1_entries: be32(bytes, 36),
            l1_offset: be64(bytes, 40),
            refcount_table_offset: be64(bytes, 48),
            refcount_table_clusters: be32(bytes, 56),
            snapshots: be32(bytes, 60),
            snapshots_offset: be64(bytes, 64),
            incompatible,
            refcount_order,
            has_bitmaps: false,
        };
        if refcount_order > 6 {
            return Err(damaged("its reference counts have more than 64 bits"));
        }
        let unknown = incompatible & !incompatible::KNOWN;
        if unknown != 0 {
            let why = format!("it has features that are unknown here (bits {unknown:#x})");
            return Err(io::Error::other(why));
        }
        let least = if version == 2 {
            VERSION_2_BYTES
        } else {
            VERSION_3_BYTES
        };
        if !(least..=bytes.len()).contains(&header_bytes) {
            return Err(damaged(format!("it says that it has {header_bytes} bytes")));
        }
        header
            .read_extensions(bytes, header_bytes)?
            .read_name(bytes)
    }

    fn read_extensions(mut self, bytes: &[u8], start: usize) -> io::Result<Self> {
        let mut at = start;
        let mut has_luks_header = false;
        loop {
            let head = bytes
                .get(at..at.saturating_add(8))
                .ok_or_else(|| damaged("its extensions do not end"))?;
            let (kind, length) = (be32(head, 0), be32(head, 4) as usize);
            if kind == 0 {
                break;
            }
            let data = bytes
                .get(at + 8..(at + 8).saturating_add(length))
                .ok_or_else(|| damaged("an extension is longer than it"))?;
            match kind {
                BACKING_FORMAT => set_once(&mut self.backing_format, data)?,
                DATA_FILE => set_once(&mut self.data_file, data)?,
                BITMAPS => self.has_bitmaps = true,
                LUKS_HEADER => has_luks_header = true,
                _ => {}
            }
            at += 8 + length.next_multiple_of(8);
        }
        if has_luks_header != (self.encryption == Some(Encryption::Luks)) {
            return Err(damaged(
                "it has a LUKS header or LUKS encryption, but not both",
            ));
        }
        Ok(self)
    }

    fn read_name(mut self, bytes: &[u8]) -> io::Result<Self> {
        let offset = usize::try_from(be64(bytes, 8)).unwrap_or(usize::MAX);
        let length = be32(bytes, 16) as usize;
        if offset == 0 || length == 0 {
            return Ok(self);
        }
        if length > MAX_NAME_BYTES {
            return Err(damaged("the backing file's name is too long"));
        }
        let name = offset
            .checked_add(length)
            .and_then(|end| bytes.get(offset..end))
            .ok_or_else(|| damaged("the backing file's name is not in it"))?;
        set_once(&mut self.backing, name)?;
        Ok(self)
    }

    /// Refuses unreasonable sizes, and a disk that is too large for its tables.
    fn check_sizes(&self) -> io::Result<()> {
        let cluster = self.cluster_bytes();
        let entry_bytes = if self.has(incompatible::EXTENDED_L2) {
            16
        } else {
            8
        };
        let needed = self.size.div_ceil(cluster * (cluster / entry_bytes));
        let has = u64::from(self.l1_entries);
        if needed > MAX_L1_ENTRIES || i64::try_from(self.size).is_err() {
            return Err(damaged(format!(
                "a disk of {} bytes is larger than qcow2 allows with clusters of {cluster} bytes",
                self.size
            )));
        }
        if has < needed {
            return Err(damaged(format!(
                "its L1 table has {has} entries, but its disk needs {needed}"
            )));
        }
        if has > MAX_L1_ENTRIES {
            return Err(damaged("its L1 table is larger than QEMU makes it"));
        }
        let table_bytes = u64::from(self.refcount_table_clusters) * cluster;
        if table_bytes == 0 {
            return Err(damaged("it has no table of reference counts"));
        }
        if table_bytes > MAX_REFCOUNT_TABLE_BYTES {
            return Err(damaged(
                "its table of reference counts is larger than QEMU makes it",
            ));
        }
        if self.snapshots > MAX_SNAPSHOTS {
            return Err(damaged("it has more snapshots than QEMU makes"));
        }
        Ok(())
    }

    /// Refuses tables that are outside of the file.
    fn check_places(&self, file_bytes: u64) -> io::Result<()> {
        let cluster = self.cluster_bytes();
        let check = |what: &str, offset: u64, bytes: u64| {
            let end = offset.checked_add(bytes);
            // The last cluster of a file may be incomplete.
            let is_in_file = end.is_some_and(|end| end <= file_bytes.next_multiple_of(cluster));
            if !offset.is_multiple_of(cluster) {
                Err(damaged(format!("{what} does not begin with a cluster")))
            } else if bytes > 0 && (offset == 0 || !is_in_file) {
                Err(damaged(format!("{what} at {offset:#x} is not in the file")))
            } else {
                Ok(())
            }
        };
        let table_bytes = u64::from(self.refcount_table_clusters) * cluster;
        check(
            "its L1 table",
            self.l1_offset,
            u64::from(self.l1_entries) * 8,
        )?;
        check(
            "its table of reference counts",
            self.refcount_table_offset,
            table_bytes,
        )?;
        if self.snapshots > 0 {
            check("its table of snapshots", self.snapshots_offset, 1)?;
        }
        Ok(())
    }
}

/// Sets a name from the image, which must be in UTF-8 and occur only once.
fn set_once(name: &mut Option<String>, bytes: &[u8]) -> io::Result<()> {
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("a name in it is not UTF-8"))?;
    if name.as_ref().is_some_and(|known| known != text) {
        return Err(damaged("it has two names for one thing"));
    }
    *name = Some(text.to_owned());
    Ok(())
}
