use super::*;
use crate::abi::link_layout::{BranchTable, ModeId};
use std::collections::BTreeMap;
use tollgate_test_support::Random;
use tollgate_tlb::SPACES;

const KERNEL: ModeTable = ModeTable {
    mode: ModeId(3),
    table: BranchTable::Shared,
};
const PROGRAM: ModeTable = ModeTable {
    mode: ModeId(3),
    table: BranchTable::SharedByPrograms,
};
const HERE: SpaceNumber = SpaceNumber::new(0);
const ELSEWHERE: SpaceNumber = SpaceNumber::new(5);

struct Setup {
    pages: CodePages,
    memory: LinkMemory,
}

impl Setup {
    fn new() -> Self {
        Self {
            pages: CodePages::default(),
            memory: LinkMemory::new().unwrap(),
        }
    }

    /// Makes a page with one block.
    fn page(&mut self, physical_page: u64, page: u64, relocates: bool) -> CodePageId {
        self.pages.add_block(CodePageKey {
            physical_page,
            second_page: None,
            page,
            relocates,
            user: relocates,
        })
    }

    /// Makes a page with one block whose first instruction ends in a second page.
    fn straddling_page(
        &mut self,
        physical_pages: [u64; 2],
        page: u64,
        relocates: bool,
    ) -> CodePageId {
        self.pages.add_block(CodePageKey {
            physical_page: physical_pages[0],
            second_page: Some(physical_pages[1]),
            page,
            relocates,
            user: relocates,
        })
    }

    fn meet(&mut self, page: CodePageId, linear_page: u64) {
        let key = self.pages.pages[page.0 as usize].key;
        let link_page = if key.relocates { key.page } else { linear_page };
        let slide = linear_page.wrapping_sub(link_page) << 12;
        let found = Found {
            linear_page,
            last_page: linear_page + u64::from(key.second_page.is_some()),
            slide,
            global: false,
            is_kept: true,
        };
        self.pages.activate(page, found, &mut self.memory);
    }

    fn meet_global(&mut self, page: CodePageId, linear_page: u64) {
        let found = Found {
            linear_page,
            last_page: linear_page,
            slide: 0,
            global: true,
            is_kept: false,
        };
        self.pages.activate(page, found, &mut self.memory);
    }

    /// Links two pages by a slot for programs if the pages are programs', otherwise by another
    /// slot.
    fn link(&mut self, slot: u32, distance: i32, from: CodePageId, to: CodePageId) {
        let slot = match self.pages.pages[to.0 as usize].key.user {
            true => slot,
            false => MAX_SLOTS as u32 + slot,
        };
        self.pages.link(slot, distance, from, to, &mut self.memory);
    }

    fn add_target(&mut self, page: CodePageId, rip: u64, address: u64) {
        let mode = match self.pages.pages[page.0 as usize].key.user {
            true => PROGRAM,
            false => KERNEL,
        };
        let target = IndirectTarget { rip, mode, address };
        self.pages.add_target(page, target, &mut self.memory);
    }

    fn drop_local(&mut self) {
        self.pages.drop_local(&mut self.memory);
    }

    fn load(&mut self, kept: &[LocalPage]) {
        self.load_space(HERE, kept);
    }

    fn load_space(&mut self, to: SpaceNumber, kept: &[LocalPage]) {
        self.pages.load(to, true, kept, &mut self.memory);
    }

    fn drop_page(&mut self, page: u64) {
        let range = PageRange {
            first: page,
            last: page,
        };
        self.pages.drop_pages(range, &mut self.memory);
    }

    /// The value of the slot with this number, for programs or for the kernel: only one of the two
    /// is used.
    fn slot(&self, slot: u32) -> i64 {
        let programs = self.memory.slot(slot) as i64;
        programs + self.memory.slot(MAX_SLOTS as u32 + slot) as i64
    }

    fn address(&self, rip: u64) -> Option<u64> {
        let found = |mode| self.memory.indirect(rip, mode).map(|it| it.address);
        found(PROGRAM).or_else(|| found(KERNEL))
    }
}

