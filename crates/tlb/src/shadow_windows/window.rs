//! One shadow window: its region of the process, and the pages that are mapped there.

use super::area::Region;
use super::runs::{Run, Runs};
use crate::derived::SpaceNumber;
use crate::parts::PART_SHIFT;
use std::collections::BTreeMap;
use tollgate_x86::address::PAGE_SIZE;

/// Number of pages in a part.
pub(super) const PART_PAGES: u64 = 1 << (PART_SHIFT - 12);
/// Number of pages in the largest page that a guest can have, which is 1 GiB.
const MOST_LARGE: u64 = 1 << 18;

/// The part that a linear page lies in.
pub(super) fn part_of(page: u64) -> i64 {
    (page << 12) as i64 >> PART_SHIFT
}

/// The first address of a part.
pub(super) fn start_of(part: i64) -> u64 {
    (part << PART_SHIFT) as u64
}

/// The window of one part of one address space.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) region: Region,
    /// The number of the part: -256 to 255, or a part of 32-bit guests next to these.
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
    pub(super) fn new(region: Region, part: i64, space: SpaceNumber) -> Self {
        Self {
            region,
            part,
            space: (part >= 0).then_some(space),
            runs: Runs::default(),
            large: BTreeMap::new(),
            aside: false,
        }
    }

    pub(super) fn host(&self, page: u64) -> u64 {
        self.region.base() + (page % PART_PAGES) * PAGE_SIZE
    }

    /// Host minus linear address.
    pub(super) fn delta(&self) -> u64 {
        self.region.base().wrapping_sub(start_of(self.part))
    }

    /// Unmaps the pages from `first` up to but not including `end`.
    fn unmap_host(&self, first: u64, end: u64) {
        // SAFETY: the range lies in the region, which belongs to this window, and nothing but
        // translated code on this thread accesses what is mapped there.
        unsafe {
            libc::munmap(
                self.host(first) as *mut _,
                ((end - first) * PAGE_SIZE) as usize,
            )
        };
    }

    /// Whether the loaded space uses the window.
    pub(super) fn is_of(&self, loaded: SpaceNumber) -> bool {
        self.space.is_none_or(|space| space == loaded)
    }

    /// Makes a mapped page refuse stores.
    pub(super) fn protect(&mut self, page: u64) {
        // SAFETY: as for `unmap_host`.
        let failed = unsafe {
            libc::mprotect(
                self.host(page) as *mut _,
                PAGE_SIZE as usize,
                libc::PROT_READ,
            )
        };
        if failed != 0 {
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
            self.unmap_host(run.page, run.end());
        }
        removed.len() as u64
    }

    pub(super) fn clear(&mut self) {
        if let Some((first, end)) = self.runs.extent() {
            self.unmap_host(first, end);
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
