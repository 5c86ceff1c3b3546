//! Link tables: where cross-page and indirect branches find their targets.
//!
//! One region of sparse memory ([`link_memory`](crate::blocks::link_memory)) holds a hash table
//! for indirect branches and slots for direct branches that leave their page. What a linear
//! address means can change under both, so what is filled depends on pages. Links inside a
//! page do not pass through here: they hold as long as both blocks live.
//!
//! Most of it belongs to [code pages](crate::blocks::code_pages), which are put out of force
//! and come back. For programs' code each address space has tables of its own, of which one is loaded.
//! The rest is listed by the linear pages that it depends on and is gone when
//! one of them is dropped: what leads to blocks that begin at the end of a page, to code whose
//! segment has a base, and far transfers.
//!
//! Modes of 64-bit code have a hash table each, and so have those of 32-bit code that were met
//! first. An entry of the one that all others share names its mode beside its EIP; the instruction
//! pointer of 64-bit code leaves no room for that.
//!
//! Far transfers of real and V86 mode lead to code of another mode, since the base of CS is
//! part of it. They have one more table, whose entries name the selector, the IP and the
//! family of modes.

use crate::abi::far_pointer::FarPointer;
use crate::abi::link_layout::{
    BranchTable, FamilyId, MAX_SLOTS, ModeId, SlotsFor, is_programs_part, is_programs_slot,
};
use crate::blocks::code_pages::{
    CodePageCounts, CodePageId, CodePageKey, CodePages, Expected, Found, IndirectTarget,
};
use crate::blocks::kept_pages::KeptPages;
use crate::blocks::link_memory::{Entry, LinkMemory};
use crate::blocks::listed::Listed;
use std::io;
use tollgate_tlb::{Allows, Derived, Held, LeadsTo, PageRange, SPACES, SpaceNumber};

/// What a filled entry depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dependence {
    /// Linear page of the target's first byte.
    pub page: u64,
    /// Linear page of the byte behind a straddling first instruction, or the same.
    pub last_page: u64,
    /// Survives an address-space switch.
    pub global: bool,
    /// Neither page is global: both are kept with their address space.
    pub is_kept: bool,
}

/// A time in which nothing was forgotten of all that is known of a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epoch {
    /// The space, which is loaded.
    pub space: SpaceNumber,
    /// No other epoch of whatever space has this number.
    pub number: u64,
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

/// The tables of one vCPU.
pub struct LinkTables {
    memory: LinkMemory,
    pages: CodePages,
    /// Code pages of spaces that are not loaded.
    kept: KeptPages,
    /// Entries of no code page that survive an address-space switch.
    global: Listed<Entry>,
    /// Entries of no code page that do not.
    local: Listed<Entry>,
    /// Slots that can be given out: of all other code, and of programs.
    free_slots: [FreeSlots; 2],
    loaded: SpaceNumber,
    /// By space.
    epochs: [u64; SPACES],
    /// The last epoch that has begun.
    last_epoch: u64,
}

/// Slots of one kind that can be given out.
struct FreeSlots {
    free: Vec<u32>,
    /// None was given out from this one on.
    next: u32,
    end: u32,
}

impl FreeSlots {
    fn of(kind: SlotsFor) -> Self {
        let next = match kind {
            SlotsFor::Programs => 0,
            SlotsFor::Kernels => MAX_SLOTS as u32,
        };
        Self {
            free: Vec::new(),
            next,
            end: next + MAX_SLOTS as u32,
        }
    }

    fn take(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = self.next;
        self.next = (slot + 1).min(self.end);
        (slot < self.end).then_some(slot)
    }
}

