//! Checks for each change which derived entries are left, in every structure.

use super::*;
use std::collections::{HashMap, HashSet};
use tollgate_engine::abi::far_pointer::FarPointer;
use tollgate_engine::abi::link_layout::{BranchTable, FamilyId, ModeId, ModeTable, SlotsFor};
use tollgate_engine::blocks::code_pages::{CodePageId, CodePageKey, Found, IndirectTarget};
use tollgate_engine::blocks::link_target::Target;
use tollgate_engine::blocks::links::{Dependence, LinkTables};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::WalkPath;
use tollgate_x86::{Cr4, Efer};

/// A load of a space whose translations may be kept, by a guest that lets interrupts in.
fn kept_load(from: Space, to: Space) -> SpaceLoad {
    SpaceLoad {
        from,
        to,
        keeps: true,
        lets_in: true,
    }
}

/// Host address of physical page zero.
const HOST: u64 = 0x7000_0000_0000;
const TARGET: u64 = 0x1234;
const MODE: ModeTable = ModeTable {
    mode: ModeId(3),
    table: BranchTable::Shared,
};

const fn code_page_mode(user: bool) -> ModeTable {
    ModeTable {
        mode: ModeId(4),
        table: match user {
            true => BranchTable::SharedByPrograms,
            false => BranchTable::Shared,
        },
    }
}

const FAMILY: FamilyId = FamilyId(2);

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

/// A page of the guest, and what the guest's tables say about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Page {
    linear: u64,
    physical: u64,
    size: u64,
    global: bool,
}

const fn page(linear: u64, physical: u64, size: u64, global: bool) -> Page {
    Page {
        linear,
        physical,
        size,
        global,
    }
}

/// The kinds of derived entries, by structure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    Load(bool),
    Store(bool),
    Fetch(bool),
    Slot,
    Indirect,
    Far,
    /// A code page of the kernel.
    CodePage,
    ProgramPage,
}

impl Kind {
    const ALL: [Kind; 11] = [
        Kind::Load(false),
        Kind::Load(true),
        Kind::Store(false),
        Kind::Store(true),
        Kind::Fetch(false),
        Kind::Fetch(true),
        Kind::Slot,
        Kind::Indirect,
        Kind::Far,
        Kind::CodePage,
        Kind::ProgramPage,
    ];
}

const fn view(user: bool) -> View {
    if user { View::User } else { View::Supervisor }
}

const fn privilege(user: bool) -> Privilege {
    if user {
        Privilege::User
    } else {
        Privilege::Supervisor
    }
}

struct Bench {
    state: CpuState,
    translations: Translations,
    links: LinkTables,
    slots: HashMap<u64, u32>,
    /// Code pages by linear page, physical page and whether the page belongs to a program, each
    /// with a slot that leads to it.
    code_pages: HashMap<(u64, u64, bool), (CodePageId, u32)>,
    invalidations: u32,
    loads: u32,
    /// Checkpoints that were passed in the preparation of changes.
    points: u32,
    /// How often the preparation of a change stopped.
    stopped: u32,
}

impl Bench {
    fn new(is_long: bool) -> Self {
        let mut state = CpuState::at_reset();
        state.cr3 = 0x7005;
        if is_long {
            state.cr4 |= (Cr4::PAE | Cr4::PCIDE).bits();
            state.efer |= (Efer::LME | Efer::LMA).bits();
        }
        let mut bench = Self {
            state,
            translations: Translations::new().unwrap(),
            links: LinkTables::new().unwrap(),
            slots: HashMap::new(),
            code_pages: HashMap::new(),
            invalidations: 0,
            loads: 0,
            points: 0,
            stopped: 0,
        };
        bench.translations.set_checks(true);
        bench.change(TranslationChange::Everything);
        bench.translations.take_changed(&mut bench.links);
        bench
    }

    fn loaded(&self) -> Space {
        Space::loaded(&self.state)
    }

    /// Makes a change. Every other invalidation of a single page in the loaded space is made as by
    /// a fast path, if that is possible.
    fn change(&mut self, change: TranslationChange) {
        let loaded = self.loaded();
        if let TranslationChange::Pages { space, first, last } = change
            && (space, first) == (loaded, last)
        {
            self.invalidations += 1;
            let is_long = self.state.is_long_mode();
            if self.invalidations.is_multiple_of(2)
                && self.translations.invalidate_data(loaded, is_long, first)
            {
                return;
            }
        }
        self.prepare(loaded, change);
        self.translations
            .change(loaded, change, &mut self.links, &mut NoTables);
    }

    /// Prepares a change. Every other preparation that has a checkpoint stops there and begins
    /// again.
    fn prepare(&mut self, loaded: Space, change: TranslationChange) {
        let (translations, links) = (&mut self.translations, &mut self.links);
        let points = &mut self.points;
        let mut prepare = || {
            translations.prepare(loaded, change, links, &mut NoTables, || {
                *points += 1;
                points.is_multiple_of(2)
            })
        };
        if !prepare() {
            self.stopped += 1;
            assert!(prepare(), "a preparation stops only once");
        }
    }

