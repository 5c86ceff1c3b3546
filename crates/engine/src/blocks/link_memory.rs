//! The memory of the link tables, which emitted code reads through R13.
//!
//! Each address space that is kept has tables of its own, so that links from and to programs' code
//! stay as they are while other spaces are loaded: a load of CR3 changes R13 and no slot. The part
//! for all other code is one piece of memory that is mapped into the tables of all spaces (see
//! [`link_layout`](crate::abi::link_layout)).

use crate::abi::far_pointer::FarPointer;
use crate::abi::link_layout::{
    BranchTable, COMMON_OFFSET, COMMON_SLOTS_OFFSET, COMMON_TABLES_OFFSET, ENTRY_BYTES,
    ENTRY_NEGATED_SLIDE, ENTRY_SLIDE, ENTRY_TARGET, FAR_ENTRY_BYTES, FAR_TABLE_OFFSET, FamilyId,
    HASH_ENTRIES, LINKS_BIAS, ModeTable, OWN_TABLES_OFFSET, SLOT_STUB, SLOTS_OFFSET, TABLE_BYTES,
    TABLES_BYTES, far_tag_base, first_choice, indirect_tag, is_programs_part, is_programs_slot,
    slot_offset, table_offset,
};
use crate::blocks::link_target::Target;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_tlb::reservation::Reservation;
use tollgate_tlb::{SPACES, SpaceNumber};

/// Length in bytes of the part that all spaces share.
const COMMON_BYTES: usize = (TABLES_BYTES - COMMON_OFFSET) as usize;

/// The owner of a part of the tables. Each space owns the part for code pages of programs; all
/// spaces together own the part for all other code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// All spaces together.
    Common,
    /// One space.
    Space(SpaceNumber),
}

/// Number of owners.
pub const OWNERS: usize = SPACES + 1;

impl Owner {
    /// Iterates over all owners.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SPACES)
            .map(|number| Owner::Space(SpaceNumber::new(number)))
            .chain([Owner::Common])
    }

    /// The owner as a number below [`OWNERS`].
    #[inline]
    pub fn index(self) -> usize {
        match self {
            Owner::Space(number) => number.index(),
            Owner::Common => SPACES,
        }
    }
}

/// A place of the tables that can be filled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Entry {
    /// The targets of indirect branches that are first looked for in the entry at this offset from
    /// the start of the tables.
    Indirect(u32),
    /// The entry at this offset, which belongs to the table of far transfers.
    Far(u32),
    /// The slot with this number.
    Slot(u32),
}

/// The tables of all spaces. It dereferences to those of the loaded space.
pub struct LinkMemory {
    /// The tables, in the order in which they were first needed; at least one.
    tables: Vec<Tables>,
    /// For each space: the index of its tables, if it has any. No two spaces share an index.
    places: [Option<usize>; SPACES],
    loaded: SpaceNumber,
    /// The index of the loaded space's tables.
    loaded_place: usize,
    /// Number of the first slot for programs' code that was never used.
    programs_slots: u32,
    /// The branch tables for programs that were prepared.
    prepared: Vec<BranchTable>,
    /// Maximum number of tables, which tests lower.
    most: usize,
}

impl LinkMemory {
    /// Reserves the tables of the first space, which is the loaded one.
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

    /// The value of R13 while guest code runs: an address in the loaded space's tables.
    pub fn base(&self) -> u64 {
        self.0.base() as u64 + LINKS_BIAS as u64
    }

    /// The tables of an owner, for changes. `None` if the owner has no tables, so that none of its
    /// entries can be filled.
    #[inline]
    pub fn of(&mut self, owner: Owner) -> Option<&mut Tables> {
        let place = match owner {
            Owner::Common => self.loaded_place,
            Owner::Space(number) => self.places[number.index()]?,
        };
        self.tables.get_mut(place)
    }

    /// The tables of an owner, for reading.
    pub fn get(&self, owner: Owner) -> Option<&Tables> {
        let place = match owner {
            Owner::Common => self.loaded_place,
            Owner::Space(number) => self.places[number.index()]?,
        };
        self.tables.get(place)
    }

