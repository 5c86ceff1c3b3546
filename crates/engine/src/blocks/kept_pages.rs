//! Code pages of spaces that are not loaded, but for those of programs, which stay in force.
//!
//! When a space is left, its code pages that are neither global nor programs' go out of force. If it is loaded again and the guest lets
//! translations be kept, they could be met one by one, at an exit each. Instead those that were
//! met last stay in force, if they were in force in the space before too and lie at the same
//! place, or are put in force at once ([`CodePages::load`]).

use crate::blocks::code_pages::{CodePages, LocalPage};
use crate::blocks::link_memory::LinkMemory;
use tollgate_tlb::{Held, SPACES, SpaceNumber};

/// Pages of one space that are kept at most.
const MOST_PAGES: usize = 320;

/// What is kept of all spaces.
#[derive(Default)]
pub struct KeptPages {
    /// By space, the page that was met last at the end.
    lists: [Vec<LocalPage>; SPACES],
    loaded: SpaceNumber,
}

impl KeptPages {
    /// Another space is loaded: notes what is in force of the one that is left, and puts in force
    /// what was kept of the new one, or forgets it unless it `keeps` that.
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
        pages.load((to, keeps), list, memory);
        // It is kept no longer.
        list.clear();
    }

    /// Hands what is kept to `check`.
    pub fn show(&self, check: &mut dyn FnMut(Held)) {
        for (number, list) in self.lists.iter().enumerate() {
            // What the loaded space's list has is void.
            if number != self.loaded.index() {
                let space = SpaceNumber::new(number);
                let held = list.iter().flat_map(|page| page.held(Some(space)));
                held.for_each(&mut *check);
            }
        }
    }

    /// Forgets what is kept of a space that is not loaded.
    pub fn purge(&mut self, number: SpaceNumber, pages: &mut CodePages, memory: &mut LinkMemory) {
        self.lists[number.index()].clear();
        pages.purge(number, memory);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.lists.iter_mut().for_each(Vec::clear);
    }
}
