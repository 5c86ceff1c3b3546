//! Tests the shadow check with a guest that edits its page tables, runs and invalidates at random,
//! with real tables in memory. The guest must get what a plain list of walks says, and an
//! invalidation that is left out must be noticed.

use super::*;
use crate::memory::addresses::view_of;
use crate::memory::guest_view::{GuestView, Target};
use crate::memory::shadow_tables::{DoubleInvalidation, Invalidation, ShadowChoices};
use crate::memory::space_switch::SpaceLoad;
use crate::memory::translations::Translations;
use crate::memory::windows::{Comparing, PageAccess, WindowsOf};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tollgate_engine::blocks::links::LinkTables;
use tollgate_memory::GuestMemory;
use tollgate_test_support::Random;
use tollgate_tlb::shadow_windows::narrow;
use tollgate_x86::PhysicalAddress;

const P: u64 = 1;
const W: u64 = 2;
const U: u64 = 4;
const A: u64 = 0x20;
const D: u64 = 0x40;
const LARGE: u64 = 0x80;
const G: u64 = 0x100;

/// The roots of the spaces' tables. Each root is followed by the three lower tables for the lower
/// half of the addresses. Spaces 0 and 1 share all tables below the root, and all spaces share the
/// last tables in the upper half.
const ROOTS: u64 = 0x10_0000;
const SPACES: u64 = 7;
const UPPER: u64 = ROOTS + SPACES * 0x4000;
/// Physical address of the pages that small pages lead to.
const FRAMES: u64 = 0x40_0000;
const KERNEL: u64 = 0xffff_ff80_0000_0000;

/// The notification that the guest leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Omission {
    Nothing,
    Load,
    GlobalPages,
}

struct Guest {
    state: CpuState,
    view: GuestView,
    links: LinkTables,
    omits: Omission,
    /// Accesses that led to another page than a walk would have found at that time.
    answered_from_cache: u32,
    /// Accesses that found their page in a shadow window.
    found_in_windows: u32,
    /// A comparison of a window, which may have stopped.
    comparing: Comparing,
    /// How often a comparison resumed where it had stopped.
    compared_on: u32,
    /// Pages of code that were looked up ahead.
    foreseen: u32,
    loads: u32,
}

impl Guest {
    fn new(omits: Omission) -> Self {
        let mut state = CpuState::at_reset();
        state.cr0 |= (Cr0::PE | Cr0::PG | Cr0::WP).bits();
        state.cr4 |= (Cr4::PAE | Cr4::PCIDE | Cr4::PGE).bits();
        state.efer |= (Efer::LME | Efer::LMA | Efer::NXE).bits();
        state.cr3 = ROOTS;
        let mut translations = Translations::new().unwrap();
        translations.set_checks(true);
        let mut memory = GuestMemory::new(16 << 20).unwrap();
        let table = P | W | U | A;
        for space in 0..SPACES {
            let root = ROOTS + space * 0x4000;
            let below = ROOTS + space.max(1) * 0x4000 + 0x1000;
            memory.write_u64(PhysicalAddress(root), below | table);
            memory.write_u64(PhysicalAddress(root + 511 * 8), UPPER | table);
            for (from, to) in [(0x1000, 0x2000), (0x2000, 0x3000)] {
                memory.write_u64(PhysicalAddress(root + from), (root + to) | table);
            }
        }
        for (from, to) in [(0, 0x1000), (0x1000, 0x2000)] {
            memory.write_u64(PhysicalAddress(UPPER + from), (UPPER + to) | table);
        }
        Self {
            state,
            view: GuestView {
                missed: None,
                memory,
                translations,
            },
            links: LinkTables::new().unwrap(),
            omits,
            answered_from_cache: 0,
            found_in_windows: 0,
            comparing: Comparing::default(),
            compared_on: 0,
            foreseen: 0,
            loads: 0,
        }
    }

