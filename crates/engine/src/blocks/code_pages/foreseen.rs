//! Code pages that are put in force before control comes to them.
//!
//! A page that was met is seldom alone: a program's code lies together, and a kernel maps the pages
//! around one that a program touches with it. So when a page comes in force, those near it whose
//! code is known are looked up too, as a processor looks ahead, and come in force if they are where
//! they are expected. Otherwise each would be met at an exit of its own.

use super::{CodePageId, CodePages, Found, MOST_RETURNS};
use crate::blocks::link_memory::LinkMemory;
use tollgate_x86::address::PAGE_SIZE;

/// Pages that are near each other: so many, aligned.
const NEAR: u64 = 16;
/// Pages that are remembered by what their blocks name.
const REMEMBERED: usize = 1 << 12;
/// Numbers of linear pages have so many bits.
const PAGES: u64 = u64::MAX / PAGE_SIZE;

/// By the page that its blocks' addresses name, modulo the number of entries: the code page that
/// was last met there.
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

/// A page that is not in force, and may be again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// Which.
    pub id: CodePageId,
    /// The linear page at which it is expected.
    pub linear_page: u64,
    /// The physical page that must be found there.
    pub physical_page: u64,
    /// Its delta there.
    pub delta: u64,
    /// It is relocatable.
    pub relocates: bool,
}

impl CodePages {
    /// The pages near one that is in force whose code is known, if they are not in force.
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
            let named = linear_page.wrapping_sub(found.delta / PAGE_SIZE) & PAGES;
            let id = self.last_met.get(named);
            let other = self.pages.get(id as usize)?;
            let is_there = other.key.page == named
                && (other.key.relocates, other.key.user) == (page.key.relocates, page.key.user);
            let is_expected = is_there
                // Nothing is known of the page behind.
                && other.key.second_page.is_none()
                && other.blocks != 0
                && self.found(id).is_none()
                && other.returns < MOST_RETURNS;
            is_expected.then_some(Expected {
                id: CodePageId(id),
                linear_page,
                physical_page: other.key.physical_page,
                delta: found.delta,
                relocates: other.key.relocates,
            })
        });
        expected.collect()
    }

    /// A look-up has just found an expected page where it is expected, not global: it is in force
    /// from now on.
    pub fn put_expected_in_force(&mut self, expected: &Expected, memory: &mut LinkMemory) {
        if self.found(expected.id.0).is_some() {
            return;
        }
        let page = &mut self.pages[expected.id.0 as usize];
        page.returns += 1;
        let key = page.key;
        let found = Found {
            linear_page: expected.linear_page,
            last_page: expected.linear_page,
            delta: expected.delta,
            global: false,
            is_kept: true,
        };
        self.counts.foreseen += 1;
        self.restore(expected.id.0, (self.owner(&key), found), memory);
    }
}
