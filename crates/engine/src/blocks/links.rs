//! Link tables: where branches to other pages and indirect branches find their targets.
//!
//! One region of sparse memory ([`link_memory`](crate::blocks::link_memory)) holds hash tables for
//! indirect branches, and slots for direct branches that leave their page. The meaning of a linear
//! address can change under both, so what is filled depends on pages. Links inside a page do not
//! use these tables: they hold as long as both blocks live.
//!
//! Most entries belong to [code pages](crate::blocks::code_pages), which become inactive and active
//! again. For programs' code each address space has tables of its own, and one space is loaded. The
//! other entries are listed by the linear pages that they depend on and are removed when one of
//! these pages is invalidated. They are entries for blocks that begin at the end of a page, for
//! code whose segment has a base, and for far transfers.
//!
//! Each mode of 64-bit code has a hash table of its own, and so have the first modes of 32-bit code
//! that were used. All other modes share a table, in which an entry names its mode in addition to
//! its EIP; the instruction pointer of 64-bit code would leave no room for the mode.
//!
//! Far transfers of real and V86 mode lead to code of another mode, since the base of CS is part of
//! the mode. They have one more table, whose entries name the selector, the IP and the family of
//! modes.

use crate::abi::far_pointer::FarPointer;
use crate::abi::link_layout::{
    BranchTable, FamilyId, MAX_SLOTS, ModeTable, SlotsFor, is_programs_part, is_programs_slot,
};
use crate::blocks::code_pages::{
    CodePageId, CodePageKey, CodePages, Expected, Found, IndirectTarget,
};
use crate::blocks::entries_by_page::EntriesByPage;
use crate::blocks::kept_pages::KeptPages;
use crate::blocks::link_memory::{Entry, LinkMemory};
use crate::blocks::link_target::Target;
use std::io;
use tollgate_tlb::{Allows, Derived, Held, LeadsTo, PageRange, SPACES, SpaceNumber};

/// The linear pages that a filled entry depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dependence {
    /// Linear page of the target's first byte.
    pub page: u64,
    /// Linear page in which a straddling first instruction ends; otherwise equal to `page`.
    pub last_page: u64,
    /// The entry survives an address-space switch.
    pub global: bool,
    /// Neither page is global: both are kept with their address space.
    pub is_kept: bool,
}

/// A period in which nothing that is known about a space was forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epoch {
    /// The space, which is the loaded one.
    pub space: SpaceNumber,
    /// The number of the epoch, unique over the epochs of all spaces.
    pub number: u64,
}

/// The link tables of one vCPU.
pub struct LinkTables {
    memory: LinkMemory,
    pages: CodePages,
    /// Code pages that are kept for spaces that are not loaded.
    kept: KeptPages,
    /// Entries without a code page that survive an address-space switch.
    global: EntriesByPage<Entry>,
    /// Entries without a code page that do not survive an address-space switch.
    local: EntriesByPage<Entry>,
    /// Slots that can be given out: first those for all other code, then those for programs.
    free_slots: [FreeSlots; 2],
    loaded: SpaceNumber,
    /// The number of each space's present epoch.
    epochs: [u64; SPACES],
    /// The number of the epoch that began last.
    last_epoch: u64,
}

