//! The header of a qcow2 image (QEMU's `docs/interop/qcow2.rst`), as far as the tools need it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// What a qcow2 image begins with.
pub(crate) const MAGIC: [u8; 4] = *b"QFI\xfb";
/// The header extension that names the backing file's format.
const BACKING_FORMAT: u32 = 0xe279_2aca;
/// The header extension of persistent bitmaps.
const BITMAPS: u32 = 0x2385_2875;
/// Bytes of a backing file's name at most.
const MAX_NAME_BYTES: usize = 1023;
/// Bytes of a version 2 header, which says neither its length nor the width of counts.
const VERSION_2_BYTES: usize = 72;
/// The least bytes of a version 3 header.
const VERSION_3_BYTES: usize = 104;

/// Incompatible features: an image that has others cannot be understood.
pub(crate) mod incompatible {
    /// Reference counts may be wrong.
    pub const DIRTY: u64 = 1 << 0;
    /// The image is known to be damaged.
    pub const CORRUPT: u64 = 1 << 1;
    /// The data are in a file of their own.
    pub const EXTERNAL_DATA: u64 = 1 << 2;
    /// The compression is named in the header.
    pub const COMPRESSION: u64 = 1 << 3;
    /// Entries of L2 tables have 16 bytes.
    pub const EXTENDED_L2: u64 = 1 << 4;
}

/// A qcow2 header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub version: u32,
    /// The backing file's name, as it stands in the image.
    pub backing: Option<String>,
    pub backing_format: Option<String>,
    /// Bytes of a cluster, as a power of two: 9 to 21.
    pub cluster_bits: u32,
    /// Bytes of the disk.
    pub size: u64,
    pub encryption: u32,
    /// Entries of the active L1 table.
    pub l1_entries: u32,
    pub l1_offset: u64,
    pub refcount_table_offset: u64,
    pub refcount_table_clusters: u32,
    pub snapshots: u32,
    pub snapshots_offset: u64,
    pub incompatible: u64,
    /// Bits of a reference count, as a power of two: 0 to 6.
    pub refcount_order: u32,
    pub has_bitmaps: bool,
}

/// The number at `at`, whose bytes are there.
fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4]
        .iter()
        .fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// The same of eight bytes.
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

fn damaged(why: &str) -> io::Error {
    io::Error::other(format!("damaged qcow2 header: {why}"))
}

impl Header {
    /// Bytes of a cluster.
    pub const fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Reads the header of a file, `None` if it is not qcow2.
    ///
    /// # Errors
    /// The host's, or the header is damaged or of an unknown version.
    pub fn read(file: &File) -> io::Result<Option<Self>> {
        // The header with its extensions and the backing file's name: one cluster at most.
        let mut bytes = vec![0; 1 << 16];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        bytes.truncate(filled);
        if !bytes.starts_with(&MAGIC) {
            return Ok(None);
        }
        if filled < VERSION_3_BYTES {
            return Err(damaged("the file ends in it"));
        }
        Self::parse(&bytes).map(Some)
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
        let mut header = Self {
            version,
            backing: None,
            backing_format: None,
            cluster_bits: be32(bytes, 20),
            size: be64(bytes, 24),
            encryption: be32(bytes, 32),
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
        if !(9..=21).contains(&header.cluster_bits) {
            return Err(damaged("its cluster size is not 512 bytes to 2 MiB"));
        }
        if refcount_order > 6 {
            return Err(damaged("its reference counts have more than 64 bits"));
        }
        header.read_extensions(bytes, header_bytes)?;
        let name_offset = usize::try_from(be64(bytes, 8)).unwrap_or(usize::MAX);
        let name_bytes = be32(bytes, 16) as usize;
        if name_offset != 0 && name_bytes != 0 {
            let name = name_offset
                .checked_add(name_bytes.min(MAX_NAME_BYTES))
                .and_then(|end| bytes.get(name_offset..end))
                .ok_or_else(|| damaged("the backing file's name is not in it"))?;
            header.backing = Some(String::from_utf8_lossy(name).into_owned());
        }
        Ok(header)
    }

    fn read_extensions(&mut self, bytes: &[u8], start: usize) -> io::Result<()> {
        let mut at = start;
        while let Some(head) = bytes.get(at..at.saturating_add(8)) {
            let (kind, length) = (be32(head, 0), be32(head, 4) as usize);
            if kind == 0 {
                break;
            }
            let data = bytes
                .get(at + 8..(at + 8).saturating_add(length))
                .ok_or_else(|| damaged("an extension is longer than it"))?;
            match kind {
                BACKING_FORMAT => {
                    self.backing_format = Some(String::from_utf8_lossy(data).into_owned());
                }
                BITMAPS => self.has_bitmaps = true,
                _ => {}
            }
            at += 8 + length.next_multiple_of(8);
        }
        Ok(())
    }
}
