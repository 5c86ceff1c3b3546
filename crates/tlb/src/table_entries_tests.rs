use super::*;
use std::collections::HashMap;

#[derive(Default)]
struct Tables(HashMap<u64, u64>);

impl PageTableMemory for Tables {
    fn read_u32(&mut self, address: PhysicalAddress) -> u32 {
        self.read_u64(address) as u32
    }

    fn read_u64(&mut self, address: PhysicalAddress) -> u64 {
        self.0.get(&address.0).copied().unwrap_or(0)
    }

    fn set_bits(&mut self, address: PhysicalAddress, bits: u32) {
        *self.0.entry(address.0).or_default() |= u64::from(bits);
    }
}

/// Notes a page of 4 KiB of the loaded space, translated by the entries at these places with their
/// present values.
fn derive(entries: &mut TableEntries, tables: &mut Tables, linear: u64, places: [u64; 2]) {
    let steps = [(places[0], 21), (places[1], 12)].map(|(place, shift)| PathStep {
        address: PhysicalAddress(place),
        entry: tables.read_u64(PhysicalAddress(place)),
        shift,
    });
    note(entries, linear, WalkPath::new(&steps, true), false);
}

fn note(entries: &mut TableEntries, linear: u64, path: WalkPath, global: bool) {
    let translation = Translation {
        physical: PhysicalAddress(0x7000),
        page_size: PAGE_SIZE,
        writable_now: false,
        user: false,
        keeping: Default::default(),
        global,
        path,
    };
    entries.note(LinearAddress(linear), &translation);
}

/// Notes for two pages of the first space, in one table.
fn two_pages() -> (TableEntries, Tables) {
    let mut entries = TableEntries::default();
    let mut tables = Tables::default();
    for (place, entry) in [(0x1000, 0x2023), (0x2028, 0x7023), (0x2030, 0x8023)] {
        tables.0.insert(place, entry);
    }
    derive(&mut entries, &mut tables, 0x5000, [0x1000, 0x2028]);
    derive(&mut entries, &mut tables, 0x6000, [0x1000, 0x2030]);
    (entries, tables)
}

const FIRST: SpaceNumber = SpaceNumber::new(0);

fn page(number: u64) -> PageRange {
    PageRange::of(LinearAddress(number * PAGE_SIZE))
}

fn changed(pages: &[PageRange]) -> Comparison {
    Comparison::Changed(pages.to_vec())
}

#[test]
fn only_what_rests_on_an_entry_that_has_changed_is_void() {
    let (mut entries, mut tables) = two_pages();
    assert_eq!(entries.compare(FIRST, &mut tables), changed(&[]));
    tables.0.insert(0x2030, 0);
    assert_eq!(entries.compare(FIRST, &mut tables), changed(&[page(6)]));
    entries.forget(&[page(6)]);
    assert_eq!(entries.compare(FIRST, &mut tables), changed(&[]));
    tables.0.insert(0x1000, 0x3023);
    let all = PageRange {
        first: 0,
        last: 511,
    };
    let comparison = entries.compare(FIRST, &mut tables);
    assert_eq!(comparison, changed(&[all]));
    entries.count(FIRST, &comparison);
    entries.count(FIRST, &Comparison::Unknown);
    assert_eq!(entries.counts(), (2, 1));
}

#[test]
fn a_bit_that_a_walk_has_set_is_no_change_and_one_that_the_guest_has_cleared_is() {
    let (mut entries, mut tables) = two_pages();
    tables.set_bits(PhysicalAddress(0x2028), 0x40);
    derive(&mut entries, &mut tables, 0x5000, [0x1000, 0x2028]);
    assert_eq!(entries.compare(FIRST, &mut tables), changed(&[]));
    tables.0.insert(0x2028, 0x7003);
    assert_eq!(entries.compare(FIRST, &mut tables), changed(&[page(5)]));
    // The page was walked again, but data from the earlier walk may still exist.
    tables.set_bits(PhysicalAddress(0x2028), 0x20);
    derive(&mut entries, &mut tables, 0x5000, [0x1000, 0x2028]);
    assert_eq!(entries.compare(FIRST, &mut tables), changed(&[page(5)]));
}