impl LinkTables {
    /// Reserves the tables.
    ///
    /// # Errors
    /// The host has no address space left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            memory: LinkMemory::new()?,
            pages: CodePages::default(),
            kept: KeptPages::default(),
            global: Listed::default(),
            local: Listed::default(),
            free_slots: [SlotsFor::Kernels, SlotsFor::Programs].map(FreeSlots::of),
            loaded: SpaceNumber::default(),
            epochs: std::array::from_fn(|number| number as u64),
            last_epoch: SPACES as u64,
        })
    }

    /// Address of the loaded space's tables (R13 in guest code).
    pub fn base(&self) -> u64 {
        self.memory.base()
    }

    /// Where an indirect branch to `rip` goes in a mode that uses this table; `None` if it leaves.
    #[inline]
    pub fn indirect(&self, rip: u64, place: (ModeId, BranchTable)) -> Option<Target> {
        self.memory.indirect(rip, place)
    }

    /// The space that is loaded, and its epoch: a number that no other space has, and which changes
    /// whenever all of the space's entries that are not global have been dropped.
    pub fn epoch(&self) -> Epoch {
        Epoch {
            space: self.loaded,
            number: self.epochs[self.loaded.index()],
        }
    }

    fn begin_epoch(&mut self, space: SpaceNumber) {
        self.last_epoch += 1;
        self.epochs[space.index()] = self.last_epoch;
    }

    /// What code pages have done.
    pub fn page_counts(&self) -> CodePageCounts {
        self.pages.counts()
    }

    /// A slot for a new link site; `None` if all are taken.
    pub fn take_slot(&mut self, kind: SlotsFor) -> Option<u32> {
        self.free_slots[kind as usize].take()
    }

    /// Takes back the slot of a site that died.
    pub fn release_slot(&mut self, slot: u32) {
        self.forget_slot(slot);
        let entry = Entry::Slot(slot);
        self.local.remove(entry);
        self.global.remove(entry);
        self.free_slots[SlotsFor::of(slot) as usize].free.push(slot);
    }

    /// The code page of a new block.
    pub fn add_block(&mut self, key: CodePageKey) -> CodePageId {
        self.pages.add_block(key)
    }

    /// How often [`LinkTables::watch_use`] was called since a code page was last used.
    pub fn age(&self, page: CodePageId) -> u32 {
        self.pages.age(page)
    }

    /// Puts all code pages out of force in all spaces, so that each that is used from now on is met
    /// again.
    pub fn watch_use(&mut self) {
        self.kept.clear();
        self.pages.watch_use(&mut self.memory);
    }

    /// The delta with which a code page is in force, if it is.
    pub fn delta_in_force(&self, key: &CodePageKey) -> Option<u64> {
        self.pages.delta_in_force(key)
    }

    /// A block of a code page died. Nothing leads to it, and its slots were released.
    pub fn remove_block(&mut self, page: CodePageId) {
        self.pages.remove_block(page, &mut self.memory);
    }

    /// The guest's page tables have just been found to allow fetches from a code page: what
    /// is known to lead there does so from now on. Whether it did not before.
    #[inline]
    pub fn put_in_force(&mut self, page: CodePageId, found: Found) -> bool {
        self.pages.put_in_force(page, found, &mut self.memory)
    }

    /// The code pages near one in force that are known and not in force.
    pub fn expected_near(&self, met: CodePageId) -> Vec<Expected> {
        self.pages.expected_near(met)
    }

    /// The guest's page tables have just been found to allow fetches from a page that was expected
    /// there, and it is not global.
    pub fn put_expected_in_force(&mut self, expected: &Expected) {
        self.pages.put_expected_in_force(expected, &mut self.memory);
    }

    fn note(&mut self, entry: Entry, dependence: Dependence) {
        let is_programs = match entry {
            Entry::Slot(slot) => is_programs_slot(slot),
            Entry::Indirect(offset) | Entry::Far(offset) => is_programs_part(offset),
        };
        // It is in the tables of one space.
        let (of, other) = match dependence.global && !is_programs {
            true => (&mut self.global, &mut self.local),
            false => (&mut self.local, &mut self.global),
        };
        other.remove(entry);
        of.list(entry, (dependence.page, dependence.last_page));
    }

    /// A slot that has been taken belongs to the site whose stub is at this host address, and
    /// leads there; or its block has moved, and it led there.
    pub fn set_stub(&mut self, slot: u32, stub: u64) {
        self.memory.set_stub(slot, stub);
    }

    /// Fills a slot with `target` minus the address of the site's stub.
    pub fn fill_slot(&mut self, slot: u32, distance: u64, dependence: Dependence) {
        if self.pages.unlist(slot) {
            self.memory.empty_slot(slot);
        }
        self.memory.set_slot(slot, distance);
        self.note(Entry::Slot(slot), dependence);
    }

    /// Fills a slot of a block of the code page `from` that leads to a block of the code page
    /// `to`, with the distance from the site's stub. Both are programs' code or neither is. That page
    /// must just have been put in force, with the same delta if they are relocatable.
    pub fn link_pages(&mut self, slot: u32, distance: i32, from: CodePageId, to: CodePageId) {
        self.pages
            .link(slot, distance, (from, to), &mut self.memory);
    }

    /// Lets indirect branches find a block of a code page, which must just have been put in
    /// force.
    pub fn add_target(&mut self, page: CodePageId, target: IndirectTarget) {
        self.pages.add_target(page, target, &mut self.memory);
    }

    /// Forgets what leads to a block of a code page whose code begins at a host address.
    pub fn remove_target(&mut self, page: CodePageId, address: u64) {
        self.pages.remove_target(page, address, &mut self.memory);
    }

    /// Prepares a mode's table: to be called before code of that mode is translated.
    pub fn prepare(&mut self, table: BranchTable) {
        self.memory.prepare(table);
    }

    /// Lets indirect branches to `rip` in `mode`, whose table is `table`, find `target`.
    pub fn fill_hash(
        &mut self,
        rip: u64,
        mode: (ModeId, BranchTable),
        target: Target,
        dependence: Dependence,
    ) {
        let offset = self.memory.fill_indirect(rip, mode, target);
        self.note(Entry::Indirect(offset), dependence);
    }

    /// Forgets whatever leads to the host address `target`: a block died. `rip` is where it was
    /// last listed: that entry in its mode's table may name it.
    pub fn forget_hash(&mut self, rip: u64, table: BranchTable, target: u64) {
        self.memory.empty_indirect(rip, table, target);
    }

    /// Lets far transfers to `pointer` in modes of `family` find `target`.
    pub fn fill_far(
        &mut self,
        pointer: FarPointer,
        family: FamilyId,
        target: u64,
        dependence: Dependence,
    ) {
        let offset = self.memory.fill_far(pointer, family, target);
        self.note(Entry::Far(offset), dependence);
    }

    /// Forgets whatever leads far transfers to the host address `target`, the block at
    /// `pointer`, which died.
    pub fn forget_far(&mut self, pointer: FarPointer, target: u64) {
        self.memory.empty_far(pointer, target);
    }

    /// Forgets one slot's target, in all spaces.
    pub fn forget_slot(&mut self, slot: u32) {
        self.pages.unlist(slot);
        self.memory.empty_slot(slot);
    }

    /// What slot `slot` holds, 0 if nothing.
    pub fn slot(&self, slot: u32) -> u64 {
        self.memory.slot(slot)
    }

    /// Where an indirect branch to `rip` in `mode`, whose table is `table`, goes; `None` if it
    /// leaves.
    pub fn hash(&self, rip: u64, mode: (ModeId, BranchTable)) -> Option<Target> {
        self.memory.indirect(rip, mode)
    }

    /// Whether indirect branches to `rip` find `target` where they look first.
    pub fn is_first_choice(&self, rip: u64, mode: (ModeId, BranchTable), target: Target) -> bool {
        self.memory.is_first_choice(rip, mode, target)
    }

    /// Where a far transfer to `pointer` in a mode of `family` goes; `None` if it leaves.
    pub fn far(&self, pointer: FarPointer, family: FamilyId) -> Option<u64> {
        self.memory.far(pointer, family)
    }
}

