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
//! A restored machine maps the pieces of RAM from the file. At its start it copies nothing
//! ([`tollgate_memory::ram`]), or the pages that such machines are known to write first. Disks stay where they are: the description says in which state they
//! were, and a machine is not restored on others.

mod disks;
pub(crate) mod error;
mod file;
mod first_writes;
mod put_back;
mod restore;
mod version;
mod write;

pub use self::disks::DiskState;
pub use self::error::SnapshotError;
pub use self::file::SnapshotFile;
pub(crate) use self::put_back::Origin;
pub use self::version::SNAPSHOT_VERSION;

use crate::config::VmConfig;
use crate::saved::MachineState;
use serde::{Deserialize, Serialize};
pub use tollgate_memory::PageSpan;
pub use tollgate_memory::ram::PIECE_BYTES;

/// A range of consecutive pieces in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PieceRun {
    /// The address of the first byte: physical for RAM, in the block for other memory.
    pub address: u64,
    /// The number of pieces.
    pub pieces: u64,
    /// The number of the first piece in the file, from 0.
    pub first: u64,
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
    /// The state of the machine's disks.
    pub disks: Vec<DiskState>,
    /// The contents of RAM that are not zero.
    pub memory: Vec<PieceRun>,
    /// The contents of other memory, in the order in which it was made.
    pub blocks: Vec<BlockContents>,
    /// The checksum (CRC-32) of each piece.
    pub checksums: Vec<u32>,
    /// The state of processor, devices and clocks.
    pub state: MachineState,
}

/// The offset of a piece in the file.
const fn piece_offset(number: u64) -> u64 {
    (number + 1) * PIECE_BYTES
}
