//! Checks all data that was derived from the guest's page tables against what a processor may still
//! have cached.
//!
//! A processor may use a translation from the moment that a walk has found it until something
//! invalidates it, whatever the guest has written into its tables since (SDM volume 3, 4.10.2 to
//! 4.10.5). So a cached translation is not wrong because a walk now yields another one; it is wrong
//! if no walk ever found it, or if it should have been invalidated. The check keeps a *record* of
//! each walk, drops records from a plain list, one by one, as the manual says, and demands that
//! there is a record for each entry of each structure:
//!
//! ```text
//! walk: 5000 -> 7f000, 4 KiB, user, writable     record {5000, 7f000, identifier 3}
//! the guest edits the entry                      the record stays: a processor may use it
//! INVLPG 5000                                    the record goes
//! the software TLB has 5000 -> 7f000             wrong: no record justifies the entry
//! ```
//!
//! The check takes no facts from the structures themselves: it uses neither their notes of large
//! pages nor the numbers under which spaces are kept. When a record is made, a second walk that
//! changes nothing must find the same translation, with the accessed and dirty bits set that the
//! record needs. And the registers that rights and formats depend on may change between two walks
//! only if everything was forgotten.

use crate::memory::unchanged_tables::Unchanged;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use tollgate_tlb::{Allows, Held, LeadsTo, PageRange, Run, SPACES, View};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{
    AccessKind, PageTableMemory, PagingRegisters, Privilege, Translation, WalkPath,
};
use tollgate_x86::{
    CpuState, Cr0, Cr4, Efer, LinearAddress, PhysicalAddress, Space, SpaceName, TranslationChange,
};

/// The number of changes that name pages between two checks of all entries.
const CHANGES_OF_PAGES: u32 = 16;
/// The number of walks between two checks of all entries.
const WALKS: u32 = 4096;

/// Sizes of a guest's large pages: in IA-32e mode, without PAE, and with PAE.
const LARGE_PAGES: [u64; 3] = [1 << 30, 4 << 20, 2 << 20];

/// The record of a walk that found a translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    /// The space of the translation. `None` means that the translation is global.
    space: Option<SpaceName>,
    /// The page-table entries that led to the translation.
    path: WalkPath,
    physical_page: u64,
    /// The address of that page in host memory, if it was looked up for data.
    host_page: Option<u64>,
    page_size: u64,
    allows: Allows,
    view: View,
}

impl Record {
    /// The name under which this record is remembered after its space's identifier was given to
    /// another space: the address of the page tables' root.
    fn bygone(&self) -> Option<SpaceName> {
        let root = self.path.steps().first()?.address.page();
        Some(SpaceName::Tables(PhysicalAddress(root * PAGE_SIZE)))
    }
}

/// The registers that rights and formats of translations depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rules {
    cr0: u64,
    cr4: u64,
    efer: u64,
    a20_mask: u64,
}

impl Rules {
    fn of(state: &CpuState) -> Self {
        Self {
            cr0: (state.cr0() & (Cr0::PG | Cr0::WP)).bits(),
            cr4: (state.cr4() & (Cr4::PSE | Cr4::PAE | Cr4::PGE | Cr4::SMEP)).bits(),
            efer: (state.efer() & (Efer::NXE | Efer::LMA)).bits(),
            a20_mask: state.a20_mask,
        }
    }
}

/// A translation that was put into a structure, before a second walk has confirmed it.
#[derive(Clone, Copy, Debug)]
struct Unconfirmed {
    linear: LinearAddress,
    allows: Allows,
    view: View,
    translation: Translation,
}

/// The translations that a processor may have cached.
#[derive(Default)]
pub struct ShadowCheck {
    /// The records by linear page.
    records: FxHashMap<u64, Vec<Record>>,
    unconfirmed: Vec<Unconfirmed>,
    /// The registers since everything was last forgotten.
    rules: Option<Rules>,
    /// The space that the last change loaded.
    loaded: Option<Space>,
    /// The root of the page tables that were last loaded with each identifier.
    tables: FxHashMap<SpaceName, Option<PhysicalAddress>>,
    /// The roots of the page tables that were loaded most recently, the newest at the end.
    recent: VecDeque<PhysicalAddress>,
    changes: u32,
    walks: u32,
}