    /// Loads CR3, which makes `to` the loaded space.
    fn load(&mut self, to: Space, keeps: bool) {
        let from = self.loaded();
        if self.state.is_long_mode() {
            self.state.cr3 = to.tables.unwrap().0 | u64::from(to.identifier);
        } else {
            self.state.cr3 = to.tables.unwrap().0;
        }
        // Every other load is made as by a fast path, while guest code runs, if that is possible.
        self.loads += 1;
        if keeps && self.loads.is_multiple_of(2) {
            self.translations.take_changed(&mut self.links);
            let links = &mut self.links;
            if self
                .translations
                .switch(kept_load(from, to), links, &mut NoTables)
            {
                assert!(!self.translations.has_changed());
                return;
            }
        }
        self.change(TranslationChange::Load { from, to, keeps });
    }

    fn slot(&mut self, linear: u64) -> u32 {
        let links = &mut self.links;
        let slots = &mut self.slots;
        *slots
            .entry(linear)
            .or_insert_with(|| links.take_slot(SlotsFor::Kernels).unwrap())
    }

    fn code_page(&mut self, page: Page, user: bool) -> (CodePageId, u32) {
        let links = &mut self.links;
        let key = CodePageKey {
            physical_page: page.physical >> 12,
            second_page: None,
            page: page.linear >> 12,
            relocates: false,
            user,
        };
        let place = (page.linear >> 12, page.physical >> 12, user);
        let slots = match user {
            true => SlotsFor::Programs,
            false => SlotsFor::Kernels,
        };
        *self
            .code_pages
            .entry(place)
            .or_insert_with(|| (links.add_block(key), links.take_slot(slots).unwrap()))
    }

    /// The address of the code of a page's block.
    fn code_of(page: Page) -> u64 {
        TARGET
            .wrapping_add(page.linear)
            .wrapping_add(page.physical << 32)
    }

    /// An instruction pointer in the page, whose low half is distinct for each page.
    fn rip(linear: u64) -> u64 {
        linear & 0xffff_0000 | (linear >> 8 & 0xfff0)
    }

    fn far_pointer(linear: u64) -> FarPointer {
        FarPointer {
            selector: (linear >> 12) as u16,
            ip: 0,
        }
    }

    /// Derives an entry of this kind from a page, as the vCPU does.
    fn derive(&mut self, kind: Kind, page: Page) {
        let linear = LinearAddress(page.linear);
        let translation = Translation {
            physical: PhysicalAddress(page.physical),
            page_size: page.size,
            writable_now: true,
            user: true,
            keeping: Default::default(),
            global: page.global,
            path: WalkPath::default(),
        };
        let fetch = |translations: &mut Translations, user| {
            let privilege = privilege(user);
            translations
                .fetch(linear, privilege)
                .unwrap_or_else(|| translations.fill_fetch(linear, privilege, &translation))
        };
        match kind {
            Kind::Load(user) | Kind::Store(user) => {
                let stores = if matches!(kind, Kind::Store(_)) {
                    Stores::Always
                } else {
                    Stores::Never
                };
                let target = (HOST + page.physical, stores);
                let state = &self.state;
                self.translations
                    .fill(state, view(user), linear, &translation, target);
            }
            Kind::Fetch(user) => {
                fetch(&mut self.translations, user);
            }
            Kind::CodePage | Kind::ProgramPage => {
                let user = kind == Kind::ProgramPage;
                let found = Found {
                    linear_page: linear.page(),
                    last_page: linear.page(),
                    slide: 0,
                    global: fetch(&mut self.translations, user).global,
                    is_kept: !page.global,
                };
                let (id, slot) = self.code_page(page, user);
                self.links.activate(id, found);
                // What is known about the code page since control first reached it becomes active
                // again.
                if self.links.slot(slot) == 0 {
                    self.links.link_pages(slot, TARGET as i32, id, id);
                    let target = IndirectTarget {
                        rip: Self::rip(page.linear) + 8,
                        mode: code_page_mode(user),
                        address: Self::code_of(page),
                    };
                    self.links.add_target(id, target);
                }
            }
            Kind::Slot | Kind::Indirect | Kind::Far => {
                let dependence = Dependence {
                    page: linear.page(),
                    last_page: linear.page(),
                    global: fetch(&mut self.translations, false).global,
                    is_kept: !page.global,
                };
                match kind {
                    Kind::Slot => {
                        let slot = self.slot(page.linear);
                        self.links.fill_slot(slot, TARGET, dependence);
                    }
                    Kind::Indirect => {
                        let rip = Self::rip(page.linear);
                        let target = Target::fixed(TARGET.wrapping_add(page.linear));
                        self.links.fill_hash(rip, MODE, target, dependence);
                    }
                    _ => {
                        let pointer = Self::far_pointer(page.linear);
                        self.links.fill_far(pointer, FAMILY, TARGET, dependence);
                    }
                }
            }
        }
    }