impl Derived for LinkTables {
    fn drop_local(&mut self) {
        self.begin_epoch(self.loaded);
        let memory = &mut self.memory;
        self.pages.drop_local(memory);
        self.local.drop_all(|entry| memory.empty(entry));
    }

    fn drop_pages(&mut self, pages: PageRange) {
        let memory = &mut self.memory;
        self.pages.drop_pages(pages, memory);
        for listed in [&mut self.local, &mut self.global] {
            listed.drop_pages(pages, |entry| memory.empty(entry));
        }
    }

    fn drop_everything(&mut self) {
        self.drop_local();
        let memory = &mut self.memory;
        self.pages.drop_all(memory);
        self.global.drop_all(|entry| memory.empty(entry));
    }

    fn load(&mut self, to: SpaceNumber, keeps: bool) {
        let memory = &mut self.memory;
        // They are in the tables of the space that is left.
        self.local.drop_all(|entry| memory.empty(entry));
        self.kept.load(to, keeps, &mut self.pages, memory);
        self.loaded = to;
        if !keeps {
            self.begin_epoch(to);
        }
    }

    fn purge(&mut self, number: SpaceNumber) {
        self.kept.purge(number, &mut self.pages, &mut self.memory);
        self.begin_epoch(number);
    }

    fn show(&self, check: &mut dyn FnMut(Held)) {
        self.pages.show(check);
        self.kept.show(check);
        for (first, last) in self.local.pages().chain(self.global.pages()) {
            for linear_page in [first, last] {
                check(Held {
                    linear_page,
                    leads_to: LeadsTo::Unknown,
                    allows: Allows::Fetches,
                    view: None,
                    kept_for: None,
                });
            }
        }
    }

    fn contradiction(&self) -> Option<String> {
        let is_listed = |slot| {
            let entry = Entry::Slot(slot);
            self.local.has(entry) || self.global.has(entry)
        };
        self.pages.contradiction(&self.memory, is_listed)
    }
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
        let slot = links.take_slot(SlotsFor::Kernels).unwrap();
        links.fill_slot(
            slot,
            5,
            Dependence {
                page: 1,
                last_page: 1,
                global: true,
                is_kept: false,
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
                is_kept: true,
            },
        );
        links.drop_local();
        assert_eq!(links.slot(slot), 5);
        let mode = (ModeId(3), BranchTable::Shared);
        assert_eq!(links.hash(0x2000, mode), None);
        links.drop_pages(page_range(1, 1));
        assert_eq!(links.slot(slot), 0);
    }

    #[test]
    fn what_depends_on_any_page_of_a_range_is_forgotten() {
        // As many pages as there are entries, and more.
        for last in [0x1003, 0x1_1000] {
            let mut links = LinkTables::new().unwrap();
            let pages = [0xfff, 0x1000, last, last + 1];
            let slots = pages.map(|page| {
                let slot = links.take_slot(SlotsFor::Kernels).unwrap();
                links.fill_slot(
                    slot,
                    5,
                    Dependence {
                        page,
                        last_page: page,
                        global: true,
                        is_kept: false,
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
                    is_kept: false,
                },
            );
            links.drop_pages(page_range(0x1000, last));
            assert_eq!(slots.map(|slot| links.slot(slot)), [5, 0, 0, 5]);
            assert_eq!(links.hash(rip, mode), None);
        }
    }
}
