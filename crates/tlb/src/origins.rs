//! Notes where entries come from: the large pages that they were derived from and, for each
//! physical page, the linear pages that lead to it.
//!
//! Both notes are kept once for all structures with derived entries. INVLPG of an address in a
//! large page invalidates the whole page (SDM volume 3, 4.10.4.1), however small the pieces are
//! that a structure holds. So [`Origins::invalidate`] reports the pages to drop: of a large page
//! only the pieces from which an entry was derived. When code is translated from a physical page,
//! or something else comes to answer at its address, [`Origins::leading_to`] finds all linear pages
//! that lead there.
//!
//! A third note has the linear pages that code was fetched from. Most pages that guests invalidate
//! are not among them, and only the software TLBs can have entries for those.
//!
//! Notes on pages that are not global are kept separately for each [space](SpaceNumber), for as
//! long as the structures keep entries of the space.
//!
//! A noted page may have left the structures since; a page that they hold is always noted.

use crate::derived::{PageRange, SPACES, SpaceNumber};
use rustc_hash::{FxHashMap, FxHashSet};
use tollgate_x86::LinearAddress;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::Translation;

/// Sizes of large pages in bytes, the largest first: 1 GiB, 4 MiB, 2 MiB.
const LARGE_PAGES: [u64; 3] = [1 << 30, 1 << 22, 1 << 21];
/// Maximum number of large pages on record, and of blocks of 2 MiB inside them.
const MAX_LARGE_PAGES: usize = 1 << 16;
/// Number of bits of [`CodePages`]. Pages whose numbers are equal modulo this number share a bit.
const CODE_BITS: u64 = 1 << 20;
/// The most bits that may be set. With more, too many pages without code would look like pages with
/// code.
const MAX_CODE_PAGES: u32 = 1 << 17;
/// Maximum number of notes in a reverse map.
const MAX_NOTES: usize = 1 << 20;
/// Number of chains of the reverse map of global pages: a few physical pages for each chain, in a
/// guest of some GiB.
const GLOBAL_BUCKETS: usize = 1 << 17;
/// Number of chains of the reverse map of one space. Spaces take turns, so their maps must be small
/// to stay in the processor's caches.
const LOCAL_BUCKETS: usize = 1 << 12;
/// Number of chains for each entry of the list of recent notes.
const CHAINS_PER_RECENT: usize = 16;
/// The most physical pages that are searched for one by one. For a larger range, all notes are
/// examined.
const FEW_PAGES: u64 = 256;
/// How many of the newest notes of a chain are examined, so that a page is not noted twice.
const NEWEST: usize = 8;

/// The large page of `size` bytes that holds a linear page, as one number.
fn large_page(page: u64, size: u64) -> u64 {
    // The low bits of the first page's number are zero, so they can encode the size.
    PageRange::of_large_page(page, size).first | u64::from(size.trailing_zeros() - 12)
}

/// A note that a linear page leads to a physical page.
#[derive(Clone, Copy)]
struct Note {
    linear_page: u64,
    physical_page: u64,
    /// Index of the previous note in the chain plus one, or 0 if there is none.
    earlier: u32,
}

/// A note that was made recently.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Recent {
    linear_page: u64,
    physical_page: u64,
    /// The value of [`ReverseMap::generation`] when the note was made.
    generation: u64,
}

/// A map from physical pages to linear pages: chains of notes, by physical page.
struct ReverseMap {
    notes: Vec<Note>,
    /// Recent notes, by linear page. Most notes are made again and again, and following a chain
    /// costs a cache miss for each of its notes.
    recent: Box<[Recent]>,
    /// The number of times that the notes were cleared. 0 is never current.
    generation: u64,
    /// For each chain the index of its newest note plus one, or 0 if it is empty: of zeroes that
    /// were never written the host needs no memory.
    newest: Box<[u32]>,
}

impl ReverseMap {
    /// An empty map with `buckets` chains.
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
            newest: vec![0; buckets].into_boxed_slice(),
        }
    }

    fn bucket(&self, physical_page: u64) -> usize {
        physical_page as usize % self.newest.len()
    }

    fn chain(&self, physical_page: u64) -> impl Iterator<Item = &Note> {
        let mut next = self.newest[self.bucket(physical_page)];
        std::iter::from_fn(move || {
            let note = self.notes.get((next as usize).checked_sub(1)?)?;
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
        let earlier = std::mem::replace(newest, self.notes.len() as u32 + 1);
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
            self.newest[note.physical_page as usize % buckets] = 0;
        }
        self.notes.clear();
        self.notes.shrink_to(1 << 16);
        self.generation += 1;
    }
}

