//! The dictionary of decoded instructions: a table of fixed size, hashed by where an instruction
//! is, and for each physical page what was read from it.
//!
//! An entry that was read from bytes that are then written is *void*: it is not found any more. Its
//! place is collected when another entry needs it, and what is noted of it by page when that page
//! is written or when there are too many such notes.

use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::{BuildHasher, Hash};

/// Entries whose keys have the same hash, at most.
const WAYS: usize = 4;
/// The sets of entries.
const SETS: usize = 1024;
/// Entries at most.
pub(crate) const ENTRIES: usize = WAYS * SETS;
/// Notes by page, for each entry that there can be; with more, those of void entries are collected.
const NOTES_PER_ENTRY: usize = 12;

/// What was read in a page for an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holds {
    /// The instruction's bytes.
    Code,
    /// Entries of page tables.
    Tables,
}

/// Lines of 64 bytes of one physical page, one bit each, that an entry was read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Source {
    pub page: u64,
    pub lines: u64,
    pub holds: Holds,
}

/// An entry, by its place and when it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Name {
    place: u32,
    serial: u64,
}

#[derive(Clone, Debug)]
struct Slot<K, V> {
    key: K,
    value: V,
    serial: u64,
    is_void: bool,
}

#[derive(Clone, Copy, Debug)]
struct Note {
    entry: Name,
    lines: u64,
    holds: Holds,
}

/// What a look-up found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found<V> {
    Hit(V),
    /// It was there, but is void.
    Void,
    Nothing,
}

/// How many entries a write has made void, by what it has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Dropped {
    pub code: u64,
    pub tables: u64,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Dictionary<K, V> {
    slots: Vec<Option<Slot<K, V>>>,
    /// By physical page: what was read there.
    notes: FxHashMap<u64, Vec<Note>>,
    noted: usize,
    last_serial: u64,
    /// The way that the next entry takes of a set that is full.
    next_way: usize,
}

impl<K: Hash + Eq + Copy, V: Copy> Default for Dictionary<K, V> {
    fn default() -> Self {
        Self {
            slots: (0..ENTRIES).map(|_| None).collect(),
            notes: FxHashMap::default(),
            noted: 0,
            last_serial: 0,
            next_way: 0,
        }
    }
}

impl<K: Hash + Eq + Copy, V: Copy> Dictionary<K, V> {
    /// The first slot of the set of a key.
    #[inline]
    fn set_of(&self, key: &K) -> usize {
        let hash = FxBuildHasher.hash_one(key);
        // The high bits are mixed best.
        (hash >> 40) as usize % SETS * WAYS
    }

    /// What is entered under a key.
    #[inline]
    pub fn look_up(&self, key: &K) -> Found<V> {
        let first = self.set_of(key);
        let set = &self.slots[first..first + WAYS];
        match set.iter().flatten().find(|slot| slot.key == *key) {
            Some(slot) if slot.is_void => Found::Void,
            Some(slot) => Found::Hit(slot.value),
            None => Found::Nothing,
        }
    }

    /// Enters what was read from `sources`. Whether another entry had to go that was not void.
    pub fn enter(&mut self, key: K, value: V, sources: &[Source]) -> bool {
        let first = self.set_of(&key);
        let set = &self.slots[first..first + WAYS];
        let same = set
            .iter()
            .position(|slot| slot.as_ref().is_some_and(|slot| slot.key == key));
        let is_free = |slot: &Option<Slot<K, V>>| slot.as_ref().is_none_or(|slot| slot.is_void);
        let way = same.or_else(|| set.iter().position(is_free));
        let replaces = way.is_none();
        let way = way.unwrap_or_else(|| {
            self.next_way = (self.next_way + 1) % WAYS;
            self.next_way
        });
        self.last_serial += 1;
        let entry = Name {
            place: (first + way) as u32,
            serial: self.last_serial,
        };
        self.slots[first + way] = Some(Slot {
            key,
            value,
            serial: self.last_serial,
            is_void: false,
        });
        for source in sources {
            self.notes.entry(source.page).or_default().push(Note {
                entry,
                lines: source.lines,
                holds: source.holds,
            });
        }
        self.noted += sources.len();
        replaces
    }

    fn is_alive(slots: &[Option<Slot<K, V>>], name: Name) -> bool {
        slots[name.place as usize]
            .as_ref()
            .is_some_and(|slot| slot.serial == name.serial && !slot.is_void)
    }

    /// Lines of a physical page are written: what was read from them is void. The lines of the page
    /// that entries were read from which are not.
    pub fn write(&mut self, page: u64, lines: u64, dropped: &mut Dropped) -> u64 {
        let Some(notes) = self.notes.get_mut(&page) else {
            return 0;
        };
        let (before, mut kept) = (notes.len(), 0);
        let slots = &mut self.slots;
        notes.retain(|note| {
            if !Self::is_alive(slots, note.entry) {
                return false;
            }
            if note.lines & lines == 0 {
                kept |= note.lines;
                return true;
            }
            if let Some(slot) = &mut slots[note.entry.place as usize] {
                slot.is_void = true;
            }
            match note.holds {
                Holds::Code => dropped.code += 1,
                Holds::Tables => dropped.tables += 1,
            }
            false
        });
        self.noted -= before - notes.len();
        if notes.is_empty() {
            self.notes.remove(&page);
        }
        kept
    }

    /// Whether there are so many notes that those of void entries should be
    /// [collected](Self::collect).
    pub fn is_crowded(&self) -> bool {
        self.noted > ENTRIES * NOTES_PER_ENTRY
    }

    /// Forgets what is noted of entries that are void or gone. Each page of which something was
    /// forgotten is named to `changed`, with the lines that others were read from.
    pub fn collect(&mut self, mut changed: impl FnMut(u64, u64)) {
        let slots = &self.slots;
        let mut noted = 0;
        self.notes.retain(|&page, notes| {
            let before = notes.len();
            notes.retain(|note| Self::is_alive(slots, note.entry));
            noted += notes.len();
            if notes.len() != before {
                changed(page, notes.iter().fold(0, |lines, note| lines | note.lines));
            }
            !notes.is_empty()
        });
        self.noted = noted;
    }

    /// Forgets everything. How many entries there were; the pages that something was read from are
    /// named to `released`.
    pub fn clear(&mut self, mut released: impl FnMut(u64)) -> u64 {
        let mut count = 0;
        for slot in &mut self.slots {
            count += u64::from(slot.take().is_some_and(|slot| !slot.is_void));
        }
        self.notes.drain().for_each(|(page, _)| released(page));
        self.noted = 0;
        count
    }
}

#[cfg(test)]
#[path = "dictionary_tests.rs"]
mod tests;
