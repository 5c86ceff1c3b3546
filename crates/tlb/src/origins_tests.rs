use super::*;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::paging::WalkPath;

const KERNEL: u64 = 0xffff_8880_0000_0000;

fn leads_to(physical: u64, page_size: u64, global: bool) -> Translation {
    Translation {
        physical: PhysicalAddress(physical),
        page_size,
        writable_now: true,
        user: false,
        keeping: Default::default(),
        global,
        path: WalkPath::default(),
    }
}

fn note(origins: &mut Origins, linear: u64, physical: u64, page_size: u64, global: bool) {
    let translation = leads_to(physical, page_size, global);
    origins.note(LinearAddress(linear), &translation);
}

fn aliases(origins: &Origins, physical: u64) -> Vec<u64> {
    let mut pages: Vec<u64> = origins.leading_to(physical >> 12).collect();
    pages.sort_unstable();
    pages.dedup();
    pages
}

#[test]
fn an_invalidation_reaches_what_was_derived_from_the_large_page_once() {
    for size in LARGE_PAGES {
        for base in [0, KERNEL, 0x4000_0000, u64::MAX - (1 << 30) + 1] {
            let mut origins = Origins::default();
            let inside = [base, base + 0x4_5000, base + (size - 0x3000)];
            let pages = inside.map(|linear| linear >> 12).to_vec();
            for linear in inside {
                note(&mut origins, linear, 0x5000, size, true);
            }
            note(&mut origins, base + 0x7000, 0x5000, 4096, true);
            let beside = PageRange::of(LinearAddress(base.wrapping_add(size)));
            assert!(origins.invalidate(beside).is_empty());
            let within = PageRange::of(LinearAddress(base + 0x1000));
            assert!(origins.is_in_large_page(within.first));
            assert_eq!(origins.invalidate(within), pages);
            // A dropped page is not reported again until an entry is derived from it again.
            assert!(!origins.is_in_large_page(within.first));
            assert!(origins.invalidate(within).is_empty());
            note(&mut origins, inside[1], 0x5000, size, true);
            assert_eq!(origins.invalidate(within), [pages[1]]);
        }
    }
}

#[test]
fn the_largest_of_the_pages_that_hold_an_address_counts() {
    let mut origins = Origins::default();
    note(&mut origins, 0x4020_0000, 0, 2 << 20, false);
    note(&mut origins, 0x7fff_f000, 0, 1 << 30, false);
    let page = PageRange::of(LinearAddress(0x4020_1000));
    assert_eq!(origins.invalidate(page), [0x4_0200, 0x7_ffff]);
}

#[test]
fn a_range_reaches_the_large_pages_at_both_ends() {
    let mut origins = Origins::default();
    note(&mut origins, 0x20_0000, 0, 2 << 20, false);
    note(&mut origins, 0x60_0000, 0, 2 << 20, false);
    note(&mut origins, 0x7f_f000, 0, 2 << 20, true);
    let (first, last) = (0x3ff, 0x600);
    let mut derived = origins.invalidate(PageRange { first, last });
    derived.sort_unstable();
    assert_eq!(derived, [0x200, 0x600, 0x7ff]);
}

#[test]
fn pages_that_code_was_fetched_from_are_known_until_everything_is_dropped() {
    let mut origins = Origins::default();
    for linear in [0x5123, KERNEL + 0x7fff] {
        origins.note_code(LinearAddress(linear));
    }
    origins.drop_local();
    origins.load(SpaceNumber::new(1), false);
    let has_code = |origins: &Origins, linear: u64| origins.may_have_code(linear >> 12);
    assert!(has_code(&origins, 0x5000) && has_code(&origins, KERNEL + 0x7000));
    assert!(!has_code(&origins, 0x4fff) && !has_code(&origins, 0x6000));
    origins.drop_everything();
    assert!(!has_code(&origins, 0x5000));
}

#[test]
fn too_many_pages_with_code_are_too_many_notes() {
    let mut origins = Origins::default();
    for page in 0..u64::from(MAX_CODE_PAGES) {
        assert!(!origins.is_full());
        origins.note_code(LinearAddress(page << 12));
    }
    assert!(origins.is_full());
    origins.drop_everything();
    assert!(!origins.is_full());
}

