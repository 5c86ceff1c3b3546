//! Link tables: where cross-page and indirect branches find their targets.
//!
//! One region of sparse memory holds a hash table for indirect branches and slots
//! for direct branches that leave their page. What a linear address means can
//! change under both, so entries carry the pages that they depend on and are
//! cleared when those pages' translations are. Links inside a page do not pass
//! through here: they hold as long as both blocks live.
//!
//! An entry of the hash table that all 32-bit code shares names its mode beside its EIP. The
//! instruction pointer of 64-bit code leaves no room for that, so each of its modes has a
//! table of its own.
//!
//! Far transfers of real and V86 mode lead to code of another mode, since the base of CS is
//! part of it. They have one more table, whose entries name the selector, the IP and the
//! family of modes.

use crate::abi::far_pointer::FarPointer;
use crate::abi::link_layout::{
    BranchTable, ENTRY_BYTES, ENTRY_DELTA, ENTRY_TARGET, FAR_ENTRY_BYTES, FAR_TABLE_OFFSET,
    FamilyId, HASH_ENTRIES, LONG_TABLES_OFFSET, MAX_SLOTS, ModeId, SLOTS_OFFSET, TABLES_BYTES,
    far_tag_base, indirect_tag, table_offset,
};
use crate::blocks::listed::Listed;
use std::io;
use tollgate_tlb::reservation::Reservation;
use tollgate_tlb::{Derived, PageRange};

/// What a filled entry depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dependence {
    /// Linear page of the target's first byte.
    pub page: u64,
    /// Linear page of the byte behind a straddling first instruction, or the same.
    pub last_page: u64,
    /// Survives an address-space switch.
    pub global: bool,
}

/// Where indirect branches lead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Host address of the block's code.
    pub address: u64,
    /// What [`Context::code_delta`](crate::abi::context::Context::code_delta) must be there, if
    /// the block is relocatable.
    pub delta: u64,
}

impl Target {
    /// A block that is not relocatable.
    pub fn fixed(address: u64) -> Self {
        Self { address, delta: 0 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
enum Entry {
    /// Offset from the start of the tables.
    Hash(u32),
    Slot(u32),
}

/// The tables of one vCPU.
pub struct LinkTables {
    memory: Reservation,
    /// Entries that survive an address-space switch.
    global: Listed<Entry>,
    /// Entries that do not.
    local: Listed<Entry>,
    free_slots: Vec<u32>,
    next_slot: u32,
    epoch: u64,
}

impl LinkTables {
    /// Reserves the tables.
    ///
    /// # Errors
    /// The host has no address space left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            memory: Reservation::new(TABLES_BYTES as usize)?,
            global: Listed::default(),
            local: Listed::default(),
            free_slots: Vec::new(),
            next_slot: 0,
            epoch: 0,
        })
    }

    /// Address of the tables (R13 in guest code).
    pub fn base(&self) -> u64 {
        self.memory.base() as u64
    }

    /// Changes whenever all entries that are not global have been dropped: what is known of one
    /// epoch holds for all entries that were filled in it.
    pub fn epoch(&self) -> u64 {
        self.epoch
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
        write(&mut self.memory, offset, value);
    }

    fn read(&self, offset: usize) -> u64 {
        // SAFETY: as in the function `write`.
        unsafe { self.memory.base().add(offset).cast::<u64>().read() }
    }

    /// Empties an entry, which may stay listed.
    fn empty(&mut self, entry: Entry) {
        empty(&mut self.memory, entry);
    }

    fn clear(&mut self, entry: Entry) {
        self.empty(entry);
        self.local.remove(entry);
        self.global.remove(entry);
    }

    fn note(&mut self, entry: Entry, dependence: Dependence) {
        let (of, other) = match dependence.global {
            true => (&mut self.global, &mut self.local),
            false => (&mut self.local, &mut self.global),
        };
        other.remove(entry);
        of.list(entry, (dependence.page, dependence.last_page));
    }

    /// Fills a slot with `target` minus the address of the site's stub.
    pub fn fill_slot(&mut self, slot: u32, distance: u64, dependence: Dependence) {
        self.write(SLOTS_OFFSET as usize + slot as usize * 8, distance);
        self.note(Entry::Slot(slot), dependence);
    }

    /// The tag of an indirect branch target, as emitted code compares it.
    const fn tag(rip: u64, mode: ModeId, table: BranchTable) -> u64 {
        rip.wrapping_add(indirect_tag(table, mode)).wrapping_neg()
    }

    /// Prepares a mode's table: to be called before code of that mode is translated.
    pub fn prepare(&mut self, table: BranchTable) {
        let last = entry_offset(u64::MAX, table);
        if self.read(last as usize) == 0 {
            self.write(last as usize, vacant(last));
        }
    }