/// The linear pages that code was fetched from, and perhaps others.
struct CodePages {
    bits: Box<[u64]>,
    /// The number of set bits.
    set: u32,
}

impl CodePages {
    fn new() -> Self {
        Self {
            bits: vec![0; (CODE_BITS / 64) as usize].into_boxed_slice(),
            set: 0,
        }
    }

    fn place(page: u64) -> (usize, u64) {
        let bit = page % CODE_BITS;
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    fn note(&mut self, page: u64) {
        let (word, bit) = Self::place(page);
        self.set += u32::from(self.bits[word] & bit == 0);
        self.bits[word] |= bit;
    }

    #[inline]
    fn may_hold(&self, page: u64) -> bool {
        let (word, bit) = Self::place(page);
        self.bits[word] & bit != 0
    }

    fn clear(&mut self) {
        if self.set != 0 {
            self.bits.fill(0);
            self.set = 0;
        }
    }
}

/// A set of the pages in 2 MiB: one bit for each page.
type Pieces = [u64; 8];

/// Number of pages in [`Pieces`].
const PIECES: u64 = 512;

/// The origins of global entries, or of the other entries of one space.
struct Notes {
    map: ReverseMap,
    /// Large pages with derived entries, encoded by [`large_page`].
    large_pages: FxHashSet<u64>,
    /// The large page that was noted last, or 0.
    last_large_page: u64,
    /// The pages with entries that were derived from large pages, by number of the 2 MiB that hold
    /// them.
    pieces: FxHashMap<u64, Pieces>,
}

impl Notes {
    fn new(buckets: usize) -> Self {
        Self {
            map: ReverseMap::new(buckets),
            large_pages: FxHashSet::default(),
            last_large_page: 0,
            pieces: FxHashMap::default(),
        }
    }

    fn is_full(&self) -> bool {
        self.map.is_full()
            || self.large_pages.len() >= MAX_LARGE_PAGES
            || self.pieces.len() >= MAX_LARGE_PAGES
    }

    #[inline]
    fn note(&mut self, page: u64, translation: &Translation) {
        if translation.page_size > PAGE_SIZE {
            let large = large_page(page, translation.page_size);
            if self.last_large_page != large {
                self.last_large_page = large;
                self.large_pages.insert(large);
            }
            let piece = page % PIECES;
            let pieces = self.pieces.entry(page / PIECES).or_default();
            pieces[(piece / 64) as usize] |= 1 << (piece % 64);
        }
        self.map.note(page, translation.physical.page());
    }

    /// Adds to `found` the pages that were derived from the large pages that hold the first or the
    /// last of `pages`, and forgets these pages. Stops when there are about `most` pages (up to 63
    /// more).
    fn take_derived(&mut self, pages: PageRange, most: usize, found: &mut Vec<u64>) {
        if self.large_pages.is_empty() {
            return;
        }
        for size in LARGE_PAGES {
            for page in [pages.first, pages.last] {
                let large = large_page(page, size);
                if !self.large_pages.contains(&large) {
                    continue;
                }
                if !self.take_pieces(PageRange::of_large_page(page, size), most, found) {
                    return;
                }
                self.large_pages.remove(&large);
                self.last_large_page = 0;
            }
        }
    }

    /// Does the work of `take_derived` for one large page. Returns false if there may be more
    /// pages.
    fn take_pieces(&mut self, large: PageRange, most: usize, found: &mut Vec<u64>) -> bool {
        for block in large.first / PIECES..=large.last / PIECES {
            let Some(pieces) = self.pieces.get_mut(&block) else {
                continue;
            };
            for (index, word) in (0..).zip(pieces) {
                if found.len() >= most {
                    return false;
                }
                let mut word = std::mem::take(word);
                while word != 0 {
                    let piece = index * 64 + u64::from(word.trailing_zeros());
                    found.push(block * PIECES + piece);
                    word &= word - 1;
                }
            }
            self.pieces.remove(&block);
        }
        true
    }

