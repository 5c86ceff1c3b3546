//! The file of a snapshot: its header, and reading its description.

use super::error::SnapshotError;
use super::{Description, PieceRun, SNAPSHOT_VERSION, piece_offset};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tollgate_memory::PageSpan;
use tollgate_memory::ram::{PIECE_BYTES, SavedRun};

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

/// An open snapshot whose description has been read and checked.
#[derive(Debug)]
pub struct SnapshotFile {
    path: PathBuf,
    file: File,
    description: Description,
    pub(super) ahead: Vec<PageSpan>,
}

impl SnapshotFile {
    /// Opens a snapshot and reads its description. The contents of memory are not read.
    ///
    /// # Errors
    /// [`SnapshotError`]: the file cannot be read, is no snapshot, is damaged, or has another
    /// version.
    pub fn open(path: &Path) -> Result<Self, SnapshotError> {
        let failed = |error| SnapshotError::Read(path.into(), error);
        let damaged = |why: &str| SnapshotError::Damaged(path.into(), why.into());
        let file = File::open(path).map_err(failed)?;
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
        let mut text = vec![0; bytes as usize];
        file.read_exact_at(&mut text, offset).map_err(failed)?;
        if crc32fast::hash(&text) != word(20) {
            return Err(damaged("its description is damaged"));
        }
        let description: Description = serde_json::from_slice(&text)
            .map_err(|error| damaged(&format!("its description cannot be read: {error}")))?;
        let count = description.checksums.len() as u64;
        if piece_offset(count) > offset {
            return Err(damaged("its memory is not whole"));
        }
        let blocks = description.blocks.iter().flat_map(|block| &block.runs);
        for run in description.memory.iter().chain(blocks) {
            let end = run.first.checked_add(run.pieces);
            if end.is_none_or(|end| end > count) {
                return Err(damaged("it names memory that it does not contain"));
            }
            let bytes = run.pieces.checked_mul(PIECE_BYTES);
            let last = bytes.and_then(|bytes| run.address.checked_add(bytes));
            if last.is_none() {
                return Err(damaged("it names memory beyond all addresses"));
            }
        }
        Ok(Self {
            path: path.into(),
            file,
            description,
            ahead: Vec::new(),
        })
    }

    /// Names pages of RAM that the guest is expected to write soon. They are copied when a machine
    /// is restored. Any list will do: pages that the snapshot does not have are left out, and the
    /// number of copies is limited.
    pub fn copy_ahead(&mut self, pages: Vec<PageSpan>) {
        self.ahead = pages;
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns everything except the contents of memory.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Takes the file and its description.
    pub(super) fn into_parts(self) -> (PathBuf, File, Description) {
        (self.path, self.file, self.description)
    }

    /// Reads all contents of memory and compares their checksums.
    ///
    /// # Errors
    /// [`SnapshotError`]: the file cannot be read, or a piece is damaged.
    pub fn check_memory(&self) -> Result<(), SnapshotError> {
        let mut bytes = vec![0; PIECE_BYTES as usize];
        for (number, expected) in self.description.checksums.iter().enumerate() {
            let offset = piece_offset(number as u64);
            (self.file.read_exact_at(&mut bytes, offset))
                .map_err(|error| SnapshotError::Read(self.path.clone(), error))?;
            if crc32fast::hash(&bytes) != *expected {
                let why = format!("its memory is damaged at offset {offset:#x}");
                return Err(SnapshotError::Damaged(self.path.clone(), why));
            }
        }
        Ok(())
    }
}

/// Where the pieces of a run lie in the file.
pub(super) fn saved_run(run: &PieceRun) -> SavedRun {
    SavedRun {
        address: run.address,
        bytes: run.pieces * PIECE_BYTES,
        file: 0,
        file_offset: piece_offset(run.first),
    }
}
