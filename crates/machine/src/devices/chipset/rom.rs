//! Firmware's ROM: at the top of the first 4 GiB, with a copy of its last part below 1 MiB.

use tollgate_memory::{BlockId, GuestMemory, MapError, Region, RegionKind};
use tollgate_x86::PhysicalAddress;

/// The first address after the ROM.
const END: u64 = 1 << 32;
/// The first address after the copy below 1 MiB.
const COPY_END: u64 = 0x10_0000;
/// The maximum size of the copy below 1 MiB in bytes.
const COPY_BYTES: u64 = 0x2_0000;

/// The place of the ROM's bytes in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirmwareRom {
    /// The block of memory that holds the ROM.
    pub block: BlockId,
    /// The size in bytes: a positive multiple of 4096, at most [`FirmwareRom::MAX_BYTES`].
    pub bytes: u64,
}

impl FirmwareRom {
    /// The maximum size of a ROM: all addresses above the pages of the interrupt controllers.
    pub const MAX_BYTES: u64 = 16 << 20;

    /// Places the ROM at the top of the first 4 GiB.
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

    /// Returns the first address of the copy below 1 MiB.
    pub fn copy_start(&self) -> u64 {
        COPY_END - self.bytes.min(COPY_BYTES)
    }

    /// Returns the offset in the ROM of the byte that appears at an address from
    /// [`FirmwareRom::copy_start`] to 1 MiB.
    pub fn offset_of_copy(&self, address: u64) -> u64 {
        self.bytes - (COPY_END - address)
    }
}