    /// Whether there is an entry of a kind; the entry must agree with the page.
    fn has(&mut self, kind: Kind, page: Page) -> bool {
        let linear = LinearAddress(page.linear);
        match kind {
            Kind::Load(user) | Kind::Store(user) => {
                let write = matches!(kind, Kind::Store(_));
                let view = view(user);
                let found = self.translations.look_up(&self.state, view, write, linear);
                found.is_some_and(|host| {
                    assert_eq!(host, HOST + page.physical);
                    true
                })
            }
            Kind::Fetch(user) => {
                let found = self.translations.fetch(linear, privilege(user));
                found.is_some_and(|fetch| {
                    assert_eq!(fetch.physical_page, page.physical >> 12);
                    true
                })
            }
            Kind::Slot => {
                let slot = self.slot(page.linear);
                self.links.slot(slot) != 0
            }
            Kind::Indirect => {
                let found = self.links.hash(Self::rip(page.linear), MODE);
                found == Some(Target::fixed(TARGET.wrapping_add(page.linear)))
            }
            Kind::CodePage | Kind::ProgramPage => {
                let user = kind == Kind::ProgramPage;
                let (_, slot) = self.code_page(page, user);
                let rip = Self::rip(page.linear) + 8;
                let found = self.links.hash(rip, code_page_mode(user));
                let is_found = found == Some(Target::fixed(Self::code_of(page)));
                let is_filled = self.links.slot(slot) != 0;
                assert_eq!(is_found, is_filled, "{page:x?}");
                is_filled
            }
            Kind::Far => {
                let pointer = Self::far_pointer(page.linear);
                self.links.far(pointer, FAMILY) == Some(TARGET)
            }
        }
    }

    /// For each page, whether its entries are known. All structures must agree.
    fn known(&mut self, kinds: &[Kind], pages: &[Page]) -> Vec<bool> {
        let known = |bench: &mut Bench, page: &Page| {
            let has: Vec<bool> = kinds.iter().map(|&kind| bench.has(kind, *page)).collect();
            assert!(has.iter().all(|&it| it == has[0]), "{page:x?}: {has:?}");
            has[0]
        };
        pages.iter().map(|page| known(self, page)).collect()
    }
}

/// A small local page, a small global page, two pieces of a global page of 2 MiB, one piece of a
/// local page of 4 MiB, and a small page above all of them.
const PAGES: [Page; 6] = [
    page(0x1000, 0x10_1000, 0x1000, false),
    page(0x2000, 0x10_2000, 0x1000, true),
    page(0x20_3000, 0x40_3000, 0x20_0000, true),
    page(0x20_5000, 0x40_5000, 0x20_0000, true),
    page(0x40_7000, 0x80_7000, 0x40_0000, false),
    page(0x80_9000, 0x10_9000, 0x1000, true),
];

/// Which of [`PAGES`] are left after a change. 32-bit guests and IA-32e mode must agree.
fn left_by(change: impl Fn(Space) -> TranslationChange) -> Vec<bool> {
    left_of(&Kind::ALL, change)
}

fn left_of(kinds: &[Kind], change: impl Fn(Space) -> TranslationChange) -> Vec<bool> {
    let left = [false, true].map(|is_long| {
        let mut bench = Bench::new(is_long);
        for page in PAGES {
            for &kind in kinds {
                bench.derive(kind, page);
            }
        }
        assert_eq!(bench.known(kinds, &PAGES), [true; 6]);
        assert!(!bench.translations.take_changed(&mut bench.links));
        let change = change(bench.loaded());
        bench.change(change);
        let left = bench.known(kinds, &PAGES);
        // Guest code that would continue in the middle of a block must look its page up again.
        let changed = bench.translations.take_changed(&mut bench.links);
        assert_eq!(changed, left != [true; 6]);
        left
    });
    assert_eq!(left[0], left[1]);
    left[0].clone()
}

const ALL: [bool; 6] = [true; 6];
const GLOBAL: [bool; 6] = [false, true, true, true, false, true];
const NONE: [bool; 6] = [false; 6];

/// The space with the next identifier, and with other tables.
fn other(space: Space) -> Space {
    Space {
        tables: Some(PhysicalAddress(0x9000)),
        identifier: (space.identifier + 1) % 0x1000,
        ..space
    }
}

/// The space with the same identifier, or without one, and with other tables.
fn with_other_tables(space: Space) -> Space {
    let tables = space.tables.unwrap().0 ^ 0x1_0000;
    Space {
        tables: Some(PhysicalAddress(tables)),
        ..space
    }
}

#[test]
fn time_for_purges_is_that_of_changes_that_empty_tables_of_whole_spaces() {
    let mut bench = Bench::new(true);
    bench.translations.set_choices(ShadowChoices {
        compares_entries: false,
        ..ShadowChoices::default()
    });
    let (one, two) = (bench.loaded(), other(bench.loaded()));
    let purges = |bench: &mut Bench, change: &dyn Fn(&mut Bench)| {
        let before = bench.translations.purging_cycles();
        change(bench);
        bench.translations.purging_cycles() > before
    };
    assert!(
        purges(&mut bench, &|bench| bench.load(two, true)),
        "unknown"
    );
    for space in [one, two, one] {
        assert!(
            !purges(&mut bench, &|bench| bench.load(space, true)),
            "kept"
        );
    }
    assert!(purges(&mut bench, &|bench| bench.load(two, false)), "void");
    let pages = TranslationChange::Pages {
        space: bench.loaded(),
        first: LinearAddress(0x1000),
        last: LinearAddress(0x2fff),
    };
    assert!(!purges(&mut bench, &|bench| bench.change(pages)));
    let space = TranslationChange::Space(bench.loaded());
    for change in [
        space,
        TranslationChange::Spaces,
        TranslationChange::Everything,
    ] {
        assert!(purges(&mut bench, &|bench| bench.change(change)));
    }
}