    /// Notes that another space is loaded. If there is no memory for tables of its own, it takes
    /// over the tables of the space that was loaded before, after `empty_loaded` has emptied them.
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

    /// Limits the number of tables.
    #[cfg(test)]
    pub fn have_at_most(&mut self, tables: usize) {
        self.most = tables;
    }

    /// Makes tables in which no entry is filled.
    fn add_tables(&mut self) -> io::Result<usize> {
        if self.tables.len() >= self.most {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let first = &self.tables[0];
        let mut tables = Tables::new(Some(first))?;
        for slot in 0..self.programs_slots {
            // A reserved slot whose block is not there has no stub yet, and costs no memory.
            let stub = first.stub(slot);
            if stub != 0 {
                tables.set_stub(slot, stub);
            }
        }
        for &table in &self.prepared {
            tables.prepare(table);
        }
        self.tables.push(tables);
        Ok(self.tables.len() - 1)
    }

    /// The tables that contain a slot: those of all spaces, or the first one if all spaces share
    /// the slot.
    fn with_slot(&mut self, slot: u32) -> &mut [Tables] {
        match is_programs_slot(slot) {
            true => &mut self.tables,
            false => &mut self.tables[..1],
        }
    }

    /// Sets the host address of a slot's stub in all spaces. An empty slot leads there.
    pub fn set_stub(&mut self, slot: u32, stub: u64) {
        if is_programs_slot(slot) {
            self.programs_slots = self.programs_slots.max(slot + 1);
        }
        for tables in self.with_slot(slot) {
            tables.set_stub(slot, stub);
        }
    }

    /// Makes a slot lead to its stub in all spaces.
    pub fn empty_slot(&mut self, slot: u32) {
        for tables in self.with_slot(slot) {
            tables.set_slot(slot, 0);
        }
    }

    /// Prepares a mode's table in all spaces, so that entries that were never written count as
    /// empty.
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

/// The tables of one space. Most of their memory is never touched.
pub struct Tables(Reservation);

impl Tables {
    /// Reserves tables that share the common part of `others`.
    fn new(others: Option<&Tables>) -> io::Result<Self> {
        let memory = Reservation::inaccessible(TABLES_BYTES as usize)?;
        memory.open(0, COMMON_OFFSET as usize)?;
        let offset = COMMON_OFFSET as usize;
        let result = match others {
            Some(Tables(others)) => others.share_with(&memory, offset, COMMON_BYTES),
            None => memory.open_to_be_shared(offset, COMMON_BYTES),
        };
        if let Err(error) = result {
            // Part of the range may not belong to the reservation any more.
            std::mem::forget(memory);
            return Err(error);
        }
        Ok(Self(memory))
    }

    /// The eight bytes at `offset` from the start of the tables.
    pub fn read(&self, offset: u32) -> u64 {
        debug_assert!(offset.is_multiple_of(8) && offset < TABLES_BYTES as u32);
        // SAFETY: offsets are computed from checked indices and slot numbers, so they are aligned
        // and inside the reservation.
        unsafe { self.0.base().add(offset as usize).cast::<u64>().read() }
    }

    fn write(&mut self, offset: u32, value: u64) {
        debug_assert!(offset.is_multiple_of(8) && offset < TABLES_BYTES as u32);
        // SAFETY: the offset is aligned and inside the reservation, as in `read`.
        unsafe {
            self.0
                .base()
                .add(offset as usize)
                .cast::<u64>()
                .write(value);
        }
    }

    /// Writes the eight bytes at `offset`, and returns what was there. The host finds one access,
    /// so memory that was never touched costs one page fault, not one to read and one to write.
    fn exchange(&mut self, offset: u32, value: u64) -> u64 {
        debug_assert!(offset.is_multiple_of(8) && offset < TABLES_BYTES as u32);
        // SAFETY: the offset is aligned and inside the reservation, as in `read`, and no other
        // thread uses these tables.
        let place = unsafe { AtomicU64::from_ptr(self.0.base().add(offset as usize).cast()) };
        place.swap(value, Ordering::Relaxed)
    }

    /// The distance from a slot's stub to where the slot leads; 0 if the slot is empty and leads to
    /// the stub itself.
    #[inline]
    pub fn slot(&self, slot: u32) -> u64 {
        let offset = slot_offset(slot) as u32;
        let stub = self.read(offset + SLOT_STUB as u32);
        self.read(offset).wrapping_sub(stub)
    }

    /// Makes a slot lead to this distance from its stub.
    #[inline]
    pub fn set_slot(&mut self, slot: u32, distance: u64) {
        let offset = slot_offset(slot) as u32;
        let stub = self.read(offset + SLOT_STUB as u32);
        self.write(offset, stub.wrapping_add(distance));
    }

    fn stub(&self, slot: u32) -> u64 {
        self.read(slot_offset(slot) as u32 + SLOT_STUB as u32)
    }

    /// Sets the host address of a slot's stub and makes the slot lead there.
    fn set_stub(&mut self, slot: u32, stub: u64) {
        let offset = slot_offset(slot) as u32;
        self.write(offset + SLOT_STUB as u32, stub);
        self.write(offset, stub);
    }

    /// Empties a filled place.
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

    /// Removes the entry that leads indirect branches to `rip` to the host address `target`.
    pub fn empty_indirect(&mut self, rip: u64, table: BranchTable, target: u64) {
        let first = entry_offset(rip, table);
        for offset in [first, first + ENTRY_BYTES as u32] {
            if self.read(offset + ENTRY_TARGET as u32) == target {
                self.vacate(offset);
            }
        }
    }

    /// Removes the entry that leads far transfers to `pointer` to the host address `target`.
    pub fn empty_far(&mut self, pointer: FarPointer, target: u64) {
        let offset = far_entry_offset(pointer);
        if self.read(offset + ENTRY_TARGET as u32) == target {
            self.vacate(offset);
        }
    }

    /// Whether entries of a mode's table that were never written count as empty.
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

    /// Lets indirect branches to `rip` find `target` in the entry that they try first. If that
    /// entry held a target that also belongs there, the old target moves to the second entry.
    /// Returns the offset of the first entry.
    #[inline]
    pub fn fill_indirect(&mut self, rip: u64, mode: ModeTable, target: Target) -> u32 {
        let first = entry_offset(rip, mode.table);
        let second = first + ENTRY_BYTES as u32;
        let tag = indirect_entry_tag(rip, mode);
        let before = self.exchange(first, tag);
        if before != tag {
            if self.read(first + ENTRY_TARGET as u32) != 0
                && looked_for_at(before) == first_choice(rip)
            {
                self.write(second, before);
                for part in [ENTRY_TARGET, ENTRY_SLIDE, ENTRY_NEGATED_SLIDE] {
                    let part = part as u32;
                    self.write(second + part, self.read(first + part));
                }
            } else if self.read(second) == tag {
                self.vacate(second);
            }
        }
        self.write(first + ENTRY_TARGET as u32, target.address);
        self.write(first + ENTRY_SLIDE as u32, target.slide);
        let negated = target.slide.wrapping_neg();
        self.write(first + ENTRY_NEGATED_SLIDE as u32, negated);
        first
    }

    /// Whether indirect branches to `rip` find `target` in the entry that they try first.
    pub fn is_first_choice(&self, rip: u64, mode: ModeTable, target: Target) -> bool {
        let tag = indirect_entry_tag(rip, mode);
        self.entry(entry_offset(rip, mode.table), tag) == Some(target)
    }

    /// The target of an indirect branch to `rip`; `None` if the branch exits.
    pub fn indirect(&self, rip: u64, mode: ModeTable) -> Option<Target> {
        let (first, tag) = (entry_offset(rip, mode.table), indirect_entry_tag(rip, mode));
        let found = self.entry(first, tag);
        found.or_else(|| self.entry(first + ENTRY_BYTES as u32, tag))
    }

    fn entry(&self, offset: u32, tag: u64) -> Option<Target> {
        (self.read(offset) == tag).then(|| Target {
            address: self.read(offset + ENTRY_TARGET as u32),
            slide: self.read(offset + ENTRY_SLIDE as u32),
        })
    }

    /// Host addresses that the filled entries of a table of indirect branches lead to.
    pub fn targets(&self, table: BranchTable) -> impl Iterator<Item = u64> {
        let first = table_offset(table) as u32;
        (0..=HASH_ENTRIES as u32)
            .map(move |index| self.read(first + index * ENTRY_BYTES as u32 + ENTRY_TARGET as u32))
            .filter(|&target| target != 0)
    }

    /// Lets far transfers to `pointer` find the host address `target`. Returns the offset of the
    /// entry.
    pub fn fill_far(&mut self, pointer: FarPointer, family: FamilyId, target: u64) -> u32 {
        let offset = far_entry_offset(pointer);
        self.write(offset, far_entry_tag(pointer, family));
        self.write(offset + ENTRY_TARGET as u32, target);
        offset
    }

    /// The target of a far transfer to `pointer`; `None` if the transfer exits.
    pub fn far(&self, pointer: FarPointer, family: FamilyId) -> Option<u64> {
        let offset = far_entry_offset(pointer);
        let found = self.read(offset) == far_entry_tag(pointer, family);
        found.then(|| self.read(offset + ENTRY_TARGET as u32))
    }
}

/// The tag of an indirect branch's target, as emitted code compares it.
const fn indirect_entry_tag(rip: u64, mode: ModeTable) -> u64 {
    let added = indirect_tag(mode.table, mode.mode);
    rip.wrapping_add(added).wrapping_neg()
}

fn far_entry_tag(pointer: FarPointer, family: FamilyId) -> u64 {
    let sought = far_tag_base(family).wrapping_add(u64::from(pointer.packed()));
    sought.wrapping_neg()
}

/// Offset of the entry in which a target is looked for first.
fn entry_offset(rip: u64, table: BranchTable) -> u32 {
    table_offset(table) as u32 + first_choice(rip) * ENTRY_BYTES as u32
}

/// The index of an entry in its table of indirect branches.
fn index_of(offset: u32) -> u32 {
    place_of(offset).index
}

/// The place of an entry in its table of indirect branches.
struct EntryPlace {
    /// Whether the table belongs to one mode.
    is_own: bool,
    index: u32,
}

/// The place of the entry at this offset.
fn place_of(offset: u32) -> EntryPlace {
    const SHARED: [i32; 2] = [0, COMMON_OFFSET];
    const OWN: [i32; 2] = [OWN_TABLES_OFFSET, COMMON_TABLES_OFFSET];
    const { assert!(SLOTS_OFFSET == TABLE_BYTES && COMMON_SLOTS_OFFSET == COMMON_OFFSET + TABLE_BYTES) };
    let part = usize::from(offset >= COMMON_OFFSET as u32);
    let first_own = OWN[part] as u32;
    let (is_own, offset) = match offset >= first_own {
        true => (true, (offset - first_own) % TABLE_BYTES as u32),
        false => (false, offset - SHARED[part] as u32),
    };
    EntryPlace {
        is_own,
        index: offset / ENTRY_BYTES as u32,
    }
}

/// The index of the entry in which the target with this tag is looked for first.
fn looked_for_at(tag: u64) -> u32 {
    // For all modes, the number that is added to EIP ends in 1 (see `indirect_tag`).
    first_choice(tag.wrapping_neg().wrapping_sub(1))
}

/// Offset of the entry of a far transfer's target. Emitted code computes the same.
fn far_entry_offset(pointer: FarPointer) -> u32 {
    let packed = pointer.packed();
    let index = (packed >> 12).wrapping_add(packed) & 0xffff;
    FAR_TABLE_OFFSET as u32 + index * FAR_ENTRY_BYTES as u32
}

/// The tag of an empty entry: a tag of no target that is looked for in this entry. Zero is the tag
/// of the highest address, which is looked for in the last two entries, so these use the tag 16,
/// whose address belongs to another entry.
fn vacant(offset: u32) -> u64 {
    let is_last = || {
        let place = place_of(offset);
        place.is_own && place.index >= HASH_ENTRIES as u32 - 1
    };
    match offset < FAR_TABLE_OFFSET as u32 && is_last() {
        true => 16,
        false => 0,
    }
}

#[cfg(test)]
#[path = "link_memory_tests.rs"]
mod tests;
