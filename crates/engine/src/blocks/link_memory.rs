//! The memory of the link tables: what emitted code reads through R13.
//!
//! Each address space that is kept has tables of its own, so that what leads from and to programs'
//! code stays as it is while other spaces are loaded: a load of CR3 changes R13 and no slot. What
//! is for all other code is one piece of memory that lies in the tables of all spaces (see
//! [`link_layout`](crate::abi::link_layout)).

use crate::abi::far_pointer::FarPointer;
use crate::abi::link_layout::{
    BranchTable, COMMON_OFFSET, COMMON_SLOTS_OFFSET, COMMON_TABLES_OFFSET, ENTRY_BYTES,
    ENTRY_DELTA, ENTRY_NEGATED_DELTA, ENTRY_TARGET, FAR_ENTRY_BYTES, FAR_TABLE_OFFSET, FamilyId,
    HASH_ENTRIES, LINKS_BIAS, ModeId, OWN_TABLES_OFFSET, SLOT_STUB, SLOTS_OFFSET, TABLE_BYTES,
    TABLES_BYTES, far_tag_base, first_choice, indirect_tag, is_programs_part, is_programs_slot,
    slot_offset, table_offset,
};
use crate::blocks::links::Target;
use std::io;
use std::ops::{Deref, DerefMut};
use tollgate_tlb::reservation::Reservation;
use tollgate_tlb::{SPACES, SpaceNumber};

/// Bytes of the part that all spaces have in common.
const COMMON_BYTES: usize = (TABLES_BYTES - COMMON_OFFSET) as usize;

/// Whose tables: those of one space, of which code pages of programs have to know, or what all
/// spaces have in common, for all other code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// What all spaces have in common.
    Common,
    /// A space.
    Space(SpaceNumber),
}

/// How many owners there are.
pub const OWNERS: usize = SPACES + 1;

impl Owner {
    /// All owners.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SPACES)
            .map(|number| Owner::Space(SpaceNumber::new(number)))
            .chain([Owner::Common])
    }

    /// A number below [`OWNERS`].
    #[inline]
    pub fn index(self) -> usize {
        match self {
            Owner::Space(number) => number.index(),
            Owner::Common => SPACES,
        }
    }
}

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

/// The tables of all spaces. It stands for those of the loaded one.
pub struct LinkMemory {
    /// In the order in which they were needed first; at least one.
    tables: Vec<Tables>,
    /// By space: the index of its tables, if it has any. No two spaces have the same.
    places: [Option<usize>; SPACES],
    loaded: SpaceNumber,
    /// The index of the loaded space's tables.
    loaded_place: usize,
    /// Slots of programs' code from this number on were never used.
    programs_slots: u32,
    /// Programs' tables that were prepared.
    prepared: Vec<BranchTable>,
    /// Tables that there may be: fewer in tests.
    most: usize,
}

impl LinkMemory {
    /// Reserves the tables of the first space, which is loaded.
    ///
    /// # Errors
    /// The host has no address space left.
    pub fn new() -> io::Result<Self> {
        let loaded = SpaceNumber::default();
        let mut places = [None; SPACES];
        places[loaded.index()] = Some(0);
        Ok(Self {
            tables: vec![Tables::new(None)?],
            places,
            loaded,
            loaded_place: 0,
            programs_slots: 0,
            prepared: Vec::new(),
            most: SPACES,
        })
    }

    /// R13 of guest code: an address in the loaded space's tables.
    pub fn base(&self) -> u64 {
        self.0.base() as u64 + LINKS_BIAS as u64
    }

    /// The tables of an owner: `None` if it has none, so that nothing of it is filled.
    #[inline]
    pub fn of(&mut self, owner: Owner) -> Option<&mut Tables> {
        let place = match owner {
            Owner::Common => self.loaded_place,
            Owner::Space(number) => self.places[number.index()]?,
        };
        self.tables.get_mut(place)
    }

    /// The same, to be read.
    pub fn get(&self, owner: Owner) -> Option<&Tables> {
        let place = match owner {
            Owner::Common => self.loaded_place,
            Owner::Space(number) => self.places[number.index()]?,
        };
        self.tables.get(place)
    }

    /// Another space is loaded. If there is no memory for tables of its own, it gets those of the
    /// space that was loaded before, once `empty_loaded` has emptied these.
    pub fn load(&mut self, to: SpaceNumber, empty_loaded: impl FnOnce(&mut Self)) {
        if self.places[to.index()].is_none() {
            match self.add_tables() {
                Ok(place) => self.places[to.index()] = Some(place),
                Err(_) => {
                    empty_loaded(self);
                    self.places[to.index()] = self.places[self.loaded.index()].take();
                }
            }
        }
        self.loaded = to;
        self.loaded_place = self.places[to.index()].unwrap_or(self.loaded_place);
    }

    /// There are not more tables than that from now on.
    #[cfg(test)]
    pub fn have_at_most(&mut self, tables: usize) {
        self.most = tables;
    }