#[test]
fn what_leads_to_a_page_comes_back_when_the_page_does() {
    let mut setup = Setup::new();
    let from = setup.page(5, 0x100, false);
    let to = setup.page(6, 0x101, false);
    setup.meet(from, 0x100);
    setup.meet(to, 0x101);
    setup.link(1, -5, from, to);
    setup.link(2, 77, from, to);
    setup.add_target(to, 0x10_1020, 0x1234);
    setup.drop_local();
    assert_eq!((setup.slot(1), setup.slot(2)), (0, 0));
    assert_eq!(setup.address(0x10_1020), None);
    setup.meet(from, 0x100);
    assert_eq!(setup.slot(1), 0, "the target's page has not been looked up");
    setup.meet(to, 0x101);
    assert_eq!((setup.slot(1), setup.slot(2)), (-5, 77));
    assert_eq!(setup.address(0x10_1020), Some(0x1234));
}

#[test]
fn another_physical_page_at_the_address_brings_nothing_back() {
    let mut setup = Setup::new();
    let from = setup.page(5, 0x100, false);
    let to = setup.page(6, 0x101, false);
    setup.meet(to, 0x101);
    setup.link(1, 5, from, to);
    setup.add_target(to, 0x10_1020, 0x1234);
    setup.drop_page(0x101);
    let other = setup.page(7, 0x101, false);
    setup.meet(other, 0x101);
    assert_eq!(setup.slot(1), 0);
    assert_eq!(setup.address(0x10_1020), None);
    setup.add_target(other, 0x10_1020, 0x4321);
    // The first page's target must not stand in the way of the other page's target.
    setup.pages.remove_target(to, 0x1234, &mut setup.memory);
    assert_eq!(setup.address(0x10_1020), Some(0x4321));
}

#[test]
fn a_library_that_comes_back_elsewhere_brings_its_links_along() {
    let mut setup = Setup::new();
    let (first, second) = (setup.page(5, 0x2_0000, true), setup.page(6, 0x2_0001, true));
    setup.meet(first, 0x7f_0000);
    setup.meet(second, 0x7f_0001);
    setup.link(1, 5, first, second);
    setup.link(2, 6, second, first);
    setup.add_target(second, 0x2000_1020, 0x1234);
    assert_eq!(setup.address(0x7_f000_1020), Some(0x1234));
    setup.drop_local();
    setup.meet(first, 0x91_2340);
    assert_eq!((setup.slot(1), setup.slot(2)), (0, 0));
    setup.meet(second, 0x91_2341);
    assert_eq!((setup.slot(1), setup.slot(2)), (5, 6));
    assert_eq!(setup.address(0x7_f000_1020), None);
    let target = setup.memory.indirect(0x9_1234_1020, PROGRAM).unwrap();
    let slide = 0x9_1234_1000 - 0x2000_1000;
    assert_eq!(
        target,
        Target {
            address: 0x1234,
            slide
        }
    );
}

#[test]
fn pages_that_lie_apart_do_not_get_the_links_that_they_had_as_neighbours() {
    let mut setup = Setup::new();
    let (first, second) = (setup.page(5, 0x2_0000, true), setup.page(6, 0x2_0001, true));
    setup.meet(first, 0x7f_0000);
    setup.meet(second, 0x7f_0001);
    setup.link(1, 5, first, second);
    setup.link(2, 6, second, first);
    setup.drop_local();
    setup.meet(first, 0x91_2340);
    setup.meet(second, 0x91_2342);
    assert_eq!((setup.slot(1), setup.slot(2)), (0, 0));
    // If a page moves to another place, nothing of the former place remains.
    setup.meet(second, 0x91_2341);
    assert_eq!((setup.slot(1), setup.slot(2)), (5, 6));
    setup.meet(second, 0x91_2343);
    assert_eq!((setup.slot(1), setup.slot(2)), (0, 0));
}

#[test]
fn global_pages_stay_active_until_they_are_invalidated() {
    let mut setup = Setup::new();
    let from = setup.page(5, 0x100, false);
    let to = setup.page(6, 0x101, false);
    setup.meet_global(to, 0x101);
    setup.link(1, 5, from, to);
    setup.drop_local();
    assert_eq!(setup.slot(1), 5);
    // In the meantime the page was found as a local page of this address space.
    setup.meet(to, 0x101);
    assert_eq!(setup.slot(1), 5);
    setup.meet_global(to, 0x101);
    setup.drop_local();
    assert_eq!(setup.slot(1), 0);
    setup.meet_global(to, 0x101);
    setup.drop_page(0x101 + CHAINS as u64);
    assert_eq!(setup.slot(1), 5);
    setup.drop_page(0x101);
    assert_eq!(setup.slot(1), 0);
}

