//! Sites: the places at which a block can be left, and how an exit names one.

use crate::abi::state_map::Shadow;
use std::num::NonZeroU8;
use tollgate_x86::Vector;

/// The value of `exit_site` if guest code was not entered at all.
pub const SITE_NONE: u32 = u32::MAX;

/// The value of `exit_site` if a signal took the guest out; see [`crate::abi::context::SignalExit`].
pub const SITE_SIGNAL: u32 = u32::MAX - 1;

/// The number of a block; a number is assigned again after its block has died.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct BlockId(pub u32);

/// Bytes that are accessed, or looked up to be accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedBytes {
    /// The number of bytes.
    pub size: u32,
    /// Whether they are stored to.
    pub write: bool,
}

/// What a shared look-up was for: its first access, and all bytes that share it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowMiss {
    /// The size of the access, 1 to 64 bytes; with [`WindowMiss::STORE`] the access is a store.
    access: NonZeroU8,
    /// The offset of the access in the shared bytes, 0 to 127; with [`WindowMiss::STORE`] the
    /// look-up is for stores.
    place: u8,
    /// The number of shared bytes, 1 to 128.
    size: u8,
}

impl WindowMiss {
    const STORE: u8 = 0x80;

    /// Describes an access at `place` in a shared look-up of `window`. `None` if no shared look-up
    /// has such an access.
    pub fn new(place: u8, access: SharedBytes, window: SharedBytes) -> Option<Self> {
        let store = |bytes: SharedBytes| if bytes.write { Self::STORE } else { 0 };
        let fits = (1..=64).contains(&access.size) && window.size <= 128 && place < Self::STORE;
        Some(Self {
            access: NonZeroU8::new(access.size as u8 | store(access)).filter(|_| fits)?,
            place: place | store(window),
            size: window.size as u8,
        })
    }

    /// The bytes from which [`WindowMiss::from_bytes`] makes this value.
    pub(crate) fn to_bytes(self) -> [u8; 3] {
        [self.access.get(), self.place, self.size]
    }

    /// The value that [`WindowMiss::to_bytes`] turned into these bytes.
    pub(crate) fn from_bytes([access, place, size]: [u8; 3]) -> Option<Self> {
        Some(Self {
            access: NonZeroU8::new(access)?,
            place,
            size,
        })
    }

    /// The offset in bytes of the access in the shared look-up.
    pub fn place(self) -> u8 {
        self.place & !Self::STORE
    }

    /// The bytes of the access.
    pub fn access(self) -> SharedBytes {
        let access = self.access.get();
        SharedBytes {
            size: u32::from(access & !Self::STORE),
            write: access & Self::STORE != 0,
        }
    }

    /// The bytes of the shared look-up.
    pub fn window(self) -> SharedBytes {
        SharedBytes {
            size: self.size.into(),
            write: self.place & Self::STORE != 0,
        }
    }
}

/// Where the target of a link's site is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkPlace {
    /// As a 32-bit distance at this offset of the block's code; the stub is at `stub`.
    Direct {
        /// The offset of the distance.
        distance: u32,
        /// The offset of the stub to which the site jumps while it is not linked.
        stub: u32,
        /// For the miss of a shared look-up. The target is `Site::rip` in the mode without shared
        /// look-ups (see [`Mode::windowless`]). `Site::after_esp` is ESP's distance from R12 at
        /// `Site::retry`, and the exit's value is the linear address that was looked up.
        ///
        /// [`Mode::windowless`]: crate::policy::mode::Mode::windowless
        windowless: Option<WindowMiss>,
    },
    /// The link is in a slot of the current link tables.
    Slot {
        /// The number of the slot.
        slot: u32,
        /// The offset of the stub to which an empty slot leads.
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
    /// The privilege level has changed, and the instruction is complete except for EIP, which is in
    /// the exit value: the target is not in its mode's table.
    LevelChanged,
    /// A far transfer of real or V86 mode that is complete except for CS and EIP, whose packed far
    /// pointer is in the exit value: its target is not in the table.
    Far,
    /// A miss in the software TLB; the linear address is in the exit value.
    Memory {
        /// The number of bytes accessed.
        size: u8,
        /// Whether the access needs write permission.
        write: bool,
    },
    /// A miss in the software TLB of a load that the processor makes with the supervisor's rights
    /// at any privilege level.
    SystemRead {
        /// The number of bytes read.
        size: u8,
        /// The instruction's number, as in [`SiteKind::Helper`], in case the load cannot be made
        /// inline.
        helper: u16,
    },
    /// The instruction must be executed out of line with all checks.
    Slow,
    /// An instruction that is never copied, by its number in the block's list.
    Helper(u16),
    /// The guest's vector registers are needed.
    VectorLoad,
    /// Execution continues at `Site::rip`.
    Continue,
    /// This exception (error code 0) is raised at `Site::rip`.
    Fault(Vector),
}

impl SiteKind {
    /// Whether the monitor may resume inside the block: at the start of the instruction or after
    /// it.
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

/// The value of [`Site::after`] if control never continues after the instruction. No site has this
/// offset, because at least the code that leads to the site is before it.
pub const NO_AFTER: u32 = 0;

/// One place at which a block can be left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// The reason for the exit, which selects how the monitor handles it.
    pub kind: SiteKind,
    /// EIP of the instruction, or for branches of the target.
    pub rip: u64,
    /// What is added to R12 to get ESP at the exit.
    pub esp: i32,
    /// The offset in the block's code at which the instruction may be tried again.
    pub retry: u32,
    /// The offset in the block's code after the instruction; [`NO_AFTER`] if control never continues
    /// there.
    pub after: u32,
    /// What is added to R12 to get ESP at `after`, or what [`LinkPlace::Direct`] says.
    pub after_esp: i32,
    /// What the instruction holds off, as
    /// [`StateEntry::shadowed`](crate::abi::state_map::StateEntry::shadowed), if it has not
    /// completed.
    pub shadowed: Shadow,
}

impl Site {
    /// The slot of a link that leads through one, and the offset of its stub in the block's code.
    pub fn slot_and_stub(&self) -> Option<(u32, u32)> {
        match self.kind {
            SiteKind::Link(LinkPlace::Slot { slot, stub }) => Some((slot, stub)),
            _ => None,
        }
    }
}

// Blocks have many sites, so a site must be small.
const _: () = assert!(size_of::<Site>() <= 40);

/// The most sites of one block; the exit site packs a block and a site number into 32 bits.
pub const MAX_SITES: usize = 1 << 10;
/// The most blocks that can live at the same time.
pub const MAX_BLOCKS: usize = 1 << 21;

/// Packs a block and a site into the number that exit stubs store.
pub fn pack_site(block: BlockId, site: usize) -> u32 {
    block.0 << 10 | site as u32
}

/// Unpacks a number from [`pack_site`].
pub fn unpack_site(packed: u32) -> (BlockId, usize) {
    (
        BlockId(packed >> 10),
        (packed & (MAX_SITES as u32 - 1)) as usize,
    )
}