#[test]
fn a_load_of_cr3_keeps_global_pages() {
    let load = |keeps| {
        move |space| TranslationChange::Load {
            from: space,
            to: with_other_tables(space),
            keeps,
        }
    };
    // Without identifiers another space has other tables, and the fetches of user code are not kept
    // when the space changes.
    let mut kinds = Kind::ALL.to_vec();
    // Global code pages of programs are dropped with the space.
    kinds.retain(|kind| ![Kind::Fetch(true), Kind::ProgramPage].contains(kind));
    // So are data entries in the lower half, because each space has its own tables for them.
    kinds.retain(|kind| !matches!(kind, Kind::Load(_) | Kind::Store(_)));
    assert_eq!(left_of(&kinds, load(false)), GLOBAL);
    // A processor might keep more, because it does not compare the addresses of the tables.
    assert_eq!(left_of(&kinds, load(true)), GLOBAL);
}

#[test]
fn a_load_of_the_same_space_keeps_everything_if_the_guest_allows_that() {
    let load = |keeps| {
        move |space| TranslationChange::Load {
            from: space,
            to: space,
            keeps,
        }
    };
    assert_eq!(left_by(load(true)), ALL);
    assert_eq!(left_by(load(false)), GLOBAL);
}

#[test]
fn an_invalidation_of_all_of_a_space_keeps_global_pages_and_other_spaces() {
    assert_eq!(left_by(TranslationChange::Space), GLOBAL);
    let identified = |space: Space| Space::identified(space.identifier);
    assert_eq!(
        left_by(|space| TranslationChange::Space(identified(space))),
        GLOBAL
    );
    assert_eq!(left_by(|space| TranslationChange::Space(other(space))), ALL);
    assert_eq!(left_by(|_| TranslationChange::Spaces), GLOBAL);
}

#[test]
fn everything_is_everything() {
    assert_eq!(left_by(|_| TranslationChange::Everything), NONE);
}

#[test]
fn an_invalidation_of_a_page_reaches_all_of_its_large_page_and_no_other() {
    for (linear, gone) in [
        (0x1fff, &[0][..]),
        (0x2000, &[1]),
        (0x3000, &[]),
        (0x20_0000, &[2, 3]),
        (0x3f_ffff, &[2, 3]),
        (0x40_0000, &[4]),
        (0x60_0000, &[4]),
        (0x80_9000, &[5]),
        (0xffff_ffff, &[]),
    ] {
        let linear = LinearAddress(linear);
        let left = |space| {
            (0..6)
                .map(|index| !gone.contains(&index) || space)
                .collect()
        };
        let expected: Vec<bool> = left(false);
        let page = |space| TranslationChange::page(space, linear);
        let in_another = |space| TranslationChange::page(other(space), linear);
        assert_eq!(left_by(in_another), ALL);
        let identified =
            |space: Space| TranslationChange::page(Space::identified(space.identifier), linear);
        for change in [&page as &dyn Fn(Space) -> TranslationChange, &identified] {
            // Invalidating a page from which nothing was derived is a change, too.
            if !gone.is_empty() {
                assert_eq!(left_by(change), expected, "{linear}");
            }
        }
    }
}

#[test]
fn a_range_of_pages_reaches_the_large_pages_at_its_ends() {
    for (first, last, left) in [
        (0x1000, 0x2000, [false, false, true, true, true, true]),
        (0x2000, 0x20_0000, [true, false, false, false, true, true]),
        (
            0x3f_f000,
            0x40_0000,
            [true, true, false, false, false, true],
        ),
        (0, 0xffff_ffff, NONE),
    ] {
        let range = |space| TranslationChange::Pages {
            space,
            first: LinearAddress(first),
            last: LinearAddress(last),
        };
        assert_eq!(left_by(range), left, "{first:x} to {last:x}");
    }
}

#[test]
fn what_leads_to_a_physical_range_is_dropped_wherever_it_is() {
    for (first, last, left) in [
        (0x10_1fff, 0x10_2000, [false, false, true, true, true, true]),
        (0x40_3000, 0x40_3fff, [true, true, false, true, true, true]),
        (0x40_4000, 0x80_7000, [true, true, true, false, false, true]),
        (0, u64::MAX, NONE),
    ] {
        let range = |_| TranslationChange::Physical {
            first: PhysicalAddress(first),
            last: PhysicalAddress(last),
        };
        assert_eq!(left_by(range), left, "{first:x} to {last:x}");
    }
}

#[test]
fn what_leads_to_a_large_part_of_memory_is_dropped_with_everything() {
    let mut bench = Bench::new(true);
    let pages = |number: u64| page(0x1_0000_0000 + (number << 12), number << 12, 0x1000, true);
    for number in 0..0x2000 {
        bench.derive(Kind::Load(false), pages(number));
    }
    bench.change(TranslationChange::Physical {
        first: PhysicalAddress(0x1000),
        last: PhysicalAddress(0x1fff_ffff),
    });
    assert!((1..0x2000).all(|number| !bench.has(Kind::Load(false), pages(number))));
    bench.derive(Kind::Load(false), pages(5));
    assert!(bench.has(Kind::Load(false), pages(5)));
}

