//! The page-table entries that translations were derived from, by space, so that a load of CR3 need
//! not void the translations whose entries have not changed.
//!
//! A load of CR3 that keeps nothing voids all translations of the new space that are not global
//! (SDM volume 3, 4.10.4.1). But a processor may cache any translation again immediately, if the
//! tables yield it at that time and the accessed and dirty bits that it needs are set (4.10.2.3).
//! So a translation that was derived when the space was last loaded may be kept if each entry of
//! its walk is unchanged: the walk would find the same translation. This is decided by reading
//! these entries again, a few for each page that was used; no watch is kept over the tables in the
//! meantime:
//!
//! ```text
//! walk: 5000 -> 7f000     [1000] = 2027, [2014] = 7f067       noted
//! another space is loaded, which writes into [2014]
//! this space is loaded    [2014] = 7f065                      page 5000 is dropped, no other
//! ```
//!
//! An entry that the guest writes without invalidating it while its space is loaded is detected
//! when the space is loaded next. If another translation was derived from it in between, the notes
//! cannot distinguish the old value from the new one: the entry then counts as changed, whatever it
//! holds.

use crate::derived::{PageRange, SPACES, SpaceNumber};
use rustc_hash::FxHashMap;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{
    NOTED_BITS, PageTableMemory, PathStep, Translation, WalkPath, read_entry,
};
use tollgate_x86::{LinearAddress, PhysicalAddress};

const PAGE_SHIFT: u32 = PAGE_SIZE.trailing_zeros();
/// Maximum number of noted entries of one space: reading more costs more than most of them save.
const MOST_ENTRIES: usize = 2048;
/// Number of entries that are compared in one piece, which takes about a microsecond.
const FEW_ENTRIES: usize = 64;
/// Maximum number of changed entries. If more have changed, the whole space is dropped.
const MOST_CHANGED: usize = 256;
/// If an entry that covers at least this many linear pages has changed, the whole space is dropped.
const MOST_PAGES: u64 = 1024;
/// Number of levels of the deepest walk.
const LEVELS: usize = 4;

/// A page-table entry from which something was derived.
#[derive(Clone, Copy, Debug)]
struct Noted {
    /// The range of linear addresses that the entry is about, encoded by [`key`].
    key: u64,
    /// The physical address of the entry, with the flags [`NARROW`] and [`CHANGED`].
    address: u64,
    entry: u64,
}

/// Flag in an address: the entry has 4 bytes, not 8.
const NARROW: u64 = 1;
/// Flag in an address: derived data depends on different values of the entry.
const CHANGED: u64 = 2;
const FLAGS: u64 = NARROW | CHANGED;

/// The range of linear addresses that an entry with this shift is about, as one number.
const fn key(linear: u64, shift: u8) -> u64 {
    linear >> shift << 6 | shift as u64
}

impl Noted {
    fn has_changed<M: PageTableMemory + ?Sized>(&self, memory: &mut M) -> bool {
        let is_wide = self.address & NARROW == 0;
        let address = PhysicalAddress(self.address & !FLAGS);
        self.address & CHANGED != 0 || read_entry(memory, address, is_wide) != self.entry
    }

    /// The linear pages that the entry is about.
    fn pages(&self) -> PageRange {
        let (part, shift) = (self.key >> 6, self.key & 0x3f);
        let first = part << (shift - PAGE_SHIFT as u64);
        PageRange {
            first,
            last: first + ((1 << (shift - PAGE_SHIFT as u64)) - 1),
        }
    }
}

/// The noted entries of one space.
#[derive(Default)]
struct OfSpace {
    noted: Vec<Noted>,
    /// The index of the note with a key.
    places: FxHashMap<u64, u32>,
    /// The last note of each level.
    last: [Option<(u64, PathStep)>; LEVELS],
    /// Whether something was derived from entries that are not noted.
    is_incomplete: bool,
}

impl OfSpace {
    fn clear(&mut self) {
        self.noted.clear();
        self.places.clear();
        self.last = Default::default();
        self.is_incomplete = false;
    }

    #[inline]
    fn note_path(&mut self, linear: LinearAddress, path: &WalkPath) {
        for (&step, level) in path.steps().iter().zip(0..LEVELS) {
            let key = key(linear.0, step.shift);
            if self.last[level] != Some((key, step)) {
                self.last[level] = Some((key, step));
                self.note(key, step, path.is_wide());
            }
        }
    }

    fn note(&mut self, key: u64, step: PathStep, is_wide: bool) {
        let address = step.address.0 | if is_wide { 0 } else { NARROW };
        let next = self.noted.len();
        let place = *self.places.entry(key).or_insert(next as u32) as usize;
        let Some(noted) = self.noted.get_mut(place) else {
            self.is_incomplete |= next >= MOST_ENTRIES;
            self.noted.push(Noted {
                key,
                address,
                entry: step.entry,
            });
            return;
        };
        // Data that was derived before stays valid if these bits were added.
        let only_adds =
            noted.entry & !step.entry == 0 && (noted.entry ^ step.entry) & !NOTED_BITS == 0;
        if noted.address == address && only_adds {
            noted.entry = step.entry;
        } else {
            noted.address |= CHANGED;
        }
    }

