//! The one owner of what the guest's page tables imply.
//!
//! What was derived from them lies in several structures: the software TLBs that generated
//! code looks pages up in, the cache of fetches, and the engine's links between pages, which
//! hold as long as linear addresses mean the same. Entries come in by [`Translations::fill`]
//! and [`Translations::fill_fetch`], and, for links, from what the cache of fetches holds.
//! They go out by [`Translations::change`] alone, which tells each structure.
//!
//! Spaces are told apart by their process-context identifiers, as a processor does, and without them
//! by where their tables begin. A few of
//! them are kept while they are not loaded ([`ShadowChoices::limit`]), each under a number that the
//! structures know. What is invalidated of a kept one costs it all that it has. Where a load of CR3
//! voids what is kept, that stays for which the page tables speak as they did ([`TableEntries`]).

mod preparation;
mod shadow_windows;

use self::preparation::Prepared;
use crate::memory::addresses::view_of;
use crate::memory::fetch::{Fetch, FetchCache};
use crate::memory::kept_spaces::KeptSpaces;
use crate::memory::shadow_check::ShadowCheck;
use crate::memory::shadow_tables::{DoubleInvalidation, Invalidation, ShadowChoices, ShadowCounts};
use crate::memory::space_switch::SpaceLoads;
use std::io;
use tollgate_tlb::shadow_windows::WindowCounts;
use tollgate_tlb::shadow_windows::narrow::page_of;
use tollgate_tlb::{
    Allows, Comparison, Derived, Entry, LongTlb, Origins, PageRange, Run, Slots, SoftwareTlb,
    SpaceNumber, Stores, TableEntries, View,
};
use tollgate_x86::paging::{Keeping, PageTableMemory, Privilege, Translation};
use tollgate_x86::{CpuState, LinearAddress, PhysicalAddress, Space, TranslationChange};

/// Linear pages that are dropped one by one because they lead to physical pages; instead of
/// more, everything is dropped.
const MOST_PAGES_BY_NUMBER: usize = 4096;

/// What one vCPU has derived from the guest's page tables, but for the engine's links, which
/// are reached through a parameter.
pub struct Translations {
    tlb: SoftwareTlb,
    long_tlb: LongTlb,
    fetches: FetchCache,
    origins: Origins,
    entries: TableEntries,
    spaces: KeptSpaces,
    /// The notes on origins had no more room: links, which could not be dropped at once, are
    /// no longer all noted.
    links_are_due: bool,
    changed: bool,
    /// How often something was invalidated or dropped.
    drops: u64,
    /// See [`Translations::was_kept`].
    was_kept: bool,
    /// Something was derived from a page that a protection key decides about, since everything was last
    /// dropped.
    depends_on_keys: bool,
    loads: SpaceLoads,
    choices: ShadowChoices,
    counts: ShadowCounts,
    prepared: Prepared,
    /// For tests: what a processor may have cached.
    check: Option<Box<ShadowCheck>>,
}

/// As long as it is the same, what was derived is as it was, and is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Voided {
    drops: u64,
    unmapped: u64,
    emptied: u64,
}

