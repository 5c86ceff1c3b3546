//! The memos of code segments that the monitor has entered by a far transfer within a privilege
//! level.
//!
//! The fast path that enters such a segment again compares with them
//! ([`crate::gate::far_fast_path`]).

use crate::abi::descriptors::Expected;
use crate::abi::fast_paths::SPREAD;
use crate::abi::link_layout::{BranchTable, ModeId, indirect_tag, table_offset};
use tollgate_x86::{Attributes, Segment, Selector};

/// A flat code segment that far JMP, CALL and RET of one mode may enter at the level of that mode,
/// by a selector whose RPL is that level.
///
/// Its descriptor stands here as it was; the fast path reads it again and compares.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct KnownCode {
    /// As [`far_key`] gives it, with the selector and without what tells transfers apart; zero:
    /// none.
    pub key: u64,
    /// Base of the GDT.
    pub gdt_base: u64,
    /// Linear address of the descriptor.
    pub place: u64,
    /// The descriptor.
    pub descriptor: u64,
    /// The supervisor's software TLB, by which it is read.
    pub tlb: u64,
    /// Where indirect branches of the mode behind it find their targets: eighths of the bytes
    /// from the start of the link tables.
    pub table: u64,
    /// Added to the target's RIP it gives the negative of the tag of its entry there.
    pub tag: u64,
    /// Ored into [`crate::Context::level_changed`].
    pub level_changed: u32,
    /// Limit of the GDT.
    pub gdt_limit: u16,
    /// CS behind it.
    pub code: Segment,
    /// [`crate::Context::code_descriptor`] behind it.
    pub expected: Expected,
}

/// Code segments that are remembered.
pub const KNOWN_CODES: usize = 16;
/// Shifted right by this, the product of key and [`SPREAD`] is the number of the first of two
/// places for an entry; the second is beside it.
pub const KNOWN_CODE_SHIFT: u32 = 60;
const _: () = assert!(KNOWN_CODES == 1 << (64 - KNOWN_CODE_SHIFT));

/// In [`far_key`]: the transfer is a CALL.
pub const KEY_CALLS: u32 = 16;
/// The same: it is a RET.
pub const KEY_RETURNS: u32 = 17;
/// The same: values on the stack have 8 bytes, not 4.
pub const KEY_WIDE: u32 = 18;
/// What tells transfers apart, which does not count for the code segment.
pub const KEY_TRANSFER: u64 = 1 << KEY_CALLS | 1 << KEY_RETURNS | 1 << KEY_WIDE;
/// The same: 64-bit code.
pub const KEY_LONG: u32 = 24;
/// The same: level 3.
pub const KEY_USER: u32 = 25;
/// The same: the mode plus one.
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

impl KnownCode {
    /// None.
    pub const NONE: Self = Self {
        key: 0,
        gdt_base: 0,
        place: 0,
        descriptor: 0,
        tlb: 0,
        table: 0,
        tag: 0,
        level_changed: 0,
        gdt_limit: 0,
        code: Segment {
            base: 0,
            limit: 0,
            selector: Selector(0),
            attributes: Attributes::empty(),
        },
        expected: Expected::NEVER,
    };

    /// Notes the mode of its code, which uses `table` for its indirect branches.
    pub fn leads_to(&mut self, table: BranchTable, mode: ModeId) {
        self.table = table_offset(table) as u64 / 8;
        self.tag = indirect_tag(table, mode);
    }

    /// Puts it into one of its places: where it is already, where none is, or into the first, and
    /// what was there into the second.
    pub fn note(self, known: &mut [Self; KNOWN_CODES]) {
        let first = (self.key.wrapping_mul(SPREAD) >> KNOWN_CODE_SHIFT) as usize;
        let places = [first, first ^ 1];
        let known_already = |&place: &usize| known[place].key == self.key;
        let vacant = |&place: &usize| known[place].key == 0;
        let place = places.into_iter().find(known_already);
        match place.or_else(|| places.into_iter().find(vacant)) {
            Some(place) => known[place] = self,
            None => {
                known[first ^ 1] = known[first];
                known[first] = self;
            }
        }
    }
}

/// Forgets them all.
pub fn forget(known: &mut [KnownCode; KNOWN_CODES]) {
    for code in known {
        code.key = 0;
    }
}