    /// A guest with PAE, or with two levels of tables: each space has two tables, and large pages
    /// are of 2 MiB or 4 MiB. Its spaces have no identifiers.
    fn narrow(pae: bool) -> Self {
        let mut guest = Self::new(Omission::Nothing);
        let state = &mut guest.state;
        state.efer = 0;
        state.cr4 = (Cr4::PSE | Cr4::PGE).bits() | u64::from(pae) << 5;
        let table = P | W | U | A;
        for space in 0..SPACES {
            let root = ROOTS + space * 0x4000;
            for number in 0..3 {
                let to = (root + 0x2000) | table;
                guest.edit_narrow(root, number, to);
            }
        }
        if pae {
            for space in 0..SPACES {
                let root = ROOTS + space * 0x4000;
                let registers = PhysicalAddress(root + 0x1000);
                guest.view.memory.write(registers, &[0; 32]);
                guest.view.memory.write_u64(registers, root | P);
            }
        }
        guest.load_narrow(0);
        guest.change(TranslationChange::Everything);
        guest
    }

    fn is_pae(&self) -> bool {
        self.state.cr4().contains(Cr4::PAE)
    }

    /// The size of an entry of the guest's tables, in bytes.
    fn entry_size(&self) -> u64 {
        4 << u32::from(self.is_pae())
    }

    /// Writes an entry into a table at an index.
    fn edit_narrow(&mut self, table: u64, index: u64, entry: u64) {
        let place = PhysicalAddress(table + index * self.entry_size());
        match self.is_pae() {
            true => self.view.memory.write_u64(place, entry),
            false => self.view.memory.write_u32(place, entry as u32),
        };
    }

    fn load_narrow(&mut self, space: u64) {
        let from = Space::loaded(&self.state);
        self.state.cr3 = ROOTS + space * 0x4000;
        if self.is_pae() {
            self.state.cr3 += 0x1000;
            self.state.pdpte = [(self.state.cr3 - 0x1000) | P, 0, 0, 0];
        }
        let to = Space::loaded(&self.state);
        self.change(TranslationChange::Load {
            from,
            to,
            keeps: false,
        });
    }

    fn change(&mut self, change: TranslationChange) {
        let loaded = Space::loaded(&self.state);
        let (links, memory) = (&mut self.links, &mut self.view.memory);
        (self.view.translations).change(loaded, change, links, memory);
    }

    fn load(&mut self, cr3: u64, keeps: bool) {
        let from = Space::loaded(&self.state);
        self.state.cr3 = cr3;
        let to = Space::loaded(&self.state);
        // Every other load is made as by a fast path, if that is possible.
        self.loads += 1;
        if self.omits == Omission::Nothing && self.loads.is_multiple_of(2) {
            let (links, memory) = (&mut self.links, &mut self.view.memory);
            self.view.translations.take_changed(links);
            let load = SpaceLoad {
                from,
                to,
                keeps,
                lets_in: true,
            };
            if (self.view.translations).switch(load, links, memory) {
                return;
            }
        }
        if self.omits != Omission::Load {
            self.change(TranslationChange::Load { from, to, keeps });
        }
    }

    fn toggle_global_pages(&mut self) {
        self.state.cr4 ^= Cr4::PGE.bits();
        if self.omits != Omission::GlobalPages {
            self.change(TranslationChange::Everything);
        }
    }

    fn access(&mut self, random: &mut Random, linear: u64) {
        let kind = random.pick(&[AccessKind::Read, AccessKind::Write, AccessKind::Fetch]);
        let privilege = random.pick(&[Privilege::Supervisor, Privilege::User]);
        let address = LinearAddress(linear);
        if kind == AccessKind::Fetch {
            if let Some(fetch) = self.view.translations.fetch(address, privilege) {
                self.compare(linear, fetch.physical_page << 12);
                return;
            }
            if random.one_in(3) {
                self.foresee(random, address, privilege);
                return;
            }
            let walk = self.view.walk(&self.state, address, kind, privilege);
            if let Ok(found) = walk {
                (self.view.translations).fill_fetch(address, privilege, &found);
                self.view.confirm(&self.state);
            }
            return;
        }
        let is_code_at_level_0 = privilege == Privilege::Supervisor && linear >> 63 == 1;
        let is_program = privilege == Privilege::User && linear >> 63 == 0;
        if (is_code_at_level_0 || is_program || !self.state.is_long_mode())
            && self.access_directly(address, kind, privilege)
        {
            return;
        }
        if let Ok(Target::Ram(host)) = self.view.resolve(&self.state, address, kind, privilege) {
            let base = self.view.memory.ram().host_page(0).unwrap() as u64;
            self.compare(linear, host as u64 - base);
        }
    }

