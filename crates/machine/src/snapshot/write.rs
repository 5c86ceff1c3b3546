//! Writing a snapshot of a machine that stands between two instructions.

use super::base::{Base, PiecePlace};
use super::header::header;
use super::{BlockContents, Description, DiskState, PieceRun, SnapshotError, disks, piece_offset};
use crate::cpu;
use crate::vm::Vm;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tollgate_disk::NewFile;
use tollgate_memory::ram::PIECE_BYTES;
use tollgate_x86::PhysicalAddress;

/// The permissions of a snapshot: the guest's memory may hold secrets, which other users must not
/// read.
const MODE: u32 = 0o600;

/// The contents of a piece.
type Piece = [u8; PIECE_BYTES as usize];

impl Vm {
    /// Writes the machine's whole state to a file, which gets its name only when it is complete and
    /// then replaces the file that had this name before. Must not be called while [`Vm::run`] runs.
    ///
    /// # Errors
    /// [`SnapshotError`]: the state cannot be saved now, or the file cannot be written. The machine
    /// can continue.
    pub fn write_snapshot(&mut self, path: &Path) -> Result<(), SnapshotError> {
        self.write_snapshot_with(path, None)
    }

    /// Writes a snapshot as [`Vm::write_snapshot`] does, without the pieces that the snapshot `base`
    /// has. It can be restored as long as that file is there.
    ///
    /// # Errors
    /// Those of [`Vm::write_snapshot`]; or the base cannot be used.
    pub fn write_difference(&mut self, path: &Path, base: &Path) -> Result<(), SnapshotError> {
        let base = Base::open(base, path)?;
        self.write_snapshot_with(path, Some(&base))
    }

    fn write_snapshot_with(
        &mut self,
        path: &Path,
        base: Option<&Base>,
    ) -> Result<(), SnapshotError> {
        if self.memory().ram().is_secret() {
            return Err(SnapshotError::SecretMemory);
        }
        if let Some(disk) = disks::temporary(self.config()) {
            let why = "a snapshot of the machine does not contain";
            return Err(SnapshotError::Temporary(disk.into(), why));
        }
        let state = self.save()?;
        let refused = |error| SnapshotError::Disk(format!("a disk's state is unknown: {error}"));
        let images = self.config().images();
        let disks = images
            .map(|image| DiskState::of(&image.path))
            .collect::<io::Result<Vec<_>>>()
            .map_err(refused)?;
        let failed = |error| SnapshotError::Write(path.into(), error);
        let file = NewFile::create(path, MODE).map_err(failed)?;
        let mut pieces = Pieces::new(file.file(), base);
        let (memory, blocks) = pieces.write_memory(self).map_err(failed)?;
        let config = self.config().clone();
        let description = Description {
            program: env!("CARGO_PKG_VERSION").into(),
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            features: cpu::shown_features(&config.cpu),
            config,
            bases: base.map_or_else(Vec::new, |base| base.names().to_vec()),
            disks,
            memory,
            blocks,
            checksums: pieces.checksums,
            state,
        };
        write_description(file.file(), &description).map_err(failed)?;
        file.publish(true).map_err(failed)
    }
}

/// Writes the description and the header, which say where everything is.
fn write_description(file: &File, description: &Description) -> io::Result<()> {
    let text = serde_json::to_vec(description)?;
    let offset = piece_offset(description.checksums.len() as u64);
    file.write_all_at(&text, offset)?;
    file.write_all_at(&header(offset, &text), 0)
}

/// The pieces that have been written.
struct Pieces<'a> {
    file: &'a File,
    /// The snapshot whose pieces are not written again.
    base: Option<&'a Base>,
    checksums: Vec<u32>,
}

impl<'a> Pieces<'a> {
    fn new(file: &'a File, base: Option<&'a Base>) -> Self {
        Self {
            file,
            base,
            checksums: Vec::new(),
        }
    }

    /// Writes the contents of RAM and of all blocks. Returns where they lie.
    fn write_memory(&mut self, vm: &Vm) -> io::Result<(Vec<PieceRun>, Vec<BlockContents>)> {
        let memory = vm.memory();
        let mut bytes: Box<Piece> = Box::new([0; PIECE_BYTES as usize]);
        let mut ram = Vec::new();
        let mut at = memory.next_piece(PhysicalAddress(0));
        while let Some(address) = at {
            at = memory.next_piece(PhysicalAddress(address.0 + PIECE_BYTES));
            let earlier = self.base.and_then(|base| base.memory(address.0));
            if let (Some(base), Some(place), Some(mapped)) =
                (self.base, earlier, memory.ram().saved_piece(address.0))
                && base.is_mapped(place, mapped)?
            {
                add(&mut ram, address.0, place);
                continue;
            }
            memory.read_piece(address, &mut bytes)?;
            self.write(address.0, &bytes, earlier, &mut ram)?;
        }
        let mut blocks = Vec::new();
        for (number, (id, size)) in memory.block_sizes().into_iter().enumerate() {
            let mut runs = Vec::new();
            for offset in (0..size).step_by(PIECE_BYTES as usize) {
                let length = (size - offset).min(PIECE_BYTES) as usize;
                bytes[length..].fill(0);
                memory.read_block(id, offset, &mut bytes[..length])?;
                let earlier = self.base.and_then(|base| base.block(number, offset));
                self.write(offset, &bytes, earlier, &mut runs)?;
            }
            blocks.push(BlockContents { bytes: size, runs });
        }
        Ok((ram, blocks))
    }

    /// Writes a piece, unless it is zero or the base has it at its earlier place, and adds it to the
    /// runs.
    fn write(
        &mut self,
        address: u64,
        piece: &Piece,
        earlier: Option<PiecePlace>,
        runs: &mut Vec<PieceRun>,
    ) -> io::Result<()> {
        if is_zero(piece) {
            return Ok(());
        }
        if let (Some(base), Some(place)) = (self.base, earlier)
            && base.holds(place, piece)?
        {
            add(runs, address, place);
            return Ok(());
        }
        let number = self.checksums.len() as u64;
        self.file.write_all_at(piece, piece_offset(number))?;
        self.checksums.push(crc32fast::hash(piece));
        add(runs, address, PiecePlace { file: 0, number });
        Ok(())
    }
}

/// Adds a piece to the runs.
fn add(runs: &mut Vec<PieceRun>, address: u64, place: PiecePlace) {
    let PiecePlace { file, number } = place;
    match runs.last_mut() {
        Some(last)
            if last.file == file
                && last.address + last.pieces * PIECE_BYTES == address
                && last.first + last.pieces == number =>
        {
            last.pieces += 1;
        }
        _ => runs.push(PieceRun {
            address,
            pieces: 1,
            first: number,
            file,
        }),
    }
}

/// Whether all bytes are zero; words are compared, which is several times faster.
fn is_zero(piece: &Piece) -> bool {
    let (words, _) = piece.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64])
}
