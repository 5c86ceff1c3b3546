//! Sites: the places at which a block can be left, and how an exit names one.

use crate::abi::marks::Shadow;
use std::num::NonZeroU8;
use tollgate_x86::Vector;

/// Number of a block; numbers are given out again after a block has died.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct BlockId(pub u32);

/// What a window's look-up was for: its first access, and the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowMiss {
    /// Bytes of the access, 1 to 64; [`WindowMiss::STORE`] with them: it is a store.
    access: NonZeroU8,
    /// Where in the window it lies, 0 to 127; [`WindowMiss::STORE`] with it: the window is for
    /// stores.
    place: u8,
    /// Bytes of the window, 1 to 128.
    size: u8,
}

impl WindowMiss {
    const STORE: u8 = 0x80;

    /// Puts both together; `None`: one of them has a size or a place that no window has.
    pub fn new(place: u8, size: u32, write: bool, window: u32, window_write: bool) -> Option<Self> {
        let store = |is_one: bool| if is_one { Self::STORE } else { 0 };
        let fits = (1..=64).contains(&size) && window <= 128 && place < Self::STORE;
        Some(Self {
            access: NonZeroU8::new(size as u8 | store(write)).filter(|_| fits)?,
            place: place | store(window_write),
            size: window as u8,
        })
    }

    /// As bytes, for [`WindowMiss::from_bytes`].
    pub(crate) fn to_bytes(self) -> [u8; 3] {
        [self.access.get(), self.place, self.size]
    }

    /// What [`WindowMiss::to_bytes`] made.
    pub(crate) fn from_bytes([access, place, size]: [u8; 3]) -> Option<Self> {
        Some(Self {
            access: NonZeroU8::new(access)?,
            place,
            size,
        })
    }

    /// Where in the window the access lies, in bytes.
    pub fn place(self) -> u8 {
        self.place & !Self::STORE
    }

    /// Bytes of the access, and whether it is a store.
    pub fn access(self) -> (u32, bool) {
        let access = self.access.get();
        (u32::from(access & !Self::STORE), access & Self::STORE != 0)
    }

    /// Bytes of the window, and whether it is for stores.
    pub fn window(self) -> (u32, bool) {
        (self.size.into(), self.place & Self::STORE != 0)
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
        /// The target is `Site::rip` in the mode without windows, which a look-up for several
        /// accesses leads to when it misses (see [`Mode::windowless`]); `Site::after_esp` is
        /// ESP's distance from R12 at `Site::retry`, and the exit's value is the linear
        /// address that was looked up.
        ///
        /// [`Mode::windowless`]: crate::policy::mode::Mode::windowless
        windowless: Option<WindowMiss>,
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

impl SiteKind {
    /// Whether the monitor may go on inside the block: at the start of the instruction or behind it.
    pub const fn comes_back(&self) -> bool {
        match self {
            Self::Memory { .. }
            | Self::SystemRead { .. }
            | Self::Slow
            | Self::Helper(_)
            | Self::VectorLoad
            | Self::Link(LinkPlace::Direct {
                windowless: Some(_),
                ..
            }) => true,
            Self::Link(_)
            | Self::Indirect
            | Self::Far
            | Self::LevelChanged
            | Self::Continue
            | Self::Fault(_) => false,
        }
    }
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
    /// Added to R12 to get ESP at `after`, or as [`LinkPlace::Direct`] says.
    pub after_esp: i32,
    /// As [`Mark::shadowed`](crate::abi::marks::Mark::shadowed), if the instruction has not completed.
    pub shadowed: Shadow,
}

impl Site {
    /// The slot of a link that leads through one, and where its stub is in the block's code.
    pub fn slot_and_stub(&self) -> Option<(u32, u32)> {
        match self.kind {
            SiteKind::Link(LinkPlace::Slot { slot, stub }) => Some((slot, stub)),
            _ => None,
        }
    }
}

// Blocks have many.
const _: () = assert!(size_of::<Site>() <= 40);

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
