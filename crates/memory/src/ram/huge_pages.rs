//! Guest RAM in the host's huge pages.
//!
//! The host gives out memory page by page as it is touched, at one fault each. When the first
//! page of a huge page's size is asked for, the whole is asked of the host at once
//! ([`crate::huge_page`]): that
//! costs a tenth of its pages' faults, and the host's processor needs one entry of its TLB for
//! it. Where the host has no huge page to give, pages come one by one as before.

use crate::huge_page::{self, HUGE_PAGE};
use std::cell::Cell;

/// Which of RAM's huge pages the host has been asked for.
#[derive(Debug)]
pub(super) struct HugePages {
    /// A bit for each, by physical address.
    asked: Box<[Cell<u64>]>,
}

impl HugePages {
    /// For RAM below the physical address `span`; none has been asked for.
    pub(super) fn new(span: u64) -> Self {
        let words = span.div_ceil(HUGE_PAGE).div_ceil(64) as usize;
        Self {
            asked: vec![Cell::new(0); words].into(),
        }
    }

    /// Whether the one with this physical address is still to be asked for.
    #[inline]
    pub(super) fn is_due(&self, address: u64) -> bool {
        let number = address / HUGE_PAGE;
        let word = self.asked.get((number / 64) as usize);
        word.is_some_and(|word| word.get() & 1 << (number % 64) == 0)
    }

    /// Asks the host for the huge page with this physical address, once. `host` is the host
    /// address of physical address 0, a multiple of [`HUGE_PAGE`].
    #[cold]
    pub(super) fn ask(&self, host: *mut u8, address: u64) {
        let number = address / HUGE_PAGE;
        let Some(word) = self.asked.get((number / 64) as usize) else {
            return;
        };
        word.set(word.get() | 1 << (number % 64));
        huge_page::ask(host.wrapping_add((number * HUGE_PAGE) as usize));
    }

    /// The host has taken back `bytes` from a physical address on: it can be asked again for
    /// those that lie in them wholly.
    pub(super) fn forget_within(&self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes) / HUGE_PAGE;
        for number in address.div_ceil(HUGE_PAGE)..end {
            if let Some(word) = self.asked.get((number / 64) as usize) {
                word.set(word.get() & !(1 << (number % 64)));
            }
        }
    }

    /// The host has taken all pages back.
    pub(super) fn forget(&self) {
        self.asked.iter().for_each(|word| word.set(0));
    }
}

#[cfg(test)]
mod tests {
    use super::super::GuestRam;
    use super::*;
    use tollgate_x86::PhysicalAddress;

    #[test]
    fn each_is_asked_for_once() {
        let ram = GuestRam::new(8 << 20).unwrap();
        assert!(ram.huge_pages.is_due(HUGE_PAGE));
        assert!(ram.host_page(HUGE_PAGE / 4096 + 7).is_some());
        assert!(!ram.huge_pages.is_due(HUGE_PAGE));
        assert!(ram.huge_pages.is_due(2 * HUGE_PAGE));
        ram.clear().unwrap();
        assert!(ram.huge_pages.is_due(HUGE_PAGE));
    }

    #[test]
    fn those_that_went_back_wholly_are_asked_for_again() {
        let ram = GuestRam::new(8 << 20).unwrap();
        for number in 0..3 {
            assert!(ram.write(PhysicalAddress(number * HUGE_PAGE), &[1]));
        }
        ram.discard(HUGE_PAGE - 4096, HUGE_PAGE + 8192).unwrap();
        assert!(!ram.huge_pages.is_due(0));
        assert!(ram.huge_pages.is_due(HUGE_PAGE));
        assert!(!ram.huge_pages.is_due(2 * HUGE_PAGE));
    }

    #[test]
    fn a_range_asks_for_all_that_it_touches() {
        let ram = GuestRam::new(8 << 20).unwrap();
        assert!(ram.write(PhysicalAddress(HUGE_PAGE - 1), &[1, 2]));
        assert!(!ram.huge_pages.is_due(0));
        assert!(!ram.huge_pages.is_due(HUGE_PAGE));
        let mut bytes = [0; 4];
        assert!(ram.read(PhysicalAddress(HUGE_PAGE - 2), &mut bytes));
        assert_eq!(bytes, [0, 1, 2, 0]);
    }

    #[test]
    fn what_is_no_ram_is_never_due() {
        let ram = GuestRam::new(3 << 20).unwrap();
        assert!(!ram.huge_pages.is_due(1 << 40));
        // The last has only half of its bytes: the host refuses, and memory is there.
        assert!(ram.write(PhysicalAddress((3 << 20) - 1), &[7]));
    }
}