    /// Lets indirect branches to `rip` in `mode`, whose table is `table`, find `target`.
    pub fn fill_hash(
        &mut self,
        rip: u64,
        (mode, table): (ModeId, BranchTable),
        target: Target,
        dependence: Dependence,
    ) {
        let offset = entry_offset(rip, table);
        self.write(offset as usize, Self::tag(rip, mode, table));
        self.write(offset as usize + ENTRY_TARGET as usize, target.address);
        self.write(offset as usize + ENTRY_DELTA as usize, target.delta);
        self.note(Entry::Hash(offset), dependence);
    }

    /// Forgets whatever leads to the host address `target`: a block died. `rip` is where it was
    /// last listed: that entry in its mode's table may name it.
    pub fn forget_hash(&mut self, rip: u64, table: BranchTable, target: u64) {
        let offset = entry_offset(rip, table);
        if self.read(offset as usize + 8) == target {
            self.empty(Entry::Hash(offset));
        }
    }

    /// Lets far transfers to `pointer` in modes of `family` find `target`.
    pub fn fill_far(
        &mut self,
        pointer: FarPointer,
        family: FamilyId,
        target: u64,
        dependence: Dependence,
    ) {
        let offset = far_entry_offset(pointer);
        let sought = far_tag_base(family).wrapping_add(u64::from(pointer.packed()));
        self.write(offset as usize, sought.wrapping_neg());
        self.write(offset as usize + 8, target);
        self.note(Entry::Hash(offset), dependence);
    }

    /// Forgets whatever leads far transfers to the host address `target`, the block at
    /// `pointer`, which died.
    pub fn forget_far(&mut self, pointer: FarPointer, target: u64) {
        let offset = far_entry_offset(pointer);
        if self.read(offset as usize + 8) == target {
            self.empty(Entry::Hash(offset));
        }
    }

    /// Forgets one slot's target.
    pub fn forget_slot(&mut self, slot: u32) {
        self.empty(Entry::Slot(slot));
    }

    /// What slot `slot` holds, 0 if nothing.
    pub fn slot(&self, slot: u32) -> u64 {
        self.read(SLOTS_OFFSET as usize + slot as usize * 8)
    }

    /// Where an indirect branch to `rip` in `mode`, whose table is `table`, goes; `None` if it
    /// leaves.
    pub fn hash(&self, rip: u64, (mode, table): (ModeId, BranchTable)) -> Option<Target> {
        let offset = entry_offset(rip, table) as usize;
        let found = self.read(offset) == Self::tag(rip, mode, table);
        found.then(|| Target {
            address: self.read(offset + ENTRY_TARGET as usize),
            delta: self.read(offset + ENTRY_DELTA as usize),
        })
    }

    /// Where a far transfer to `pointer` in a mode of `family` goes; `None` if it leaves.
    pub fn far(&self, pointer: FarPointer, family: FamilyId) -> Option<u64> {
        let offset = far_entry_offset(pointer) as usize;
        let sought = far_tag_base(family).wrapping_add(u64::from(pointer.packed()));
        let found = self.read(offset) == sought.wrapping_neg();
        found.then(|| self.read(offset + 8))
    }
}

impl Derived for LinkTables {
    fn drop_local(&mut self) {
        self.epoch += 1;
        let memory = &mut self.memory;
        self.local.drop_all(|entry| empty(memory, entry));
    }

    fn drop_pages(&mut self, pages: PageRange) {
        let memory = &mut self.memory;
        for listed in [&mut self.local, &mut self.global] {
            listed.drop_pages(pages, |entry| empty(memory, entry));
        }
    }

    fn drop_everything(&mut self) {
        self.drop_local();
        let memory = &mut self.memory;
        self.global.drop_all(|entry| empty(memory, entry));
    }
}

fn write(memory: &mut Reservation, offset: usize, value: u64) {
    // SAFETY: offsets are computed from checked hash indices and slot numbers and
    // lie, aligned, inside the reservation.
    unsafe { memory.base().add(offset).cast::<u64>().write(value) };
}

/// Empties an entry of the tables.
fn empty(memory: &mut Reservation, entry: Entry) {
    match entry {
        Entry::Hash(offset) => {
            write(memory, offset as usize, vacant(offset));
            write(memory, offset as usize + ENTRY_TARGET as usize, 0);
        }
        Entry::Slot(slot) => write(memory, SLOTS_OFFSET as usize + slot as usize * 8, 0),
    }
}

/// Where the entry of a target lies.
fn entry_offset(rip: u64, table: BranchTable) -> u32 {
    table_offset(table) as u32 + (rip as u32 & 0xffff) * ENTRY_BYTES as u32
}

/// Where the entry of a far transfer's target lies. Emitted code computes the same.
fn far_entry_offset(pointer: FarPointer) -> u32 {
    let packed = pointer.packed();
    let index = (packed >> 12).wrapping_add(packed) & 0xffff;
    FAR_TABLE_OFFSET as u32 + index * FAR_ENTRY_BYTES as u32
}

