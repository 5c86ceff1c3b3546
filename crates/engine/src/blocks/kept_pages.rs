//! Lists of the kernel's code pages that were active when an address space was left, to activate
//! them again when the space is loaded.
//!
//! When a space is left, its code pages become inactive, except global pages and pages of programs.
//! If the space is loaded again and the guest lets translations be kept, each page could be
//! activated at the first branch to it, at the cost of one exit for each page. Instead, the pages
//! that were reached most recently stay active if they were active at the same address in the space
//! that is left, or they are activated together while the space is loaded ([`CodePages::load`]).

use crate::blocks::code_pages::{CodePages, LocalPage};
use crate::blocks::link_memory::LinkMemory;
use tollgate_tlb::{Held, SPACES, SpaceNumber};

/// Maximum number of pages that are kept for one space.
const MOST_PAGES: usize = 320;

/// The lists of kept pages of all spaces.
#[derive(Default)]
pub struct KeptPages {
    /// For each space: its pages, ordered so that the page that was reached most recently is the
    /// last.
    lists: [Vec<LocalPage>; SPACES],
    loaded: SpaceNumber,
}

impl KeptPages {
    /// Notes that another space is loaded. Remembers the active pages of the space that is left. If
    /// the translations of the new space were kept (`keeps`), activates the pages that are
    /// remembered for it; otherwise forgets them.
    pub fn load(
        &mut self,
        to: SpaceNumber,
        keeps: bool,
        pages: &mut CodePages,
        memory: &mut LinkMemory,
    ) {
        let left = &mut self.lists[self.loaded.index()];
        left.clear();
        left.extend(pages.local_pages().take(MOST_PAGES));
        left.reverse();
        self.loaded = to;
        let list = &mut self.lists[to.index()];
        if !keeps {
            list.clear();
        }
        pages.load(to, keeps, list, memory);
        // The list is valid only while its space is not loaded.
        list.clear();
    }

    /// Calls `check` for each linear page that a list still relies on.
    pub fn show(&self, check: &mut dyn FnMut(Held)) {
        for (number, list) in self.lists.iter().enumerate() {
            // The list of the loaded space is not in use.
            if number != self.loaded.index() {
                let space = SpaceNumber::new(number);
                let held = list.iter().flat_map(|page| page.held(Some(space)));
                held.for_each(&mut *check);
            }
        }
    }

    /// Forgets the pages that are kept for a space that is not loaded.
    pub fn purge(&mut self, number: SpaceNumber, pages: &mut CodePages, memory: &mut LinkMemory) {
        self.lists[number.index()].clear();
        pages.purge(number, memory);
    }

    /// Forgets the kept pages of all spaces.
    pub fn clear(&mut self) {
        self.lists.iter_mut().for_each(Vec::clear);
    }
}