#[test]
fn an_alias_is_dropped_with_its_physical_page() {
    for is_long in [false, true] {
        let mut bench = Bench::new(is_long);
        let aliases = [
            page(0x1000, 0x10_1000, 0x1000, false),
            page(0xffc0_1000, 0x10_1000, 0x20_0000, true),
        ];
        for page in aliases {
            bench.derive(Kind::Load(false), page);
            bench.derive(Kind::Slot, page);
        }
        bench.change(TranslationChange::Physical {
            first: PhysicalAddress(0x10_1000),
            last: PhysicalAddress(0x10_1000),
        });
        for page in aliases {
            assert!(!bench.has(Kind::Load(false), page));
            assert!(!bench.has(Kind::Slot, page));
        }
    }
}

#[test]
fn a_protected_page_takes_no_store_through_any_alias() {
    for is_long in [false, true] {
        let mut bench = Bench::new(is_long);
        let aliases = [
            page(0x1000, 0x10_1000, 0x1000, false),
            page(0xffc0_1000, 0x10_1000, 0x20_0000, true),
        ];
        let beside = page(0x2000, 0x10_2000, 0x1000, false);
        for page in aliases.into_iter().chain([beside]) {
            bench.derive(Kind::Store(false), page);
            bench.derive(Kind::Store(true), page);
        }
        bench
            .translations
            .protect(PhysicalAddress(0x10_1000), HOST + 0x10_1000);
        for user in [false, true] {
            for page in aliases {
                assert!(!bench.has(Kind::Store(user), page));
                assert!(bench.has(Kind::Load(user), page));
            }
            assert!(bench.has(Kind::Store(user), beside));
        }
    }
}

#[test]
fn links_whose_origins_were_forgotten_for_want_of_room_are_dropped_before_guest_code_runs() {
    let mut bench = Bench::new(true);
    bench.derive(Kind::Slot, PAGES[1]);
    let mut number = 0;
    while !bench.translations.links_are_due {
        let linear = 0x1_0000_0000 + (number << 12);
        let far = page(linear, (number & 0xff) << 12, 0x1000, true);
        bench.derive(Kind::Fetch(false), far);
        number += 1;
        assert!(number < 3 << 20);
    }
    assert!(bench.has(Kind::Slot, PAGES[1]));
    assert!(!bench.has(Kind::Fetch(false), PAGES[1]));
    bench.translations.take_changed(&mut bench.links);
    assert!(!bench.has(Kind::Slot, PAGES[1]));
}

/// The regions of the random test, of eight pages each: the address of the first four pages, the
/// gap between them and the other four, and the size of the guest's pages. No two pages share an
/// entry in any structure.
const REGIONS: [(u64, u64, u64); 6] = [
    (0x4_1000, 0, 0x1000),
    (0x5_1000, 0, 0x1000),
    (0x21_c000, 0, 0x1000),
    (0x60_0000 - 0x4000, 0, 0x20_0000),
    (0xc0_0000 - 0x8000, 0x8000, 0x40_0000),
    (0x8000_0000 - 0xc000, 0x1_0000, 0x4000_0000),
];

/// A random linear page of a region, and the size of its page.
fn any_page(random: &mut impl FnMut(u64) -> u64) -> (u64, u64) {
    let (base, gap, size) = REGIONS[random(6) as usize];
    let number = random(8);
    (base + number * PAGE_SIZE + number / 4 * gap, size)
}

/// Removes from `derived` what a drop of all local pages has removed. Global pages must be left,
/// with these exceptions: a page that was local once, fetches and code of programs, and data if the
/// space changes; see [`a_load_of_cr3_keeps_global_pages`].
fn drop_local(
    bench: &mut Bench,
    derived: &mut HashMap<(Kind, u64), Page>,
    (was_local, is_other_space): (&HashSet<u64>, bool),
) {
    derived.retain(|&(kind, _), page| {
        let is_left = bench.has(kind, *page);
        assert!(!is_left || page.global, "{kind:?} of {page:x?}");
        let goes_with_space = matches!(kind, Kind::Fetch(_) | Kind::ProgramPage)
            || is_other_space && matches!(kind, Kind::Load(_) | Kind::Store(_));
        let may_be_gone = was_local.contains(&page.linear) || goes_with_space;
        assert!(is_left || may_be_gone);
        is_left
    });
}

