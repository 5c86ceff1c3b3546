//! Activates code pages before control reaches them.
//!
//! Pages are seldom reached alone: a program's code is contiguous, and when a program
//! touches a page, a kernel also maps the pages around it. So when a page becomes active, the
//! nearby pages with known code are looked up too, as a processor prefetches, and become active if
//! they are where they are expected. Without this, each of them would cost an exit of its own.

use super::{CodePageId, CodePages, Found, MOST_RETURNS};
use crate::blocks::link_memory::LinkMemory;
use tollgate_x86::address::PAGE_SIZE;

/// Number of pages in a group of pages that count as near each other; groups are aligned.
const NEAR: u64 = 16;
/// Number of pages that are remembered by the page that their blocks name.
const REMEMBERED: usize = 1 << 12;
/// Mask for numbers of linear pages.
const PAGES: u64 = u64::MAX / PAGE_SIZE;

/// The code page that was last reached under each page that blocks' addresses name, modulo the
/// number of entries.
pub(super) struct LastMet(Box<[u32; REMEMBERED]>);

impl Default for LastMet {
    fn default() -> Self {
        Self(Box::new([u32::MAX; REMEMBERED]))
    }
}

impl LastMet {
    pub(super) fn note(&mut self, page: u64, id: u32) {
        self.0[page as usize % REMEMBERED] = id;
    }

    fn get(&self, page: u64) -> u32 {
        self.0[page as usize % REMEMBERED]
    }
}

/// An inactive page that is expected to be found at a linear page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// The code page.
    pub id: CodePageId,
    /// The linear page at which it is expected.
    pub linear_page: u64,
    /// The physical page that must be found there.
    pub physical_page: u64,
    /// The slide that the page has there.
    pub slide: u64,
    /// The page is relocatable.
    pub relocates: bool,
}

impl CodePages {
    /// The inactive pages with known code that are expected near a page that is active.
    pub fn expected_near(&self, met: CodePageId) -> Vec<Expected> {
        let Some(page) = self.pages.get(met.0 as usize) else {
            return Vec::new();
        };
        let found = self.found(met.0);
        let Some(found) = found.filter(|found| !found.global && found.is_kept) else {
            return Vec::new();
        };
        let first = found.linear_page & !(NEAR - 1);
        let expected = (first..first + NEAR).filter_map(|linear_page| {
            let named = linear_page.wrapping_sub(found.slide / PAGE_SIZE) & PAGES;
            let id = self.last_met.get(named);
            let other = self.pages.get(id as usize)?;
            let is_there = other.key.page == named
                && (other.key.relocates, other.key.user) == (page.key.relocates, page.key.user);
            let is_expected = is_there
                // The second page would have to be looked up too, so straddling pages are not
                // expected.
                && other.key.second_page.is_none()
                && other.blocks != 0
                && self.found(id).is_none()
                && other.returns < MOST_RETURNS;
            is_expected.then_some(Expected {
                id: CodePageId(id),
                linear_page,
                physical_page: other.key.physical_page,
                slide: found.slide,
                relocates: other.key.relocates,
            })
        });
        expected.collect()
    }

    /// Activates an expected page, which a look-up has just found where it was expected and which
    /// is not global.
    pub fn activate_expected(&mut self, expected: &Expected, memory: &mut LinkMemory) {
        if self.found(expected.id.0).is_some() {
            return;
        }
        let page = &mut self.pages[expected.id.0 as usize];
        page.returns += 1;
        let key = page.key;
        let found = Found {
            linear_page: expected.linear_page,
            last_page: expected.linear_page,
            slide: expected.slide,
            global: false,
            is_kept: true,
        };
        self.counts.foreseen += 1;
        self.restore(expected.id.0, self.owner(&key), found, memory);
    }
}