    /// Looks ahead to code that is expected in a physical page: only that page may be noted, and no
    /// entry of the tables may change.
    fn foresee(&mut self, random: &mut Random, linear: LinearAddress, privilege: Privilege) {
        let mut tables = Unchanged::new(&mut self.view.memory);
        let registers = PagingRegisters::of(&self.state);
        let walk = registers.walk(&mut tables, linear, AccessKind::Fetch, privilege);
        let may_be_cached = !tables.lacks_bits();
        let found = walk.ok().filter(|found| may_be_cached && !found.global);
        let there = found.map(|found| found.physical.page());
        let elsewhere = (FRAMES >> 12) + random.below(64) as u64;
        let expected = random.pick(&[there.unwrap_or(elsewhere), elsewhere]);
        let is_seen = (self.view).foresee_fetch(&self.state, linear, privilege, expected);
        assert_eq!(is_seen, there == Some(expected));
        let known = self.view.translations.fetch(linear, privilege);
        assert_eq!(
            known.is_some_and(|it| it.physical_page == expected),
            is_seen
        );
        self.foreseen += u32::from(is_seen);
    }

    /// Accesses memory as code with direct access does. Returns whether the page is in its window.
    fn access_directly(
        &mut self,
        linear: LinearAddress,
        kind: AccessKind,
        privilege: Privilege,
    ) -> bool {
        let allows = |run: &Run| kind == AccessKind::Read || run.writable;
        let aside = self.view.is_window_aside(&self.state, linear, privilege);
        let named = match self.state.is_long_mode() {
            true => linear,
            false => narrow::named(view_of(privilege), linear),
        };
        let run = self.view.translations.window_run(named);
        if let Some(run) = run.filter(|run| !aside && allows(run)) {
            self.found_in_windows += 1;
            self.compare(linear.0, (run.physical + (named.page() - run.page)) << 12);
            return true;
        }
        // In one of three cases an interrupt waits.
        let stops = self.found_in_windows.is_multiple_of(3);
        if aside {
            let comparing = &mut self.comparing;
            let of = WindowsOf::Translated(privilege);
            self.compared_on += u32::from(comparing.goes_on(&self.view, linear, of));
            (self.view).take_window_back(&self.state, linear, of, comparing, |_| stops);
        }
        if let Ok(Target::Ram(_)) = self.view.resolve(&self.state, linear, kind, privilege) {
            let from = stops.then_some(u64::from(self.found_in_windows) % 16);
            let access = PageAccess {
                linear,
                kind,
                of: WindowsOf::Translated(privilege),
            };
            (self.view).fill_window(&self.state, access, from, |_| stops);
        }
        false
    }

    /// Compares the physical address that an access has led to with a walk.
    fn compare(&mut self, linear: u64, physical: u64) {
        let frame = physical & !0xfff;
        let mut tables = Unchanged::new(&mut self.view.memory);
        let registers = PagingRegisters::of(&self.state);
        let address = LinearAddress(linear);
        let walk = registers.walk(
            &mut tables,
            address,
            AccessKind::Read,
            Privilege::Supervisor,
        );
        let is_current = walk.is_ok_and(|found| found.physical.0 & !0xfff == frame);
        self.answered_from_cache += u32::from(!is_current);
    }

    /// Edits one of all the entries that the guest has. Spaces share tables, and an edit through
    /// another space need not be reported.
    fn edit(&mut self, random: &mut Random) {
        let flags = P | random.pick(&[0, W]) | random.pick(&[0, U]);
        let used = random.pick(&[0, A]) | random.pick(&[0, D]);
        let global = G * u64::from(random.one_in(3));
        let frame = FRAMES + random.below(64) as u64 * 0x1000;
        let root = match random.below(8) {
            0..7 => ROOTS + random.below(SPACES as usize) as u64 * 0x4000 + 0x1000,
            _ => UPPER,
        };
        let index = random.below(16) as u64 * 8;
        let (place, entry) = match random.below(8) {
            // One of the second and third 2 MiB: a large page, or the table of the first 2 MiB.
            0 => (
                root + 0x1000 + 8 + index % 16,
                0x60_0000 | LARGE | global | flags | used,
            ),
            1 => (root + 0x1000 + 8 + index % 16, (root + 0x2000) | P | W | U),
            2 => (root + 0x2000 + index, 0),
            _ => (root + 0x2000 + index, frame | global | flags | used),
        };
        self.view.memory.write_u64(PhysicalAddress(place), entry);
    }
}

