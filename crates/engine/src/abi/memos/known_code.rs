//! The memos of code segments that the monitor has entered by a far transfer within a privilege
//! level.
//!
//! The fast path that enters such a segment again compares with them
//! ([`crate::gate::far_fast_path`]).

use crate::abi::memos::{CodeAfter, Memo, MemoTable};
use tollgate_x86::{Segment, Selector, Watched};

/// The memo of a flat code segment that far JMP, CALL and RET of one mode may enter at the level of
/// that mode, by a selector whose RPL is that level.
///
/// It contains the segment's descriptor; the fast path reads the descriptor again and compares.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct KnownCode {
    /// The key that [`far_key`] returns, with the selector and without [`KEY_TRANSFER`]; zero if
    /// the place is vacant.
    pub key: u64,
    /// The base of the GDT.
    pub gdt_base: u64,
    /// The supervisor's software TLB, through which the descriptor is read.
    pub tlb: u64,
    /// The code that runs next, as a table of indirect branches describes it.
    pub then: CodeAfter,
    /// The bits that the fast path sets in [`crate::abi::context::groups::Transfers::changed`].
    pub changed: u32,
    /// The limit of the GDT.
    pub gdt_limit: u16,
    /// CS after the transfer.
    pub code: Segment,
    /// The segment's descriptor, in all its bits.
    pub descriptor: Watched,
    /// [`crate::abi::descriptors::KnownDescriptors::code`] after the transfer.
    pub known: Watched,
}

/// The number of code segments that are remembered.
pub const KNOWN_CODES: usize = 16;
/// The table of known code segments.
pub type KnownCodeTable = MemoTable<KnownCode, KNOWN_CODES>;

/// In [`far_key`], the bit that says that the transfer is a CALL.
pub const KEY_CALLS: u32 = 16;
/// In [`far_key`], the bit that says that the transfer is a RET.
pub const KEY_RETURNS: u32 = 17;
/// In [`far_key`], the bit that says that values on the stack have 8 bytes, not 4.
pub const KEY_WIDE: u32 = 18;
/// The bits of [`far_key`] that distinguish transfers to the same code segment.
pub const KEY_TRANSFER: u64 = 1 << KEY_CALLS | 1 << KEY_RETURNS | 1 << KEY_WIDE;
/// In [`far_key`], the bit that says that the transfer is in 64-bit code.
pub const KEY_LONG: u32 = 24;
/// In [`far_key`], the bit that says that the transfer is at level 3.
pub const KEY_USER: u32 = 25;
/// In [`far_key`], the lowest bit of the mode's number plus one.
const KEY_MODE: u32 = 32;

/// A far transfer within a level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FarTransfer {
    /// Whether it is a CALL.
    pub calls: bool,
    /// Whether it is a RET.
    pub returns: bool,
    /// The size in bytes of each value on the stack: 4 or 8.
    pub size: u8,
    /// Whether it is in 64-bit code.
    pub long: bool,
    /// Whether it is at level 3.
    pub user: bool,
}

/// The key of a far transfer, without the selector, which is in the low 16 bits.
pub const fn far_key(transfer: FarTransfer, mode: u32) -> u64 {
    (transfer.calls as u64) << KEY_CALLS
        | (transfer.returns as u64) << KEY_RETURNS
        | ((transfer.size == 8) as u64) << KEY_WIDE
        | (transfer.long as u64) << KEY_LONG
        | (transfer.user as u64) << KEY_USER
        | (mode as u64 + 1) << KEY_MODE
}

impl Memo for KnownCode {
    const NONE: Self = Self {
        key: 0,
        gdt_base: 0,
        tlb: 0,
        then: CodeAfter::NONE,
        changed: 0,
        gdt_limit: 0,
        code: Segment::null(Selector(0)),
        descriptor: Watched::NEVER,
        known: Watched::NEVER,
    };

    fn key(&self) -> Option<u64> {
        (self.key != 0).then_some(self.key)
    }

    fn clear(&mut self) {
        self.key = 0;
    }
}