/// Adds the records that the list for a page does not have yet.
fn add_missing(records: &mut Vec<Record>, more: impl IntoIterator<Item = Record>) {
    for record in more {
        if !records.contains(&record) {
            records.push(record);
        }
    }
}

impl ShadowCheck {
    /// Records that an entry is made for the page of `linear` in the loaded space. The entry is for
    /// data if `host_page` has the page's host address.
    pub fn note(
        &mut self,
        space: SpaceName,
        (view, allows): (View, Allows),
        linear: LinearAddress,
        translation: &Translation,
        host_page: Option<u64>,
    ) {
        self.unconfirmed.push(Unconfirmed {
            linear,
            allows,
            view,
            translation: *translation,
        });
        let record = Record {
            space: (!translation.global).then_some(space),
            path: translation.path,
            physical_page: translation.physical.page(),
            host_page,
            page_size: translation.page_size,
            allows,
            view,
        };
        let records = self.records.entry(linear.page()).or_default();
        add_missing(records, [record]);
        self.walks += 1;
    }

    /// Walks the tables again for the most recent records; the walks must yield the same
    /// translations. Must be called before the guest can change the tables.
    ///
    /// # Panics
    /// A walk yields something else, or registers have changed without a report.
    pub fn confirm<M: PageTableMemory + ?Sized>(&mut self, state: &CpuState, memory: &mut M) {
        for noted in std::mem::take(&mut self.unconfirmed) {
            self.look_at_registers(state);
            let kind = match noted.allows {
                Allows::Loads => AccessKind::Read,
                Allows::Stores => AccessKind::Write,
                Allows::Fetches => AccessKind::Fetch,
            };
            let privilege = match noted.view {
                View::Supervisor => Privilege::Supervisor,
                View::User => Privilege::User,
            };
            let mut tables = Unchanged::new(&mut *memory);
            let linear = noted.linear;
            let found = PagingRegisters::of(state).walk(&mut tables, linear, kind, privilege);
            let lacks_bits = tables.lacks_bits();
            let expected = noted.translation;
            let is_same = found.as_ref().is_ok_and(|found| {
                (found.physical.page(), found.page_size, found.global)
                    == (
                        expected.physical.page(),
                        expected.page_size,
                        expected.global,
                    )
            });
            assert!(
                is_same && !lacks_bits,
                "shadow check: {noted:x?} was filled, a walk finds {found:x?} \
                 (accessed or dirty bits missing: {lacks_bits})"
            );
        }
    }

    fn look_at_registers(&mut self, state: &CpuState) {
        let rules = Rules::of(state);
        let known = *self.rules.get_or_insert(rules);
        assert!(
            known == rules,
            "shadow check: {known:x?} became {rules:x?}, and not everything was forgotten"
        );
        let space = Space::loaded(state);
        let known = *self.loaded.get_or_insert(space);
        // A guest may turn on identifiers while the loaded space has none: that voids no
        // translation.
        assert!(
            (known.tables, known.identifier) == (space.tables, space.identifier),
            "shadow check: {known:x?} became {space:x?}, and no load was reported"
        );
    }

    /// Follows a change that makes translations void. Returns whether all entries must be checked
    /// when the structures have followed the change, too.
    pub fn follow<M: PageTableMemory + ?Sized>(
        &mut self,
        loaded: Space,
        change: TranslationChange,
        memory: &mut M,
    ) -> bool {
        let before = match change {
            TranslationChange::Load { from, .. } => from,
            _ => loaded,
        };
        if self
            .loaded
            .is_some_and(|known| !before.is_loaded_as(known.name()))
        {
            self.forget_everything();
        }
        self.loaded = Some(match change {
            TranslationChange::Load { to, .. } => to,
            _ => loaded,
        });
        if let TranslationChange::Load { to, keeps, .. } = change {
            let before = self.tables.insert(to.name(), to.tables);
            self.recent.retain(|&tables| Some(tables) != to.tables);
            self.recent.extend(to.tables);
            if self.recent.len() > SPACES {
                self.recent.pop_front();
            }
            if keeps && before != Some(to.tables) {
                self.remember_other_tables(to);
            }
        }
        match change {
            TranslationChange::Load { keeps: true, .. } => {}
            TranslationChange::Load { to, .. } => self.load(to, memory),
            TranslationChange::Space(space) => self.forget_local(Some(self.named(space))),
            TranslationChange::Spaces => self.forget_local(None),
            TranslationChange::Pages { space, first, last } => {
                return self.follow_pages(space, first.page(), last.page());
            }
            TranslationChange::Physical { first, last } => {
                let range = first.page()..=last.page();
                self.retain(|_, record| !range.contains(&record.physical_page));
            }
            TranslationChange::Everything => self.forget_everything(),
        }
        true
    }