fn linear_of(random: &mut Random) -> u64 {
    let base = random.pick(&[0, 0, KERNEL]);
    base + random.below(3) as u64 * 0x20_0000 + random.below(16) as u64 * 0x1000
}

fn live(omits: Omission, seed: u64, rounds: u32) -> Guest {
    live_with(ShadowChoices::default(), omits, seed, rounds)
}

fn live_with(choices: ShadowChoices, omits: Omission, seed: u64, rounds: u32) -> Guest {
    live_as(Guest::new(omits), choices, seed, rounds)
}

/// A 64-bit guest without identifiers.
fn live_without_identifiers(choices: ShadowChoices, seed: u64, rounds: u32) -> Guest {
    let mut guest = Guest::new(Omission::Nothing);
    guest.state.cr4 ^= Cr4::PCIDE.bits();
    guest.change(TranslationChange::Everything);
    live_as(guest, choices, seed, rounds)
}

fn live_as(mut guest: Guest, choices: ShadowChoices, seed: u64, rounds: u32) -> Guest {
    let mut random = Random::new(seed);
    let has_identifiers = guest.state.cr4().contains(Cr4::PCIDE);
    guest.view.translations.set_choices(choices);
    for _ in 0..rounds {
        let linear = linear_of(&mut random);
        let space = Space::loaded(&guest.state);
        match random.below(32) {
            0..2 => {
                let identifier = random.below(SPACES as usize) as u64;
                let cr3 = ROOTS + identifier * 0x4000;
                let keeps = has_identifiers && random.below(4) != 0;
                let cr3 = if has_identifiers {
                    cr3 | identifier
                } else {
                    cr3
                };
                guest.load(cr3, keeps);
            }
            2..8 => guest.edit(&mut random),
            8..11 => {
                guest.change(TranslationChange::page(space, LinearAddress(linear)));
            }
            11 => {
                let identifiers = if has_identifiers { SPACES } else { 1 };
                let other = Space::identified(random.below(identifiers as usize) as u16);
                let change = match random.below(4) {
                    0 => TranslationChange::page(other, LinearAddress(linear)),
                    1 => TranslationChange::Space(other),
                    2 => TranslationChange::Spaces,
                    _ => TranslationChange::Everything,
                };
                guest.change(change);
            }
            12 if random.one_in(8) => guest.toggle_global_pages(),
            13 if random.one_in(8) => {
                guest.state.cr0 ^= Cr0::WP.bits();
                guest.change(TranslationChange::Everything);
            }
            14 if has_identifiers && random.one_in(8) => {
                // The guest turns identifiers on or off while the loaded space has none.
                let cr3 = guest.state.cr3 & !0xfff;
                guest.load(cr3, false);
                guest.state.cr4 ^= Cr4::PCIDE.bits();
                guest.change(TranslationChange::Everything);
                guest.state.cr4 |= Cr4::PCIDE.bits();
            }
            15 if random.one_in(8) => {
                guest.view.translations.empty_windows();
                let stops = random.one_in(2);
                guest.view.fill_windows(true, |_| stops);
            }
            16 if random.one_in(4) => {
                // Code is translated from a page, so stores to the page must no longer be possible
                // in any window.
                let physical = PhysicalAddress(FRAMES + random.below(64) as u64 * 0x1000);
                let host = guest.view.memory.ram().host_page(physical.page()).unwrap();
                guest.view.translations.protect(physical, host as u64);
            }
            _ => guest.access(&mut random, linear),
        }
        guest.view.translations.take_changed(&mut guest.links);
    }
    guest.change(TranslationChange::Spaces);
    guest
}

#[test]
fn a_guest_that_edits_and_invalidates_at_random_gets_what_a_processor_might_have_cached() {
    let mut compared_on = 0;
    for seed in 1..20 {
        let guest = live(Omission::Nothing, seed, 20_000);
        // A guest that does not report what it edits gets what a processor might give it: cached
        // translations.
        assert!(guest.answered_from_cache > 0);
        assert!(guest.found_in_windows > 100, "{}", guest.found_in_windows);
        compared_on += guest.compared_on;
        assert!(guest.foreseen > 10, "{}", guest.foreseen);
        let loads = guest.view.translations.loads();
        assert!(loads.compared > 10 && loads.changed > 10, "{loads:?}");
    }
    assert!(
        compared_on > 0,
        "no comparison of a window resumed where it had stopped"
    );
}