#[test]
fn what_was_derived_from_two_versions_of_an_entry_is_void_unless_the_first_was_dropped() {
    for is_invalidated in [false, true] {
        let (mut entries, mut tables) = two_pages();
        tables.0.insert(0x2028, 0x9023);
        if is_invalidated {
            entries.drop_pages(page(5));
        }
        derive(&mut entries, &mut tables, 0x5000, [0x1000, 0x2028]);
        let expected = match is_invalidated {
            true => changed(&[]),
            false => changed(&[page(5)]),
        };
        assert_eq!(entries.compare(FIRST, &mut tables), expected);
        // The page is translated again, by another table.
        tables.0.insert(0x4028, 0x9023);
        derive(&mut entries, &mut tables, 0x5000, [0x1000, 0x4028]);
        assert_eq!(entries.compare(FIRST, &mut tables), changed(&[page(5)]));
    }
}

#[test]
fn spaces_have_entries_of_their_own_and_nothing_is_known_of_what_was_not_walked() {
    let (mut entries, mut tables) = two_pages();
    let second = SpaceNumber::new(1);
    entries.load(second, false);
    tables.0.insert(0x2028, 0);
    derive(&mut entries, &mut tables, 0x5000, [0x1000, 0x2028]);
    assert_eq!(entries.compare(second, &mut tables), changed(&[]));
    assert_eq!(entries.compare(FIRST, &mut tables), changed(&[page(5)]));
    note(&mut entries, 0x9000, WalkPath::default(), true);
    assert_eq!(entries.compare(second, &mut tables), changed(&[]));
    note(&mut entries, 0x9000, WalkPath::default(), false);
    assert_eq!(entries.compare(second, &mut tables), Comparison::Unknown);
    entries.load(FIRST, true);
    assert_eq!(entries.compare(FIRST, &mut tables), changed(&[page(5)]));
    entries.load(second, false);
    assert_eq!(entries.compare(second, &mut tables), changed(&[]));
}

#[test]
fn of_too_many_entries_or_changes_nothing_is_known() {
    for (pages, left, is_known) in [
        (MOST_ENTRIES as u64 - 8, 0, true),
        (MOST_ENTRIES as u64, 0, false),
        (1000, MOST_CHANGED as u64, true),
        (1000, MOST_CHANGED as u64 + 1, false),
    ] {
        let mut entries = TableEntries::default();
        let mut tables = Tables::default();
        for page in 0..pages {
            let place = 0x10_0000 + page * 8;
            tables.0.insert(place, page << 12 | 0x23);
            derive(
                &mut entries,
                &mut tables,
                page << 12 & 0x1f_ffff,
                [0x1000, place],
            );
            entries.drop_pages(PageRange::of(LinearAddress(page << 12 & 0x1f_ffff)));
            derive(
                &mut entries,
                &mut tables,
                0x4000_0000 + (page << 12),
                [0x8000, place],
            );
        }
        for page in 0..left {
            tables.0.insert(0x10_0000 + page * 8, 0);
        }
        let compared = entries.compare(FIRST, &mut tables);
        assert_eq!(compared != Comparison::Unknown, is_known, "{pages} {left}");
    }
}

#[test]
fn a_comparison_of_many_entries_can_stop_between_two_pieces() {
    let mut entries = TableEntries::default();
    let mut tables = Tables::default();
    let pages = 5 * FEW_ENTRIES as u64;
    for page in 0..pages {
        let place = 0x10_0000 + page * 8;
        tables.0.insert(place, page << 12 | 0x23);
        derive(&mut entries, &mut tables, page << 12, [0x1000, place]);
    }
    assert!(!entries.are_few(FIRST) && entries.are_few(SpaceNumber::new(1)));
    let whole = entries.compare(FIRST, &mut tables);
    for most in 0..8 {
        let mut asked = 0;
        let compared = entries.compare_unless(FIRST, &mut tables, || {
            asked += 1;
            asked > most
        });
        // The first entry covers all of the pages.
        assert_eq!(
            compared,
            Some(whole.clone()).filter(|_| most >= 5),
            "{most}"
        );
    }
}
