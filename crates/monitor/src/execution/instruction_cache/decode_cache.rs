//! The decode cache, which statistics and documents call the dictionary, as the study does that it
//! repeats: decoded instructions in a table of fixed size, hashed by the location of the
//! instruction, and for each physical page a list of what was read from the page.
//!
//! An entry becomes *void* when the guest writes to bytes that the entry was read from; look-ups no
//! longer find it. The place of a void entry is reused when another entry needs it. The notes by
//! page are removed when that page is written or when there are too many of them.

use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::{BuildHasher, Hash};

/// Number of entries in a set. The keys of a set have the same hash.
const WAYS: usize = 4;
/// Number of sets.
const SETS: usize = 1024;
/// Maximum number of entries.
pub(crate) const ENTRIES: usize = WAYS * SETS;
/// Maximum number of notes by page, for each possible entry. If there are more, the notes of void
/// entries are collected.
const NOTES_PER_ENTRY: usize = 12;

/// The kind of bytes in a page that an entry was read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holds {
    /// The bytes of the instruction.
    Code,
    /// Entries of page tables.
    Tables,
}

/// The lines of one physical page that an entry was read from: one bit for each line of 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Source {
    pub page: u64,
    pub lines: u64,
    pub holds: Holds,
}

/// The identity of an entry: its place in the table, and a serial number.
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

/// The result of a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found<V> {
    Hit(V),
    /// There was an entry, but it is void.
    Void,
    Nothing,
}

/// How many entries a write has made void, by the kind of bytes that were written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Dropped {
    pub code: u64,
    pub tables: u64,
}

/// The decode cache: the table of entries, and the notes by page.
#[derive(Debug)]
pub(crate) struct DecodeCache<K, V> {
    slots: Vec<Option<Slot<K, V>>>,
    /// By physical page: which entries were read from the page.
    notes: FxHashMap<u64, Vec<Note>>,
    noted: usize,
    last_serial: u64,
    /// The way of a full set that the next entry takes.
    next_way: usize,
}

impl<K: Hash + Eq + Copy, V: Copy> Default for DecodeCache<K, V> {
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

impl<K: Hash + Eq + Copy, V: Copy> DecodeCache<K, V> {
    /// The first slot of the set of a key.
    #[inline]
    fn set_of(&self, key: &K) -> usize {
        let hash = FxBuildHasher.hash_one(key);
        // The high bits of the hash are the best mixed.
        (hash >> 40) as usize % SETS * WAYS
    }

    /// Looks up the value that was entered under a key.
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

    /// Adds an entry that was read from `sources`. Returns whether it replaced an entry that was
    /// not void.
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

    /// Follows a write to lines of a physical page: the entries that were read from them become
    /// void. Returns the lines of the page on which other entries still depend.
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

    /// Whether the number of notes is so large that the notes of void entries should be
    /// [collected](Self::collect).
    pub fn is_crowded(&self) -> bool {
        self.noted > ENTRIES * NOTES_PER_ENTRY
    }

    /// Forgets the notes of entries that are void or gone. `changed` is called for each page that
    /// lost notes, with the lines of the page on which other entries still depend.
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

    /// Forgets everything. Returns how many entries there were. `released` is called for each page
    /// that entries were read from.
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
#[path = "decode_cache_tests.rs"]
mod tests;
