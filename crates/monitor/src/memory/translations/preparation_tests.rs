//! Tests what is done ahead of a change of translations, and where that work stops.

use super::*;
use std::cell::Cell;
use tollgate_engine::blocks::links::LinkTables;
use tollgate_tlb::{Stores, View};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{PathStep, Translation, WalkPath};
use tollgate_x86::{CpuState, Cr4, Efer, LinearAddress, PhysicalAddress};

const LARGE: u64 = 2 << 20;
const LINEAR: u64 = 0x4000_0000;
const HOST: u64 = 0x7000_0000_0000;

/// Page tables in which all entries have one value, which can be changed.
struct Tables(Cell<u64>);

impl PageTableMemory for Tables {
    fn read_u32(&mut self, address: PhysicalAddress) -> u32 {
        self.read_u64(address) as u32
    }

    fn read_u64(&mut self, _: PhysicalAddress) -> u64 {
        self.0.get()
    }

    fn set_bits(&mut self, _: PhysicalAddress, _: u32) {}
}

struct Bench {
    state: CpuState,
    translations: Translations,
    links: LinkTables,
    tables: Tables,
    /// The number of checkpoints passed.
    passed: Cell<u32>,
}

impl Bench {
    fn new() -> Self {
        let mut state = CpuState::at_reset();
        state.cr3 = 0x7000;
        state.cr4 |= Cr4::PAE.bits();
        state.efer |= (Efer::LME | Efer::LMA).bits();
        let mut bench = Self {
            state,
            translations: Translations::new().unwrap(),
            links: LinkTables::new().unwrap(),
            tables: Tables(Cell::new(0x5027)),
            passed: Cell::new(0),
        };
        bench.make(TranslationChange::Everything);
        bench
    }

    /// Fills `pages` pages from [`LINEAR`] on, which lie in guest pages of size `page_size`.
    fn fill(&mut self, pages: u64, page_size: u64) {
        for page in 0..pages {
            let step = PathStep {
                address: PhysicalAddress(0x9000 + page * 8),
                entry: self.tables.0.get(),
                shift: page_size.trailing_zeros() as u8,
            };
            let translation = Translation {
                physical: PhysicalAddress(page * PAGE_SIZE),
                page_size,
                writable_now: true,
                user: false,
                keeping: Default::default(),
                global: false,
                path: WalkPath::new(&[step], true),
            };
            let linear = LinearAddress(LINEAR + page * PAGE_SIZE);
            let target = (HOST + page * PAGE_SIZE, Stores::Always);
            let (state, view) = (&self.state, View::Supervisor);
            self.translations
                .fill(state, view, linear, &translation, target);
        }
    }

    /// How many of the first `pages` pages are known.
    fn known(&self, pages: u64) -> usize {
        let is_known = |page: &u64| {
            let linear = LinearAddress(LINEAR + page * PAGE_SIZE);
            let (state, view) = (&self.state, View::Supervisor);
            self.translations
                .look_up(state, view, false, linear)
                .is_some()
        };
        (0..pages).filter(is_known).count()
    }

    fn loaded(&self) -> Space {
        Space::loaded(&self.state)
    }

    fn page(&self, index: u64) -> TranslationChange {
        let linear = LinearAddress(LINEAR + index * PAGE_SIZE);
        TranslationChange::page(self.loaded(), linear)
    }

    fn range(&self, pages: u64) -> TranslationChange {
        TranslationChange::Pages {
            space: self.loaded(),
            first: LinearAddress(LINEAR),
            last: LinearAddress(LINEAR + (pages - 1) * PAGE_SIZE),
        }
    }

    /// Prepares a change that is asked to stop at each checkpoint.
    fn prepare(&mut self, change: TranslationChange) -> bool {
        let loaded = self.loaded();
        let passed = &self.passed;
        let stops = || {
            passed.set(passed.get() + 1);
            true
        };
        let (links, tables) = (&mut self.links, &mut self.tables);
        self.translations
            .prepare(loaded, change, links, tables, stops)
    }