    /// Follows an INVLPG of an address in the loaded space.
    pub fn follow_page(&mut self, loaded: Space, linear: LinearAddress) {
        self.follow_pages(loaded, linear.page(), linear.page());
    }

    fn follow_pages(&mut self, space: Space, first: u64, last: u64) -> bool {
        self.forget_pages(space, first, last);
        self.changes += 1;
        self.changes.is_multiple_of(CHANGES_OF_PAGES)
    }

    /// The name of the space that an instruction specifies.
    fn named(&self, space: Space) -> SpaceName {
        let loaded = self.loaded.map(Space::name);
        let is_loaded = |name: &SpaceName| space.is_loaded_as(*name);
        loaded.filter(is_loaded).unwrap_or(space.name())
    }

    /// Follows a load of CR3: all pages of the space that are not global become void. But a
    /// processor may have walked the same tables again since, whichever identifier they had before,
    /// so records whose path has not changed are valid. Records of other tables with this space's
    /// identifier are remembered under the root of those tables until these are loaded again.
    fn load<M: PageTableMemory + ?Sized>(&mut self, to: Space, memory: &mut M) {
        let name = to.name();
        let tables = to.tables.map(SpaceName::Tables);
        let recent = &self.recent;
        self.records.retain(|_, records| {
            if !to.has_identifier {
                // With fewer than 4 levels the path need not begin at the root.
                records.retain(|record| {
                    let is_known = !record.path.steps().is_empty();
                    record.space != Some(name) || is_known && record.path.is_as_it_was(memory)
                });
                return !records.is_empty();
            }
            let mut moved = Vec::new();
            records.retain(|record| {
                let Some(of) = record.space else { return true };
                let bygone = record.bygone();
                let is_there = bygone.is_some() && bygone == tables;
                let space = match is_there {
                    true if record.path.is_as_it_was(memory) => Some(name),
                    false if of == name => bygone,
                    _ => None,
                };
                moved.extend(space.map(|_| Record { space, ..*record }));
                match of {
                    // The monitor keeps no more spaces than [`SPACES`].
                    SpaceName::Tables(of) => !is_there && recent.contains(&of),
                    SpaceName::Identifier(_) => of != name,
                }
            });
            add_missing(records, moved);
            !records.is_empty()
        });
    }

    /// Follows an identifier that gets other tables while the guest lets its translations be kept.
    /// The records of the tables that the identifier had before are remembered under their root as
    /// well, for the time when those tables are loaded again.
    fn remember_other_tables(&mut self, to: Space) {
        if !to.has_identifier {
            return;
        }
        let name = to.name();
        for records in self.records.values_mut() {
            let others = records.iter().filter(|record| record.space == Some(name));
            let bygone = others.map(|record| Record {
                space: record.bygone(),
                ..*record
            });
            let of_others = bygone.filter(|it| it.space != to.tables.map(SpaceName::Tables));
            let of_others: Vec<_> = of_others.collect();
            add_missing(records, of_others);
        }
    }

