//! Snapshots: the whole state of a machine in one file, from which any number of machines can be
//! restored.
//!
//! ```text
//!      0  header      magic number, version, where the description is, and its checksum
//!   64 K  pieces      the contents of RAM and of other memory that are not zero, 64 KiB each
//!         description what machine it is, the state of processor and devices, where each piece
//!                     belongs, and a checksum of each (JSON)
//! ```
//!
//! A *difference* is a snapshot without the pieces that an earlier snapshot has, its *base*. It names
//! the files that it needs, the base and the base's own bases, and holds everything else.
//!
//! A restored machine maps the pieces of RAM from the file. At its start it copies nothing
//! ([`tollgate_memory::ram`]), or the pages that such machines are known to write first. Disks stay where
//! they are: the description says in which state they were, and a machine is not restored on others.

mod base;
mod base_file;
mod disks;
pub(crate) mod error;
mod file;
mod first_writes;
mod header;
mod put_back;
mod restore;
mod version;
mod write;

pub use self::base_file::BaseFile;
pub use self::disks::DiskState;
pub use self::error::SnapshotError;
pub use self::file::SnapshotFile;
pub(crate) use self::put_back::Origin;
pub use self::version::SNAPSHOT_VERSION;

use crate::config::VmConfig;
use crate::saved::MachineState;
use serde::{Deserialize, Serialize};
pub use tollgate_memory::PageSpan;
use tollgate_memory::ram::MOST_FILES;
pub use tollgate_memory::ram::PIECE_BYTES;

/// The maximum number of bases of a snapshot.
pub const MOST_BASES: usize = MOST_FILES - 1;

/// A range of consecutive pieces in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PieceRun {
    /// The address of the first byte: physical for RAM, in the block for other memory.
    pub address: u64,
    /// The number of pieces.
    pub pieces: u64,
    /// The number of the first piece in the file, from 0.
    pub first: u64,
    /// The file: 0 for the snapshot's own, from 1 for its bases.
    pub file: usize,
}

/// Memory of the machine that is not RAM: firmware and display memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BlockContents {
    /// Its size in bytes.
    pub bytes: u64,
    /// Its contents that are not zero.
    pub runs: Vec<PieceRun>,
}

/// Everything in a snapshot except the contents of memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Description {
    /// The version of the program that wrote it.
    pub program: String,
    /// When it was written, in seconds since 1970.
    pub created: u64,
    /// The machine's configuration.
    pub config: VmConfig,
    /// The features of the processor that the guest was shown.
    pub features: Vec<String>,
    /// The earlier snapshots that have pieces of this one.
    pub bases: Vec<BaseFile>,
    /// The state of the machine's disks.
    pub disks: Vec<DiskState>,
    /// The contents of RAM that are not zero.
    pub memory: Vec<PieceRun>,
    /// The contents of other memory, in the order in which it was made.
    pub blocks: Vec<BlockContents>,
    /// The checksum (CRC-32) of each piece in the snapshot's own file.
    pub checksums: Vec<u32>,
    /// The state of processor, devices and clocks.
    pub state: MachineState,
}

impl Description {
    /// Returns all runs of pieces, of RAM and of other memory.
    fn runs(&self) -> impl Iterator<Item = &PieceRun> {
        let blocks = self.blocks.iter().flat_map(|block| &block.runs);
        self.memory.iter().chain(blocks)
    }
}

/// The offset of a piece in the file.
const fn piece_offset(number: u64) -> u64 {
    (number + 1) * PIECE_BYTES
}