    fn remove(&mut self, key: u64) {
        let Some(place) = self.places.remove(&key) else {
            return;
        };
        let place = place as usize;
        self.noted.swap_remove(place);
        if let Some(moved) = self.noted.get(place) {
            self.places.insert(moved.key, place as u32);
        }
        self.last = Default::default();
    }
}

/// The result of comparing a space's entries with the entries that were noted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Comparison {
    /// Only the data derived for these ranges of linear addresses is void.
    Changed(Vec<PageRange>),
    /// All data of the space is void, or what is void is not known.
    Unknown,
}

/// The page-table entries from which the data of each space was derived, except for global pages.
#[derive(Default)]
pub struct TableEntries {
    spaces: [Option<Box<OfSpace>>; SPACES],
    loaded: SpaceNumber,
    /// The number of entries that were compared, and of those that had changed.
    counts: (u64, u64),
}

impl TableEntries {
    fn loaded(&mut self) -> &mut OfSpace {
        self.spaces[self.loaded.index()].get_or_insert_default()
    }

    /// Notes that data is derived for the page of `linear` in the loaded space.
    #[inline]
    pub fn note(&mut self, linear: LinearAddress, translation: &Translation) {
        if translation.global {
            return;
        }
        let path = &translation.path;
        let space = self.loaded();
        if path.steps().is_empty() {
            space.is_incomplete = true;
        }
        if !space.is_incomplete {
            space.note_path(linear, path);
        }
    }

    /// Removes the notes about these pages of the loaded space, and about the rest of a large page
    /// that they lie in. Called after all data derived for them was dropped.
    #[inline]
    pub fn drop_pages(&mut self, pages: PageRange) {
        let Some(space) = &mut self.spaces[self.loaded.index()] else {
            return;
        };
        // For a larger range the notes stay; at worst they count as changed later.
        if pages.count() <= MOST_CHANGED as u64 {
            for page in pages.pages() {
                space.remove(key(page << PAGE_SHIFT, PAGE_SHIFT as u8));
            }
        }
    }

    /// Follows a drop of all data derived in the loaded space.
    pub fn drop_local(&mut self) {
        self.loaded().clear();
    }

    /// Follows a drop of all data of all spaces.
    pub fn drop_everything(&mut self) {
        self.spaces.iter_mut().flatten().for_each(|it| it.clear());
    }

    /// Records that the loaded space has other tables now, and that no data of it was dropped.
    pub fn note_other_tables(&mut self) {
        self.loaded().is_incomplete = true;
    }

    /// Follows a load of another space. Without `keeps`, all its data was dropped.
    pub fn load(&mut self, to: SpaceNumber, keeps: bool) {
        self.loaded = to;
        if !keeps {
            self.drop_local();
        }
    }

    /// Whether a space has so few entries that comparing them takes no noticeable time.
    pub fn are_few(&self, number: SpaceNumber) -> bool {
        let space = &self.spaces[number.index()];
        (space.as_ref()).is_none_or(|it| it.is_incomplete || it.noted.len() <= FEW_ENTRIES)
    }

    /// Compares the noted entries of a space with their present values. The caller drops what is
    /// void.
    pub fn compare<M: PageTableMemory + ?Sized>(
        &self,
        number: SpaceNumber,
        memory: &mut M,
    ) -> Comparison {
        let compared = self.compare_unless(number, memory, || false);
        compared.unwrap_or(Comparison::Unknown)
    }

    /// Compares as [`TableEntries::compare`] does, in pieces. Returns `None` if `stops` returned
    /// true between two of them.
    pub fn compare_unless<M: PageTableMemory + ?Sized>(
        &self,
        number: SpaceNumber,
        memory: &mut M,
        mut stops: impl FnMut() -> bool,
    ) -> Option<Comparison> {
        let Some(space) = &self.spaces[number.index()] else {
            return Some(Comparison::Changed(Vec::new()));
        };
        if space.is_incomplete {
            return Some(Comparison::Unknown);
        }
        let mut changed = Vec::new();
        for (index, piece) in space.noted.chunks(FEW_ENTRIES).enumerate() {
            if index != 0 && stops() {
                return None;
            }
            for noted in piece.iter().filter(|noted| noted.has_changed(memory)) {
                let pages = noted.pages();
                if changed.len() == MOST_CHANGED || pages.count() > MOST_PAGES {
                    return Some(Comparison::Unknown);
                }
                changed.push(pages);
            }
        }
        Some(Comparison::Changed(changed))
    }

    /// Forgets the entries of the loaded space for exactly these pages, because the data derived
    /// from them was dropped.
    pub fn forget(&mut self, changed: &[PageRange]) {
        let space = self.loaded();
        for pages in changed {
            let shift = pages.count().trailing_zeros() + PAGE_SHIFT;
            space.remove(key(pages.first << PAGE_SHIFT, shift as u8));
        }
    }

    /// Counts a comparison of a space's entries.
    pub fn count(&mut self, number: SpaceNumber, comparison: &Comparison) {
        if let (Some(space), Comparison::Changed(changed)) =
            (&self.spaces[number.index()], comparison)
        {
            self.counts.0 += space.noted.len() as u64;
            self.counts.1 += changed.len() as u64;
        }
    }

    /// How many entries were compared so far, and how many of them had changed.
    pub fn counts(&self) -> (u64, u64) {
        self.counts
    }
}

#[cfg(test)]
#[path = "table_entries_tests.rs"]
mod tests;