#[test]
fn every_linear_page_that_leads_to_a_physical_page_is_found() {
    let mut origins = Origins::default();
    note(&mut origins, KERNEL + 0x5000, 0x5000, 1 << 30, true);
    note(&mut origins, 0x9123, 0x5fff, 4096, false);
    note(&mut origins, 0x9123, 0x6000, 4096, false);
    // Another physical page of the same chain.
    note(
        &mut origins,
        0xa000,
        0x5000 + (LOCAL_BUCKETS as u64) * 4096,
        4096,
        false,
    );
    assert_eq!(aliases(&origins, 0x5000), [9, (KERNEL >> 12) + 5]);
    assert_eq!(aliases(&origins, 0x6000), [9]);
    origins.drop_local();
    assert_eq!(aliases(&origins, 0x5000), [(KERNEL >> 12) + 5]);
    assert_eq!(aliases(&origins, 0x6000), [0; 0]);
    origins.drop_everything();
    assert_eq!(aliases(&origins, 0x5000), [0; 0]);
}

#[test]
fn a_page_that_is_noted_again_and_again_is_noted_once() {
    let mut origins = Origins::default();
    for _ in 0..10 {
        for linear in [0x1000, KERNEL, 0x2000, 0x3000] {
            note(&mut origins, linear, 0x5000, 4096, false);
        }
    }
    let local = origins.local[0].as_ref().unwrap();
    assert_eq!(local.map.notes.len(), 4);
}

#[test]
fn a_guest_with_many_pages_fills_the_notes_up_to_a_bound() {
    let mut origins = Origins::default();
    let mut notes = 0;
    while !origins.is_full() {
        note(
            &mut origins,
            notes << 12,
            (notes % 0x1000) << 12,
            4096,
            false,
        );
        notes += 1;
    }
    assert_eq!(notes, MAX_NOTES as u64);
    origins.drop_everything();
    assert!(!origins.is_full());
    while !origins.is_full() {
        note(&mut origins, notes << 21, 0, 2 << 20, true);
        notes += 1;
    }
    assert!(origins.global.large_pages.len() <= MAX_LARGE_PAGES);
    origins.drop_everything();
    assert!(!origins.is_full());
}

#[test]
fn a_large_page_of_one_space_is_known_when_the_same_addresses_were_invalidated_in_another() {
    let (one, other) = (SpaceNumber::new(1), SpaceNumber::new(2));
    let mut origins = Origins::default();
    let page = PageRange::of(LinearAddress(0x20_1000));
    for space in [one, other] {
        origins.load(space, false);
        note(&mut origins, 0x20_3000, 0x5000, 2 << 20, false);
    }
    assert_eq!(origins.invalidate(page), [0x203]);
    assert!(origins.invalidate(page).is_empty());
    origins.load(one, true);
    assert_eq!(origins.invalidate(page), [0x203]);
}

#[test]
fn what_leads_to_a_page_is_found_in_every_space_until_that_is_dropped() {
    let mut origins = Origins::default();
    for number in 0..3 {
        origins.load(SpaceNumber::new(number), false);
        let linear = 0x1000 * (number as u64 + 1);
        note(&mut origins, linear, 0x5000, 4096, false);
    }
    assert_eq!(aliases(&origins, 0x5000), [1, 2, 3]);
    assert_eq!(origins.leading_to_range(0, 0x1000), [1, 2, 3]);
    origins.load(SpaceNumber::new(1), true);
    assert_eq!(aliases(&origins, 0x5000), [1, 2, 3]);
    origins.drop_local();
    assert_eq!(aliases(&origins, 0x5000), [1, 3]);
    origins.load(SpaceNumber::new(0), false);
    assert_eq!(aliases(&origins, 0x5000), [3]);
    origins.drop_everything();
    assert_eq!(aliases(&origins, 0x5000), [0; 0]);
}

#[test]
fn what_was_derived_from_a_large_page_can_be_told_bit_by_bit() {
    for size in LARGE_PAGES {
        let mut origins = Origins::default();
        let pages: Vec<u64> = (0..400)
            .map(|index| (KERNEL >> 12) + index * 3 / 2)
            .collect();
        let pages: Vec<u64> = (pages.into_iter())
            .filter(|page| page - (KERNEL >> 12) < size >> 12)
            .collect();
        for (index, page) in pages.iter().enumerate() {
            // Some of the pages are global, and others are not.
            note(&mut origins, page << 12, 0x5000, size, index % 2 == 0);
        }
        let asked = PageRange::of(LinearAddress(KERNEL + 0x1000));
        let mut told: Vec<u64> = Vec::new();
        loop {
            let some = origins.invalidate_some(asked, 10);
            assert!(some.len() < 10 + 64, "{}", some.len());
            told.extend(&some);
            if some.len() < 10 {
                break;
            }
        }
        told.sort_unstable();
        assert_eq!(told, pages);
        assert!(!origins.is_in_large_page(asked.first));
        assert!(origins.invalidate(asked).is_empty());
    }
}
