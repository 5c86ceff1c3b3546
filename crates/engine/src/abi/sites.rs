//! Sites: the ways out of a block, and how an exit names one.

use crate::abi::marks::Shadow;
use tollgate_x86::Vector;

/// Number of a block; numbers are given out again after a block has died.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct BlockId(pub u32);

/// Where a link site keeps its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkPlace {
    /// A 32-bit distance at this offset of the block's code; the stub is at `stub`.
    Direct {
        /// Offset of the distance.
        distance: u32,
        /// Offset of the stub to which an unlinked site jumps.
        stub: u32,
        /// The target is `Site::rip` in the mode without windows, which a look-up for several
        /// stack accesses leads to when it misses (see [`Mode::windowless`]).
        ///
        /// [`Mode::windowless`]: crate::policy::mode::Mode::windowless
        windowless: bool,
    },
    /// A slot of the current link tables, relative to the stub.
    Slot {
        /// Number of the slot.
        slot: u32,
        /// Offset of the stub to which an empty slot leads.
        stub: u32,
    },
}

/// Why a block exits at one of its sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SiteKind {
    /// A direct branch to `Site::rip` whose target is not linked.
    Link(LinkPlace),
    /// An indirect branch; the target EIP is in the exit value.
    Indirect,
    /// The privilege level has changed, and the instruction is done but for EIP, which is in
    /// the exit value: the target is not in its mode's table.
    LevelChanged,
    /// A far transfer of real or V86 mode that is done but for CS and EIP, whose packed far
    /// pointer is in the exit value: its target is not in the table.
    Far,
    /// A software-TLB miss; the linear address is in the exit value.
    Memory {
        /// Bytes accessed.
        size: u8,
        /// The access needs write permission.
        write: bool,
    },
    /// As [`SiteKind::Memory`], of a load that the processor makes with the rights of the
    /// supervisor whatever the privilege level is.
    SystemRead {
        /// Bytes read.
        size: u8,
        /// The instruction, as [`SiteKind::Helper`] names it, for when the load cannot be
        /// made inline.
        helper: u16,
    },
    /// The instruction must be done out of line with all checks.
    Slow,
    /// An instruction that is never copied: number in the block's list.
    Helper(u16),
    /// The guest's vector registers are needed.
    VectorLoad,
    /// Continue at `Site::rip`.
    Continue,
    /// Raise this exception (error code 0) at `Site::rip`.
    Fault(Vector),
}

/// One way out of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// The reason for the exit, which selects how the monitor handles it.
    pub kind: SiteKind,
    /// EIP of the instruction, or for branches of the target.
    pub rip: u64,
    /// Added to R12 to get ESP at the exit.
    pub esp: i32,
    /// Offset in the block's code at which the instruction may be tried again.
    pub retry: u32,
    /// Offset behind the instruction; 0 if control moves on.
    pub after: u32,
    /// Added to R12 to get ESP at `after`.
    pub after_esp: i32,
    /// As [`Mark::shadowed`](crate::abi::marks::Mark::shadowed), if the instruction has not completed.
    pub shadowed: Shadow,
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
