//! Firmware's ROM: at the top of the first 4 GiB, and its last part again below 1 MiB.

use tollgate_memory::{BlockId, GuestMemory, MapError, Region, RegionKind};
use tollgate_x86::PhysicalAddress;

/// First address after the ROM.
const END: u64 = 1 << 32;
/// First address after its copy below 1 MiB.
const COPY_END: u64 = 0x10_0000;
/// Bytes that appear below 1 MiB at most.
const COPY_BYTES: u64 = 0x2_0000;

/// Where the bytes of the ROM are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirmwareRom {
    /// The memory that holds it.
    pub block: BlockId,
    /// Bytes; a positive multiple of 4096, at most [`FirmwareRom::MAX_BYTES`].
    pub bytes: u64,
}

impl FirmwareRom {
    /// The largest ROM: all that lies above the interrupt controllers' pages.
    pub const MAX_BYTES: u64 = 16 << 20;

    /// Puts it at the top of the first 4 GiB.
    ///
    /// # Errors
    /// The host refused to map it.
    pub fn place_at_top(&self, memory: &mut GuestMemory) -> Result<(), MapError> {
        memory.set_region(Region {
            start: PhysicalAddress(END - self.bytes),
            bytes: self.bytes,
            kind: RegionKind::Rom,
            block: Some((self.block, 0)),
        })
    }

    /// The first address below 1 MiB at which it appears.
    pub fn copy_start(&self) -> u64 {
        COPY_END - self.bytes.min(COPY_BYTES)
    }

    /// The offset in the ROM of what appears at an address from [`FirmwareRom::copy_start`] to
    /// 1 MiB.
    pub fn offset_of_copy(&self, address: u64) -> u64 {
        self.bytes - (COPY_END - address)
    }
}
