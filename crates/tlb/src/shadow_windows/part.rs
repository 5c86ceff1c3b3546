//! The parts of linear addresses that windows stand for, and those that are names of other windows.

use crate::parts::PART_SHIFT;

/// Number of pages in a part.
pub(super) const PART_PAGES: u64 = 1 << (PART_SHIFT - 12);
/// The part that a linear page lies in.
pub(super) fn part_of(page: u64) -> i64 {
    (page << 12) as i64 >> PART_SHIFT
}

/// The first address of a part.
pub(super) fn start_of(part: i64) -> u64 {
    (part << PART_SHIFT) as u64
}