impl Translations {
    /// Empty structures: nothing has been derived from page tables yet.
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
            was_kept: false,
            depends_on_keys: false,
            loads: SpaceLoads::default(),
            choices: ShadowChoices::default(),
            counts: ShadowCounts::default(),
            prepared: Prepared::default(),
            check: None,
        }
        .with_limit())
    }

    fn with_limit(mut self) -> Self {
        // As a processor comes up.
        self.spaces.start_with(Space {
            tables: Some(PhysicalAddress(0)),
            identifier: 0,
            has_identifier: false,
        });
        self.spaces.set_limit(self.choices.limit());
        self
    }

    /// What is kept, and how it is invalidated.
    pub fn choices(&self) -> ShadowChoices {
        self.choices
    }

    /// Changes what is kept, and how it is invalidated. Forgets what is kept of spaces that are not
    /// loaded.
    pub fn set_choices(&mut self, choices: ShadowChoices) {
        self.choices = choices;
        self.spaces.set_limit(choices.limit());
    }

    /// What was done to the tables.
    pub fn counts(&self) -> ShadowCounts {
        self.counts
    }

    /// What was invalidated or dropped so far, or taken from a window.
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

    /// What was done to shadow windows.
    pub fn window_counts(&self) -> WindowCounts {
        let windows = self.long_tlb.windows();
        windows.map_or_else(WindowCounts::default, |windows| windows.counts())
    }

    /// Has all entries be checked against what a processor may have cached. Nothing must have
    /// been derived yet.
    pub fn set_checks(&mut self, checks: bool) {
        self.check = checks.then(Box::default);
    }

    /// What checks them.
    pub fn check_mut(&mut self) -> Option<&mut ShadowCheck> {
        self.check.as_deref_mut()
    }

    /// Looks at all entries, if they are checked and something was invalidated or filled.
    ///
    /// # Panics
    /// There is one that a processor could not have.
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
                // What is void is not found, whatever it is.
                if let Some(name) = name {
                    check.look_at(&held, name);
                }
            });
        }
        assert!(
            self.leads_to_narrow_windows(),
            "shadow check: a window that is none"
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

    /// Looks for contradictions in the structures, and at all entries.
    ///
    /// # Panics
    /// There is something wrong.
    fn look_at_everything(&self, links: &dyn Derived) {
        self.look_at_entries(links);
        for structure in [&self.long_tlb, links] {
            let found = structure.contradiction();
            assert!(found.is_none(), "shadow check: {found:?}");
        }
    }

    /// What generated code needs in R14.
    pub fn table(&self, state: &CpuState, view: View) -> u64 {
        if state.is_long_mode() {
            self.long_tlb.table(view)
        } else {
            self.tlb.table(view)
        }
    }

    /// Whether a host address is one that generated code reads, so that it faults, for a linear
    /// address that is not canonical, or for an offset beyond a segment of 64 KiB.
    pub fn is_check(&self, host: u64) -> bool {
        self.long_tlb.is_beside_root(host) || self.tlb.is_beyond_limit(host)
    }

    /// The host address for a one-byte access, if the software TLB has it.
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

    /// Whether generated code finds an entry for `size` bytes at `linear`. A store that is
    /// `tested` for code may use that of a page with code.
    pub fn allows(
        &self,
        state: &CpuState,
        view: View,
        (write, tested): (bool, bool),
        linear: LinearAddress,
        size: u32,
    ) -> bool {
        if state.is_long_mode() {
            self.long_tlb.allows(view, write, tested, linear, size)
        } else {
            self.tlb.allows(view, write, tested, linear, size)
        }
    }

    /// Lets generated code access the page of `linear`, which is the RAM at `host_page`. May
    /// forget other entries.
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

    /// A device lies behind the page of `linear`, and the engine is about to note that. May forget
    /// other entries.
    pub fn note_device(
        &mut self,
        linear: LinearAddress,
        translation: &Translation,
        links: &mut dyn Derived,
    ) {
        self.note(linear, translation);
        // Then the engine is told when the page is dropped.
        self.origins.note_code(linear);
        self.drop_due_links(links);
    }

    /// Where code of the page of `linear` is fetched from, if it is known.
    #[inline]
    pub fn fetch(&self, linear: LinearAddress, privilege: Privilege) -> Option<Fetch> {
        self.fetches.look_up(linear.page(), privilege)
    }

    /// Notes where code of the page of `linear` is fetched from. May forget other entries.
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

    /// Whether another entry can be filled without others being forgotten.
    pub fn has_room(&self) -> bool {
        !self.origins.is_full() && !self.links_are_due
    }

    /// Notes where an entry that is about to be filled comes from.
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

    /// Whether anything may have been derived that holds only as long as PKRU is what it was, its
    /// bits for key 0 excepted.
    pub fn may_depend_on_keys(&self) -> bool {
        self.depends_on_keys
    }

    /// Has every entry that leads to a page of RAM allow only stores beside code, because code
    /// was translated from it. Guest code that looked such an entry up is not gone on with.
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

    /// Forgets what a change makes void. `loaded` is the space that CR3 names now, `links`
    /// are those of the engine that runs the guest, and `memory` has the page tables.
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

    /// A change; if it loads a space, its entries may have been compared already.
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
            // The processor's state was replaced.
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
        // The page that code is being fetched from may lie elsewhere now.
        self.changed = true;
    }

    /// Loads a space without an exit, if its translations are known and may be kept (`keeps`), or
    /// the page tables in `memory` speak for all of them, and
    /// nothing else is due. If not, nothing is changed. Guest code of a global page of the upper
    /// half may be gone on with. While the guest `lets_in` interrupts, many entries are left to the exit,
    /// which can [stop](Self::prepare).
    pub fn switch<M: PageTableMemory + ?Sized>(
        &mut self,
        (from, to): (Space, Space),
        (keeps, lets_in): (bool, bool),
        links: &mut dyn Derived,
        memory: &mut M,
    ) -> bool {
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

    /// Whether only the software TLBs have anything of what has changed.
    fn is_about_data(&self, comparison: &Comparison) -> bool {
        let is_data =
            |pages: &PageRange| pages.count() == 1 && !self.origins.may_have_code(pages.first);
        match comparison {
            Comparison::Changed(changed) => changed.iter().all(is_data),
            Comparison::Unknown => false,
        }
    }

    /// How spaces were loaded.
    pub fn loads(&self) -> SpaceLoads {
        let (entries, changed) = self.entries.counts();
        SpaceLoads {
            entries,
            changed,
            ..self.loads
        }
    }

    /// INVLPG of an address in `loaded`, if only the software TLB can have anything of its page
    /// (`is_long`: that of IA-32e mode) and nothing else is void with it. If not, nothing is
    /// forgotten. Guest code may be gone on with.
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

    /// Whether a space is the one that is loaded. Whose tables begin elsewhere is another
    /// space, but a processor tells them apart by the identifier alone.
    fn is_loaded(&self, space: Space) -> bool {
        space.is_loaded_as(self.spaces.loaded())
    }

    /// A space is loaded, perhaps the same as before.
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
            self.drop_all(links, |derived| derived.load(loaded.number, holds));
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

    /// Forgets what is kept of all spaces that are not loaded: at once, or when their numbers are
    /// needed.
    fn purge_others(&mut self, links: &mut dyn Derived) {
        let others: Vec<(SpaceNumber, bool)> = self.spaces.others().collect();
        for (number, is_selected) in others {
            let purges = match self.choices.double_invalidation {
                DoubleInvalidation::Allow => true,
                DoubleInvalidation::SelectionFlag => is_selected,
                DoubleInvalidation::EntryCount => false,
            };
            if purges {
                self.drop_all(links, |derived| derived.purge(number));
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
        self.drop_all(links, |derived| derived.drop_local());
        self.origins.drop_local();
        self.entries.drop_local();
    }

    fn drop_everything(&mut self, links: &mut dyn Derived) {
        self.drop_all(links, |derived| derived.drop_everything());
        self.origins.drop_everything();
        self.entries.drop_everything();
        self.spaces.forget_others();
    }

    /// Drops a page that something was derived of.
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

    /// Whether [`Translations::take_changed`] has something to say.
    #[inline]
    pub fn has_changed(&self) -> bool {
        self.changed || self.links_are_due
    }

    /// Whether anything was dropped since the last call: to be asked before guest code runs.
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

    /// Drops something in every structure that there is.
    fn drop_all(&mut self, links: &mut dyn Derived, mut drop: impl FnMut(&mut dyn Derived)) {
        self.drop_own(&mut drop);
        drop(links);
    }
}

#[cfg(test)]
#[path = "translations_tests.rs"]
mod tests;