#[test]
fn a_page_without_blocks_is_forgotten() {
    let mut setup = Setup::new();
    let page = setup.page(5, 0x100, false);
    setup.meet(page, 0x100);
    setup.add_target(page, 0x10_0020, 0x1234);
    setup.pages.remove_target(page, 0x1234, &mut setup.memory);
    setup.pages.remove_block(page, &mut setup.memory);
    assert!(setup.pages.by_key.is_empty());
    let other = setup.page(9, 0x200, false);
    assert_eq!(other, page, "the page's number is given out again");
    setup.drop_local();
    setup.meet(other, 0x200);
    assert_eq!(setup.address(0x10_0020), None);
}

#[test]
fn a_page_is_put_back_as_it_was_as_long_as_it_is_the_same() {
    let mut setup = Setup::new();
    let page = setup.page(5, 0x100, false);
    setup.meet(page, 0x100);
    setup.add_target(page, 0x10_0020, 0x1234);
    let global = setup.page(6, 0x101, false);
    setup.meet_global(global, 0x101);
    let kept: Vec<LocalPage> = setup.pages.local_pages().collect();
    assert_eq!(
        kept.len(),
        1,
        "global pages stay active and need not be kept"
    );
    // A page that is never reached is not activated without end.
    let mut returns = 0;
    for _ in 0..2 * (MOST_RETURNS + 1) {
        setup.load(&[]);
        assert_eq!(setup.address(0x10_0020), None);
        setup.load(&kept);
        returns += u32::from(setup.address(0x10_0020).is_some());
    }
    assert_eq!(returns, 2 * u32::from(MOST_RETURNS));
    // Another page gets the number of the removed page.
    setup.load(&[]);
    setup.pages.remove_target(page, 0x1234, &mut setup.memory);
    setup.pages.remove_block(page, &mut setup.memory);
    let other = setup.page(9, 0x200, false);
    assert_eq!(other, page);
    setup.load(&kept);
    assert_eq!(setup.pages.found(other.0), None);
}

#[test]
fn a_page_of_a_kernel_that_both_spaces_have_stays_active() {
    let mut setup = Setup::new();
    let [page, first, second] = [(5, 0x105), (6, 0x106), (7, 0x106)]
        .map(|(physical, page)| setup.page(physical, page, false));
    setup.meet(first, 0x106);
    setup.link(1, 77, page, first);
    setup.meet(page, 0x105);
    setup.link(2, 78, first, page);
    let kept: Vec<LocalPage> = setup.pages.local_pages().collect();
    // In the other space another physical page is found at the second address.
    setup.load(&[]);
    setup.meet(second, 0x106);
    setup.meet(page, 0x105);
    assert_eq!((setup.slot(1), setup.slot(2)), (0, 78));
    let others: Vec<LocalPage> = setup.pages.local_pages().collect();
    let before = setup.pages.counts().activate;
    setup.load(&kept);
    assert_eq!((setup.slot(1), setup.slot(2)), (77, 78));
    assert_eq!(setup.pages.counts().activate, before + 1);
    setup.load(&others);
    assert_eq!((setup.slot(1), setup.slot(2)), (0, 78));
    // A page that is never reached becomes inactive from time to time.
    let mut loads = 0;
    while setup.pages.active_slide(&kept[0].key()).is_some() {
        loads += 1;
        setup.load(&kept);
        setup.load(&others);
    }
    assert!(loads <= u32::from(MOST_STAYS), "{loads} loads");
}

