//! Where entries come from: the large pages that they were derived from, and for each
//! physical page the linear pages that lead there.
//!
//! Both are kept once, for all structures with derived entries. INVLPG of an address in a
//! large page invalidates all of that page (SDM volume 3, 4.10.4.1), however small the pieces
//! are that a structure holds; so the pages to be dropped are told by [`Origins::extent`]. If
//! code is translated from a physical page, or something else answers at its address,
//! whatever leads there is found by [`Origins::leading_to`].
//!
//! Notes on pages that are not global are kept apart for each [space](SpaceNumber) and live as
//! long as what the structures keep of it.
//!
//! What is noted may be gone from the structures since; what they hold is always noted.

use crate::derived::{PageRange, SPACES, SpaceNumber};
use rustc_hash::FxHashSet;
use tollgate_x86::LinearAddress;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::Translation;

/// Sizes of large pages in bytes, the largest first: 1 GiB, 4 MiB, 2 MiB.
const LARGE_PAGES: [u64; 3] = [1 << 30, 1 << 22, 1 << 21];
/// Large pages that are remembered at most.
const MAX_LARGE_PAGES: usize = 1 << 16;
/// Notes that a reverse map holds at most.
const MAX_NOTES: usize = 1 << 20;
/// Chains of the reverse map of global pages: a few physical pages for each, in a guest of
/// some GiB.
const GLOBAL_BUCKETS: usize = 1 << 17;
/// Chains of the map of one space. Spaces take turns, so their maps must be small to be found in
/// the processor's caches.
const LOCAL_BUCKETS: usize = 1 << 12;
/// Chains for each note that is remembered as made lately.
const CHAINS_PER_RECENT: usize = 16;
/// Physical pages that are looked for one by one; of more, all notes are looked at.
const FEW_PAGES: u64 = 256;
/// No earlier note.
const NONE: u32 = u32::MAX;
/// How many of a chain's newest notes are looked at lest a page be noted twice.
const NEWEST: usize = 8;

/// The large page of `size` bytes that holds a linear page, as one number.
fn large_page(page: u64, size: u64) -> u64 {
    // The low bits of the first page's number are free to tell sizes apart.
    PageRange::of_large_page(page, size).first | u64::from(size.trailing_zeros() - 12)
}

/// That a linear page leads to a physical page.
#[derive(Clone, Copy)]
struct Note {
    linear_page: u64,
    physical_page: u64,
    /// Index of the note before this one in its chain, or [`NONE`].
    earlier: u32,
}

/// A note that was made.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Recent {
    linear_page: u64,
    physical_page: u64,
    /// When: [`ReverseMap::generation`].
    generation: u64,
}

/// From physical pages to linear pages: chains of notes, by physical page.
struct ReverseMap {
    notes: Vec<Note>,
    /// Notes made lately, by linear page: most are made again and again, and following a
    /// chain means a cache miss for each of its notes.
    recent: Box<[Recent]>,
    /// Counts how often the notes were cleared; 0 is never current.
    generation: u64,
    /// For each chain the index of its newest note, or [`NONE`].
    newest: Box<[u32]>,
}

impl ReverseMap {
    /// An empty map of so many chains.
    fn new(buckets: usize) -> Self {
        let never = Recent {
            linear_page: 0,
            physical_page: 0,
            generation: 0,
        };
        Self {
            notes: Vec::new(),
            recent: vec![never; (buckets / CHAINS_PER_RECENT).max(1)].into_boxed_slice(),
            generation: 1,
            newest: vec![NONE; buckets].into_boxed_slice(),
        }
    }

    fn bucket(&self, physical_page: u64) -> usize {
        physical_page as usize % self.newest.len()
    }

    fn chain(&self, physical_page: u64) -> impl Iterator<Item = &Note> {
        let mut next = self.newest[self.bucket(physical_page)];
        std::iter::from_fn(move || {
            let note = self.notes.get(next as usize)?;
            next = note.earlier;
            Some(note)
        })
    }

    #[inline]
    fn note(&mut self, linear_page: u64, physical_page: u64) {
        let made = Recent {
            linear_page,
            physical_page,
            generation: self.generation,
        };
        let place = linear_page as usize % self.recent.len();
        let recent = &mut self.recent[place];
        if *recent != made {
            *recent = made;
            self.add(linear_page, physical_page);
        }
    }

    fn add(&mut self, linear_page: u64, physical_page: u64) {
        let is_same =
            |note: &Note| note.physical_page == physical_page && note.linear_page == linear_page;
        if self.chain(physical_page).take(NEWEST).any(is_same) {
            return;
        }
        let bucket = self.bucket(physical_page);
        let newest = &mut self.newest[bucket];
        let earlier = std::mem::replace(newest, self.notes.len() as u32);
        self.notes.push(Note {
            linear_page,
            physical_page,
            earlier,
        });
    }

    fn is_full(&self) -> bool {
        self.notes.len() >= MAX_NOTES
    }

    fn clear(&mut self) {
        let buckets = self.newest.len();
        for note in &self.notes {
            self.newest[note.physical_page as usize % buckets] = NONE;
        }
        self.notes.clear();
        self.notes.shrink_to(1 << 16);
        self.generation += 1;
    }
}

