//! What each change leaves of what was derived, in every structure.

use super::*;
use std::collections::{HashMap, HashSet};
use tollgate_engine::abi::far_pointer::FarPointer;
use tollgate_engine::abi::link_layout::{BranchTable, FamilyId, ModeId};
use tollgate_engine::blocks::code_pages::{CodePageId, CodePageKey, Found, IndirectTarget};
use tollgate_engine::blocks::links::{Dependence, LinkTables, Target};
use tollgate_x86::{Cr4, Efer};

/// Host address of physical page zero.
const HOST: u64 = 0x7000_0000_0000;
const TARGET: u64 = 0x1234;
const MODE: (ModeId, BranchTable) = (ModeId(3), BranchTable::Shared);
const CODE_PAGE_MODE: (ModeId, BranchTable) = (ModeId(4), BranchTable::Shared);
const FAMILY: FamilyId = FamilyId(2);

/// A page of the guest's, and what its tables say.
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

/// Structures by what was derived.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    Load(bool),
    Store(bool),
    Fetch(bool),
    Slot,
    Indirect,
    Far,
    CodePage,
}

impl Kind {
    const ALL: [Kind; 10] = [
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
    /// By linear and physical page, each with a slot that leads there.
    code_pages: HashMap<(u64, u64), (CodePageId, u32)>,
}

impl Bench {
    fn new(is_long: bool) -> Self {
        let mut state = CpuState::at_reset();
        state.cr3 = 0x7005;
        if is_long {
            state.cr4 |= (Cr4::PAE | Cr4::PCIDE).bits();
            state.efer |= (Efer::LME | Efer::LMA).bits();
        }
        Self {
            state,
            translations: Translations::new().unwrap(),
            links: LinkTables::new().unwrap(),
            slots: HashMap::new(),
            code_pages: HashMap::new(),
        }
    }

    fn loaded(&self) -> Space {
        Space::loaded(&self.state)
    }

    fn change(&mut self, change: TranslationChange) {
        let loaded = self.loaded();
        self.translations.change(loaded, change, &mut self.links);
    }

    fn slot(&mut self, linear: u64) -> u32 {
        let links = &mut self.links;
        let slots = &mut self.slots;
        *slots
            .entry(linear)
            .or_insert_with(|| links.take_slot().unwrap())
    }

    fn code_page(&mut self, page: Page) -> (CodePageId, u32) {
        let links = &mut self.links;
        let key = CodePageKey {
            physical_page: page.physical >> 12,
            page: page.linear >> 12,
            relocates: false,
            user: false,
        };
        let place = (page.linear >> 12, page.physical >> 12);
        *self
            .code_pages
            .entry(place)
            .or_insert_with(|| (links.add_block(key), links.take_slot().unwrap()))
    }

    /// Where the code of a page's block lies.
    fn code_of(page: Page) -> u64 {
        TARGET + page.linear + (page.physical << 32)
    }

    /// An instruction pointer in the page, apart in its low half.
    fn rip(linear: u64) -> u64 {
        linear & 0xffff_0000 | (linear >> 8 & 0xfff0)
    }

    fn far_pointer(linear: u64) -> FarPointer {
        FarPointer {
            selector: (linear >> 12) as u16,
            ip: 0,
        }
    }