#[test]
fn programs_pages_are_active_in_several_spaces_each_at_its_place() {
    let mut setup = Setup::new();
    let [first, second] = [5, 6].map(|physical| setup.page(physical, 0x2_0000 + physical, true));
    let [here, elsewhere] = [0x7000_0000, 0x9000_0000];
    setup.meet(first, here + 5);
    setup.meet(second, here + 6);
    setup.link(1, 77, first, second);
    setup.add_target(second, 0x2000_6010, 0x1234);
    setup.load_space(ELSEWHERE, &[]);
    assert_eq!(setup.slot(1), 0, "nothing was looked up in this space");
    assert_eq!(setup.address((here + 6) << 12 | 0x10), None);
    setup.meet(first, elsewhere + 5);
    setup.meet(second, elsewhere + 6);
    assert_eq!(setup.slot(1), 77);
    // What is learnt in one space is known in the other.
    setup.link(2, 78, second, first);
    setup.add_target(first, 0x2000_5010, 0x4321);
    let counts = setup.pages.counts();
    setup.load_space(HERE, &[]);
    assert_eq!((setup.slot(1), setup.slot(2)), (77, 78));
    assert_eq!(setup.address((here + 6) << 12 | 0x10), Some(0x1234));
    assert_eq!(setup.address((here + 5) << 12 | 0x10), Some(0x4321));
    assert_eq!(setup.address((elsewhere + 5) << 12 | 0x10), None);
    assert_eq!(
        setup.pages.counts(),
        counts,
        "loading the space changed no page"
    );
    // An invalidation concerns the loaded space only.
    setup.drop_page(here + 6);
    assert_eq!((setup.slot(1), setup.slot(2)), (0, 78));
    setup.load_space(ELSEWHERE, &[]);
    assert_eq!((setup.slot(1), setup.slot(2)), (77, 78));
    // A removed slot or target is removed in all spaces.
    setup.pages.unlist(2);
    setup.memory.empty_slot(2);
    setup.pages.remove_target(first, 0x4321, &mut setup.memory);
    setup.load_space(HERE, &[]);
    assert_eq!((setup.slot(1), setup.slot(2)), (0, 0));
    assert_eq!(setup.address((here + 5) << 12 | 0x10), None);
    // If a space does not keep its pages, they are inactive when it is loaded.
    setup.pages.load(ELSEWHERE, false, &[], &mut setup.memory);
    assert_eq!(setup.slot(1), 0);
    setup.meet(first, here + 5);
    setup.load(&[]);
    setup.pages.purge(ELSEWHERE, &mut setup.memory);
    assert_eq!(setup.pages.active[ELSEWHERE.index()], 0);
}

#[test]
fn a_program_s_page_that_is_global_becomes_inactive_with_its_space() {
    let mut setup = Setup::new();
    let page = setup.page(5, 0x2_0000, true);
    setup.add_target(page, 0x2000_0010, 0x1234);
    let found = Found {
        linear_page: 0x7000_0000,
        last_page: 0x7000_0000,
        slide: 0x6ffe_0000 << 12,
        global: false,
        is_kept: false,
    };
    for round in 0..1000 {
        setup.pages.activate(page, found, &mut setup.memory);
        assert_eq!(setup.address(0x7_0000_0000 << 8 | 0x10), Some(0x1234));
        setup.drop_page(0x7000_0000);
        assert!(setup.pages.not_kept.len() <= 100, "round {round}");
    }
    // The page is no longer kept from the moment on at which a look-up finds that it is global.
    let kept = Found {
        is_kept: true,
        ..found
    };
    setup.pages.activate(page, kept, &mut setup.memory);
    setup.pages.activate(page, found, &mut setup.memory);
    setup.load_space(ELSEWHERE, &[]);
    setup.load(&[]);
    assert_eq!(setup.address(0x7_0000_0000 << 8 | 0x10), None);
}

#[test]
fn without_memory_for_more_tables_a_space_gets_those_of_the_one_before() {
    let mut setup = Setup::new();
    setup.memory.have_at_most(2);
    let page = setup.page(5, 0x2_0000, true);
    setup.add_target(page, 0x2000_0010, 0x1234);
    let spaces: Vec<SpaceNumber> = (0..SPACES).map(SpaceNumber::new).collect();
    for round in 0..4 {
        for &space in &spaces {
            // A space whose tables no other space took finds what it filled in the round before.
            let has_tables = setup.memory.get(Owner::Space(space)).is_some();
            let expected = (round != 0 && has_tables).then_some(0x1234);
            setup.load_space(space, &[]);
            let place = 0x7000_0000 + space.index() as u64;
            assert_eq!(setup.address(place << 12 | 0x10), expected);
            setup.meet(page, place);
            assert_eq!(setup.address(place << 12 | 0x10), Some(0x1234));
            assert_eq!(setup.pages.contradiction(&setup.memory, |_| false), None);
        }
    }
    let active: usize = setup.pages.active.iter().sum();
    assert!(active <= 2);
}

