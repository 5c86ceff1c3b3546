//! The header of a snapshot's file, which says where the description is.

use super::SNAPSHOT_VERSION;
use super::error::SnapshotError;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The first bytes of every snapshot.
const MAGIC: [u8; 16] = *b"\x89tollgate snap\r\n";
/// The size of the header in bytes.
pub(super) const HEADER_BYTES: usize = 48;
/// The maximum size of a description in bytes.
const MAX_DESCRIPTION_BYTES: u64 = 256 << 20;

/// Makes the header of a file whose description lies at an offset.
pub(super) fn header(offset: u64, description: &[u8]) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..16].copy_from_slice(&MAGIC);
    bytes[16..20].copy_from_slice(&SNAPSHOT_VERSION.to_le_bytes());
    bytes[20..24].copy_from_slice(&crc32fast::hash(description).to_le_bytes());
    bytes[24..32].copy_from_slice(&offset.to_le_bytes());
    bytes[32..40].copy_from_slice(&(description.len() as u64).to_le_bytes());
    let sum = crc32fast::hash(&bytes[..40]);
    bytes[40..44].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// What the header says of the description.
pub(super) struct Header {
    /// The offset of the description.
    pub offset: u64,
    /// The size of the description.
    pub bytes: u64,
    /// The description's checksum.
    pub checksum: u32,
}

/// Reads the header of a file.
///
/// # Errors
/// [`SnapshotError`]: the file cannot be read, is no snapshot, is damaged, or has another version.
pub(super) fn read_header(path: &Path, file: &File) -> Result<Header, SnapshotError> {
    let failed = |error| SnapshotError::Read(path.into(), error);
    let damaged = |why: &str| SnapshotError::Damaged(path.into(), why.into());
    let length = file.metadata().map_err(failed)?.len();
    let mut header = [0; HEADER_BYTES];
    if length < HEADER_BYTES as u64 {
        return Err(damaged("it is too short"));
    }
    file.read_exact_at(&mut header, 0).map_err(failed)?;
    if header[..16] != MAGIC {
        return Err(damaged("it does not begin like one"));
    }
    let word = |at: usize| {
        u32::from_le_bytes([(); 4].map({
            let mut next = at;
            move |()| {
                next += 1;
                header[next - 1]
            }
        }))
    };
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    if crc32fast::hash(&header[..40]) != word(40) {
        return Err(damaged("its header is damaged"));
    }
    if word(16) != SNAPSHOT_VERSION {
        return Err(SnapshotError::Version(path.into(), word(16)));
    }
    let (offset, bytes) = (long(24), long(32));
    let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= length);
    if !is_inside || bytes > MAX_DESCRIPTION_BYTES {
        return Err(damaged("its description lies outside the file"));
    }
    Ok(Header {
        offset,
        bytes,
        checksum: word(20),
    })
}