#[test]
fn so_does_one_without_identifiers_whose_tables_are_compared_at_each_load() {
    for seed in 1..10 {
        let guest = live_without_identifiers(ShadowChoices::default(), seed, 20_000);
        assert!(guest.answered_from_cache > 0);
        let loads = guest.view.translations.loads();
        assert!(loads.kept == 0 && loads.flushed > 0, "{loads:?}");
        assert!(loads.compared > 100 && loads.inline > 10, "{loads:?}");
        assert!(
            loads.entries > loads.changed && loads.changed > 30,
            "{loads:?}"
        );
    }
    let choices = ShadowChoices {
        compares_entries: false,
        ..ShadowChoices::default()
    };
    let guest = live_without_identifiers(choices, 1, 10_000);
    let loads = guest.view.translations.loads();
    assert_eq!((loads.compared, loads.entries), (0, 0));
}

/// Runs a 32-bit guest.
fn live_narrow(choices: ShadowChoices, pae: bool, seed: u64, rounds: u32) -> Guest {
    let mut random = Random::new(seed);
    let mut guest = Guest::narrow(pae);
    guest.view.translations.set_choices(choices);
    let span = if pae { 0x20_0000 } else { 0x40_0000 };
    for _ in 0..rounds {
        let linear = random.below(3) as u64 * span + random.below(16) as u64 * 0x1000;
        let space = Space::loaded(&guest.state);
        match random.below(32) {
            0 => guest.load_narrow(random.below(SPACES as usize) as u64),
            1..8 => {
                let flags = P | random.pick(&[0, W]) | random.pick(&[0, U]);
                let used = random.pick(&[0, A]) | random.pick(&[0, D]);
                let rights = flags | used | (G * u64::from(random.one_in(3)));
                let frame = FRAMES + random.below(64) as u64 * 0x1000;
                let root = ROOTS + random.below(SPACES as usize) as u64 * 0x4000;
                let index = random.below(16) as u64;
                let large = 1 + index % 2;
                match random.below(8) {
                    0 => guest.edit_narrow(root, large, 0x80_0000 | LARGE | rights),
                    1 => guest.edit_narrow(root, large, (root + 0x2000) | P | W | U),
                    2 => guest.edit_narrow(root + 0x2000, index, 0),
                    _ => guest.edit_narrow(root + 0x2000, index, frame | rights),
                }
            }
            8..12 => {
                let linear = LinearAddress(linear);
                let (links, view) = (&mut guest.links, &mut guest.view);
                if !(view.translations).invalidate_data(space, false, linear) {
                    let change = TranslationChange::page(space, linear);
                    (view.translations).change(space, change, links, &mut view.memory);
                }
            }
            12 if random.one_in(8) => guest.toggle_global_pages(),
            13 if random.one_in(8) => {
                guest.state.cr0 ^= Cr0::WP.bits();
                guest.change(TranslationChange::Everything);
            }
            14 if random.one_in(4) => {
                let physical = PhysicalAddress(FRAMES + random.below(64) as u64 * 0x1000);
                let host = guest.view.memory.ram().host_page(physical.page()).unwrap();
                guest.view.translations.protect(physical, host as u64);
            }
            15 if random.one_in(8) => {
                guest.view.translations.empty_windows();
                guest.view.fill_windows(false, |_| false);
            }
            _ => guest.access(&mut random, linear),
        }
        guest.view.translations.take_changed(&mut guest.links);
        assert!(guest.view.translations.leads_to_narrow_windows());
    }
    guest.change(TranslationChange::Everything);
    guest
}

#[test]
fn a_32_bit_guest_gets_what_a_processor_might_have_cached() {
    for (pae, seed) in (1..10).flat_map(|seed| [(false, seed), (true, seed)]) {
        let guest = live_narrow(ShadowChoices::default(), pae, seed, 20_000);
        assert!(guest.answered_from_cache > 0);
        let loads = guest.view.translations.loads();
        assert!(loads.compared > 10 && loads.changed > 10, "{loads:?}");
        assert!(guest.found_in_windows > 100, "{}", guest.found_in_windows);
    }
}

