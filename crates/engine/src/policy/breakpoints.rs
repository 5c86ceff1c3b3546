//! The breakpoints of a debugger outside of the machine, as translated code needs them.
//!
//! A block ends before an instruction that may have a breakpoint, and no block begins there. So guest
//! code is left wherever control reaches such an instruction: every link, table and memo leads to a
//! block, and there is none. The monitor knows the instruction's linear address, and decides whether
//! the guest stops or executes the instruction alone. The guest's memory does not change.
//!
//! Relocatable code is translated once for all linear pages where it is mapped. Only the offset in
//! the page is known then, so each instruction with the offset of a breakpoint counts.

use std::collections::BTreeSet;
use tollgate_x86::address::PAGE_SIZE;

/// Code that was translated, or is going to be.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The linear address of the first byte; in relocatable code its link address.
    pub linear: u64,
    /// Whether the code is relocatable (see [`crate::abi::relocation`]).
    pub relocates: bool,
}

/// Linear addresses of instructions before which the guest may stop.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Breakpoints {
    addresses: BTreeSet<u64>,
}

impl Breakpoints {
    /// Breakpoints at these linear addresses.
    pub fn new(addresses: &BTreeSet<u64>) -> Self {
        Self {
            addresses: addresses.clone(),
        }
    }

    /// Whether there is no breakpoint.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Whether an instruction that begins at a place may have a breakpoint.
    pub fn may_be_at(&self, place: Place) -> bool {
        self.may_be_in(place, 1)
    }

    /// Whether an instruction that begins in `length` bytes of code may have a breakpoint.
    pub fn may_be_in(&self, place: Place, length: u64) -> bool {
        self.addresses.iter().any(|&address| {
            let distance = address.wrapping_sub(place.linear);
            match place.relocates {
                true => distance % PAGE_SIZE < length,
                false => distance < length,
            }
        })
    }

    /// The breakpoints that `other` lacks.
    pub fn without(&self, other: &Self) -> Self {
        Self {
            addresses: (&self.addresses) - &other.addresses,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(linear: u64, relocates: bool) -> Place {
        Place { linear, relocates }
    }

    #[test]
    fn only_relocatable_code_counts_in_every_page() {
        let breakpoints = Breakpoints::new(&BTreeSet::from([0x7f12_3456_7890]));
        assert!(breakpoints.may_be_at(at(0x7f12_3456_7890, false)));
        assert!(!breakpoints.may_be_at(at(0x1890, false)));
        assert!(breakpoints.may_be_at(at(0x1890, true)));
        assert!(!breakpoints.may_be_at(at(0x1891, true)));
        assert!(breakpoints.may_be_in(at(0x1880, true), 17));
        assert!(!breakpoints.may_be_in(at(0x1880, true), 16));
        assert!(!breakpoints.may_be_in(at(0x7f12_3456_7891, false), 16));
    }

    #[test]
    fn those_that_are_new_are_known() {
        let old = Breakpoints::new(&BTreeSet::from([1, 2]));
        let new = Breakpoints::new(&BTreeSet::from([2, 3]));
        assert_eq!(new.without(&old), Breakpoints::new(&BTreeSet::from([3])));
        assert!(old.without(&old).is_empty() && !old.is_empty());
    }
}
