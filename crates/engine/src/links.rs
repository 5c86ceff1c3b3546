//! Link tables: where cross-page and indirect branches find their targets.
//!
//! One region of sparse memory holds a hash table for indirect branches and slots
//! for direct branches that leave their page. What a linear address means can
//! change under both, so entries carry the pages that they depend on and are
//! cleared when those pages' translations are. Links inside a page do not pass
//! through here: they hold as long as both blocks live.

use rustc_hash::FxHashMap;
use std::io;
use tollgate_shadow::reservation::Reservation;
use tollgate_x86::address::PAGE_SIZE;

/// Entries of the hash table of indirect branches, indexed by the low 16 bits of EIP.
const HASH_ENTRIES: usize = 1 << 16;
/// Bytes of the hash table: the slots begin behind it.
pub const SLOTS_OFFSET: i32 = (HASH_ENTRIES * 16) as i32;
/// Slots that can be given out.
pub const MAX_SLOTS: usize = 1 << 20;

/// What a filled entry depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dependence {
    /// Linear page of the target's first byte.
    pub page: u64,
    /// Linear page of the byte behind a straddling first instruction, or the same.
    pub last_page: u64,
    /// Survives an address-space switch.
    pub global: bool,
    /// Size in bytes of the guest page that it was derived from, the larger of two.
    pub page_size: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
enum Entry {
    Hash(u32),
    Slot(u32),
}

/// The tables of one vCPU.
pub struct LinkTables {
    memory: Reservation,
    /// Entries that may be filled. What one depends on lists it in `by_page` and `local`.
    filled: FxHashMap<Entry, Dependence>,
    /// Entries by the linear pages they depend on; may name entries that are gone.
    by_page: FxHashMap<u64, Vec<Entry>>,
    /// Entries that an address-space switch clears; may name entries that are gone.
    local: Vec<Entry>,
    /// Entries derived from large pages, by these; may name entries that are gone.
    by_large_page: FxHashMap<LargePage, Vec<Entry>>,
    free_slots: Vec<u32>,
    next_slot: u32,
}

