//! What an engine has taken from [stored translations](crate::stored) so far.

use crate::abi::link_layout::{MAX_SLOTS, is_programs_slot};
use crate::abi::packed_sites::PackedSites;
use crate::stored::StoredTranslations;
use crate::stored::ahead::Ahead;
use crate::stored::candidate::Facts;
use rustc_hash::FxHashMap;

/// Stored translations that an engine uses, and what it has taken from them.
pub(super) struct Bringing {
    pub(super) ahead: Ahead,
    /// For each physical page for which blocks were taken: the stored page that they are from.
    taken: FxHashMap<u64, usize>,
    /// A bit for each physical page that was looked for since its code was last written.
    looked_for: Vec<u64>,
    /// How often pages were looked for again.
    again: FxHashMap<u64, u8>,
    /// A bit for each slot that a block from the store has, by kind.
    slots: [Vec<u64>; 2],
    /// Room for the slots of one block, with the offsets of their stubs.
    pub(super) room: Vec<(u32, u32)>,
}

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
            looked_for: Vec::new(),
            again: FxHashMap::default(),
            slots: Default::default(),
            room: Vec::new(),
        }
    }

    pub(super) fn stored(&self) -> &StoredTranslations {
        self.ahead.stored()
    }

    /// For each physical page for which blocks were taken: the stored page that they are from.
    pub(super) fn taken(&self) -> &FxHashMap<u64, usize> {
        &self.taken
    }

    /// Notes that blocks of a stored page were taken for a physical page.
    pub(super) fn note_taken(&mut self, physical_page: u64, page: usize) {
        self.taken.insert(physical_page, page);
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
