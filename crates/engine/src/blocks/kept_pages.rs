//! Code pages of spaces that are not loaded.
//!
//! When a space is left, its code pages go out of force. If it is loaded again and the guest lets
//! translations be kept, they could be met one by one, at an exit each. Instead those that were
//! met last are put in force at once, which costs less than one exit for each.

use crate::blocks::code_pages::{CodePages, LocalPage};
use tollgate_tlb::{Held, SPACES, SpaceNumber};

/// Pages of one space that are kept at most. More would cost a process more that is loaded for
/// a short while than what it meets then.
const MOST_PAGES: usize = 12;

/// What is kept of all spaces.
#[derive(Default)]
pub struct KeptPages {
    /// By space, the page that was met last at the end.
    lists: [Vec<LocalPage>; SPACES],
    loaded: SpaceNumber,
}

impl KeptPages {
    /// Another space is loaded: notes what is in force of the one that is left, and forgets what
    /// was kept of the new one unless it `keeps` that.
    pub fn load(&mut self, to: SpaceNumber, keeps: bool, pages: &CodePages) {
        let left = &mut self.lists[self.loaded.index()];
        left.clear();
        left.extend(pages.local_pages().take(MOST_PAGES));
        left.reverse();
        self.loaded = to;
        if !keeps {
            self.lists[to.index()].clear();
        }
    }

    /// What is kept of the loaded space. It is kept no longer.
    pub fn take(&mut self) -> Vec<LocalPage> {
        std::mem::take(&mut self.lists[self.loaded.index()])
    }

    /// Takes the memory of what was taken back.
    pub fn give_back(&mut self, mut taken: Vec<LocalPage>) {
        taken.clear();
        self.lists[self.loaded.index()] = taken;
    }

    /// Hands what is kept to `check`.
    pub fn show(&self, check: &mut dyn FnMut(Held)) {
        for (number, list) in self.lists.iter().enumerate() {
            // What the loaded space's list has is void.
            if number != self.loaded.index() {
                let space = SpaceNumber::new(number);
                list.iter().for_each(|page| check(page.held(Some(space))));
            }
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.lists.iter_mut().for_each(Vec::clear);
    }
}