/// The tag of an empty entry, which no target has that is looked for there. Zero is the tag
/// of the very last address; it is looked for in the last entry.
fn vacant(offset: u32) -> u64 {
    let long_tables = LONG_TABLES_OFFSET as u32..FAR_TABLE_OFFSET as u32;
    let index = offset.wrapping_sub(long_tables.start) / ENTRY_BYTES as u32;
    let is_last = index % HASH_ENTRIES as u32 == HASH_ENTRIES as u32 - 1;
    u64::from(is_last && long_tables.contains(&offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_range(first: u64, last: u64) -> PageRange {
        PageRange { first, last }
    }

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
            },
        );
        links.fill_hash(
            0x2000,
            (ModeId(3), BranchTable::Shared),
            Target::fixed(0x1234),
            Dependence {
                page: 2,
                last_page: 2,
                global: false,
            },
        );
        links.drop_local();
        assert_eq!(links.read(SLOTS_OFFSET as usize + slot as usize * 8), 5);
        assert_eq!(links.read(0x2000 * ENTRY_BYTES as usize), 0);
        links.drop_pages(page_range(1, 1));
        assert_eq!(links.read(SLOTS_OFFSET as usize + slot as usize * 8), 0);
    }

    /// What emitted code computes: zero where the entry is the target's.
    fn sought(links: &LinkTables, rip: u64, table: BranchTable) -> u64 {
        let tag = links.read(entry_offset(rip, table) as usize);
        tag.wrapping_add(rip).wrapping_add(1)
    }

    #[test]
    fn a_far_target_is_found_by_its_pointer_and_family_until_its_block_dies() {
        let mut links = LinkTables::new().unwrap();
        let dependence = Dependence {
            page: 0x10,
            last_page: 0x10,
            global: false,
        };
        let sought = |links: &LinkTables, pointer: FarPointer, family| {
            let tag = links.read(far_entry_offset(pointer) as usize);
            let key = u64::from(pointer.packed());
            tag.wrapping_add(key).wrapping_add(far_tag_base(family))
        };
        let family = FamilyId(3);
        for (selector, ip) in [(0, 0), (0x1000, 5), (0xffff, 0xffff), (0xf000, 0xfff0)] {
            let pointer = FarPointer { selector, ip };
            assert_ne!(sought(&links, pointer, family), 0);
            links.fill_far(pointer, family, 0x1234, dependence);
            assert_eq!(sought(&links, pointer, family), 0);
            assert_ne!(sought(&links, pointer, FamilyId(4)), 0);
            // The same linear address by another selector.
            let other = FarPointer {
                selector: selector ^ 1,
                ip: ip ^ 0x10,
            };
            assert_ne!(sought(&links, other, family), 0);
            links.forget_far(pointer, 0x4321);
            assert_eq!(sought(&links, pointer, family), 0);
            links.forget_far(pointer, 0x1234);
            assert_ne!(sought(&links, pointer, family), 0);
            links.fill_far(pointer, family, 0x1234, dependence);
            links.drop_pages(page_range(0x10, 0x10));
            assert_ne!(sought(&links, pointer, family), 0);
        }
    }

    #[test]
    fn no_target_of_64_bit_code_is_found_in_an_empty_entry() {
        let mut links = LinkTables::new().unwrap();
        let table = BranchTable::Own(2);
        links.prepare(table);
        let mode = (ModeId(7), table);
        let rips = [0, 1, 0xffff, 0x7fff_ffff_ffff, u64::MAX - 0xffff, u64::MAX];
        for rip in rips {
            assert_ne!(sought(&links, rip, table), 0, "{rip:x}");
            let page = rip >> 12;
            let dependence = Dependence {
                page,
                last_page: page,
                global: true,
            };
            links.fill_hash(rip, mode, Target::fixed(0x1234), dependence);
            assert_eq!(sought(&links, rip, table), 0);
            assert_ne!(sought(&links, rip ^ 1 << 63, table), 0);
            links.forget_hash(rip, table, 0x1234);
            assert_ne!(sought(&links, rip, table), 0);
        }
    }

    #[test]
    fn what_depends_on_any_page_of_a_range_is_forgotten() {
        // As many pages as there are entries, and more.
        for last in [0x1003, 0x1_1000] {
            let mut links = LinkTables::new().unwrap();
            let pages = [0xfff, 0x1000, last, last + 1];
            let slots = pages.map(|page| {
                let slot = links.take_slot().unwrap();
                links.fill_slot(
                    slot,
                    5,
                    Dependence {
                        page,
                        last_page: page,
                        global: true,
                    },
                );
                slot
            });
            let rip = 0xfff_fff0;
            let mode = (ModeId(1), BranchTable::Shared);
            links.fill_hash(
                rip,
                mode,
                Target::fixed(0x1234),
                Dependence {
                    page: 0xffe,
                    last_page: 0x1000,
                    global: true,
                },
            );
            links.drop_pages(page_range(0x1000, last));
            assert_eq!(slots.map(|slot| links.slot(slot)), [5, 0, 0, 5]);
            assert_eq!(links.hash(rip, mode), None);
        }
    }
}