/// Fills and drops entries in random order, and compares the structures with a plain list of what
/// was derived.
#[test]
fn whatever_happens_each_structure_holds_what_was_derived_and_not_dropped() {
    let mut seed = 0x1234_5678_9abc_def1u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) % below
    };
    for is_long in [false, true] {
        let mut bench = Bench::new(is_long);
        let mut derived: HashMap<(Kind, u64), Page> = HashMap::new();
        // The page that each linear page shows now. It changes only while nothing is derived from
        // it.
        let mut tables: HashMap<u64, Page> = HashMap::new();
        let mut was_local: HashSet<u64> = HashSet::new();
        for _ in 0..20_000 {
            let (linear, size) = any_page(&mut random);
            let space = bench.loaded();
            let large = |page: &Page| PageRange::of_large_page(page.linear >> 12, page.size);
            let meets = |range: PageRange, pages: PageRange| {
                range.first <= pages.last && pages.first <= range.last
            };
            match random(24) {
                0 => {
                    let is_same = random(2) == 0;
                    let keeps = is_same && random(2) == 0;
                    let to = if is_same {
                        space
                    } else {
                        with_other_tables(space)
                    };
                    bench.load(to, keeps);
                    if !keeps {
                        drop_local(&mut bench, &mut derived, (&was_local, !is_same));
                    }
                }
                1 => {
                    let named = [space, Space::identified(space.identifier), other(space)];
                    let named = named[random(3) as usize];
                    bench.change(TranslationChange::Space(named));
                    if named.covers(space) {
                        drop_local(&mut bench, &mut derived, (&was_local, false));
                    }
                }
                2 if random(8) == 0 => {
                    bench.change(TranslationChange::Everything);
                    derived.clear();
                }
                3..=5 => {
                    let count = if random(4) == 0 { random(0x800) } else { 0 };
                    let pages = PageRange {
                        first: linear >> 12,
                        last: (linear >> 12) + count,
                    };
                    let named = if random(8) == 0 { other(space) } else { space };
                    bench.change(TranslationChange::Pages {
                        space: named,
                        first: LinearAddress(linear),
                        last: LinearAddress(pages.last << 12 | 0xfff),
                    });
                    if named == space {
                        derived.retain(|_, page| !meets(large(page), pages));
                    }
                }
                6 => {
                    let physical = 0x10_0000 + random(16) * PAGE_SIZE;
                    let last = physical + random(2) * random(0x100) * PAGE_SIZE;
                    bench.change(TranslationChange::Physical {
                        first: PhysicalAddress(physical),
                        last: PhysicalAddress(last),
                    });
                    derived.retain(|&(kind, _), page| {
                        let is_left = bench.has(kind, *page);
                        assert!(!is_left || !(physical..=last).contains(&page.physical));
                        // Entries that led to this physical page before, and lead elsewhere now,
                        // may be gone, too.
                        is_left
                    });
                }
                7 => {
                    let physical = 0x10_0000 + random(16) * PAGE_SIZE;
                    bench
                        .translations
                        .protect(PhysicalAddress(physical), HOST + physical);
                    derived.retain(|&(kind, _), page| {
                        !matches!(kind, Kind::Store(_)) || page.physical != physical
                    });
                }
                _ => {
                    let kind = Kind::ALL[random(11) as usize];
                    if !derived.keys().any(|&(_, at)| at == linear) {
                        let physical = 0x10_0000 + random(16) * PAGE_SIZE;
                        let global = random(2) == 0;
                        tables.insert(linear, page(linear, physical, size, global));
                        if !global {
                            was_local.insert(linear);
                        }
                    }
                    let page = tables[&linear];
                    if kind == Kind::Load(false) && derived.contains_key(&(kind, linear)) {
                        continue;
                    }
                    bench.derive(kind, page);
                    derived.insert((kind, linear), page);
                    match kind {
                        Kind::Store(user) => {
                            derived.insert((Kind::Load(user), linear), page);
                        }
                        Kind::Slot | Kind::Indirect | Kind::Far | Kind::CodePage => {
                            derived.insert((Kind::Fetch(false), linear), page);
                        }
                        Kind::ProgramPage => {
                            derived.insert((Kind::Fetch(true), linear), page);
                        }
                        _ => {}
                    }
                }
            }
            let (linear, _) = any_page(&mut random);
            let Some(&page) = tables.get(&linear) else {
                continue;
            };
            for kind in Kind::ALL {
                let expected = derived.contains_key(&(kind, linear));
                assert_eq!(bench.has(kind, page), expected, "{kind:?} of {page:x?}");
            }
        }
    }
}

/// A guest with several spaces, which edits their tables and invalidates what it must.
struct Guest {
    bench: Bench,
    /// How often a space's tables were edited for a page, by identifier and linear page.
    edits: HashMap<(u16, u64), u64>,
    /// Spaces in which something was edited: their next load keeps nothing.
    stale: HashSet<u16>,
    /// How often a code page was found.
    found_code: u32,
}

impl Guest {
    /// The page that the tables of the loaded space lead to. One page in four is global and the
    /// same in all spaces.
    fn page(&self, linear: u64) -> Page {
        let number = linear >> 12;
        if number.is_multiple_of(4) {
            return page(linear, 0x80_0000 + (number & 0xf) * PAGE_SIZE, 0x1000, true);
        }
        let identifier = self.bench.loaded().identifier;
        let edits = self.edits.get(&(identifier, linear)).copied();
        let which = u64::from(identifier) * 7 + edits.unwrap_or(0) * 3 + number;
        let size = if number.is_multiple_of(3) {
            0x20_0000
        } else {
            0x1000
        };
        page(linear, 0x10_0000 + which % 64 * PAGE_SIZE, size, false)
    }

    /// Checks that no entry is found that contradicts the tables of the loaded space. Returns
    /// whether an entry for loads is found.
    fn check(&mut self, linear: u64, linked: &HashSet<(Kind, u64)>) -> bool {
        let page = self.page(linear);
        for kind in Kind::ALL {
            let found = self.bench.has(kind, page);
            let is_link = matches!(kind, Kind::Slot | Kind::Indirect | Kind::Far);
            // Links between other pages than code pages are kept for no space.
            assert!(!is_link || !found || page.global || linked.contains(&(kind, linear)));
        }
        for which in 0..64 {
            let physical = 0x10_0000 + which * PAGE_SIZE;
            if physical != page.physical {
                let stale = Page { physical, ..page };
                for kind in [Kind::CodePage, Kind::ProgramPage] {
                    assert!(!self.bench.has(kind, stale), "{kind:?} {stale:x?}");
                }
            }
        }
        self.found_code += u32::from(self.bench.has(Kind::CodePage, page));
        self.bench.has(Kind::Load(true), page)
    }
}

