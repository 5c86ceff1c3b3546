//! The owner of all data that a vCPU derives from the guest's page tables.
//!
//! The derived data is in several structures: the software TLBs in which generated code looks pages
//! up, the cache of fetches, and the engine's links between pages, which are valid as long as
//! linear addresses keep their meaning. Entries are added by [`Translations::fill`] and
//! [`Translations::fill_fetch`] and, for links, from the contents of the cache of fetches. They are
//! removed only by [`Translations::change`], which notifies each structure.
//!
//! Spaces are distinguished as a processor does it, by their process-context identifiers, and
//! without identifiers by the root of their page tables. A few of them are kept while they are not
//! loaded ([`ShadowChoices::limit`]), each under a number that the structures know. An invalidation
//! in a kept space that is not loaded forgets all entries of that space. Where a load of CR3 voids
//! kept entries, those stay whose page-table entries have not changed ([`TableEntries`]).

mod preparation;
mod prepared;
mod shadow_windows;

use self::prepared::Prepared;
use crate::memory::addresses::view_of;
use crate::memory::fetch::{Fetch, FetchCache};
use crate::memory::kept_spaces::{KeptSpaces, OtherSpace};
use crate::memory::shadow_check::ShadowCheck;
use crate::memory::shadow_tables::{DoubleInvalidation, Invalidation, ShadowChoices, ShadowCounts};
use crate::memory::space_switch::{SpaceLoad, SpaceLoads};
use crate::memory::watched_pages::WatchedPages;
use std::io;
use tollgate_exits::counter::counter;
use tollgate_tlb::shadow_windows::WindowCounts;
use tollgate_tlb::shadow_windows::page_of;
use tollgate_tlb::{
    Allows, Comparison, Derived, Entry, LongTlb, LookUpFor, Origins, PageRange, Run, Slots,
    SoftwareTlb, Stores, TableEntries, View,
};
use tollgate_x86::paging::{Keeping, PageTableMemory, Privilege, Translation};
use tollgate_x86::{CpuState, LinearAddress, PhysicalAddress, Space, TranslationChange};

/// The most linear pages that are dropped one by one because they lead to given physical pages. For
/// more pages, everything is dropped.
const MOST_PAGES_BY_NUMBER: usize = 4096;

/// All data that one vCPU has derived from the guest's page tables, except the engine's links,
/// which methods receive as a parameter.
pub struct Translations {
    tlb: SoftwareTlb,
    long_tlb: LongTlb,
    fetches: FetchCache,
    origins: Origins,
    entries: TableEntries,
    spaces: KeptSpaces,
    /// Whether the notes on origins ran out of room: then some links, which could not be dropped
    /// immediately, are no longer noted.
    links_are_due: bool,
    changed: bool,
    /// How often entries were invalidated or dropped.
    drops: u64,
    /// Cycles in which tables of whole spaces were emptied.
    purging: u64,
    /// Whether the entries of the space that was loaded last had been kept.
    was_kept: bool,
    /// Whether an entry was derived from a page that a protection key protects, since everything
    /// was last dropped.
    depends_on_keys: bool,
    loads: SpaceLoads,
    choices: ShadowChoices,
    counts: ShadowCounts,
    prepared: Prepared,
    /// Pages of which nothing is kept, because a debugger watches memory there.
    pub(crate) watched_pages: WatchedPages,
    /// For tests: the translations that a processor may have cached.
    check: Option<Box<ShadowCheck>>,
}

/// A stamp of the derived data: while the stamp is unchanged, everything that was derived is still
/// there and still allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Voided {
    drops: u64,
    unmapped: u64,
    emptied: u64,
}

