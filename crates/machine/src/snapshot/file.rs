//! The file of a snapshot: reading and checking its description.

use super::base_file::BaseFile;
use super::error::SnapshotError;
use super::header::read_header;
use super::{Description, MOST_BASES, PieceRun, piece_offset};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tollgate_memory::PageSpan;
use tollgate_memory::ram::{PIECE_BYTES, SavedRun};

/// The number of pieces that a base may have: 32 TiB.
const MOST_PIECES: u64 = 1 << 29;

/// An open snapshot whose description has been read and checked.
#[derive(Debug)]
pub struct SnapshotFile {
    path: PathBuf,
    file: File,
    /// The description's checksum.
    checksum: u32,
    description: Description,
    pub(super) ahead: Vec<PageSpan>,
}

impl SnapshotFile {
    /// Opens a snapshot and reads its description. The contents of memory are not read, and its
    /// bases are not opened.
    ///
    /// # Errors
    /// [`SnapshotError`]: the file cannot be read, is no snapshot, is damaged, or has another
    /// version.
    pub fn open(path: &Path) -> Result<Self, SnapshotError> {
        let failed = |error| SnapshotError::Read(path.into(), error);
        let damaged = |why: &str| SnapshotError::Damaged(path.into(), why.into());
        let file = File::open(path).map_err(failed)?;
        let header = read_header(path, &file)?;
        let mut text = vec![0; header.bytes as usize];
        file.read_exact_at(&mut text, header.offset)
            .map_err(failed)?;
        if crc32fast::hash(&text) != header.checksum {
            return Err(damaged("its description is damaged"));
        }
        let description: Description = serde_json::from_slice(&text)
            .map_err(|error| damaged(&format!("its description cannot be read: {error}")))?;
        if piece_offset(description.checksums.len() as u64) > header.offset {
            return Err(damaged("its memory is not whole"));
        }
        if description.bases.len() > MOST_BASES {
            return Err(damaged("it names too many bases"));
        }
        for run in description.runs() {
            let count = match run.file {
                0 => description.checksums.len() as u64,
                file if file <= description.bases.len() => MOST_PIECES,
                _ => 0,
            };
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
            checksum: header.checksum,
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

    /// Opens the bases, in the order of their numbers, and checks that they are the files that were
    /// there when the snapshot was written. Their contents are not read.
    ///
    /// # Errors
    /// [`SnapshotError::Base`] for the first that cannot be used.
    pub fn open_bases(&self) -> Result<Vec<File>, SnapshotError> {
        let open = |base: &BaseFile| {
            let failed = |why| SnapshotError::Base(self.path.clone(), base.path.clone(), why);
            base.open().map_err(failed)
        };
        self.description.bases.iter().map(open).collect()
    }

    /// Returns the checksum of the description.
    pub(super) fn checksum(&self) -> u32 {
        self.checksum
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

    /// Reads all contents of memory, also those in bases, and compares their checksums.
    ///
    /// # Errors
    /// [`SnapshotError`]: a file cannot be read, a base is missing, or a piece is damaged.
    pub fn check_memory(&self) -> Result<(), SnapshotError> {
        self.open_bases()?;
        self.check_pieces()?;
        for (number, base) in (1..).zip(&self.description.bases) {
            let base = Self::open(&base.path)?;
            let count = base.description.checksums.len() as u64;
            let mut runs = self.description.runs().filter(|run| run.file == number);
            if runs.any(|run| run.first + run.pieces > count) {
                let why = "it names memory that its base does not contain";
                return Err(SnapshotError::Damaged(self.path.clone(), why.into()));
            }
            base.check_pieces()?;
        }
        Ok(())
    }

    /// Reads all pieces in the file and compares their checksums.
    fn check_pieces(&self) -> Result<(), SnapshotError> {
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
        file: run.file,
        file_offset: piece_offset(run.first),
    }
}
