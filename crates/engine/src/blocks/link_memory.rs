//! The memory of the link tables: what emitted code reads through R13.

use crate::abi::far_pointer::FarPointer;
use crate::abi::link_layout::{
    BranchTable, ENTRY_BYTES, ENTRY_DELTA, ENTRY_TARGET, FAR_ENTRY_BYTES, FAR_TABLE_OFFSET,
    FamilyId, HASH_ENTRIES, ModeId, OWN_TABLES_OFFSET, SLOT_STUB, TABLE_BYTES, TABLES_BYTES,
    far_tag_base, indirect_tag, slot_offset, table_offset,
};
use crate::blocks::links::Target;
use std::io;
use tollgate_tlb::reservation::Reservation;

/// A filled place of the tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Entry {
    /// The targets of indirect branches that are looked for first in the entry at this offset
    /// from the start of the tables.
    Indirect(u32),
    /// The entry of the table of far transfers at this offset.
    Far(u32),
    /// The slot of this number.
    Slot(u32),
}

/// The tables' memory, most of it never touched.
pub struct LinkMemory(Reservation);

impl LinkMemory {
    /// Reserves the tables.
    ///
    /// # Errors
    /// The host has no address space left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Reservation::new(TABLES_BYTES as usize)?))
    }

    /// Address of the tables (R13 in guest code).
    pub fn base(&self) -> u64 {
        self.0.base() as u64
    }

    /// What lies at `offset` bytes from the start.
    pub fn read(&self, offset: u32) -> u64 {
        debug_assert!(offset.is_multiple_of(8) && offset < TABLES_BYTES as u32);
        // SAFETY: offsets are computed from checked indices and slot numbers and lie, aligned,
        // inside the reservation.
        unsafe { self.0.base().add(offset as usize).cast::<u64>().read() }
    }

    fn write(&mut self, offset: u32, value: u64) {
        debug_assert!(offset.is_multiple_of(8) && offset < TABLES_BYTES as u32);
        // SAFETY: as in `read`.
        unsafe {
            self.0
                .base()
                .add(offset as usize)
                .cast::<u64>()
                .write(value);
        }
    }

    /// How far from its site's stub a slot leads: to that itself, 0, if it has no target.
    #[inline]
    pub fn slot(&self, slot: u32) -> u64 {
        let offset = slot_offset(slot) as u32;
        let stub = self.read(offset + SLOT_STUB as u32);
        self.read(offset).wrapping_sub(stub)
    }

    /// Has a slot lead so far from its stub.
    #[inline]
    pub fn set_slot(&mut self, slot: u32, distance: u64) {
        let offset = slot_offset(slot) as u32;
        let stub = self.read(offset + SLOT_STUB as u32);
        self.write(offset, stub.wrapping_add(distance));
    }

    /// Has a slot without a target lead to its site's stub at this host address.
    pub fn set_stub(&mut self, slot: u32, stub: u64) {
        let offset = slot_offset(slot) as u32;
        self.write(offset + SLOT_STUB as u32, stub);
        self.write(offset, stub);
    }

    /// Empties what was filled.
    pub fn empty(&mut self, entry: Entry) {
        match entry {
            Entry::Indirect(first) => {
                let index = index_of(first);
                for offset in [first, first + ENTRY_BYTES as u32] {
                    if looked_for_at(self.read(offset)) == index {
                        self.vacate(offset);
                    }
                }
            }
            Entry::Far(offset) => self.vacate(offset),
            Entry::Slot(slot) => self.set_slot(slot, 0),
        }
    }

    fn vacate(&mut self, offset: u32) {
        self.write(offset, vacant(offset));
        self.write(offset + ENTRY_TARGET as u32, 0);
    }

    /// Lets indirect branches to `rip` no longer find the host address `target`.
    pub fn empty_indirect(&mut self, rip: u64, table: BranchTable, target: u64) {
        let first = entry_offset(rip, table);
        for offset in [first, first + ENTRY_BYTES as u32] {
            if self.read(offset + ENTRY_TARGET as u32) == target {
                self.vacate(offset);
            }
        }
    }

    /// Lets far transfers to `pointer` no longer find the host address `target`.
    pub fn empty_far(&mut self, pointer: FarPointer, target: u64) {
        let offset = far_entry_offset(pointer);
        if self.read(offset + ENTRY_TARGET as u32) == target {
            self.vacate(offset);
        }
    }

    /// Prepares a mode's table: an entry that was never written is empty from then on.
    pub fn prepare(&mut self, table: BranchTable) {
        let last = entry_offset(u64::MAX, table);
        for offset in [last, last + ENTRY_BYTES as u32] {
            if self.read(offset) == 0 {
                self.write(offset, vacant(offset));
            }
        }
    }

    /// Lets indirect branches to `rip` find `target` at the first choice. What was there, if it
    /// is its first choice too, is found at the second one from then on. Returns the first
    /// entry's offset.
    #[inline]
    pub fn fill_indirect(
        &mut self,
        rip: u64,
        (mode, table): (ModeId, BranchTable),
        target: Target,
    ) -> u32 {
        let first = entry_offset(rip, table);
        let second = first + ENTRY_BYTES as u32;
        let (tag, before) = (indirect_entry_tag(rip, mode, table), self.read(first));
        if before != tag {
            if self.read(first + ENTRY_TARGET as u32) != 0 && looked_for_at(before) == rip as u16 {
                self.write(second, before);
                for part in [ENTRY_TARGET as u32, ENTRY_DELTA as u32] {
                    self.write(second + part, self.read(first + part));
                }
            } else if self.read(second) == tag {
                self.vacate(second);
            }
        }
        self.write(first, tag);
        self.write(first + ENTRY_TARGET as u32, target.address);
        self.write(first + ENTRY_DELTA as u32, target.delta);
        first
    }

    /// Whether indirect branches to `rip` find `target` at the first choice.
    pub fn is_first_choice(
        &self,
        rip: u64,
        (mode, table): (ModeId, BranchTable),
        target: Target,
    ) -> bool {
        let tag = indirect_entry_tag(rip, mode, table);
        self.entry(entry_offset(rip, table), tag) == Some(target)
    }

    /// Where an indirect branch to `rip` goes; `None` if it leaves.
    pub fn indirect(&self, rip: u64, (mode, table): (ModeId, BranchTable)) -> Option<Target> {
        let (first, tag) = (
            entry_offset(rip, table),
            indirect_entry_tag(rip, mode, table),
        );
        let found = self.entry(first, tag);
        found.or_else(|| self.entry(first + ENTRY_BYTES as u32, tag))
    }

    fn entry(&self, offset: u32, tag: u64) -> Option<Target> {
        (self.read(offset) == tag).then(|| Target {
            address: self.read(offset + ENTRY_TARGET as u32),
            delta: self.read(offset + ENTRY_DELTA as u32),
        })
    }

    /// Host addresses that the entries of a table of indirect branches lead to.
    pub fn targets(&self, table: BranchTable) -> impl Iterator<Item = u64> {
        let first = table_offset(table) as u32;
        (0..=HASH_ENTRIES as u32)
            .map(move |index| self.read(first + index * ENTRY_BYTES as u32 + ENTRY_TARGET as u32))
            .filter(|&target| target != 0)
    }

    /// Lets far transfers to `pointer` find the host address `target`. Returns the entry's
    /// offset.
    pub fn fill_far(&mut self, pointer: FarPointer, family: FamilyId, target: u64) -> u32 {
        let offset = far_entry_offset(pointer);
        self.write(offset, far_entry_tag(pointer, family));
        self.write(offset + ENTRY_TARGET as u32, target);
        offset
    }

    /// Where a far transfer to `pointer` goes; `None` if it leaves.
    pub fn far(&self, pointer: FarPointer, family: FamilyId) -> Option<u64> {
        let offset = far_entry_offset(pointer);
        let found = self.read(offset) == far_entry_tag(pointer, family);
        found.then(|| self.read(offset + ENTRY_TARGET as u32))
    }
}