impl Translations {
    /// Empty structures, before anything has been derived from page tables.
    ///
    /// # Errors
    /// The host has no address space left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            tlb: SoftwareTlb::new()?,
            long_tlb: LongTlb::new()?,
            fetches: FetchCache::default(),
            origins: Origins::default(),
            entries: TableEntries::default(),
            spaces: KeptSpaces::default(),
            links_are_due: false,
            changed: false,
            drops: 0,
            purging: 0,
            was_kept: false,
            depends_on_keys: false,
            loads: SpaceLoads::default(),
            choices: ShadowChoices::default(),
            counts: ShadowCounts::default(),
            prepared: Prepared::default(),
            watched_pages: WatchedPages::default(),
            check: None,
        }
        .with_limit())
    }

    fn with_limit(mut self) -> Self {
        // The address space of a processor after power-on.
        self.spaces.start_with(Space {
            tables: Some(PhysicalAddress(0)),
            identifier: 0,
            has_identifier: false,
        });
        self.spaces.set_limit(self.choices.limit());
        self
    }

    /// The choices of what is kept and how it is invalidated.
    pub fn choices(&self) -> ShadowChoices {
        self.choices
    }

    /// Changes the choices of what is kept and how it is invalidated. Forgets the entries of all
    /// spaces that are not loaded.
    pub fn set_choices(&mut self, choices: ShadowChoices) {
        self.choices = choices;
        self.spaces.set_limit(choices.limit());
    }

    /// Counts of the operations on the tables.
    pub fn counts(&self) -> ShadowCounts {
        self.counts
    }

    /// The stamp of the derived data: it changes when entries are invalidated, dropped or unmapped
    /// from a window.
    pub(crate) fn voided(&self) -> Voided {
        let windows = self.window_counts();
        Voided {
            drops: self.drops,
            unmapped: windows.unmapped,
            emptied: windows.emptied,
        }
    }

    /// How many entries of the software TLBs were filled since the start.
    pub fn fills(&self) -> u64 {
        self.tlb.fills() + self.long_tlb.fills()
    }

    /// Counts of the operations on shadow windows.
    pub fn window_counts(&self) -> WindowCounts {
        let windows = self.long_tlb.windows();
        windows.map_or_else(WindowCounts::default, |windows| windows.counts())
    }

    /// Turns on or off the check of all entries against the translations that a processor may have
    /// cached. Must be called before anything has been derived.
    pub fn set_checks(&mut self, checks: bool) {
        self.check = checks.then(Box::default);
    }

    /// The check of all entries, if it is on.
    pub fn check_mut(&mut self) -> Option<&mut ShadowCheck> {
        self.check.as_deref_mut()
    }

    /// Checks all entries, if the check is on and no links are due to be dropped.
    ///
    /// # Panics
    /// There is an entry that a processor could not have cached.
    fn look_at_entries(&self, links: &dyn Derived) {
        let Some(check) = self.check.as_deref().filter(|_| !self.links_are_due) else {
            return;
        };
        let structures: [&dyn Derived; 4] = [&self.tlb, &self.long_tlb, &self.fetches, links];
        for structure in structures {
            structure.show(&mut |held| {
                let name = match held.kept_for {
                    None => Some(self.spaces.loaded()),
                    Some(number) => self.spaces.name(number),
                };
                // Entries that are void cannot be found, whatever they are.
                if let Some(name) = name {
                    check.look_at(&held, name);
                }
            });
        }
        assert!(
            self.leads_to_narrow_windows(),
            "shadow check: 32-bit code is led to the wrong window"
        );
        if let Some(windows) = self.long_tlb.windows() {
            windows.show(|space, run| {
                let run = Run {
                    page: page_of(run.page).unwrap_or(run.page),
                    ..run
                };
                let (view, name) = match space {
                    None => (View::Supervisor, Some(self.spaces.loaded())),
                    Some(number) => (View::User, self.spaces.name(number)),
                };
                if let Some(name) = name {
                    check.look_at_run(&run, view, name);
                }
            });
        }
    }

    /// Looks for contradictions in the structures, and checks all entries.
    ///
    /// # Panics
    /// A structure contradicts itself, or there is an entry that a processor could not have cached.
    fn look_at_everything(&self, links: &dyn Derived) {
        self.look_at_entries(links);
        for structure in [&self.long_tlb, links] {
            let found = structure.contradiction();
            assert!(found.is_none(), "shadow check: {found:?}");
        }
    }

    /// The value that generated code needs in R14.
    pub fn table(&self, state: &CpuState, view: View) -> u64 {
        if state.is_long_mode() {
            self.long_tlb.table(view)
        } else {
            self.tlb.table(view)
        }
    }

    /// Whether generated code reads a host address only so that it faults, as it does for a linear
    /// address that is not canonical or for an offset beyond a segment of 64 KiB.
    pub fn is_check(&self, host: u64) -> bool {
        self.long_tlb.is_beside_root(host) || self.tlb.is_beyond_limit(host)
    }

    /// The host address for a one-byte access, if the software TLB has an entry for it.
    #[inline]
    pub fn look_up(
        &self,
        state: &CpuState,
        view: View,
        write: bool,
        linear: LinearAddress,
    ) -> Option<u64> {
        if state.is_long_mode() {
            self.long_tlb.look_up(view, write, linear)
        } else {
            self.tlb.look_up(view, write, linear)
        }
    }

    /// Whether generated code finds an entry for `size` bytes at `linear`. A store that is tested
    /// for hitting code may use the entry of a page that holds code.
    pub fn allows(
        &self,
        state: &CpuState,
        view: View,
        wanted: LookUpFor,
        linear: LinearAddress,
        size: u32,
    ) -> bool {
        if state.is_long_mode() {
            self.long_tlb.allows(view, wanted, linear, size)
        } else {
            self.tlb.allows(view, wanted, linear, size)
        }
    }

    /// Lets generated code access the page of `linear`, which is the RAM at `host_page`. May forget
    /// other entries.
    pub fn fill(
        &mut self,
        state: &CpuState,
        view: View,
        linear: LinearAddress,
        translation: &Translation,
        (host_page, stores): (u64, Stores),
    ) {
        self.note(linear, translation);
        if let Some(check) = &mut self.check {
            let name = self.spaces.loaded();
            for allows in [Allows::Loads, Allows::Stores] {
                if allows == Allows::Loads || stores != Stores::Never {
                    let what = (view, allows);
                    check.note(name, what, linear, translation, Some(host_page));
                }
            }
        }
        let entry = Entry {
            linear,
            host_page,
            stores,
            global: translation.global,
        };
        if state.is_long_mode() {
            self.long_tlb.fill(view, entry);
        } else {
            self.tlb.fill(view, entry);
        }
    }

    /// Notes that the page of `linear` leads to a device, which the engine is about to note too.
    /// May forget other entries.
    pub fn note_device(
        &mut self,
        linear: LinearAddress,
        translation: &Translation,
        links: &mut dyn Derived,
    ) {
        self.note(linear, translation);
        // The note makes sure that the engine is notified when the page is dropped.
        self.origins.note_code(linear);
        self.drop_due_links(links);
    }

    /// The physical page from which code of the page of `linear` is fetched, if the cache has it.
    #[inline]
    pub fn fetch(&self, linear: LinearAddress, privilege: Privilege) -> Option<Fetch> {
        self.fetches.look_up(linear.page(), privilege)
    }

    /// The pages that programs of the loaded space were fetched from, in ascending order.
    pub(crate) fn program_fetches(&self) -> Vec<u64> {
        self.fetches.user_pages()
    }

    /// Notes the physical page from which code of the page of `linear` is fetched. May forget other
    /// entries.
    pub fn fill_fetch(
        &mut self,
        linear: LinearAddress,
        privilege: Privilege,
        translation: &Translation,
    ) -> Fetch {
        self.note(linear, translation);
        self.origins.note_code(linear);
        if let Some(check) = &mut self.check {
            let what = (view_of(privilege), Allows::Fetches);
            check.note(self.spaces.loaded(), what, linear, translation, None);
        }
        let fetch = Fetch {
            physical_page: translation.physical.page(),
            global: translation.global,
        };
        self.fetches.fill(linear.page(), privilege, fetch);
        fetch
    }

    /// Whether another entry can be filled without forgetting others.
    pub fn has_room(&self) -> bool {
        !self.origins.is_full() && !self.links_are_due
    }

    /// Notes the origin of an entry that is about to be filled.
    #[inline]
    fn note(&mut self, linear: LinearAddress, translation: &Translation) {
        if self.origins.is_full() {
            self.drop_own(|derived| derived.drop_everything());
            self.drops += 1;
            self.point_narrow();
            self.origins.drop_everything();
            self.entries.drop_everything();
            self.spaces.forget_others();
            self.links_are_due = true;
            self.changed = true;
        }
        self.note_keys(translation);
        self.origins.note(linear, translation);
        self.entries.note(linear, translation);
    }

    fn note_keys(&mut self, translation: &Translation) {
        self.depends_on_keys |= translation.keeping == Keeping::WithKeys;
    }

    /// Whether some derived data may be valid only while PKRU is unchanged, apart from its bits for
    /// key 0.
    pub fn may_depend_on_keys(&self) -> bool {
        self.depends_on_keys
    }

    /// Makes every entry that leads to a page of RAM allow only stores next to code, because code
    /// was translated from the page. Guest code that has looked such an entry up must not be
    /// resumed.
    pub fn protect(&mut self, physical: PhysicalAddress, host_page: u64) {
        if !self.choices.reverse_map {
            self.counts.physical_full += 1;
            self.tlb.drop_everything();
            self.long_tlb.drop_everything();
            self.long_tlb.change_windows(|windows| windows.empty_all());
            self.point_narrow();
            self.spaces.forget_others();
            self.changed = true;
            return;
        }
        self.counts.physical_by_map += 1;
        for linear_page in self.origins.leading_to(physical.page()) {
            self.changed |= self.tlb.protect(linear_page, host_page);
            self.changed |= self.long_tlb.protect(linear_page, host_page);
        }
        let page = physical.page();
        let protected = self
            .long_tlb
            .change_windows(|windows| windows.protect(page));
        self.changed |= protected == Some(true);
    }

    /// Forgets the entries that a change makes void. `loaded` is the space that CR3 names now,
    /// `links` are the links of the engine that runs the guest, and `memory` holds the page tables.
    pub fn change<M: PageTableMemory + ?Sized>(
        &mut self,
        loaded: Space,
        change: TranslationChange,
        links: &mut dyn Derived,
        memory: &mut M,
    ) {
        let compared = self.prepared.take(change);
        self.change_compared(loaded, change, links, (memory, compared));
    }

    /// Makes a change. If it loads a space, the space's entries may have been compared already.
    fn change_compared<M: PageTableMemory + ?Sized>(
        &mut self,
        loaded: Space,
        change: TranslationChange,
        links: &mut dyn Derived,
        (memory, compared): (&mut M, Option<Comparison>),
    ) {
        self.drops += 1;
        self.drop_due_links(links);
        let is_followed = match &mut self.check {
            Some(check) => check.follow(loaded, change, memory),
            None => false,
        };
        self.follow(loaded, change, links, (memory, compared));
        self.point_narrow();
        if is_followed {
            self.look_at_entries(links);
        }
    }

    fn follow<M: PageTableMemory + ?Sized>(
        &mut self,
        loaded: Space,
        change: TranslationChange,
        links: &mut dyn Derived,
        (memory, compared): (&mut M, Option<Comparison>),
    ) {
        let before = match change {
            TranslationChange::Load { from, .. } => from,
            _ => loaded,
        };
        if !self.is_loaded(before) && change != TranslationChange::Everything {
            // The whole state of the processor was replaced.
            self.drop_everything(links);
            self.spaces.start_with(before);
        }
        match change {
            TranslationChange::Load { from, to, keeps } if self.is_loaded(to) => {
                self.was_kept = keeps;
                if keeps && from == to {
                    self.loads.same += 1;
                    return;
                }
                self.load(to, false, links, (memory, compared));
            }
            TranslationChange::Load { to, keeps, .. } => {
                self.load(to, keeps, links, (memory, compared))
            }
            TranslationChange::Pages { space, first, last } if self.is_loaded(space) => {
                let pages = PageRange {
                    first: first.page(),
                    last: last.page(),
                };
                match self.choices.invalidation {
                    Invalidation::Full => {
                        self.counts.page_full += 1;
                        self.drop_local(links);
                    }
                    _ => self.counts.page_selective += 1,
                }
                for page in self.origins.invalidate(pages) {
                    self.drop_page(page, links);
                }
                self.drop_all(links, |derived| derived.drop_pages(pages));
                self.entries.drop_pages(pages);
            }
            TranslationChange::Space(space) if self.is_loaded(space) => {
                self.counts.loaded_space += 1;
                self.drop_local(links);
            }
            TranslationChange::Space(space) | TranslationChange::Pages { space, .. } => {
                self.counts.other_space += 1;
                self.spaces.forget(space.name());
                return;
            }
            TranslationChange::Spaces => {
                self.counts.all_spaces += 1;
                self.purge_others(links);
                self.drop_local(links);
            }
            TranslationChange::Physical { first, last } => {
                self.spaces.forget_others();
                self.long_tlb.change_windows(|windows| windows.empty_all());
                if self.choices.reverse_map {
                    self.counts.physical_by_map += 1;
                    self.drop_physical(first.page(), last.page(), links);
                } else {
                    self.counts.physical_full += 1;
                    self.drop_everything(links);
                }
            }
            TranslationChange::Everything => {
                self.counts.all_spaces += 1;
                self.purge_others(links);
                self.drop_everything(links);
                self.depends_on_keys = false;
                self.spaces.start_with(loaded);
            }
        }
        // The page from which code is being fetched may lead elsewhere now.
        self.changed = true;
    }

    /// Loads a space without an exit. This requires that its translations are known, that they may
    /// be kept or the page tables in `memory` confirm all of them, and that no other work is due.
    /// If not, nothing changes. Afterwards guest code of a global page of the upper half may
    /// continue. While the guest lets interrupts in, a comparison of many entries is left to the
    /// exit, which can [stop](Self::prepare).
    pub fn switch<M: PageTableMemory + ?Sized>(
        &mut self,
        load: SpaceLoad,
        links: &mut dyn Derived,
        memory: &mut M,
    ) -> bool {
        let SpaceLoad {
            from,
            to,
            keeps,
            lets_in,
        } = load;
        if self.has_changed() || !self.is_loaded(from) {
            return false;
        }
        let known = self.spaces.look_up(to, keeps);
        let Some(known) = known.filter(|known| known.has_same_tables || !self.is_loaded(to)) else {
            return false;
        };
        let mut compared = None;
        if !keeps {
            let is_long = lets_in && !self.entries.are_few(known.number);
            if !self.choices.compares_entries || !known.has_same_tables || is_long {
                return false;
            }
            let comparison = self.entries.compare(known.number, memory);
            if !self.is_about_data(&comparison) {
                return false;
            }
            compared = Some(comparison);
        }
        let load = TranslationChange::Load { from, to, keeps };
        self.change_compared(to, load, links, (memory, compared));
        self.changed = false;
        self.loads.inline += 1;
        true
    }

    /// Whether only the software TLBs have entries for what has changed.
    fn is_about_data(&self, comparison: &Comparison) -> bool {
        let is_data =
            |pages: &PageRange| pages.count() == 1 && !self.origins.may_have_code(pages.first);
        match comparison {
            Comparison::Changed(changed) => changed.iter().all(is_data),
            Comparison::Unknown => false,
        }
    }

    /// Counts of the loads of spaces.
    pub fn loads(&self) -> SpaceLoads {
        let (entries, changed) = self.entries.counts();
        SpaceLoads {
            entries,
            changed,
            ..self.loads
        }
    }

    /// INVLPG of an address in `loaded`, if only the software TLB can have an entry for the page
    /// and no other page becomes void with it. If not, nothing is forgotten. Afterwards guest code
    /// may continue. `is_long` selects the software TLB of IA-32e mode.
    pub fn invalidate_data(&mut self, loaded: Space, is_long: bool, linear: LinearAddress) -> bool {
        let page = linear.page();
        if self.choices.invalidation != Invalidation::Inline
            || !self.is_loaded(loaded)
            || self.links_are_due
            || self.origins.may_have_code(page)
            || self.origins.is_in_large_page(page)
        {
            return false;
        }
        self.drops += 1;
        if let Some(check) = &mut self.check {
            check.follow_page(loaded, linear);
        }
        let pages = PageRange::of(linear);
        match is_long {
            true => self.long_tlb.drop_pages(pages),
            false => {
                self.tlb.drop_pages(pages);
                self.long_tlb.drop_window_pages(pages);
            }
        }
        self.entries.drop_pages(pages);
        self.counts.page_inline += 1;
        true
    }

    /// Whether a space is the one that is loaded. A space whose tables begin elsewhere is another
    /// space to us, but with identifiers a processor distinguishes spaces by identifier alone.
    fn is_loaded(&self, space: Space) -> bool {
        space.is_loaded_as(self.spaces.loaded())
    }

    /// Loads a space, which may be the one that is already loaded.
    fn load<M: PageTableMemory + ?Sized>(
        &mut self,
        to: Space,
        keeps: bool,
        links: &mut dyn Derived,
        (memory, compared): (&mut M, Option<Comparison>),
    ) {
        let before = self.spaces.loaded_number();
        let loaded = self.spaces.load(to, keeps, &mut self.loads.stolen);
        let may_compare = !keeps && loaded.has_same_tables && self.choices.compares_entries;
        let comparison = match (may_compare, compared) {
            (true, None) => self.entries.compare(loaded.number, memory),
            (true, Some(compared)) => compared,
            (false, _) => Comparison::Unknown,
        };
        self.entries.count(loaded.number, &comparison);
        let loads = &mut self.loads;
        match (keeps, loaded.is_kept, &comparison) {
            (true, true, _) => loads.kept += 1,
            (true, false, _) => loads.missed += 1,
            (false, _, Comparison::Changed(_)) => loads.compared += 1,
            (false, _, Comparison::Unknown) => loads.flushed += 1,
        }
        self.was_kept = keeps || matches!(comparison, Comparison::Changed(_));
        let holds = self.was_kept && loaded.is_kept;
        if loaded.number != before {
            if holds {
                self.drop_all(links, |derived| derived.load(loaded.number, true));
            } else {
                self.purge_timed(|it| {
                    it.drop_all(links, |derived| derived.load(loaded.number, false));
                });
            }
            self.origins.load(loaded.number, holds);
            self.entries.load(loaded.number, holds);
        } else if !holds {
            self.drop_local(links);
        }
        if holds && !loaded.has_same_tables {
            self.entries.note_other_tables();
        }
        if let Comparison::Changed(changed) = comparison {
            self.entries.forget(&changed);
            for pages in changed {
                match pages.count() {
                    1 => self.drop_page(pages.first, links),
                    _ => self.drop_all(links, |derived| derived.drop_pages(pages)),
                }
            }
        }
    }

    /// Forgets the entries of all spaces that are not loaded: immediately, or when their numbers
    /// are needed.
    fn purge_others(&mut self, links: &mut dyn Derived) {
        let others: Vec<OtherSpace> = self.spaces.others().collect();
        for other in others {
            let OtherSpace {
                number,
                is_selected,
            } = other;
            let purges = match self.choices.double_invalidation {
                DoubleInvalidation::Allow => true,
                DoubleInvalidation::SelectionFlag => is_selected,
                DoubleInvalidation::EntryCount => false,
            };
            if purges {
                self.purge_timed(|it| it.drop_all(links, |derived| derived.purge(number)));
                self.counts.purged += 1;
            }
            match (purges, is_selected) {
                (true, false) => self.counts.purged_twice += 1,
                (false, false) => self.counts.spared += 1,
                _ => {}
            }
            self.spaces.purged(number);
        }
        self.spaces.forget_others();
    }

    fn drop_local(&mut self, links: &mut dyn Derived) {
        self.purge_timed(|it| {
            it.drop_all(links, |derived| derived.drop_local());
            it.origins.drop_local();
            it.entries.drop_local();
        });
    }

    fn drop_everything(&mut self, links: &mut dyn Derived) {
        self.purge_timed(|it| {
            it.drop_all(links, |derived| derived.drop_everything());
            it.origins.drop_everything();
            it.entries.drop_everything();
        });
        self.spaces.forget_others();
    }

    /// Empties tables of whole spaces, and adds the time that this takes.
    fn purge_timed(&mut self, purge: impl FnOnce(&mut Self)) {
        let begun = counter();
        purge(self);
        self.purging += counter().wrapping_sub(begun);
    }

    /// The cycles so far in which tables of whole spaces were emptied: those of the loaded space,
    /// of others, and of the space that a load takes them from.
    pub fn purging_cycles(&self) -> u64 {
        self.purging
    }

    /// Drops a page from which an entry was derived.
    fn drop_page(&mut self, page: u64, links: &mut dyn Derived) {
        let pages = PageRange {
            first: page,
            last: page,
        };
        self.tlb.drop_pages(pages);
        self.long_tlb.drop_pages(pages);
        if self.origins.may_have_code(page) {
            self.fetches.drop_pages(pages);
            links.drop_pages(pages);
        }
    }

    fn drop_physical(&mut self, first: u64, last: u64, links: &mut dyn Derived) {
        let pages = self.origins.leading_to_range(first, last);
        if pages.len() > MOST_PAGES_BY_NUMBER {
            self.drop_everything(links);
            return;
        }
        for page in pages {
            self.drop_page(page, links);
        }
    }

    /// Whether [`Translations::take_changed`] has anything to report or to do.
    #[inline]
    pub fn has_changed(&self) -> bool {
        self.changed || self.links_are_due
    }

    /// Whether anything was dropped since the last call. The caller must ask before guest code
    /// runs.
    #[inline]
    pub fn take_changed(&mut self, links: &mut dyn Derived) -> bool {
        self.drop_due_links(links);
        if let Some(check) = &mut self.check
            && check.is_due()
        {
            self.look_at_everything(links);
        }
        std::mem::take(&mut self.changed)
    }

    #[inline]
    fn drop_due_links(&mut self, links: &mut dyn Derived) {
        if std::mem::take(&mut self.links_are_due) {
            links.drop_everything();
        }
    }

    fn drop_own(&mut self, mut drop: impl FnMut(&mut dyn Derived)) {
        drop(&mut self.tlb);
        drop(&mut self.long_tlb);
        drop(&mut self.fetches);
    }

    /// Drops entries in every structure.
    fn drop_all(&mut self, links: &mut dyn Derived, mut drop: impl FnMut(&mut dyn Derived)) {
        self.drop_own(&mut drop);
        drop(links);
    }
}

#[cfg(test)]
#[path = "translations_tests.rs"]
mod tests;