    /// Derives something from a page, as the vCPU does.
    fn derive(&mut self, kind: Kind, page: Page) {
        let linear = LinearAddress(page.linear);
        let translation = Translation {
            physical: PhysicalAddress(page.physical),
            page_size: page.size,
            writable_now: true,
            user: true,
            global: page.global,
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
            Kind::CodePage => {
                let found = Found {
                    linear_page: linear.page(),
                    delta: 0,
                    global: fetch(&mut self.translations, false).global,
                };
                let (id, slot) = self.code_page(page);
                self.links.put_in_force(id, found);
                // What is known of the page since it was first met comes back.
                if self.links.slot(slot) == 0 {
                    self.links.link_pages(slot, TARGET as i32, id, id);
                    let (mode, table) = CODE_PAGE_MODE;
                    let target = IndirectTarget {
                        rip: Self::rip(page.linear) + 8,
                        mode,
                        table,
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
                };
                match kind {
                    Kind::Slot => {
                        let slot = self.slot(page.linear);
                        self.links.fill_slot(slot, TARGET, dependence);
                    }
                    Kind::Indirect => {
                        let rip = Self::rip(page.linear);
                        let target = Target::fixed(TARGET + page.linear);
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

    /// Whether something is there of a kind; if so, it must be what the page implies.
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
                found == Some(Target::fixed(TARGET + page.linear))
            }
            Kind::CodePage => {
                let (_, slot) = self.code_page(page);
                let rip = Self::rip(page.linear) + 8;
                let found = self.links.hash(rip, CODE_PAGE_MODE);
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

    /// Which of the pages everything is known of; all structures must agree.
    fn known(&mut self, pages: &[Page]) -> Vec<bool> {
        let known = |bench: &mut Bench, page: &Page| {
            let kinds = Kind::ALL.map(|kind| bench.has(kind, *page));
            assert!(
                kinds.iter().all(|&it| it == kinds[0]),
                "{page:x?}: {kinds:?}"
            );
            kinds[0]
        };
        pages.iter().map(|page| known(self, page)).collect()
    }
}

/// A local and a global small page, two pieces of a global page of 2 MiB, one of a local page
/// of 4 MiB, and a small page behind all.
const PAGES: [Page; 6] = [
    page(0x1000, 0x10_1000, 0x1000, false),
    page(0x2000, 0x10_2000, 0x1000, true),
    page(0x20_3000, 0x40_3000, 0x20_0000, true),
    page(0x20_5000, 0x40_5000, 0x20_0000, true),
    page(0x40_7000, 0x80_7000, 0x40_0000, false),
    page(0x80_9000, 0x10_9000, 0x1000, true),
];

/// What is left of [`PAGES`] behind a change, in 32-bit guests and in IA-32e mode.
fn left_by(change: impl Fn(Space) -> TranslationChange) -> Vec<bool> {
    let left = [false, true].map(|is_long| {
        let mut bench = Bench::new(is_long);
        for page in PAGES {
            for kind in Kind::ALL {
                bench.derive(kind, page);
            }
        }
        assert_eq!(bench.known(&PAGES), [true; 6]);
        assert!(!bench.translations.take_changed(&mut bench.links));
        let change = change(bench.loaded());
        bench.change(change);
        let left = bench.known(&PAGES);
        // Guest code that would continue in the middle of a block looks its page up again.
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

/// The space with the next identifier, at other tables.
fn other(space: Space) -> Space {
    Space {
        tables: Some(PhysicalAddress(0x9000)),
        identifier: space.identifier + 1,
    }
}

#[test]
fn a_load_of_cr3_keeps_global_pages() {
    let load = |keeps| {
        move |space| TranslationChange::Load {
            from: space,
            to: other(space),
            keeps,
        }
    };
    assert_eq!(left_by(load(false)), GLOBAL);
    // There are no tags by which the others could be kept.
    assert_eq!(left_by(load(true)), GLOBAL);
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
            // A page that nothing was derived from is a change too.
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

/// Eight pages each of the random test: where the first four begin, how far behind them the
/// others, and the size of the guest's pages. No two share an entry of any structure.
const REGIONS: [(u64, u64, u64); 6] = [
    (0x4_1000, 0, 0x1000),
    (0x5_1000, 0, 0x1000),
    (0x21_c000, 0, 0x1000),
    (0x60_0000 - 0x4000, 0, 0x20_0000),
    (0xc0_0000 - 0x8000, 0x8000, 0x40_0000),
    (0x8000_0000 - 0xc000, 0x1_0000, 0x4000_0000),
];

/// A linear page of a region, and the size of its page.
fn any_page(random: &mut impl FnMut(u64) -> u64) -> (u64, u64) {
    let (base, gap, size) = REGIONS[random(6) as usize];
    let number = random(8);
    (base + number * PAGE_SIZE + number / 4 * gap, size)
}

/// All but global pages were dropped. A global one may be gone too that was local once.
fn drop_local(
    bench: &mut Bench,
    derived: &mut HashMap<(Kind, u64), Page>,
    was_local: &HashSet<u64>,
) {
    derived.retain(|&(kind, _), page| {
        let is_left = bench.has(kind, *page);
        assert!(!is_left || page.global, "{kind:?} of {page:x?}");
        assert!(is_left || was_local.contains(&page.linear));
        is_left
    });
}

/// Fills and drops in random order against a plain list of what was derived.
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
        // What each linear page shows now. It changes only when nothing is derived from it.
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
                    let to = if random(2) == 0 { space } else { other(space) };
                    let keeps = random(2) == 0;
                    let from = space;
                    bench.change(TranslationChange::Load { from, to, keeps });
                    if !keeps || from != to {
                        drop_local(&mut bench, &mut derived, &was_local);
                    }
                }
                1 => {
                    let named = [space, Space::identified(space.identifier), other(space)];
                    let named = named[random(3) as usize];
                    bench.change(TranslationChange::Space(named));
                    if named.covers(space) {
                        drop_local(&mut bench, &mut derived, &was_local);
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
                        // What led there before, and elsewhere now, may be gone too.
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
                    let kind = Kind::ALL[random(10) as usize];
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