/// The tag of an indirect branch target, as emitted code compares it.
const fn indirect_entry_tag(rip: u64, mode: ModeId, table: BranchTable) -> u64 {
    rip.wrapping_add(indirect_tag(table, mode)).wrapping_neg()
}

fn far_entry_tag(pointer: FarPointer, family: FamilyId) -> u64 {
    let sought = far_tag_base(family).wrapping_add(u64::from(pointer.packed()));
    sought.wrapping_neg()
}

/// Where the entry lies in which a target is looked for first.
fn entry_offset(rip: u64, table: BranchTable) -> u32 {
    table_offset(table) as u32 + (rip as u32 & 0xffff) * ENTRY_BYTES as u32
}

/// The index of an entry of a table of indirect branches.
fn index_of(offset: u32) -> u16 {
    let offset = match offset.checked_sub(OWN_TABLES_OFFSET as u32) {
        Some(offset) => offset % TABLE_BYTES as u32,
        None => offset,
    };
    (offset / ENTRY_BYTES as u32) as u16
}

/// The index of the first choice of the target that has this tag.
fn looked_for_at(tag: u64) -> u16 {
    // What is added to EIP ends in 1 for all modes (see `indirect_tag`).
    tag.wrapping_neg().wrapping_sub(1) as u16
}

/// Where the entry of a far transfer's target lies. Emitted code computes the same.
fn far_entry_offset(pointer: FarPointer) -> u32 {
    let packed = pointer.packed();
    let index = (packed >> 12).wrapping_add(packed) & 0xffff;
    FAR_TABLE_OFFSET as u32 + index * FAR_ENTRY_BYTES as u32
}

/// The tag of an empty entry, which no target has that is looked for there. Zero is the tag
/// of the very last address, which is looked for in the last two entries; the tag 2 belongs to
/// an address that is not.
fn vacant(offset: u32) -> u64 {
    let own_tables = OWN_TABLES_OFFSET as u32..FAR_TABLE_OFFSET as u32;
    let index = offset.wrapping_sub(own_tables.start) % TABLE_BYTES as u32 / ENTRY_BYTES as u32;
    match own_tables.contains(&offset) && index >= HASH_ENTRIES as u32 - 1 {
        true => 2,
        false => 0,
    }
}

#[cfg(test)]
#[path = "link_memory_tests.rs"]
mod tests;