/// Slots of one kind that can be given out.
struct FreeSlots {
    free: Vec<u32>,
    /// The first slot that was never given out.
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
            global: EntriesByPage::default(),
            local: EntriesByPage::default(),
            free_slots: [SlotsFor::Kernels, SlotsFor::Programs].map(FreeSlots::of),
            loaded: SpaceNumber::default(),
            epochs: std::array::from_fn(|number| number as u64),
            last_epoch: SPACES as u64,
        })
    }

    /// Address in the loaded space's tables that R13 holds while guest code runs.
    pub fn base(&self) -> u64 {
        self.memory.base()
    }

    /// The target of an indirect branch to `rip` in a mode; `None` if the branch exits.
    #[inline]
    pub fn indirect(&self, rip: u64, mode: ModeTable) -> Option<Target> {
        self.memory.indirect(rip, mode)
    }

    /// The loaded space and its epoch. The epoch's number is unique over all spaces, and it changes
    /// whenever all entries of the space that are not global have been dropped.
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

    /// Takes a slot for a new link site; `None` if all slots are taken.
    pub fn take_slot(&mut self, kind: SlotsFor) -> Option<u32> {
        self.free_slots[kind as usize].take()
    }

    /// The first slot of each kind that was never given out: of slots for all other code, and of
    /// slots for programs.
    pub fn next_slots(&self) -> [u32; 2] {
        [&self.free_slots[0], &self.free_slots[1]].map(|slots| slots.next)
    }

    /// Reserves the slots before these, so that [`LinkTables::take_slot`] never returns one. None
    /// may have been taken yet.
    pub fn reserve_slots(&mut self, next: [u32; 2]) {
        for (slots, next) in self.free_slots.iter_mut().zip(next) {
            slots.next = next.clamp(slots.next, slots.end);
        }
    }

    /// Whether indirect branches find a block of a code page, whose code begins at a host address,
    /// while the page is active.
    pub fn is_target(&self, page: CodePageId, address: u64) -> bool {
        self.pages.is_target(page, address)
    }

    /// Lists a slot that leads from a block of the code page `from` to a block of the code page
    /// `to`: it is filled where that page is active, now or later.
    pub fn list_link(&mut self, slot: u32, distance: i32, from: CodePageId, to: CodePageId) {
        (self.pages).list_link(slot, distance, from, to, &mut self.memory);
    }

    /// Takes back the slot of a site that died.
    pub fn release_slot(&mut self, slot: u32) {
        self.forget_slot(slot);
        let entry = Entry::Slot(slot);
        self.local.remove(entry);
        self.global.remove(entry);
        self.free_slots[SlotsFor::of(slot) as usize].free.push(slot);
    }

    /// Adds a new block to the code page with this key.
    pub fn add_block(&mut self, key: CodePageKey) -> CodePageId {
        self.pages.add_block(key)
    }

    /// Number of times that [`LinkTables::watch_use`] was called since a code page was last used.
    pub fn age(&self, page: CodePageId) -> u32 {
        self.pages.age(page)
    }

    /// Makes all code pages inactive in all spaces, so that each page that is used from now on is
    /// reached through the monitor again.
    pub fn watch_use(&mut self) {
        self.kept.clear();
        self.pages.watch_use(&mut self.memory);
    }

    /// The slide at which a code page is active in the loaded space; `None` if it is inactive.
    pub fn active_slide(&self, key: &CodePageKey) -> Option<u64> {
        self.pages.active_slide(key)
    }

    /// Removes a block that died from its code page. Nothing may lead to the block any more, and
    /// its slots must have been released.
    pub fn remove_block(&mut self, page: CodePageId) {
        self.pages.remove_block(page, &mut self.memory);
    }

    /// Activates a code page: the guest's page tables were just found to allow fetches from it, so
    /// what is known to lead there is valid from now on. Returns whether the page was inactive
    /// before.
    #[inline]
    pub fn activate(&mut self, page: CodePageId, found: Found) -> bool {
        self.pages.activate(page, found, &mut self.memory)
    }

    /// The inactive pages with known code near an active code page.
    pub fn expected_near(&self, met: CodePageId) -> Vec<Expected> {
        self.pages.expected_near(met)
    }

    /// Activates an expected page. The guest's page tables were just found to allow fetches from it
    /// where it was expected, and it is not global.
    pub fn activate_expected(&mut self, expected: &Expected) {
        self.pages.activate_expected(expected, &mut self.memory);
    }

    fn note(&mut self, entry: Entry, dependence: Dependence) {
        let is_programs = match entry {
            Entry::Slot(slot) => is_programs_slot(slot),
            Entry::Indirect(offset) | Entry::Far(offset) => is_programs_part(offset),
        };
        // Only one space's tables contain an entry for programs, so such an entry is never global.
        let (of, other) = match dependence.global && !is_programs {
            true => (&mut self.global, &mut self.local),
            false => (&mut self.local, &mut self.global),
        };
        other.remove(entry);
        of.list(entry, (dependence.page, dependence.last_page));
    }

    /// Sets the stub of a slot that was taken: `stub` is the host address of the stub of the slot's
    /// site. An empty slot leads there. A filled slot keeps its distance from the stub, if the
    /// site's block has moved.
    pub fn set_stub(&mut self, slot: u32, stub: u64) {
        self.memory.set_stub(slot, stub);
    }

    /// Fills a slot with `distance`: the address of the target minus the address of the site's
    /// stub.
    pub fn fill_slot(&mut self, slot: u32, distance: u64, dependence: Dependence) {
        if self.pages.unlist(slot) {
            self.memory.empty_slot(slot);
        }
        self.memory.set_slot(slot, distance);
        self.note(Entry::Slot(slot), dependence);
    }

    /// Fills a slot that leads from a block of the code page `from` to a block of the code page
    /// `to`. `distance` counts from the site's stub. Either both pages are programs' code or
    /// neither is. The page `to` must just have been activated, with the same slide as `from` if
    /// they are relocatable.
    pub fn link_pages(&mut self, slot: u32, distance: i32, from: CodePageId, to: CodePageId) {
        self.pages.link(slot, distance, from, to, &mut self.memory);
    }

    /// Lets indirect branches find a block of a code page, which must just have been activated.
    pub fn add_target(&mut self, page: CodePageId, target: IndirectTarget) {
        self.pages.add_target(page, target, &mut self.memory);
    }

    /// Removes the entries for a block of a code page, whose code begins at a host address.
    pub fn remove_target(&mut self, page: CodePageId, address: u64) {
        self.pages.remove_target(page, address, &mut self.memory);
    }

    /// Prepares a mode's table. This must be called before code of that mode is translated.
    pub fn prepare(&mut self, table: BranchTable) {
        self.memory.prepare(table);
    }

    /// Lets indirect branches to `rip` in a mode find `target`.
    pub fn fill_hash(&mut self, rip: u64, mode: ModeTable, target: Target, dependence: Dependence) {
        let offset = self.memory.fill_indirect(rip, mode, target);
        self.note(Entry::Indirect(offset), dependence);
    }

    /// Removes the entry that leads to the host address `target`, because its block died. `rip` is
    /// the address under which the block was last listed in its mode's table.
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

    /// Removes the entry that leads far transfers to the host address `target`, because its block,
    /// which is at `pointer`, died.
    pub fn forget_far(&mut self, pointer: FarPointer, target: u64) {
        self.memory.empty_far(pointer, target);
    }

    /// Empties a slot in all spaces.
    pub fn forget_slot(&mut self, slot: u32) {
        self.pages.unlist(slot);
        self.memory.empty_slot(slot);
    }

    /// The distance in a slot; 0 if the slot is empty.
    pub fn slot(&self, slot: u32) -> u64 {
        self.memory.slot(slot)
    }

    /// The target of an indirect branch to `rip` in a mode; `None` if the branch exits.
    pub fn hash(&self, rip: u64, mode: ModeTable) -> Option<Target> {
        self.memory.indirect(rip, mode)
    }

    /// Whether indirect branches to `rip` find `target` in the entry that they try first.
    pub fn is_first_choice(&self, rip: u64, mode: ModeTable, target: Target) -> bool {
        self.memory.is_first_choice(rip, mode, target)
    }

    /// The target of a far transfer to `pointer` in a mode of `family`; `None` if the transfer
    /// exits.
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
        // Local entries are in the tables of the space that is left.
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
    use crate::abi::link_layout::ModeId;

    fn page_range(first: u64, last: u64) -> PageRange {
        PageRange { first, last }
    }

    /// A mode that shares its table with others.
    fn shared(mode: ModeId) -> ModeTable {
        let table = BranchTable::Shared;
        ModeTable { mode, table }
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
            shared(ModeId(3)),
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
        let mode = shared(ModeId(3));
        assert_eq!(links.hash(0x2000, mode), None);
        links.drop_pages(page_range(1, 1));
        assert_eq!(links.slot(slot), 0);
    }

    #[test]
    fn what_depends_on_any_page_of_a_range_is_forgotten() {
        // The first range has as many pages as there are entries, the second has more.
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
            let mode = shared(ModeId(1));
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
