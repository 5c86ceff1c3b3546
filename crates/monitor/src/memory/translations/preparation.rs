//! Prepares changes of translations: does the part of a change that is possible before the
//! instruction that makes it has changed anything, with checkpoints.
//!
//! A load of CR3 compares the entries of the new space's page tables; INVLPG in a large page
//! forgets all pages that were derived from it; a hypercall names a range. Forgetting is always
//! allowed, and the result of a comparison is used by the same instruction or not at all. So
//! whenever this work stops, the guest's state is as if the instruction had not begun:
//!
//! ```text
//! invlpg [x]    forgets 64 of 512 pages; an interrupt waits: the instruction has not retired
//! handler ...   may use the page and derive something from it, or write page tables
//! invlpg [x]    forgets what there is then
//! ```
//!
//! Work that has stopped is done to its end when it comes again
//! ([`GivenUp`](tollgate_engine::preemption::GivenUp)).

use super::Translations;
use crate::memory::shadow_tables::Invalidation;
use tollgate_tlb::{Derived, PageRange};
use tollgate_x86::paging::PageTableMemory;
use tollgate_x86::{Space, TranslationChange};

/// Pages that are forgotten between two checkpoints.
const BETWEEN_CHECKPOINTS: usize = 64;

impl Translations {
    /// Does part of a change that an instruction is going to make, while the space `loaded` is
    /// still loaded. Returns false if the work `stops` for something else; the instruction has then
    /// done nothing.
    pub fn prepare<M: PageTableMemory + ?Sized>(
        &mut self,
        loaded: Space,
        change: TranslationChange,
        links: &mut dyn Derived,
        memory: &mut M,
        stops: impl FnMut() -> bool,
    ) -> bool {
        self.prepared.compared = None;
        if !self.is_loaded(loaded) || !self.prepared.given_up.may_give_up(&change) {
            return true;
        }
        let is_done = match change {
            TranslationChange::Load { to, keeps, .. } if !keeps => {
                self.compare_ahead(to, change, memory, stops)
            }
            TranslationChange::Pages { space, first, last }
                if self.is_loaded(space) && self.choices.invalidation != Invalidation::Full =>
            {
                let pages = PageRange {
                    first: first.page(),
                    last: last.page(),
                };
                self.forget_ahead(pages, links, stops)
            }
            _ => true,
        };
        if !is_done {
            self.prepared.given_up.give_up(change);
        }
        is_done
    }

    fn compare_ahead<M: PageTableMemory + ?Sized>(
        &mut self,
        to: Space,
        change: TranslationChange,
        memory: &mut M,
        stops: impl FnMut() -> bool,
    ) -> bool {
        let known = self
            .spaces
            .look_up(to, false)
            .filter(|it| it.has_same_tables);
        let Some(known) = known.filter(|_| self.choices.compares_entries) else {
            return true;
        };
        let compared = self.entries.compare_unless(known.number, memory, stops);
        self.prepared.compared = compared.map(|comparison| (change, comparison));
        self.prepared.compared.is_some()
    }

    /// Forgets all entries for pages of the loaded space, and for the large pages at both ends.
    fn forget_ahead(
        &mut self,
        pages: PageRange,
        links: &mut dyn Derived,
        mut stops: impl FnMut() -> bool,
    ) -> bool {
        let is_short = pages.count() <= BETWEEN_CHECKPOINTS as u64;
        let ends = [pages.first, pages.last];
        if is_short
            && !ends
                .map(|page| self.origins.is_in_large_page(page))
                .contains(&true)
        {
            return true;
        }
        self.drops += 1;
        self.drop_due_links(links);
        self.changed = true;
        let is_done = loop {
            let derived = self.origins.invalidate_some(pages, BETWEEN_CHECKPOINTS);
            let count = derived.len();
            for page in derived {
                self.drop_page(page, links);
            }
            if count < BETWEEN_CHECKPOINTS {
                break true;
            }
            if stops() {
                break false;
            }
        };
        let is_done = is_done && (is_short || self.forget_range(pages, links, stops));
        self.point_narrow();
        is_done
    }

    fn forget_range(
        &mut self,
        pages: PageRange,
        links: &mut dyn Derived,
        mut stops: impl FnMut() -> bool,
    ) -> bool {
        let mut first = pages.first;
        loop {
            let last = pages.last.min(first + (BETWEEN_CHECKPOINTS as u64 - 1));
            let some = PageRange { first, last };
            self.drop_all(links, |derived| derived.drop_pages(some));
            if last == pages.last {
                return true;
            }
            if stops() {
                return false;
            }
            first = last + 1;
        }
    }
}

#[cfg(test)]
#[path = "preparation_tests.rs"]
mod tests;