impl LinkTables {
    /// Reserves the tables.
    ///
    /// # Errors
    /// The host has no address space left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            memory: Reservation::new(HASH_ENTRIES * 16 + MAX_SLOTS * 8)?,
            filled: FxHashMap::default(),
            by_page: FxHashMap::default(),
            local: Vec::new(),
            by_large_page: FxHashMap::default(),
            free_slots: Vec::new(),
            next_slot: 0,
        })
    }

    /// Address of the tables (R13 in guest code).
    pub fn base(&self) -> u64 {
        self.memory.base() as u64
    }

    /// A slot for a new link site; `None` if all are taken.
    pub fn take_slot(&mut self) -> Option<u32> {
        if let Some(slot) = self.free_slots.pop() {
            return Some(slot);
        }
        if self.next_slot as usize >= MAX_SLOTS {
            return None;
        }
        self.next_slot += 1;
        Some(self.next_slot - 1)
    }

    /// Takes back the slot of a site that died.
    pub fn release_slot(&mut self, slot: u32) {
        self.clear(Entry::Slot(slot));
        self.free_slots.push(slot);
    }

    fn write(&mut self, offset: usize, value: u64) {
        // SAFETY: offsets are computed from checked hash indices and slot numbers and
        // lie, aligned, inside the reservation.
        unsafe { self.memory.base().add(offset).cast::<u64>().write(value) };
    }

    fn read(&self, offset: usize) -> u64 {
        // SAFETY: as in `write`.
        unsafe { self.memory.base().add(offset).cast::<u64>().read() }
    }

    /// Empties an entry that stays listed: it may well be filled again as it was.
    fn empty(&mut self, entry: Entry) {
        match entry {
            Entry::Hash(index) => {
                self.write(index as usize * 16, 0);
                self.write(index as usize * 16 + 8, 0);
            }
            Entry::Slot(slot) => self.write(SLOTS_OFFSET as usize + slot as usize * 8, 0),
        }
    }

    fn clear(&mut self, entry: Entry) {
        self.empty(entry);
        self.filled.remove(&entry);
    }

    fn note(&mut self, entry: Entry, dependence: Dependence) {
        if self.filled.insert(entry, dependence) == Some(dependence) {
            return;
        }
        if !dependence.global {
            self.local.push(entry);
        }
        for page in [dependence.page, dependence.last_page] {
            add(self.by_page.entry(page).or_default(), entry, &self.filled);
            if let Some(large) = LargePage::of(page, dependence.page_size) {
                add(
                    self.by_large_page.entry(large).or_default(),
                    entry,
                    &self.filled,
                );
            }
            if dependence.page == dependence.last_page {
                break;
            }
        }
    }

    /// Fills a slot with `target` minus the address of the site's stub.
    pub fn fill_slot(&mut self, slot: u32, distance: u64, dependence: Dependence) {
        self.write(SLOTS_OFFSET as usize + slot as usize * 8, distance);
        self.note(Entry::Slot(slot), dependence);
    }

    /// The tag of an indirect branch target, as emitted code compares it.
    pub const fn tag(rip: u64, mode: u32) -> u64 {
        (((mode as u64) << 32) + rip + 1).wrapping_neg()
    }

    /// Lets indirect branches to `rip` in `mode` find `target`.
    pub fn fill_hash(&mut self, rip: u64, mode: u32, target: u64, dependence: Dependence) {
        let index = rip as u32 & 0xffff;
        self.write(index as usize * 16, Self::tag(rip, mode));
        self.write(index as usize * 16 + 8, target);
        self.note(Entry::Hash(index), dependence);
    }

    /// Forgets whatever leads to the host addresses `targets`: a block died.
    /// `rip` is the block's, whose hash entry may name it.
    pub fn forget_hash(&mut self, rip: u64, target: u64) {
        let index = rip as u32 & 0xffff;
        if self.read(index as usize * 16 + 8) == target {
            self.empty(Entry::Hash(index));
        }
    }

    /// Forgets one slot's target.
    pub fn forget_slot(&mut self, slot: u32) {
        self.empty(Entry::Slot(slot));
    }

    /// Forgets everything but global pages: CR3 was loaded.
    pub fn clear_local(&mut self) {
        let mut local = std::mem::take(&mut self.local);
        for entry in local.drain(..) {
            if self
                .filled
                .get(&entry)
                .is_some_and(|dependence| !dependence.global)
            {
                self.clear(entry);
            }
        }
        self.local = local;
    }

    /// Forgets everything.
    pub fn clear_all(&mut self) {
        for entry in self.filled.keys().copied().collect::<Vec<_>>() {
            self.clear(entry);
        }
        self.by_page.clear();
        self.local.clear();
        self.by_large_page.clear();
    }

    /// Forgets what depends on a linear page, or on a large page that holds it.
    pub fn clear_page(&mut self, page: u64) {
        for entry in self.by_page.remove(&page).unwrap_or_default() {
            let depends =
                |dependence: &Dependence| dependence.page == page || dependence.last_page == page;
            if self.filled.get(&entry).is_some_and(depends) {
                self.clear(entry);
            }
        }
        for size in LARGE_PAGES {
            let Some(large) = LargePage::of(page, size) else {
                continue;
            };
            for entry in self.by_large_page.remove(&large).unwrap_or_default() {
                let depends = |dependence: &Dependence| {
                    [dependence.page, dependence.last_page]
                        .into_iter()
                        .any(|page| LargePage::of(page, dependence.page_size) == Some(large))
                };
                if self.filled.get(&entry).is_some_and(depends) {
                    self.clear(entry);
                }
            }
        }
    }
}

/// Sizes of large pages in bytes: 2 MiB, 4 MiB, 1 GiB.
const LARGE_PAGES: [u64; 3] = [1 << 21, 1 << 22, 1 << 30];

/// A large page: its size and its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
struct LargePage {
    size: u64,
    number: u64,
}

impl LargePage {
    /// The page of `size` bytes that holds the 4 KiB page `page`; `None` if that is all.
    fn of(page: u64, size: u64) -> Option<Self> {
        (size > PAGE_SIZE).then(|| Self {
            size,
            number: page / (size / PAGE_SIZE),
        })
    }
}

/// Lists an entry, keeping each once from time to time: entries come back after each
/// address-space switch.
fn add(list: &mut Vec<Entry>, entry: Entry, filled: &FxHashMap<Entry, Dependence>) {
    if list.len() >= 32 && list.len().is_power_of_two() {
        list.sort_unstable();
        list.dedup();
        list.retain(|entry| filled.contains_key(entry));
    }
    list.push(entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_space_switch_keeps_global_entries_only() {
        let mut links = LinkTables::new().unwrap();
        let slot = links.take_slot().unwrap();
        links.fill_slot(
            slot,
            5,
            Dependence {
                page: 1,
                last_page: 1,
                global: true,
                page_size: 4096,
            },
        );
        links.fill_hash(
            0x2000,
            3,
            0x1234,
            Dependence {
                page: 2,
                last_page: 2,
                global: false,
                page_size: 4096,
            },
        );
        links.clear_local();
        assert_eq!(links.read(SLOTS_OFFSET as usize + slot as usize * 8), 5);
        assert_eq!(links.read(0x2000 * 16), 0);
        links.clear_page(1);
        assert_eq!(links.read(SLOTS_OFFSET as usize + slot as usize * 8), 0);
    }
}
