//! The linear pages that hold memory which a debugger outside of the machine watches.
//!
//! Nothing that is derived from the guest's page tables is kept of these pages, whatever space is
//! loaded. So each access to them leaves guest code, and the monitor performs it and compares its
//! bytes with those that are watched. All other pages are accessed as usual.

use crate::execution::watched::WatchedMemory;
use std::ops::RangeInclusive;
use tollgate_x86::LinearAddress;
use tollgate_x86::address::PAGE_SIZE;

/// Linear pages, by their numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct WatchedPages(Vec<RangeInclusive<u64>>);

impl WatchedPages {
    /// The pages of this memory.
    pub(crate) fn of(memory: &[WatchedMemory]) -> Self {
        let pages = memory.iter().map(|memory| {
            let last = memory
                .address
                .saturating_add(memory.bytes.saturating_sub(1));
            memory.address / PAGE_SIZE..=last / PAGE_SIZE
        });
        Self(pages.collect())
    }

    /// Whether one of the `bytes` bytes at an address is in a watched page.
    #[inline]
    pub(crate) fn are_at(&self, linear: LinearAddress, bytes: u64) -> bool {
        !self.0.is_empty() && self.overlap(linear, bytes)
    }

    fn overlap(&self, linear: LinearAddress, bytes: u64) -> bool {
        let first = linear.0 / PAGE_SIZE;
        let last = linear.0.saturating_add(bytes.saturating_sub(1)) / PAGE_SIZE;
        (self.0.iter()).any(|pages| *pages.start() <= last && first <= *pages.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execution::watched::WatchedAccess;

    #[test]
    fn memory_across_a_boundary_makes_both_pages_watched() {
        let pages = WatchedPages::of(&[WatchedMemory {
            address: 0x1fff,
            bytes: 2,
            access: WatchedAccess::Any,
        }]);
        for (linear, bytes, are_at) in [
            (0xfff, 1, false),
            (0xfff, 2, true),
            (0x1000, 1, true),
            (0x2fff, 1, true),
            (0x3000, 8, false),
            (0, u64::MAX, true),
        ] {
            assert_eq!(pages.are_at(LinearAddress(linear), bytes), are_at);
        }
        assert!(!WatchedPages::default().are_at(LinearAddress(0), u64::MAX));
    }
}
