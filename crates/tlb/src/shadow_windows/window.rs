//! One shadow window: its region of the process, and the pages that are mapped there.

use super::part::start_of;
use super::place::Place;
use super::runs::{Run, Runs};
use crate::derived::SpaceNumber;
use std::collections::BTreeMap;

/// Number of pages in the largest page that a guest can have, which is 1 GiB.
const MOST_LARGE: u64 = 1 << 18;

/// The window of one part of one address space.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) place: Place,
    /// The number of the part: -256 to 255, a part of 32-bit guests next to these, or a part of
    /// programs that run natively.
    pub(super) part: i64,
    /// The space that the window belongs to, in the lower half.
    pub(super) space: Option<SpaceNumber>,
    pub(super) runs: Runs,
    /// The guest's large pages of which a piece is mapped: first page and number of pages.
    pub(super) large: BTreeMap<u64, u64>,
    /// Whether the window is put aside, because the mapped pages may no longer be what the guest's
    /// tables lead to.
    pub(super) aside: bool,
}

impl Window {
    /// An empty window of a part. A window of the lower half belongs to `space`.
    pub(super) fn new(place: Place, part: i64, space: SpaceNumber) -> Self {
        Self {
            place,
            part,
            space: (part >= 0).then_some(space),
            runs: Runs::default(),
            large: BTreeMap::new(),
            aside: false,
        }
    }

    /// Host minus linear address. `None` means that translated code does not reach the window.
    pub(super) fn delta(&self) -> Option<u64> {
        match &self.place {
            Place::Here(region) => Some(region.base().wrapping_sub(start_of(self.part))),
            Place::Native(_) => None,
        }
    }

    /// Whether the loaded space uses the window.
    pub(super) fn is_of(&self, loaded: SpaceNumber) -> bool {
        self.space.is_none_or(|space| space == loaded)
    }

    /// Makes a mapped page refuse stores.
    pub(super) fn protect(&mut self, page: u64) {
        let is_done =
            (self.runs.at(page)).is_some_and(|run| self.place.protect(page, &run).is_ok());
        if !is_done {
            // The host allows no more mappings, so the page is unmapped instead.
            self.unmap(page, page + 1);
            return;
        }
        for run in self.runs.remove(page, page + 1) {
            self.runs.insert(Run {
                writable: false,
                ..run
            });
        }
    }

    /// Unmaps the pages from `first` up to but not including `end`. Returns how many mappings were
    /// removed.
    pub(super) fn unmap(&mut self, first: u64, end: u64) -> u64 {
        let removed = self.runs.remove(first, end);
        for run in &removed {
            self.place.unmap(run.page, run.end());
        }
        removed.len() as u64
    }

    pub(super) fn clear(&mut self) {
        if let Some((first, end)) = self.runs.extent() {
            self.place.unmap(first, end);
        }
        self.runs.clear();
        self.large.clear();
    }

    /// Unmaps pages that the guest invalidates, and all of the large pages that they are in (SDM
    /// volume 3, 4.10.4.1). Returns how many mappings were removed.
    pub(super) fn invalidate(&mut self, first: u64, end: u64) -> u64 {
        let mut count = self.unmap(first, end);
        let (lowest, highest) = (first.saturating_sub(MOST_LARGE), end);
        let is_touched = |(page, pages): &(&u64, &u64)| **page + **pages > first;
        let touched: Vec<(u64, u64)> = (self.large.range(lowest..highest))
            .filter(is_touched)
            .map(|(page, pages)| (*page, *pages))
            .collect();
        for (page, pages) in touched {
            self.large.remove(&page);
            count += self.unmap(page, page + pages);
        }
        count
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.clear();
    }
}