/// Where entries come from that are global, or that are of one space and not.
struct Notes {
    map: ReverseMap,
    /// Large pages with derived entries, see [`large_page`].
    large_pages: FxHashSet<u64>,
    /// The large page that was noted last, or 0.
    last_large_page: u64,
}

impl Notes {
    fn new(buckets: usize) -> Self {
        Self {
            map: ReverseMap::new(buckets),
            large_pages: FxHashSet::default(),
            last_large_page: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.map.is_full() || self.large_pages.len() >= MAX_LARGE_PAGES
    }

    #[inline]
    fn note(&mut self, page: u64, translation: &Translation) {
        if translation.page_size > PAGE_SIZE {
            let large = large_page(page, translation.page_size);
            if self.last_large_page != large {
                self.last_large_page = large;
                self.large_pages.insert(large);
            }
        }
        self.map.note(page, translation.physical.page());
    }

    /// Extends `extent` by the large pages that hold the first or the last of `pages`, and
    /// forgets them.
    fn extend(&mut self, pages: PageRange, extent: &mut PageRange) {
        if self.large_pages.is_empty() {
            return;
        }
        self.last_large_page = 0;
        for size in LARGE_PAGES {
            for page in [pages.first, pages.last] {
                if self.large_pages.remove(&large_page(page, size)) {
                    let large = PageRange::of_large_page(page, size);
                    extent.first = extent.first.min(large.first);
                    extent.last = extent.last.max(large.last);
                }
            }
        }
    }

    fn clear(&mut self) {
        self.map.clear();
        self.large_pages.clear();
        self.last_large_page = 0;
    }
}

/// Where the entries of all structures come from.
pub struct Origins {
    global: Notes,
    /// What is not global, by space. `None`: nothing was ever noted of it.
    local: [Option<Box<Notes>>; SPACES],
    loaded: SpaceNumber,
}

impl Default for Origins {
    fn default() -> Self {
        Self {
            global: Notes::new(GLOBAL_BUCKETS),
            local: Default::default(),
            loaded: SpaceNumber::default(),
        }
    }
}

impl Origins {
    /// Whether there may be no room for another note: everything must be dropped.
    #[inline]
    pub fn is_full(&self) -> bool {
        let local = &self.local[self.loaded.index()];
        self.global.is_full() || local.as_ref().is_some_and(|local| local.is_full())
    }

    /// Notes that an entry is made for the page of `linear`, which translates like that in the
    /// space that is loaded.
    #[inline]
    pub fn note(&mut self, linear: LinearAddress, translation: &Translation) {
        let notes = if translation.global {
            &mut self.global
        } else {
            let local = &mut self.local[self.loaded.index()];
            local.get_or_insert_with(|| Box::new(Notes::new(LOCAL_BUCKETS)))
        };
        notes.note(linear.page(), translation);
    }

    fn maps(&self) -> impl Iterator<Item = &ReverseMap> {
        let local = self.local.iter().flatten().map(|local| &local.map);
        local.chain([&self.global.map])
    }

    /// The linear pages that lead to a physical page in any space, some perhaps twice.
    pub fn leading_to(&self, physical_page: u64) -> impl Iterator<Item = u64> {
        let leads = move |note: &&Note| note.physical_page == physical_page;
        let notes = self.maps().flat_map(move |map| map.chain(physical_page));
        notes.filter(leads).map(|note| note.linear_page)
    }

    /// The linear pages that lead to physical pages `first` to `last` in any space, each once.
    pub fn leading_to_range(&self, first: u64, last: u64) -> Vec<u64> {
        let is_named = |note: &&Note| first <= note.physical_page && note.physical_page <= last;
        let mut pages: Vec<u64> = if last.saturating_sub(first) < FEW_PAGES {
            (first..=last)
                .flat_map(|page| self.leading_to(page))
                .collect()
        } else {
            let notes = self.maps().flat_map(|map| &map.notes);
            notes
                .filter(is_named)
                .map(|note| note.linear_page)
                .collect()
        };
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// What must be dropped if linear pages are invalidated in the space that is loaded: these
    /// and all of the large pages, if entries were derived from any, that hold the first or the
    /// last of them. The caller drops it.
    pub fn extent(&mut self, pages: PageRange) -> PageRange {
        let mut extent = pages;
        self.global.extend(pages, &mut extent);
        if let Some(local) = &mut self.local[self.loaded.index()] {
            local.extend(pages, &mut extent);
        }
        extent
    }

    /// All but global pages of the space that is loaded was dropped.
    pub fn drop_local(&mut self) {
        if let Some(local) = &mut self.local[self.loaded.index()] {
            local.clear();
        }
    }

    /// Everything was dropped, of all spaces.
    pub fn drop_everything(&mut self) {
        self.local.iter_mut().flatten().for_each(|it| it.clear());
        self.global.clear();
    }

    /// Another space is loaded. Without `keeps` all but global pages of it was dropped.
    pub fn load(&mut self, to: SpaceNumber, keeps: bool) {
        self.loaded = to;
        if !keeps {
            self.drop_local();
        }
    }
}

#[cfg(test)]
#[path = "origins_tests.rs"]
mod tests;
