//! A translated block: host code for a run of guest instructions, and the tables
//! that lead from any host address in it back to exact guest state.

use crate::mode::ModeId;
use iced_x86::Instruction;
use tollgate_x86::Vector;

/// What identifies a translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct BlockKey {
    /// Physical address of the first byte.
    pub physical: u64,
    /// Physical page number of the second page, if the first instruction straddles;
    /// otherwise `u64::MAX`.
    pub second_page: u64,
    /// EIP of the first instruction.
    pub eip: u32,
    /// Mode word.
    pub mode: ModeId,
}

/// Number of a block; numbers are given out again after a block has died.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct BlockId(pub u32);

/// From this host offset on, guest state is as follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Offset in the block's code.
    pub host: u32,
    /// EIP of the guest instruction that has not completed.
    pub eip: u32,
    /// Added to R12 to get ESP.
    pub esp: i32,
    /// Guest registers that lie elsewhere for the moment.
    pub restore: Restore,
}

/// Up to four `guest register := scratch register` moves that put guest state right.
/// Each byte holds the guest register in the high and the scratch register in the
/// low half; zero (RAX := RAX) means none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Restore(pub u32);

impl Restore {
    /// Nothing to put right.
    pub const NONE: Restore = Restore(0);

    /// `guest := scratch`.
    pub const fn one(guest: u8, scratch: u8) -> Self {
        Self((guest << 4 | scratch) as u32)
    }

    /// With one more move (at most four in all).
    pub const fn and(self, guest: u8, scratch: u8) -> Self {
        Self(self.0 << 8 | (guest << 4 | scratch) as u32)
    }

    /// The moves as (guest, scratch) register numbers.
    pub fn moves(self) -> impl Iterator<Item = (usize, usize)> {
        self.0
            .to_le_bytes()
            .into_iter()
            .filter(|&b| b != 0)
            .map(|b| ((b >> 4) as usize, (b & 15) as usize))
    }
}

/// Where a link site keeps its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkPlace {
    /// A 32-bit distance at this offset of the block's code; the stub is at `stub`.
    Direct {
        /// Offset of the distance.
        distance: u32,
        /// Offset of the stub to which an unlinked site jumps.
        stub: u32,
    },
    /// A slot of the current link tables, relative to the stub.
    Slot {
        /// Number of the slot.
        slot: u32,
        /// Offset of the stub to which an empty slot leads.
        stub: u32,
    },
}

/// Why a block leaves for the monitor at one of its sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SiteKind {
    /// A direct branch to `Site::eip` whose target is not linked.
    Link(LinkPlace),
    /// An indirect branch; the target EIP is in the exit value.
    Indirect,
    /// A software-TLB miss; the linear address is in the exit value.
    Memory {
        /// Bytes accessed.
        size: u8,
        /// The access needs write permission.
        write: bool,
    },
    /// The instruction must be done out of line with all checks.
    Slow,
    /// An instruction that is never copied: number in the block's list.
    Helper(u16),
    /// The guest's vector registers are needed.
    VectorLoad,
    /// Continue at `Site::eip`.
    Continue,
    /// Raise this exception (error code 0) at `Site::eip`.
    Fault(Vector),
}

/// One way out of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// Why.
    pub kind: SiteKind,
    /// EIP of the instruction, or for branches of the target.
    pub eip: u32,
    /// Added to R12 to get ESP at the exit.
    pub esp: i32,
    /// Offset in the block's code at which the instruction may be tried again.
    pub retry: u32,
    /// Offset behind the instruction; 0 if control moves on.
    pub after: u32,
    /// Added to R12 to get ESP at `after`.
    pub after_esp: i32,
}

/// Sites of one block at most; the exit site packs a block and a site number.
pub const MAX_SITES: usize = 1 << 10;
/// Blocks alive at most.
pub const MAX_BLOCKS: usize = 1 << 21;

/// Packs a block and a site into the number that exit stubs store.
pub fn pack_site(block: BlockId, site: usize) -> u32 {
    block.0 << 10 | site as u32
}

/// The reverse of [`pack_site`].
pub fn unpack_site(packed: u32) -> (BlockId, usize) {
    (
        BlockId(packed >> 10),
        (packed & (MAX_SITES as u32 - 1)) as usize,
    )
}

/// Who jumps to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// The jumping block.
    pub from: BlockId,
    /// Its site.
    pub site: u16,
}

/// A translation and its tables.
#[derive(Debug)]
pub struct Block {
    /// What it translates.
    pub key: BlockKey,
    /// Offset of its code in the cache.
    pub host: u32,
    /// Bytes of code.
    pub host_length: u32,
    /// Bytes of guest code.
    pub guest_length: u32,
    /// Ordered by host offset.
    pub marks: Box<[Mark]>,
    /// Ways out.
    pub sites: Box<[Site]>,
    /// Instructions that the monitor executes.
    pub helpers: Box<[Instruction]>,
    /// Direct links that lead here.
    pub incoming: Vec<Incoming>,
    /// Direct links of this block that are linked: (site, target).
    pub outgoing: Vec<(u16, BlockId)>,
}

impl Block {
    /// The mark in force at an offset of the block's code.
    pub fn mark_at(&self, offset: u32) -> Option<&Mark> {
        let next = self.marks.partition_point(|mark| mark.host <= offset);
        self.marks.get(next.checked_sub(1)?)
    }
}