/// Loads, edits and invalidates several spaces in random order, and compares the structures with
/// what the spaces' tables say.
fn run_spaces(choices: ShadowChoices, steps: u32) -> Guest {
    let mut random = tollgate_test_support::Random::new(0x5bace5);
    // More identifiers than spaces that can be kept.
    let (least_kept, most_kept) = choices.limit().range();
    let identifiers = most_kept as u64 + 3;
    let mut guest = Guest {
        bench: Bench::new(true),
        edits: HashMap::new(),
        stale: HashSet::new(),
        found_code: 0,
    };
    // Pages of the lower half and of the upper half.
    let linear_of = |number: u64| match number < 16 {
        true => 0x20_0000 + number * PAGE_SIZE,
        false => 0xffff_8880_0020_0000 + number * PAGE_SIZE,
    };
    guest.bench.translations.set_choices(choices);
    let mut linked = HashSet::new();
    let (mut kept_loads, mut found_again) = (0, 0);
    for _ in 0..steps {
        let mut below = |bound: u64| random.below(bound as usize) as u64;
        let linear = linear_of(below(24));
        let space = guest.bench.loaded();
        match below(32) {
            0..5 => {
                let identifier = below(identifiers) as u16;
                let to = Space {
                    tables: Some(PhysicalAddress(
                        0x10_0000 + u64::from(identifier) * PAGE_SIZE,
                    )),
                    identifier,
                    has_identifier: true,
                };
                let keeps = !guest.stale.remove(&identifier) && below(4) != 0;
                guest.bench.load(to, keeps);
                if !keeps || to != space {
                    linked.clear();
                }
                kept_loads += u64::from(keeps);
                if keeps && identifier != space.identifier {
                    let found = (0..16).any(|number| guest.check(linear_of(number), &linked));
                    found_again += u64::from(found);
                }
            }
            // An edit in any space.
            5..9 if guest.page(linear).global => {}
            5..9 => {
                let identifier = match below(2) {
                    0 => space.identifier,
                    _ => below(identifiers) as u16,
                };
                *guest.edits.entry((identifier, linear)).or_default() += 1;
                let named = Space::identified(identifier);
                match below(4) {
                    0 if identifier != space.identifier => {
                        guest.stale.insert(identifier);
                    }
                    1 => {
                        guest.bench.change(TranslationChange::Space(named));
                        linked.retain(|_| identifier != space.identifier);
                    }
                    2 if below(8) == 0 => {
                        guest.bench.change(TranslationChange::Spaces);
                        linked.clear();
                    }
                    _ => {
                        let named = match identifier == space.identifier {
                            true => guest.bench.loaded(),
                            false => named,
                        };
                        let change = TranslationChange::page(named, LinearAddress(linear));
                        guest.bench.change(change);
                        linked.retain(|of| of.1 != linear || identifier != space.identifier);
                    }
                }
            }
            9 if below(16) == 0 => {
                guest.bench.change(TranslationChange::Everything);
                linked.clear();
            }
            10 if below(4) == 0 => {
                let physical = PhysicalAddress(0x10_0000 + below(64) * PAGE_SIZE);
                let host_page = HOST + physical.0;
                guest.bench.translations.protect(physical, host_page);
                for number in 0..16 {
                    let page = guest.page(linear_of(number));
                    let is_open = guest.bench.has(Kind::Store(true), page);
                    assert!(!is_open || page.physical != physical.0);
                }
                // In the other spaces the entry must be correct when they are loaded: the following
                // checks would find a wrong one, because the page takes stores again only when the
                // entry is filled again.
                let left = guest.bench.loaded();
                for identifier in 0..identifiers as u16 {
                    if guest.stale.contains(&identifier) {
                        continue;
                    }
                    let tables = Some(PhysicalAddress(0));
                    let has_identifier = true;
                    let to = Space {
                        tables,
                        identifier,
                        has_identifier,
                    };
                    guest.bench.load(to, true);
                    for number in 0..16 {
                        let page = guest.page(linear_of(number));
                        let is_open = guest.bench.has(Kind::Store(true), page);
                        assert!(!is_open || page.physical != physical.0);
                    }
                }
                guest.bench.load(left, true);
                linked.clear();
            }
            11 if below(16) == 0 => {
                let physical = PhysicalAddress(0x10_0000 + below(64) * PAGE_SIZE);
                guest.bench.change(TranslationChange::Physical {
                    first: physical,
                    last: physical,
                });
            }
            _ => {
                let page = guest.page(linear);
                let kind = Kind::ALL[below(11) as usize];
                guest.bench.derive(kind, page);
                linked.insert((kind, linear));
            }
        }
        let linear = linear_of(random.below(24) as u64);
        guest.check(linear, &linked);
    }
    let is_found = found_again * 10 > kept_loads;
    // Where protecting a page purges all tables, most loads find little.
    let finds = choices.reverse_map && (4..=8).contains(&least_kept);
    assert!(is_found || !finds, "{found_again} of {kept_loads}");
    let loads = guest.bench.translations.loads();
    assert!(loads.inline * 10 > kept_loads || !finds, "{loads:?}");
    assert!(
        loads.missed > 0 && loads.stolen > 0 && loads.flushed > 0,
        "{loads:?}"
    );
    guest
}