    /// Makes tables in which nothing is filled.
    fn add_tables(&mut self) -> io::Result<usize> {
        if self.tables.len() >= self.most {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let first = &self.tables[0];
        let mut tables = Tables::new(Some(first))?;
        for slot in 0..self.programs_slots {
            tables.set_stub(slot, first.stub(slot));
        }
        for &table in &self.prepared {
            tables.prepare(table);
        }
        self.tables.push(tables);
        Ok(self.tables.len() - 1)
    }

    /// The tables that have a slot: those of all spaces, or one that stands for all.
    fn with_slot(&mut self, slot: u32) -> &mut [Tables] {
        match is_programs_slot(slot) {
            true => &mut self.tables,
            false => &mut self.tables[..1],
        }
    }

    /// Has a slot without a target lead to its site's stub at this host address, in all spaces.
    pub fn set_stub(&mut self, slot: u32, stub: u64) {
        if is_programs_slot(slot) {
            self.programs_slots = self.programs_slots.max(slot + 1);
        }
        for tables in self.with_slot(slot) {
            tables.set_stub(slot, stub);
        }
    }

    /// Has a slot lead to its stub in all spaces.
    pub fn empty_slot(&mut self, slot: u32) {
        for tables in self.with_slot(slot) {
            tables.set_slot(slot, 0);
        }
    }

    /// Prepares a mode's table in all spaces: an entry that was never written is empty from then on.
    pub fn prepare(&mut self, table: BranchTable) {
        if !self.is_prepared(table) {
            if is_programs_part(table_offset(table) as u32) && !self.prepared.contains(&table) {
                self.prepared.push(table);
            }
            for tables in &mut self.tables {
                tables.prepare(table);
            }
        }
    }
}

impl Deref for LinkMemory {
    type Target = Tables;

    #[inline]
    fn deref(&self) -> &Tables {
        &self.tables[self.loaded_place]
    }
}

impl DerefMut for LinkMemory {
    #[inline]
    fn deref_mut(&mut self) -> &mut Tables {
        &mut self.tables[self.loaded_place]
    }
}

/// The tables of one space, most of their memory never touched.
pub struct Tables(Reservation);

impl Tables {
    /// Reserves tables, whose common part is that of `others`.
    fn new(others: Option<&Tables>) -> io::Result<Self> {
        let memory = Reservation::inaccessible(TABLES_BYTES as usize)?;
        memory.open(0, COMMON_OFFSET as usize)?;
        let offset = COMMON_OFFSET as usize;
        let result = match others {
            Some(Tables(others)) => others.share_with(&memory, offset, COMMON_BYTES),
            None => memory.open_to_be_shared(offset, COMMON_BYTES),
        };
        if let Err(error) = result {
            // Part of the range may not be reserved any more.
            std::mem::forget(memory);
            return Err(error);
        }
        Ok(Self(memory))
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

    fn stub(&self, slot: u32) -> u64 {
        self.read(slot_offset(slot) as u32 + SLOT_STUB as u32)
    }

    /// Has a slot without a target lead to its site's stub at this host address.
    fn set_stub(&mut self, slot: u32, stub: u64) {
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

    /// Whether all entries of a mode's table that were never written are empty.
    fn is_prepared(&self, table: BranchTable) -> bool {
        let last = entry_offset(u64::MAX, table);
        self.read(last) != 0 || vacant(last) == 0
    }

    fn prepare(&mut self, table: BranchTable) {
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
            if self.read(first + ENTRY_TARGET as u32) != 0
                && looked_for_at(before) == first_choice(rip)
            {
                self.write(second, before);
                for part in [ENTRY_TARGET, ENTRY_DELTA, ENTRY_NEGATED_DELTA] {
                    let part = part as u32;
                    self.write(second + part, self.read(first + part));
                }
            } else if self.read(second) == tag {
                self.vacate(second);
            }
        }
        self.write(first, tag);
        self.write(first + ENTRY_TARGET as u32, target.address);
        self.write(first + ENTRY_DELTA as u32, target.delta);
        let negated = target.delta.wrapping_neg();
        self.write(first + ENTRY_NEGATED_DELTA as u32, negated);
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
    table_offset(table) as u32 + first_choice(rip) * ENTRY_BYTES as u32
}

/// The index of an entry of a table of indirect branches.
fn index_of(offset: u32) -> u32 {
    place_of(offset).1
}

/// Whether an entry is one of a table that belongs to one mode, and its index there.
fn place_of(offset: u32) -> (bool, u32) {
    const SHARED: [i32; 2] = [0, COMMON_OFFSET];
    const OWN: [i32; 2] = [OWN_TABLES_OFFSET, COMMON_TABLES_OFFSET];
    const { assert!(SLOTS_OFFSET == TABLE_BYTES && COMMON_SLOTS_OFFSET == COMMON_OFFSET + TABLE_BYTES) };
    let part = usize::from(offset >= COMMON_OFFSET as u32);
    let first_own = OWN[part] as u32;
    let (is_own, offset) = match offset >= first_own {
        true => (true, (offset - first_own) % TABLE_BYTES as u32),
        false => (false, offset - SHARED[part] as u32),
    };
    (is_own, offset / ENTRY_BYTES as u32)
}

/// The index of the first choice of the target that has this tag.
fn looked_for_at(tag: u64) -> u32 {
    // What is added to EIP ends in 1 for all modes (see `indirect_tag`).
    first_choice(tag.wrapping_neg().wrapping_sub(1))
}

/// Where the entry of a far transfer's target lies. Emitted code computes the same.
fn far_entry_offset(pointer: FarPointer) -> u32 {
    let packed = pointer.packed();
    let index = (packed >> 12).wrapping_add(packed) & 0xffff;
    FAR_TABLE_OFFSET as u32 + index * FAR_ENTRY_BYTES as u32
}

/// The tag of an empty entry, which no target has that is looked for there. Zero is the tag
/// of the very last address, which is looked for in the last two entries; the tag 16 belongs to
/// an address that is not.
fn vacant(offset: u32) -> u64 {
    match offset < FAR_TABLE_OFFSET as u32 && place_of(offset).0 {
        true if place_of(offset).1 >= HASH_ENTRIES as u32 - 1 => 16,
        _ => 0,
    }
}

#[cfg(test)]
#[path = "link_memory_tests.rs"]
mod tests;