#[test]
fn so_does_a_32_bit_guest_however_it_is_invalidated() {
    for invalidation in [Invalidation::Full, Invalidation::Selective] {
        for (seed, (pae, reverse_map)) in (1..).zip([(false, false), (true, true), (true, false)]) {
            let choices = ShadowChoices {
                invalidation,
                reverse_map,
                ..ShadowChoices::default()
            };
            let guest = live_narrow(choices, pae, seed, 10_000);
            assert!(guest.found_in_windows > 0, "{choices:?}");
        }
    }
}

#[test]
fn so_it_does_whatever_is_kept_and_however_it_is_invalidated() {
    let ways = [
        DoubleInvalidation::Allow,
        DoubleInvalidation::SelectionFlag,
        DoubleInvalidation::EntryCount,
    ];
    let tables = [1, 2, 5, 6, 16];
    for (seed, (tables, double_invalidation)) in (1..).zip(tables.into_iter().zip(ways.repeat(2))) {
        for (invalidation, reverse_map) in
            [(Invalidation::Full, true), (Invalidation::Selective, false)]
        {
            let choices = ShadowChoices {
                tables: Some(tables),
                invalidation,
                reverse_map,
                double_invalidation,
                compares_entries: tables % 2 == 0,
            };
            let guest = live_with(choices, Omission::Nothing, seed, 10_000);
            assert!(guest.found_in_windows > 0, "{choices:?}");
        }
    }
}

/// Page tables without contents, for changes that compare no entries.
struct NoTables;

impl PageTableMemory for NoTables {
    fn read_u32(&mut self, _: PhysicalAddress) -> u32 {
        u32::MAX
    }

    fn read_u64(&mut self, _: PhysicalAddress) -> u64 {
        u64::MAX
    }

    fn set_bits(&mut self, _: PhysicalAddress, _: u32) {}
}

#[test]
fn what_is_not_reported_is_noticed() {
    for omits in [Omission::Load, Omission::GlobalPages] {
        let outcome = catch_unwind(AssertUnwindSafe(|| live(omits, 1, 20_000)));
        assert!(outcome.is_err(), "{omits:?}");
    }
}

#[test]
fn an_entry_that_should_be_gone_is_noticed() {
    let linear = LinearAddress(0x20_5000);
    let held = |leads_to| Held {
        linear_page: linear.page(),
        leads_to,
        allows: Allows::Loads,
        view: Some(View::User),
        kept_for: None,
    };
    let space = |identifier| Space::identified(identifier);
    let translation = |global| Translation {
        physical: PhysicalAddress(0x60_5000),
        page_size: 0x20_0000,
        writable_now: true,
        user: true,
        keeping: Default::default(),
        global,
        path: WalkPath::default(),
    };
    let page = |linear| TranslationChange::page(space(3), LinearAddress(linear));
    let load = |to, keeps| TranslationChange::Load {
        from: space(3),
        to: space(to),
        keeps,
    };
    // What may be left of a local page and of a global page after each change, for identifier 3.
    for (change, left) in [
        (page(0x20_5000), [false, false]),
        (page(0x3f_f000), [false, false]),
        (page(0x40_0000), [true, true]),
        (load(3, false), [false, true]),
        (load(3, true), [true, true]),
        (load(4, false), [true, true]),
        (TranslationChange::Space(space(3)), [false, true]),
        (TranslationChange::Space(space(4)), [true, true]),
        (TranslationChange::Spaces, [false, true]),
        (TranslationChange::Everything, [false, false]),
    ] {
        for (global, left) in [false, true].into_iter().zip(left) {
            let mut check = ShadowCheck::default();
            let what = (View::User, Allows::Loads);
            check.follow(space(3), TranslationChange::Everything, &mut NoTables);
            check.note(
                space(3).name(),
                what,
                linear,
                &translation(global),
                Some(0x7000),
            );
            check.follow(space(3), change, &mut NoTables);
            let passes = |leads_to| {
                let looks = || check.look_at(&held(leads_to), space(3).name());
                catch_unwind(AssertUnwindSafe(looks)).is_ok()
            };
            assert_eq!(passes(LeadsTo::HostPage(0x7000)), left, "{change:?}");
            assert!(!passes(LeadsTo::HostPage(0x8000)));
            assert!(!passes(LeadsTo::PhysicalPage(0x604)));
        }
    }
}
