//! What an engine has taken from [stored translations](crate::stored) so far.

use crate::abi::link_layout::{MAX_SLOTS, is_programs_slot};
use crate::abi::packed_sites::PackedSites;
use crate::stored::StoredTranslations;
use crate::stored::ahead::Ahead;
use crate::stored::candidate::Facts;
use crate::stored::file::contents_hash;
use rustc_hash::FxHashMap;

/// Stored translations that an engine uses, and what it has taken from them.
pub(super) struct Bringing {
    pub(super) ahead: Ahead,
    /// For each physical page for which blocks were taken: the stored pages that they are from.
    taken: FxHashMap<u64, Vec<usize>>,
    /// For each physical page: stored pages from which nothing was taken yet.
    left: FxHashMap<u64, Vec<Left>>,
    /// A bit for each physical page that was looked for since its code was last written.
    looked_for: Vec<u64>,
    /// How often pages were looked for again.
    again: FxHashMap<u64, u8>,
    /// A bit for each slot that a block from the store has, by kind.
    slots: [Vec<u64>; 2],
    /// Room for the slots of one block, with the offsets of their stubs.
    pub(super) room: Vec<(u32, u32)>,
}

/// A stored page that may have more blocks of a physical page.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub(super) page: usize,
    /// How often it was read in vain.
    vain: u8,
}

/// How often a stored page is read in vain.
const MOST_VAIN: u8 = 4;

/// The most stored pages that are considered for one physical page.
const MOST_CANDIDATES: usize = 16;

/// The greatest number of a physical page that is looked for.
const LAST_PAGE: u64 = 1 << 28;
/// How often a page is looked for again because its code was written.
const MOST_TIMES: u8 = 4;

/// Sets a bit of a set. Returns whether it was set before.
fn test_and_set(set: &mut Vec<u64>, number: usize) -> bool {
    if set.len() <= number / 64 {
        set.resize(number / 64 + 1, 0);
    }
    let (word, bit) = (&mut set[number / 64], 1 << (number % 64));
    let was_set = *word & bit != 0;
    *word |= bit;
    was_set
}

impl Bringing {
    /// Begins to use stored translations, whose records are checked against these facts.
    pub(super) fn new(stored: StoredTranslations, facts: Facts) -> Self {
        Self {
            ahead: Ahead::start(stored, facts),
            taken: FxHashMap::default(),
            left: FxHashMap::default(),
            looked_for: Vec::new(),
            again: FxHashMap::default(),
            slots: Default::default(),
            room: Vec::new(),
        }
    }

    pub(super) fn stored(&self) -> &StoredTranslations {
        self.ahead.stored()
    }

    /// The stored pages from which blocks were taken for a physical page.
    pub(super) fn taken(&self, physical_page: u64) -> &[usize] {
        self.taken.get(&physical_page).map_or(&[], Vec::as_slice)
    }

    /// All stored pages from which blocks were taken.
    pub(super) fn all_taken(&self) -> impl Iterator<Item = usize> {
        self.taken.values().flatten().copied()
    }

    /// Notes that blocks of a stored page were taken for a physical page.
    pub(super) fn note_taken(&mut self, physical_page: u64, page: usize) {
        let taken = self.taken.entry(physical_page).or_default();
        if !taken.contains(&page) {
            taken.push(page);
        }
        if let Some(left) = self.left.get_mut(&physical_page) {
            left.retain(|left| left.page != page);
        }
    }

    /// Finds the stored pages that may have blocks of a physical page with these contents: first
    /// those that were made from the same contents, in the order of their runs.
    pub(super) fn find_candidates(&mut self, physical_page: u64, contents: &[u8]) {
        let stored = self.ahead.stored();
        let alike = stored.pages_with(contents_hash(contents));
        let mut found: Vec<Left> = Vec::new();
        for page in alike.chain(stored.pages_at(physical_page)) {
            if found.len() == MOST_CANDIDATES {
                break;
            }
            if found.iter().all(|left| left.page != page) {
                found.push(Left { page, vain: 0 });
            }
        }
        self.left.insert(physical_page, found);
    }

    /// The stored pages that may have more blocks of a physical page.
    pub(super) fn left(&self, physical_page: u64) -> &[Left] {
        self.left.get(&physical_page).map_or(&[], Vec::as_slice)
    }

    /// Notes that a stored page was read in vain for a physical page.
    pub(super) fn note_vain(&mut self, physical_page: u64, page: usize) {
        if let Some(left) = self.left.get_mut(&physical_page) {
            let of_page = left.iter_mut().filter(|left| left.page == page);
            of_page.for_each(|left| left.vain += 1);
            left.retain(|left| left.vain < MOST_VAIN);
        }
    }

    /// Whether the caller must look for a physical page: true once, and again after
    /// [`Bringing::forget`].
    #[inline]
    pub(super) fn looks_for(&mut self, physical_page: u64) -> bool {
        physical_page <= LAST_PAGE && !test_and_set(&mut self.looked_for, physical_page as usize)
    }

    /// Notes that code of a page was written, so that other code may be there next time.
    pub(super) fn forget(&mut self, physical_page: u64) {
        let bit = 1 << (physical_page % 64);
        let word = self.looked_for.get_mut(physical_page as usize / 64);
        if let Some(word) = word.filter(|word| **word & bit != 0) {
            let times = self.again.entry(physical_page).or_default();
            if *times < MOST_TIMES {
                *times += 1;
                *word &= !bit;
            }
        }
    }

    /// Notes that a block from the store has the slots of these sites, of which none may belong to
    /// another, and puts them into [`Bringing::room`].
    pub(super) fn take_slots(&mut self, sites: PackedSites<'_>) -> bool {
        self.room.clear();
        (self.room).extend(sites.iter().filter_map(|site| site.slot_and_stub()));
        self.room.iter().all(|&(slot, _)| {
            let set = &mut self.slots[usize::from(is_programs_slot(slot))];
            !test_and_set(set, slot as usize % MAX_SLOTS)
        })
    }
}
