//! Guest RAM in the host's huge pages.
//!
//! The host allocates memory page by page as it is touched, with one fault for each page. When the
//! first page in the range of a huge page is needed, the monitor asks the host for the whole huge
//! page ([`crate::huge_page`]): that takes a tenth of the time of its pages' faults, and the huge
//! page needs only one entry of the host processor's TLB. Where the host has no huge page
//! available, it still allocates page by page.
//!
//! A machine that was restored from a snapshot has written its memory already and may need little
//! more: then the host is asked when several of a huge page's pages were needed.

use crate::cells::cells;
use crate::huge_page::{self, HUGE_PAGE};
use std::cell::Cell;
use tollgate_x86::address::PAGE_SIZE;

/// How many pages in the range of a huge page a restored machine needs before the host is asked: an
/// eighth.
const USED_PAGES: u32 = 64;

/// Words with a bit for each page of a huge page.
const WORDS: u64 = HUGE_PAGE / PAGE_SIZE / 64;

/// Which huge pages of RAM the host has been asked for.
#[derive(Debug)]
pub(super) struct HugePages {
    /// A bit for each huge page, by physical address.
    asked: Box<[Cell<u64>]>,
    /// In a machine that was restored: a bit for each page that was needed. Otherwise empty.
    needed: Box<[Cell<u64>]>,
    /// In such a machine: how often pages were accessed that were needed before, modulo 256, for each huge
    /// page.
    again: Box<[Cell<u8>]>,
}

impl HugePages {
    /// Makes an empty set for RAM below the physical address `span`.
    pub(super) fn new(span: u64) -> Self {
        let words = span.div_ceil(HUGE_PAGE).div_ceil(64) as usize;
        Self {
            asked: vec![Cell::new(0); words].into(),
            needed: Box::default(),
            again: Box::default(),
        }
    }

    /// Lets the host be asked only for huge pages of which several pages were needed.
    pub(super) fn wait_for_use(&mut self, span: u64) {
        let number = span.div_ceil(HUGE_PAGE);
        self.needed = cells(vec![0; (number * WORDS) as usize]);
        self.again = cells(vec![0; number as usize]);
    }

    /// Notes that the page with this physical address is needed. Returns whether enough pages of
    /// its huge page were needed, and it is time to look whether the host can be asked for it: this is the
    /// page's first use, or one of many.
    pub(super) fn is_used(&self, address: u64) -> bool {
        if self.needed.is_empty() {
            return true;
        }
        let page = address / PAGE_SIZE;
        let first = (address / HUGE_PAGE * WORDS) as usize;
        let Some(words) = self.needed.get(first..first + WORDS as usize) else {
            return false;
        };
        let word = &words[(page / 64 % WORDS) as usize];
        let bit = 1 << (page % 64);
        if word.get() & bit != 0 {
            let again = &self.again[(address / HUGE_PAGE) as usize];
            again.set(again.get().wrapping_add(1));
            if again.get() != 0 {
                return false;
            }
        }
        word.set(word.get() | bit);
        let needed = words.iter().map(|word| word.get().count_ones());
        needed.sum::<u32>() >= USED_PAGES
    }

    /// Whether the host has not been asked yet for the huge page with this physical address.
    #[inline]
    pub(super) fn is_due(&self, address: u64) -> bool {
        let number = address / HUGE_PAGE;
        let word = self.asked.get((number / 64) as usize);
        word.is_some_and(|word| word.get() & 1 << (number % 64) == 0)
    }

    /// Asks the host for the huge page with this physical address, unless that was done before.
    /// `host` is the host address of physical address 0, a multiple of [`HUGE_PAGE`].
    #[cold]
    pub(super) fn ask(&self, host: *mut u8, address: u64) {
        let number = address / HUGE_PAGE;
        let Some(word) = self.asked.get((number / 64) as usize) else {
            return;
        };
        word.set(word.get() | 1 << (number % 64));
        huge_page::ask(host.wrapping_add((number * HUGE_PAGE) as usize));
    }

    /// Notes that the host has taken back `bytes` bytes at a physical address: it can be asked
    /// again for the huge pages that lie wholly in them.
    pub(super) fn forget_within(&self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes) / HUGE_PAGE;
        for number in address.div_ceil(HUGE_PAGE)..end {
            if let Some(word) = self.asked.get((number / 64) as usize) {
                word.set(word.get() & !(1 << (number % 64)));
            }
        }
    }

    /// Notes that the host has taken back all pages.
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
    fn a_restored_machine_asks_when_an_eighth_is_needed() {
        let mut ram = GuestRam::new(8 << 20).unwrap();
        ram.huge_pages.wait_for_use(8 << 20);
        let first = HUGE_PAGE / 4096;
        for page in first..first + 63 {
            assert!(ram.host_page(page).is_some() && ram.host_page(page).is_some());
        }
        assert!(ram.huge_pages.is_due(HUGE_PAGE));
        assert!(ram.host_page(first + 500).is_some());
        assert!(!ram.huge_pages.is_due(HUGE_PAGE));
        assert!(ram.huge_pages.is_due(2 * HUGE_PAGE));
    }

    #[test]
    fn it_looks_again_after_many_accesses() {
        let mut pages = HugePages::new(8 << 20);
        pages.wait_for_use(8 << 20);
        let first_uses = (0..512).filter(|page| pages.is_used(page * 4096)).count();
        assert_eq!(first_uses, 512 - 63);
        let later = (0..1024).filter(|_| pages.is_used(4096)).count();
        assert_eq!(later, 4);
    }

    #[test]
    fn what_is_no_ram_is_never_due() {
        let ram = GuestRam::new(3 << 20).unwrap();
        assert!(!ram.huge_pages.is_due(1 << 40));
        // Only half of the last huge page is RAM: the host refuses it, and memory is still usable.
        assert!(ram.write(PhysicalAddress((3 << 20) - 1), &[7]));
    }
}