#[test]
fn what_is_kept_of_a_space_is_what_its_tables_say_when_it_is_loaded_again() {
    run_spaces(ShadowChoices::default(), 60_000);
}

#[test]
fn the_same_holds_whatever_is_kept_and_however_it_is_invalidated() {
    for tables in [1, 2, 3, 6, 16] {
        let tables = Some(tables);
        for double_invalidation in [
            DoubleInvalidation::Allow,
            DoubleInvalidation::SelectionFlag,
            DoubleInvalidation::EntryCount,
        ] {
            let choices = ShadowChoices {
                tables,
                double_invalidation,
                ..ShadowChoices::default()
            };
            let guest = run_spaces(choices, 8_000);
            let counts = guest.bench.translations.counts();
            assert!(counts.all_spaces > 0 && counts.physical_full == 0);
            assert!(counts.page_selective > 0 && counts.page_full == 0);
            // Purges that were spared before the choice was made.
            let at_start = Bench::new(true).translations.counts().spared;
            let (twice, spared) = (counts.purged_twice, counts.spared - at_start);
            if choices.limit().range().0 == 1 {
                continue;
            }
            match double_invalidation {
                // With few tables, most tables are used between two such invalidations.
                DoubleInvalidation::Allow => {
                    assert!(
                        spared == 0 && (twice > 0 || choices.limit().range().0 < 6),
                        "{counts:?}"
                    );
                }
                DoubleInvalidation::SelectionFlag => {
                    assert!(counts.purged > 0 && twice == 0, "{counts:?}");
                    assert!(spared > 0 || choices.limit().range().0 < 6, "{counts:?}");
                }
                DoubleInvalidation::EntryCount => {
                    assert!(counts.purged == 0 && spared > 0, "{counts:?}");
                }
            }
        }
    }
    let choices = ShadowChoices {
        invalidation: Invalidation::Full,
        reverse_map: false,
        ..ShadowChoices::default()
    };
    let counts = run_spaces(choices, 20_000).bench.translations.counts();
    assert!(counts.page_full > 0 && counts.page_selective == 0);
    assert!(counts.physical_full > 0 && counts.physical_by_map == 0);
}

#[test]
fn only_a_kept_space_is_loaded_without_an_exit() {
    let mut bench = Bench::new(true);
    let first = bench.loaded();
    let space = |identifier, tables| Space {
        tables: Some(PhysicalAddress(tables)),
        identifier,
        has_identifier: true,
    };
    let second = space(first.identifier ^ 1, 0x9000);
    let switch = |bench: &mut Bench, from, to| {
        bench.translations.take_changed(&mut bench.links);
        let links = &mut bench.links;
        bench
            .translations
            .switch(kept_load(from, to), links, &mut NoTables)
    };
    assert!(
        !switch(&mut bench, first, second),
        "the space is not known yet"
    );
    bench.state.cr3 = 0x9000 | u64::from(second.identifier);
    let load = |from, to, keeps| TranslationChange::Load { from, to, keeps };
    bench.change(load(first, second, true));
    assert!(switch(&mut bench, second, first) && switch(&mut bench, first, second));
    assert!(switch(&mut bench, second, second), "no work is needed");
    let other_tables = space(second.identifier, 0xa000);
    assert!(!switch(&mut bench, second, other_tables));
    assert!(
        !switch(&mut bench, first, second),
        "another space is loaded"
    );
    bench.change(TranslationChange::Space(first));
    assert!(
        !switch(&mut bench, second, first),
        "the space is no longer known"
    );
    let expected = SpaceLoads {
        inline: 3,
        kept: 2,
        same: 1,
        missed: 1,
        ..SpaceLoads::default()
    };
    assert_eq!(bench.translations.loads(), expected);
}

#[test]
fn a_fast_path_invalidates_what_only_the_software_tlb_knows() {
    let mut bench = Bench::new(true);
    for invalidation in [Invalidation::Full, Invalidation::Selective] {
        bench.translations.set_choices(ShadowChoices {
            invalidation,
            ..ShadowChoices::default()
        });
        let (loaded, linear) = (bench.loaded(), LinearAddress(0x5000));
        assert!(!bench.translations.invalidate_data(loaded, true, linear));
    }
    bench.translations.set_choices(ShadowChoices::default());
    let linear = LinearAddress(0x5000);
    let (loaded, data) = (bench.loaded(), page(linear.0, 0x10_5000, 0x1000, false));
    bench.derive(Kind::Load(true), data);
    bench.derive(Kind::Store(false), data);
    assert!(bench.translations.invalidate_data(loaded, true, linear));
    assert!(!bench.has(Kind::Load(true), data) && !bench.has(Kind::Store(false), data));
    // The fast path must refuse if code was fetched from the page, if a whole large page would have
    // to be dropped, or if another space is loaded.
    bench.derive(Kind::Fetch(true), data);
    assert!(!bench.translations.invalidate_data(loaded, true, linear));
    bench.derive(
        Kind::Load(true),
        page(0x40_5000, 0x40_5000, 0x20_0000, true),
    );
    let beside = LinearAddress(0x40_3000);
    assert!(!bench.translations.invalidate_data(loaded, true, beside));
    let other = Space::identified(loaded.identifier ^ 1);
    let unknown = LinearAddress(0x9000);
    assert!(!bench.translations.invalidate_data(other, true, unknown));
    assert!(bench.translations.invalidate_data(loaded, true, unknown));
}
