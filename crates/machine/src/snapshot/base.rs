//! The bases of a difference: earlier snapshots that have a part of its pieces.

use super::base_file::BaseFile;
use super::file::SnapshotFile;
use super::{MOST_BASES, PieceRun, SnapshotError, piece_offset};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use tollgate_memory::ram::PIECE_BYTES;

/// The place of a piece in one of the files of a difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PiecePlace {
    /// The file's number, see [`PieceRun::file`].
    pub file: usize,
    /// The number of the piece in the file.
    pub number: u64,
}

/// The files of a base, and the place of each of its pieces, with the numbers that the files have in
/// the difference.
pub(super) struct Base {
    names: Vec<BaseFile>,
    files: Vec<File>,
    /// Device and inode of each file.
    identities: Vec<(u64, u64)>,
    memory: Vec<PieceRun>,
    blocks: Vec<Vec<PieceRun>>,
}

impl Base {
    /// Opens a snapshot as the base of one that will be written to `target`.
    ///
    /// # Errors
    /// [`SnapshotError`]: the base, or one of its own bases, cannot be used; there are too many; or
    /// the new snapshot would replace one of them.
    pub fn open(path: &Path, target: &Path) -> Result<Self, SnapshotError> {
        let snapshot = SnapshotFile::open(path)?;
        let more = snapshot.description().bases.len();
        if more >= MOST_BASES {
            return Err(SnapshotError::TooManyBases(path.into(), more));
        }
        let failed = |error| SnapshotError::Read(path.into(), error);
        let mut names = vec![BaseFile {
            path: fs::canonicalize(path).map_err(failed)?,
            checksum: snapshot.checksum(),
        }];
        let bases = snapshot.open_bases()?;
        let (_, file, description) = snapshot.into_parts();
        names.extend(description.bases);
        let files: Vec<File> = [file].into_iter().chain(bases).collect();
        let identities = files.iter().map(|file| file.metadata().map(identity));
        let identities = identities.collect::<io::Result<Vec<_>>>().map_err(failed)?;
        let replaced = fs::metadata(target).map(identity);
        if replaced.is_ok_and(|replaced| identities.contains(&replaced)) {
            return Err(SnapshotError::ReplacesBase(target.into()));
        }
        let blocks = description.blocks.iter();
        Ok(Self {
            names,
            files,
            identities,
            memory: in_difference(&description.memory),
            blocks: blocks.map(|block| in_difference(&block.runs)).collect(),
        })
    }

    /// Returns the names of all files of the base, in the order of their numbers.
    pub fn names(&self) -> &[BaseFile] {
        &self.names
    }

    /// Returns the place of the piece of RAM at a physical address.
    pub fn memory(&self, address: u64) -> Option<PiecePlace> {
        place_of(&self.memory, address)
    }

    /// Returns the place of a piece of other memory.
    pub fn block(&self, block: usize, offset: u64) -> Option<PiecePlace> {
        place_of(self.blocks.get(block)?, offset)
    }

    /// Whether a piece of RAM that is mapped from a file at an offset is the piece at this place.
    pub fn is_mapped(&self, place: PiecePlace, mapped: (&OwnedFd, u64)) -> io::Result<bool> {
        let (file, offset) = mapped;
        if offset != piece_offset(place.number) {
            return Ok(false);
        }
        let metadata = File::from(file.try_clone()?).metadata()?;
        Ok(self.identities[place.file - 1] == identity(metadata))
    }

    /// Whether the piece at this place has these contents.
    pub fn holds(&self, place: PiecePlace, contents: &[u8]) -> io::Result<bool> {
        let mut bytes = [0; PIECE_BYTES as usize];
        let file = &self.files[place.file - 1];
        file.read_exact_at(&mut bytes, piece_offset(place.number))?;
        Ok(bytes == contents)
    }
}

/// The runs of a base, by address, with the numbers that files have in the difference: 1 for the
/// base's own, and for each of its own bases one more than in the base.
fn in_difference(runs: &[PieceRun]) -> Vec<PieceRun> {
    let runs = runs.iter().map(|run| PieceRun {
        file: run.file + 1,
        ..*run
    });
    let mut runs: Vec<PieceRun> = runs.collect();
    runs.sort_by_key(|run| run.address);
    runs
}

/// Finds the piece at an address.
fn place_of(runs: &[PieceRun], address: u64) -> Option<PiecePlace> {
    let after = runs.partition_point(|run| run.address <= address);
    let run = &runs[after.checked_sub(1)?];
    let distance = address - run.address;
    let piece = distance / PIECE_BYTES;
    let is_there = distance.is_multiple_of(PIECE_BYTES) && piece < run.pieces;
    is_there.then_some(PiecePlace {
        file: run.file,
        number: run.first + piece,
    })
}

fn identity(metadata: fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_base_are_found_by_their_addresses() {
        let run = |address, pieces, first, file| PieceRun {
            address: address * PIECE_BYTES,
            pieces,
            first,
            file,
        };
        let runs = in_difference(&[run(20, 1, 0, 0), run(4, 3, 7, 1)]);
        let place = |file, number| Some(PiecePlace { file, number });
        let found = |piece| place_of(&runs, piece * PIECE_BYTES);
        let expected = [
            (3, None),
            (4, place(2, 7)),
            (6, place(2, 9)),
            (7, None),
            (20, place(1, 0)),
            (21, None),
        ];
        for (piece, place) in expected {
            assert_eq!(found(piece), place, "{piece}");
        }
        assert_eq!(place_of(&runs, 4 * PIECE_BYTES + 4096), None);
    }
}
