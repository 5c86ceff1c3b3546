//! Writing a snapshot of a machine that stands between two instructions.

use super::file::header;
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
        let mut pieces = Pieces::new(file.file());
        let (memory, blocks) = pieces.write_memory(self).map_err(failed)?;
        let config = self.config().clone();
        let description = Description {
            program: env!("CARGO_PKG_VERSION").into(),
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            features: cpu::shown_features(&config.cpu),
            config,
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
    checksums: Vec<u32>,
}

impl<'a> Pieces<'a> {
    fn new(file: &'a File) -> Self {
        Self {
            file,
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
            memory.read_piece(address, &mut bytes)?;
            self.write(address.0, &bytes, &mut ram)?;
            at = memory.next_piece(PhysicalAddress(address.0 + PIECE_BYTES));
        }
        let mut blocks = Vec::new();
        for (id, size) in memory.block_sizes() {
            let mut runs = Vec::new();
            for offset in (0..size).step_by(PIECE_BYTES as usize) {
                let length = (size - offset).min(PIECE_BYTES) as usize;
                bytes[length..].fill(0);
                memory.read_block(id, offset, &mut bytes[..length])?;
                self.write(offset, &bytes, &mut runs)?;
            }
            blocks.push(BlockContents { bytes: size, runs });
        }
        Ok((ram, blocks))
    }

    /// Writes a piece unless it is zero, and adds it to the runs.
    fn write(&mut self, address: u64, piece: &Piece, runs: &mut Vec<PieceRun>) -> io::Result<()> {
        if is_zero(piece) {
            return Ok(());
        }
        let number = self.checksums.len() as u64;
        self.file.write_all_at(piece, piece_offset(number))?;
        self.checksums.push(crc32fast::hash(piece));
        match runs.last_mut() {
            Some(last) if last.address + last.pieces * PIECE_BYTES == address => last.pieces += 1,
            _ => runs.push(PieceRun {
                address,
                pieces: 1,
                first: number,
            }),
        }
        Ok(())
    }
}

/// Whether all bytes are zero; words are compared, which is several times faster.
fn is_zero(piece: &Piece) -> bool {
    let (words, _) = piece.as_chunks::<64>();
    words.iter().all(|word| *word == [0; 64])
}