    /// Whether it is time to check all entries, although nothing was invalidated.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.walks >= WALKS;
        self.walks *= u32::from(!is_due);
        is_due
    }

    /// Follows INVLPG and INVPCID of type 0. In a kept space global entries need not be dropped,
    /// but may be.
    fn forget_pages(&mut self, space: Space, first: u64, last: u64) {
        let meets = |page: u64, size: u64| {
            let large = PageRange::of_large_page(page, size);
            large.first <= last && first <= large.last
        };
        let is_loaded = self.loaded.is_some_and(|it| space.is_loaded_as(it.name()));
        let named = self.named(space);
        let is_named = |space: Option<SpaceName>| match space {
            Some(space) => space == named,
            None => is_loaded,
        };
        self.retain(|page, record| !is_named(record.space) || !meets(page, record.page_size));
    }

    fn forget_local(&mut self, space: Option<SpaceName>) {
        self.retain(|_, record| match (record.space, space) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(of), Some(named)) => of != named,
        });
    }

    fn forget_everything(&mut self) {
        self.records.clear();
        self.tables.clear();
        self.rules = None;
    }

    fn retain(&mut self, keeps: impl Fn(u64, &Record) -> bool) {
        self.records.retain(|&page, records| {
            records.retain(|record| keeps(page, record));
            !records.is_empty()
        });
    }

    /// Checks an entry that is held for the space with this name.
    ///
    /// # Panics
    /// No processor could have cached the entry.
    pub fn look_at(&self, held: &Held, space: SpaceName) {
        let records = self.records.get(&held.linear_page);
        let mut records = records.into_iter().flatten();
        let stands_for_it = records.any(|record| {
            let leads_there = match held.leads_to {
                LeadsTo::HostPage(host_page) => record.host_page == Some(host_page),
                LeadsTo::PhysicalPage(page) => record.physical_page == page,
                LeadsTo::Unknown => true,
            };
            leads_there
                && record.allows == held.allows
                && held.view.is_none_or(|view| record.view == view)
                && record.space.is_none_or(|of| of == space)
        });
        assert!(
            stands_for_it,
            "shadow check: {held:x?} of {space:x?}, which no walk since the last \
             invalidation has found: {:x?}",
            self.records.get(&held.linear_page)
        );
    }

    /// Checks a run that is mapped in a shadow window for the space with this name.
    ///
    /// # Panics
    /// No processor could have cached one of its translations.
    pub fn look_at_run(&self, run: &Run, view: View, space: SpaceName) {
        let mut page = run.page;
        while page < run.end() {
            let physical = run.physical + (page - run.page);
            let rights = [(Allows::Loads, true), (Allows::Stores, run.writable)];
            let mut found = rights.iter().filter(|(_, is_allowed)| *is_allowed);
            let size = found.clone().map(|(allows, _)| {
                let stands = |record: &Record| {
                    record.allows == *allows
                        && record.view == view
                        && record.space.is_none_or(|of| of == space)
                };
                self.size_of_page(page, physical, stands)
            });
            let size = size.min().flatten();
            assert!(
                size.is_some(),
                "shadow check: page {page:x} of {run:x?} of {space:x?}, which no \
                 walk since the last invalidation has found: {:x?}",
                (found.next(), self.records.get(&page))
            );
            page = PageRange::of_large_page(page, size.unwrap_or(PAGE_SIZE)).last + 1;
        }
    }

    /// The size of the guest's page that leads from a linear to a physical page, according to a
    /// record of that page or, for a large page, of its first page.
    fn size_of_page(
        &self,
        page: u64,
        physical: u64,
        stands: impl Fn(&Record) -> bool,
    ) -> Option<u64> {
        let leads_there = |size: u64| {
            let first = PageRange::of_large_page(page, size).first;
            let offset = page - first;
            let mut records = self.records.get(&first).into_iter().flatten();
            let found = records.any(|record| {
                record.page_size == size
                    && record.physical_page + offset == physical
                    && stands(record)
            });
            found.then_some(size)
        };
        let itself = || {
            let mut records = self.records.get(&page).into_iter().flatten();
            let found = records.any(|record| record.physical_page == physical && stands(record));
            found.then_some(PAGE_SIZE)
        };
        LARGE_PAGES
            .into_iter()
            .find_map(leads_there)
            .or_else(itself)
    }
}

#[cfg(test)]
#[path = "shadow_check_tests.rs"]
mod tests;