#[test]
fn what_straddles_becomes_inactive_with_either_page() {
    let mut setup = Setup::new();
    let from = setup.page(4, 0x90, false);
    let straddler = setup.straddling_page([5, 6], 0x100, false);
    let plain = setup.page(5, 0x100, false);
    assert_ne!(straddler, plain);
    setup.meet(from, 0x90);
    setup.meet(straddler, 0x100);
    setup.meet(plain, 0x100);
    setup.link(1, 5, from, straddler);
    setup.link(2, 6, from, plain);
    setup.drop_page(0x101);
    assert_eq!((setup.slot(1), setup.slot(2)), (0, 6));
    setup.meet(straddler, 0x100);
    assert_eq!((setup.slot(1), setup.slot(2)), (5, 6));
    setup.drop_page(0x100);
    assert_eq!((setup.slot(1), setup.slot(2)), (0, 0));
    // With another second page it is another code page.
    let other = setup.straddling_page([5, 7], 0x100, false);
    setup.meet(other, 0x100);
    assert_eq!(setup.slot(1), 0);
    setup.meet(straddler, 0x100);
    assert_eq!(setup.slot(1), 5);
    let ranges = [(0x102, 0x102, 5), (0xff, 0x101, 0), (0x101, 0x5000, 0)];
    for (first, last, left) in ranges {
        setup.meet(straddler, 0x100);
        let range = PageRange { first, last };
        setup.pages.drop_pages(range, &mut setup.memory);
        assert_eq!(setup.slot(1), left, "{first:x} to {last:x}");
    }
}

#[test]
fn a_link_page_has_the_slide_of_what_straddles_there() {
    let mut setup = Setup::new();
    let straddler = setup.straddling_page([5, 6], 0x2_0000, true);
    let mut key = setup.pages.pages[straddler.0 as usize].key;
    key.second_page = None;
    assert_eq!(setup.pages.active_slide(&key), None);
    setup.meet(straddler, 0x7f_0000);
    let slide = (0x7f_0000 - 0x2_0000) << 12;
    assert_eq!(setup.pages.active_slide(&key), Some(slide));
    setup.drop_local();
    assert_eq!(setup.pages.active_slide(&key), None);
    setup.pages.remove_block(straddler, &mut setup.memory);
    assert!(setup.pages.straddling.is_empty());
}

#[test]
fn nothing_that_straddles_is_expected() {
    let mut setup = Setup::new();
    let (met, near) = (
        setup.page(0, 0x2_0040, true),
        setup.straddling_page([1, 2], 0x2_0041, true),
    );
    setup.meet(near, 0x7f_0001);
    setup.drop_local();
    setup.meet(met, 0x7f_0000);
    assert!(setup.pages.expected_near(met).is_empty());
}

/// The state that the rules require, computed in a plain way.
#[derive(Default)]
struct Model {
    /// For each active page: where it is active and whether it is global.
    active: BTreeMap<usize, Found>,
    /// For each slot: distance, source and target.
    links: BTreeMap<u32, (i32, usize, usize)>,
    /// For each page and host address of code: the offset in the page.
    targets: BTreeMap<(usize, u64), u64>,
}

#[test]
fn pages_near_one_that_is_met_are_expected_until_they_were_not_met_for_long() {
    let mut setup = Setup::new();
    let (met, near) = (setup.page(0, 0x2_0040, true), setup.page(1, 0x2_0041, true));
    let others = [
        setup.page(2, 0x2_0080, true),
        setup.page(3, 0x2_0042, false),
    ];
    let place = 0x7f_0000;
    setup.add_target(near, 0x2004_1010, 7);
    let mut seen = 0;
    for _ in 0..=MOST_RETURNS {
        if seen == 0 {
            for (page, at) in [(near, 1), (others[0], 0x40), (others[1], 2)] {
                setup.meet(page, place + at);
            }
        }
        setup.drop_local();
        assert_eq!(setup.address((place + 1) << 12 | 0x10), None);
        setup.meet(met, place);
        let expected = setup.pages.expected_near(met);
        let Some(first) = expected.first() else {
            break;
        };
        assert_eq!((expected.len(), first.id), (1, near));
        assert_eq!((first.linear_page, first.physical_page), (place + 1, 1));
        setup.pages.activate_expected(first, &mut setup.memory);
        assert_eq!(setup.address((place + 1) << 12 | 0x10), Some(7));
        assert!(setup.pages.expected_near(met).is_empty());
        seen += 1;
    }
    assert_eq!(seen, MOST_RETURNS);
    setup.meet(near, place + 1);
    setup.drop_local();
    setup.meet(met, place);
    assert_eq!(setup.pages.expected_near(met).len(), 1);
}

