//! The memos of segment loads that the monitor has executed.

use crate::abi::memos::{CodeAfter, Memo, MemoTable};
use tollgate_x86::{Segment, SegmentRegister, Selector, Watched};

/// The memo of a load of a segment register that the monitor has executed.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct SegmentLoad {
    /// The key that [`segment_load_key`] returns, with the selector in its low 16 bits; zero if the
    /// place is vacant.
    pub key: u64,
    /// The segment's descriptor; [`Watched::NONE`] for a null selector.
    pub descriptor: Watched,
    /// The segment register after the load.
    pub segment: Segment,
    /// The code that runs next, as a table of indirect branches describes it. Its tag is zero if
    /// the load does not change the mode.
    pub then: CodeAfter,
}

impl Memo for SegmentLoad {
    const NONE: Self = Self {
        key: 0,
        descriptor: Watched::NONE,
        segment: Segment::null(Selector(0)),
        then: CodeAfter::NONE,
    };

    fn key(&self) -> Option<u64> {
        (self.key != 0).then_some(self.key)
    }

    fn clear(&mut self) {
        self.key = 0;
    }
}

/// The table of known loads.
pub type SegmentLoadTable = MemoTable<SegmentLoad, SEGMENT_LOADS>;

/// The number of loads that are remembered.
pub const SEGMENT_LOADS: usize = 1 << 8;

/// In [`segment_load_key`], the lowest bit of the segment register's number.
pub const KEY_REGISTER: u32 = 16;
/// In [`segment_load_key`], the bit that is set for POP, which adds 4 to ESP.
pub const KEY_POPS: u32 = 19;
/// In [`segment_load_key`], the lowest bit of the mode's number plus one.
pub const KEY_MODE: u32 = 32;

/// The key of a load of a segment register, without the selector, which is in the low 16 bits.
pub const fn segment_load_key(register: SegmentRegister, pops: bool, mode: u32) -> u64 {
    (register as u64) << KEY_REGISTER | (pops as u64) << KEY_POPS | (mode as u64 + 1) << KEY_MODE
}