    fn make(&mut self, change: TranslationChange) {
        if let TranslationChange::Load { to, .. } = change {
            self.state.cr3 = to.tables.unwrap().0;
        }
        let loaded = self.loaded();
        let (links, tables) = (&mut self.links, &mut self.tables);
        self.translations.change(loaded, change, links, tables);
    }
}

#[test]
fn a_large_page_is_forgotten_bit_by_bit_and_stops_once() {
    let mut bench = Bench::new();
    bench.fill(512, LARGE);
    let change = bench.page(100);
    assert!(!bench.prepare(change));
    let known = bench.known(512);
    assert!(
        (1..512 - BETWEEN_CHECKPOINTS + 1).contains(&known),
        "{known}"
    );
    // The interrupt handler has used some of the pages again.
    bench.fill(8, LARGE);
    assert!(bench.prepare(change));
    bench.make(change);
    assert_eq!(bench.known(512), 0);
    assert_eq!(bench.passed.get(), 1);
}

#[test]
fn a_range_is_forgotten_bit_by_bit() {
    let mut bench = Bench::new();
    bench.fill(200, PAGE_SIZE);
    let change = bench.range(180);
    assert!(!bench.prepare(change));
    assert_eq!(bench.known(200), 200 - BETWEEN_CHECKPOINTS);
    assert!(bench.prepare(change));
    bench.make(change);
    assert_eq!(bench.known(200), 20);
}

#[test]
fn what_is_short_has_no_points() {
    let mut bench = Bench::new();
    bench.fill(BETWEEN_CHECKPOINTS as u64, PAGE_SIZE);
    let changes = [bench.page(3), bench.range(BETWEEN_CHECKPOINTS as u64)];
    for change in changes {
        assert!(bench.prepare(change));
    }
    assert_eq!(bench.known(BETWEEN_CHECKPOINTS as u64), BETWEEN_CHECKPOINTS);
    assert_eq!(bench.passed.get(), 0);
}

#[test]
fn a_load_that_stops_compares_anew_what_a_handler_may_have_written() {
    for is_written in [false, true] {
        let mut bench = Bench::new();
        let pages = 4 * BETWEEN_CHECKPOINTS as u64;
        bench.fill(pages, PAGE_SIZE);
        let (one, other) = (bench.loaded(), Space::of_cr3(&bench.state, 0x8000));
        let load = |from, to| TranslationChange::Load {
            from,
            to,
            keeps: false,
        };
        bench.make(load(one, other));
        assert!(!bench.prepare(load(other, one)));
        if is_written {
            bench.tables.0.set(0);
        }
        assert!(bench.prepare(load(other, one)));
        bench.make(load(other, one));
        let expected = if is_written { 0 } else { pages };
        assert_eq!(bench.known(pages), expected as usize);
    }
}

#[test]
fn what_was_compared_serves_the_load_that_it_was_compared_for() {
    let mut bench = Bench::new();
    bench.fill(8, PAGE_SIZE);
    let (one, other) = (bench.loaded(), Space::of_cr3(&bench.state, 0x8000));
    let load = |from, to| TranslationChange::Load {
        from,
        to,
        keeps: false,
    };
    bench.make(load(one, other));
    // The comparison was made for another load, so this load examines the tables itself.
    assert!(bench.prepare(load(other, one)));
    bench.make(TranslationChange::Space(other));
    bench.tables.0.set(0);
    bench.make(load(other, one));
    assert_eq!(bench.known(8), 0);
}

#[test]
fn nothing_else_stops_until_what_has_stopped_is_done() {
    let mut bench = Bench::new();
    bench.fill(512, LARGE);
    let stopped = bench.page(0);
    assert!(!bench.prepare(stopped));
    let other = bench.range(200);
    assert!(bench.prepare(other));
    assert!(bench.prepare(stopped));
    assert!(!bench.prepare(other));
}