#[test]
fn whatever_is_done_what_is_filled_is_what_the_rules_allow() {
    // The pages are few enough that no two of their targets share an entry of the table.
    const PAGES: usize = 16;
    let mut random = Random::new(11);
    let mut setup = Setup::new();
    let mut model = Model::default();
    // Every third page is not relocatable.
    let link_page = |index: usize| 0x2_0000 + index as u64;
    let relocates = |index: usize| !index.is_multiple_of(3);
    let straddles = |index: usize| index.is_multiple_of(5);
    let ids: Vec<CodePageId> = (0..PAGES)
        .map(|index| {
            let (page, relocates) = (index as u64, relocates(index));
            match straddles(index) {
                true => setup.straddling_page([page, 100 + page], link_page(index), relocates),
                false => setup.page(page, link_page(index), relocates),
            }
        })
        .collect();
    // In one epoch a relocatable page has one slide; different pages may have different slides.
    let mut slides = vec![0; PAGES];
    let mut next_epoch = |slides: &mut Vec<u64>| {
        for (index, slide) in slides.iter_mut().enumerate() {
            *slide = [0x1000, 0x5000, 0x5000][random.below(3)] * u64::from(relocates(index));
        }
    };
    next_epoch(&mut slides);
    // State of the space that is not loaded: slides, kept pages of the kernel, and active pages of
    // programs.
    let mut other = (vec![0; PAGES], Vec::new(), BTreeMap::new());
    next_epoch(&mut other.0);
    let (mut spaces, mut keeps) = ([HERE, ELSEWHERE], true);
    let (mut stayed, mut foreseen) = (0, 0);
    let mut random = Random::new(12);
    for step in 0..20_000 {
        let index = random.below(PAGES);
        let found = Found {
            linear_page: link_page(index) + slides[index],
            last_page: link_page(index) + slides[index] + u64::from(straddles(index)),
            slide: slides[index] << 12,
            global: !relocates(index) && random.below(2) == 0,
            is_kept: random.below(8) != 0,
        };
        match random.below(100) {
            0 if random.below(4) == 0 => {
                setup.drop_local();
                model.active.retain(|_, found| found.global);
                next_epoch(&mut slides);
            }
            0 => {
                let mut left: Vec<LocalPage> = setup.pages.local_pages().collect();
                left.reverse();
                spaces.reverse();
                let kept = &other.1;
                (setup.pages).load(spaces[0], keeps, kept, &mut setup.memory);
                let (programs, kernels): (BTreeMap<_, _>, BTreeMap<_, _>) = model
                    .active
                    .iter()
                    .partition(|&(&index, _)| relocates(index));
                model.active = kernels;
                model.active.retain(|_, found| found.global);
                model.active.append(&mut other.2);
                other.2 = programs;
                other.2.retain(|_, found| found.is_kept);
                keeps = true;
                for kept in &other.1 {
                    let index = ids.iter().position(|&id| id == kept.id).unwrap();
                    let found = setup.pages.found(kept.id.0);
                    if let Some(found) = found.filter(|found| !found.global) {
                        assert_eq!(*found, kept.found);
                        model.active.insert(index, *found);
                        stayed += usize::from(left.iter().any(|it| it.id == kept.id));
                    }
                }
                other.1 = left;
                std::mem::swap(&mut slides, &mut other.0);
                if random.below(3) == 0 {
                    // Another address space gets the number of the space that is not loaded.
                    next_epoch(&mut other.0);
                    other.1.clear();
                    other.2.clear();
                    keeps = false;
                }
            }
            1..10 => {
                let first = link_page(random.below(PAGES)) + slides[index];
                let last = first + [0, 0, 2, 3000][random.below(4)];
                let range = PageRange { first, last };
                setup.pages.drop_pages(range, &mut setup.memory);
                model.active.retain(|_, found| !found.depends_on(range));
            }
            10..20 => {
                let slot = random.below(64) as u32;
                for slot in [slot, MAX_SLOTS as u32 + slot] {
                    setup.pages.unlist(slot);
                    setup.memory.empty_slot(slot);
                }
                model.links.remove(&slot);
            }
            20..25 => {
                let address = (index * 64 + random.below(64)) as u64;
                setup
                    .pages
                    .remove_target(ids[index], address, &mut setup.memory);
                model.targets.remove(&(index, address));
            }
            kind => {
                setup.pages.activate(ids[index], found, &mut setup.memory);
                let known = model.active.entry(index).or_insert(found);
                known.global &= found.global;
                known.is_kept &= found.is_kept;
                // In an epoch the slide of each page is fixed, so pages that moved are not
                // expected.
                for expected in setup.pages.expected_near(ids[index]) {
                    let near = ids.iter().position(|&id| id == expected.id).unwrap();
                    if expected.slide == slides[near] << 12 && random.below(4) == 0 {
                        setup.pages.activate_expected(&expected, &mut setup.memory);
                        let found = *setup.pages.found(expected.id.0).unwrap();
                        assert_eq!(found.linear_page, link_page(near) + slides[near]);
                        model.active.insert(near, found);
                        foreseen += 1;
                    }
                }
                let from = random.below(PAGES);
                if kind < 60 && relocates(from) == relocates(index) && slides[from] == slides[index]
                {
                    let (slot, distance) = (random.below(64) as u32, step + 1);
                    let others = if relocates(index) {
                        MAX_SLOTS as u32
                    } else {
                        0
                    };
                    setup.pages.unlist(others + slot);
                    setup.memory.empty_slot(others + slot);
                    setup.link(slot, distance, ids[from], ids[index]);
                    model.links.insert(slot, (distance, from, index));
                } else if kind < 80 {
                    // One host address belongs to one offset, and one offset to one host address.
                    let address = (index * 64 + random.below(64)) as u64;
                    let offset = address % 64 * 8;
                    setup.add_target(ids[index], (link_page(index) << 12) + offset, address);
                    model.targets.insert((index, address), offset);
                }
            }
        }
        for slot in 0..64 {
            let filled = setup.slot(slot);
            let Some(&(distance, from, to)) = model.links.get(&slot) else {
                assert_eq!(filled, 0, "step {step}: slot {slot} should be empty");
                continue;
            };
            let target_is_found = model.active.contains_key(&to);
            let agree = !relocates(to) || slides[from] == slides[to];
            let both = !relocates(to) || model.active.contains_key(&from);
            if !target_is_found || !agree && both {
                assert_eq!(filled, 0, "step {step}: slot {slot}");
            } else if agree && both {
                assert_eq!(filled, i64::from(distance), "step {step}: slot {slot}");
            } else {
                // The page of the branch alone was dropped, or became inactive with its space: the
                // slot may stay filled.
                assert!([0, i64::from(distance)].contains(&filled));
            }
        }
        if step % 16 == 0 {
            assert_eq!(setup.pages.contradiction(&setup.memory, |_| false), None);
            check_targets(&setup, &model, &slides, link_page);
        }
    }
    let counts = setup.pages.counts();
    assert!(counts.activate > 1000 && counts.restored > 1000);
    assert!(stayed > 100, "{stayed} pages stayed");
    assert!(foreseen > 100, "{foreseen} pages were foreseen");
    // Exactly those pages are active that the rules allow, whatever the lists say.
    let active = |ids: &[CodePageId]| {
        let found = ids.iter().filter(|id| setup.pages.found(id.0).is_some());
        found.count()
    };
    assert_eq!(active(&ids), model.active.len());
    assert!(active(&ids) <= setup.pages.active.iter().sum());
}

fn check_targets(setup: &Setup, model: &Model, slides: &[u64], link_page: impl Fn(usize) -> u64) {
    let rip = |&(index, _): &(usize, u64), offset: u64| {
        ((link_page(index) + slides[index]) << 12) + offset
    };
    for (key, &offset) in &model.targets {
        let rip = rip(key, offset);
        let found = setup.address(rip);
        if !model.active.contains_key(&key.0) {
            assert_ne!(found, Some(key.1), "page {} is inactive", key.0);
        } else {
            assert_eq!(found, Some(key.1), "page {}", key.0);
        }
    }
}
