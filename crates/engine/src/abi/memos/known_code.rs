//! The memos of code segments that the monitor has entered by a far transfer within a privilege
//! level.
//!
//! The fast path that enters such a segment again compares with them
//! ([`crate::gate::far_fast_path`]).

use crate::abi::descriptors::Expected;
use crate::abi::memos::{CodeAfter, Memo, MemoTable};
use tollgate_x86::{Attributes, Segment, Selector};

/// A flat code segment that far JMP, CALL and RET of one mode may enter at the level of that mode,
/// by a selector whose RPL is that level.
///
/// The record holds the descriptor; the fast path reads it again and compares.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct KnownCode {
    /// The result of [`far_key`] with the selector and without [`KEY_TRANSFER`]; zero: vacant.
    pub key: u64,
    /// Base of the GDT.
    pub gdt_base: u64,
    /// Linear address of the descriptor.
    pub place: u64,
    /// The descriptor.
    pub descriptor: u64,
    /// Address of the supervisor's software TLB, through which the descriptor is read.
    pub tlb: u64,
    /// The code that follows.
    pub then: CodeAfter,
    /// Bits that the fast path sets in [`crate::abi::context::groups::Transfers::changed`].
    pub changed: u32,
    /// Limit of the GDT.
    pub gdt_limit: u16,
    /// CS after the transfer.
    pub code: Segment,
    /// [`crate::abi::descriptors::KnownDescriptors::code`] after the transfer.
    pub expected: Expected,
}

/// Number of code segments that are remembered.
pub const KNOWN_CODES: usize = 16;
/// The table of known code segments.
pub type KnownCodeTable = MemoTable<KnownCode, KNOWN_CODES>;

/// Bit of [`far_key`]: the transfer is a CALL.
pub const KEY_CALLS: u32 = 16;
/// Bit of [`far_key`]: the transfer is a RET.
pub const KEY_RETURNS: u32 = 17;
/// Bit of [`far_key`]: values on the stack have 8 bytes, not 4.
pub const KEY_WIDE: u32 = 18;
/// Bits of [`far_key`] that distinguish transfers to the same code segment.
pub const KEY_TRANSFER: u64 = 1 << KEY_CALLS | 1 << KEY_RETURNS | 1 << KEY_WIDE;
/// Bit of [`far_key`]: the code is 64-bit code.
pub const KEY_LONG: u32 = 24;
/// Bit of [`far_key`]: the code runs at level 3.
pub const KEY_USER: u32 = 25;
/// Lowest bit of the mode's number plus one in [`far_key`].
const KEY_MODE: u32 = 32;

/// A far transfer within a level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FarTransfer {
    /// CALL.
    pub calls: bool,
    /// RET.
    pub returns: bool,
    /// Bytes of each value: 4 or 8.
    pub size: u8,
    /// Of 64-bit code.
    pub long: bool,
    /// At level 3.
    pub user: bool,
}

/// What tells a far transfer from others, without the selector, which the low 16 bits take.
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
        place: 0,
        descriptor: 0,
        tlb: 0,
        then: CodeAfter::NONE,
        changed: 0,
        gdt_limit: 0,
        code: Segment {
            base: 0,
            limit: 0,
            selector: Selector(0),
            attributes: Attributes::empty(),
        },
        expected: Expected::NEVER,
    };

    fn key(&self) -> Option<u64> {
        (self.key != 0).then_some(self.key)
    }

    fn clear(&mut self) {
        self.key = 0;
    }
}