    /// Whether a page lies in a large page with derived entries.
    fn is_in_large_page(&self, page: u64) -> bool {
        let is_noted = |size| self.large_pages.contains(&large_page(page, size));
        !self.large_pages.is_empty() && LARGE_PAGES.into_iter().any(is_noted)
    }

    fn clear(&mut self) {
        self.map.clear();
        self.large_pages.clear();
        self.last_large_page = 0;
        self.pieces.clear();
    }
}

/// The origins of the entries of all structures.
pub struct Origins {
    global: Notes,
    /// The origins of entries that are not global, by space. `None` means that none was ever noted.
    local: [Option<Box<Notes>>; SPACES],
    loaded: SpaceNumber,
    /// The pages with code of all spaces.
    code_pages: CodePages,
}

impl Default for Origins {
    fn default() -> Self {
        Self {
            global: Notes::new(GLOBAL_BUCKETS),
            local: Default::default(),
            loaded: SpaceNumber::default(),
            code_pages: CodePages::new(),
        }
    }
}

impl Origins {
    /// Whether there may be no room for another note; if so, everything must be dropped.
    #[inline]
    pub fn is_full(&self) -> bool {
        let local = &self.local[self.loaded.index()];
        self.global.is_full()
            || self.code_pages.set >= MAX_CODE_PAGES
            || local.as_ref().is_some_and(|local| local.is_full())
    }

    /// Notes that an entry is made for the page of `linear`, which has this translation in the
    /// loaded space.
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

    /// The linear pages that lead to a physical page in any space. Some may be returned twice.
    pub fn leading_to(&self, physical_page: u64) -> impl Iterator<Item = u64> {
        let leads = move |note: &&Note| note.physical_page == physical_page;
        let notes = self.maps().flat_map(move |map| map.chain(physical_page));
        notes.filter(leads).map(|note| note.linear_page)
    }

    /// The linear pages that lead to physical pages `first` to `last` in any space. Each is
    /// returned once.
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

    /// Notes that code is fetched from the page of `linear`, in any space.
    #[inline]
    pub fn note_code(&mut self, linear: LinearAddress) {
        self.code_pages.note(linear.page());
    }

    /// Whether structures other than the software TLBs may have entries for a linear page, because
    /// code was fetched from the page.
    #[inline]
    pub fn may_have_code(&self, page: u64) -> bool {
        self.code_pages.may_hold(page)
    }

    /// Whether, if `page` is void, entries for other pages may be void too because they were
    /// derived from the same large page.
    #[inline]
    pub fn is_in_large_page(&self, page: u64) -> bool {
        let local = &self.local[self.loaded.index()];
        self.global.is_in_large_page(page)
            || local.as_ref().is_some_and(|it| it.is_in_large_page(page))
    }

    /// Follows an invalidation of linear pages in the loaded space. Returns the other pages that
    /// the caller must drop: those whose entries were derived from large pages that hold the first
    /// or the last of `pages`.
    pub fn invalidate(&mut self, pages: PageRange) -> Vec<u64> {
        self.invalidate_some(pages, usize::MAX)
    }

    /// Does the work of [`Origins::invalidate`], but stops when there are about `most` pages (up to
    /// 63 more); the next call returns the rest. If fewer than `most` are returned, none are left.
    pub fn invalidate_some(&mut self, pages: PageRange, most: usize) -> Vec<u64> {
        let mut derived = Vec::new();
        self.global.take_derived(pages, most, &mut derived);
        if let Some(local) = &mut self.local[self.loaded.index()] {
            local.take_derived(pages, most, &mut derived);
        }
        derived
    }

    /// Follows a drop of all entries of the loaded space except those of global pages.
    pub fn drop_local(&mut self) {
        if let Some(local) = &mut self.local[self.loaded.index()] {
            local.clear();
        }
    }

    /// Follows a drop of all entries of all spaces.
    pub fn drop_everything(&mut self) {
        self.local.iter_mut().flatten().for_each(|it| it.clear());
        self.global.clear();
        self.code_pages.clear();
    }

    /// Follows a load of another space. Without `keeps`, all entries of that space were dropped,
    /// except those of global pages.
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
