use super::*;
use crate::LookUpFor;
use std::collections::HashMap;

const HOST: u64 = 0x7000_0000_0000;
const KERNEL: u64 = 0xffff_8880_0000_0000;

fn entry(linear: u64, host_page: u64, global: bool) -> Entry {
    Entry {
        linear: LinearAddress(linear),
        host_page,
        stores: Stores::Always,
        global,
    }
}

/// The value that generated code would load for an access, computed in the same steps.
fn generated(tlb: &LongTlb, view: View, table: Table, linear: u64, size: u64) -> u64 {
    let r14 = tlb.table(view);
    let shifted = |value: u64, count: u64| (value as i64) >> (count & 63);
    let r9 = shifted(linear, 12).wrapping_add(shifted(linear.wrapping_add(size - 1), 12));
    let root = r14.wrapping_add_signed(i64::from(LONG_ROOT_DISPLACEMENT));
    let pointer = root.wrapping_add_signed(shifted(linear, r14) * 8) as *const u64;
    // SAFETY: the tests give canonical addresses, whose parts the root covers.
    let part = unsafe { pointer.read() };
    let displacement = match table {
        Table::Read => 0,
        Table::Write => i64::from(LONG_WRITE_DISPLACEMENT),
        Table::CodeWrite => 2 * i64::from(LONG_CODE_WRITE_STEP),
    };
    let slot = part
        .wrapping_add_signed(r9 * 8)
        .wrapping_add_signed(displacement) as *const u64;
    // SAFETY: a pointer of the root leads to tables that hold all slots of its part.
    unsafe { slot.read() }
}

#[test]
fn generated_code_finds_nothing_in_tables_that_were_never_filled() {
    let tlb = LongTlb::new().unwrap();
    for linear in [0, 0x5000, 0x7fff_ffff_ffff, 0xffff_8000_0000_0000, u64::MAX] {
        for view in View::ALL {
            for table in Table::ALL {
                assert_eq!(generated(&tlb, view, table, linear, 1), 0, "{linear:x}");
                assert_eq!(generated(&tlb, view, table, linear, 16), 0, "{linear:x}");
            }
        }
    }
}

#[test]
fn pages_side_by_side_are_one_but_for_those_at_4_gib() {
    let mut tlb = LongTlb::new().unwrap();
    for order in [[0, 1], [1, 0]] {
        tlb.drop_everything();
        for first in [0xffff_f000, 0x1_ffff_f000] {
            for page in order {
                let page = page * PAGE_SIZE;
                tlb.fill(View::User, entry(first + page, HOST + page, false));
            }
        }
        for table in [Table::Read, Table::Write] {
            let found = |linear| generated(&tlb, View::User, table, linear, 4) != 0;
            assert!(found(0x1_ffff_fffe) && found(0xffff_fffc) && found(0x1_0000_0000));
            assert!(!found(0xffff_fffe));
        }
    }
}

#[test]
fn the_low_bits_of_the_tables_address_are_the_shift_of_its_index() {
    let tlb = LongTlb::new().unwrap();
    for view in View::ALL {
        assert_eq!(tlb.table(view) & 63, 39);
    }
}

#[test]
fn a_page_of_either_half_is_found_by_generated_code_in_its_own_view_only() {
    let mut tlb = LongTlb::new().unwrap();
    for linear in [
        0x5000,
        0x7fff_ffff_f000,
        0xffff_8000_0000_0000,
        KERNEL,
        0xffff_ffff_ffff_f000,
    ] {
        tlb.fill(View::User, entry(linear, HOST, false));
        let delta = HOST.wrapping_sub(linear);
        assert_eq!(
            generated(&tlb, View::User, Table::Read, linear + 0xff8, 8),
            delta
        );
        assert_eq!(
            generated(&tlb, View::User, Table::Write, linear + 0xff8, 8),
            delta
        );
        assert_eq!(generated(&tlb, View::User, Table::CodeWrite, linear, 8), 0);
        assert_eq!(generated(&tlb, View::Supervisor, Table::Read, linear, 8), 0);
        assert_eq!(
            tlb.look_up(View::User, true, LinearAddress(linear + 0x123)),
            Some(HOST + 0x123)
        );
    }
}

#[test]
fn an_access_beyond_the_last_canonical_byte_finds_nothing() {
    let mut tlb = LongTlb::new().unwrap();
    tlb.fill(View::User, entry(0x7fff_ffff_f000, HOST, false));
    tlb.fill(
        View::User,
        entry(0xffff_8000_0000_0000, HOST + 0x1000, false),
    );
    assert_eq!(
        generated(&tlb, View::User, Table::Read, 0x7fff_ffff_fffc, 8),
        0
    );
    assert!(!tlb.allows(
        View::User,
        LookUpFor::Load,
        LinearAddress(0x7fff_ffff_fffc),
        8
    ));
}

#[test]
fn an_access_that_wraps_to_address_zero_finds_nothing() {
    let mut tlb = LongTlb::new().unwrap();
    tlb.fill(View::User, entry(0xffff_ffff_ffff_f000, HOST, false));
    tlb.fill(View::User, entry(0, HOST + 0x1000, false));
    assert_eq!(generated(&tlb, View::User, Table::Read, u64::MAX - 3, 8), 0);
    assert!(!tlb.allows(View::User, LookUpFor::Load, LinearAddress(u64::MAX - 3), 8));
}

#[test]
fn an_access_across_two_parts_finds_nothing() {
    let mut tlb = LongTlb::new().unwrap();
    tlb.fill(View::User, entry((1 << 39) - 0x1000, HOST, false));
    tlb.fill(View::User, entry(1 << 39, HOST + 0x1000, false));
    assert_eq!(
        generated(&tlb, View::User, Table::Read, (1 << 39) - 4, 8),
        0
    );
    assert_ne!(generated(&tlb, View::User, Table::Read, 1 << 39, 8), 0);
}

#[test]
fn straddling_is_allowed_only_between_neighbours_in_host_memory() {
    let mut tlb = LongTlb::new().unwrap();
    tlb.fill(View::User, entry(KERNEL + 0x5000, HOST, false));
    tlb.fill(View::User, entry(KERNEL + 0x6000, HOST + 0x1000, false));
    tlb.fill(View::User, entry(KERNEL + 0x7000, HOST + 0x9000, false));
    let straddling = |tlb: &LongTlb, page| generated(tlb, View::User, Table::Read, page - 1, 2);
    assert_ne!(straddling(&tlb, KERNEL + 0x6000), 0);
    assert_eq!(straddling(&tlb, KERNEL + 0x7000), 0);
    tlb.drop_pages(PageRange::of(LinearAddress(KERNEL + 0x6000)));
    assert_eq!(straddling(&tlb, KERNEL + 0x6000), 0);
}

#[test]
fn global_entries_survive_an_address_space_switch() {
    let mut tlb = LongTlb::new().unwrap();
    let found = |tlb: &LongTlb, linear| {
        tlb.look_up(View::Supervisor, false, LinearAddress(linear))
            .is_some()
    };
    tlb.fill(View::Supervisor, entry(KERNEL, HOST, true));
    tlb.fill(View::Supervisor, entry(0x1000, HOST, false));
    tlb.drop_local();
    assert!(found(&tlb, KERNEL));
    assert!(!found(&tlb, 0x1000));
    tlb.drop_everything();
    assert!(!found(&tlb, KERNEL));
}

#[test]
fn a_page_that_turns_local_is_cleared_by_a_switch() {
    let mut tlb = LongTlb::new().unwrap();
    tlb.fill(View::User, entry(0x5000, HOST, true));
    tlb.drop_pages(PageRange::of(LinearAddress(0x5000)));
    tlb.fill(View::User, entry(0x5000, HOST, false));
    tlb.drop_local();
    assert_eq!(tlb.look_up(View::User, false, LinearAddress(0x5000)), None);
}

#[test]
fn a_range_of_pages_is_dropped_in_both_views_and_no_page_beside_it() {
    // The second range is long enough to be searched for among the filled pages.
    for count in [2, 1 << 18] {
        let mut tlb = LongTlb::new().unwrap();
        // The range lies across two parts.
        let first = (KERNEL >> 39 << 39) + (1 << 39) - 0x1000;
        let last = first + (count - 1) * PAGE_SIZE;
        let filled = [first - 0x1000, first, last, last + 0x1000];
        for linear in filled {
            tlb.fill(View::Supervisor, entry(linear, HOST, true));
            tlb.fill(View::User, entry(linear, HOST, false));
        }
        tlb.drop_pages(PageRange {
            first: first >> 12,
            last: last >> 12,
        });
        for view in View::ALL {
            let found = |linear| tlb.look_up(view, false, LinearAddress(linear)).is_some();
            assert_eq!(filled.map(found), [true, false, false, true]);
        }
    }
}

#[test]
fn protecting_a_page_leaves_stores_beside_code() {
    let mut tlb = LongTlb::new().unwrap();
    tlb.fill(View::Supervisor, entry(KERNEL, HOST, true));
    tlb.fill(View::User, entry(0x9000, HOST, false));
    for linear in [KERNEL, 0x9000] {
        tlb.protect(linear >> 12, HOST);
    }
    for (view, linear) in [(View::Supervisor, KERNEL), (View::User, 0x9000)] {
        let delta = HOST.wrapping_sub(linear);
        assert_eq!(generated(&tlb, view, Table::Read, linear, 4), delta);
        assert_eq!(generated(&tlb, view, Table::Write, linear, 4), 0);
        assert_eq!(generated(&tlb, view, Table::CodeWrite, linear, 4), delta);
        assert!(tlb.allows(view, LookUpFor::TestedStore, LinearAddress(linear), 4));
        assert!(!tlb.allows(view, LookUpFor::Store, LinearAddress(linear), 4));
    }
}

#[test]
fn an_address_that_is_not_canonical_is_never_filled() {
    let mut tlb = LongTlb::new().unwrap();
    for linear in [1 << 47, 0x8000_0000_0000_0000, 0xffff_7fff_ffff_f000] {
        tlb.fill(View::User, entry(linear, HOST, false));
        assert_eq!(tlb.look_up(View::User, false, LinearAddress(linear)), None);
    }
    assert_eq!(tlb.fills(), 0);
}

#[test]
fn every_root_is_surrounded_by_what_no_address_can_read() {
    let tlb = LongTlb::new().unwrap();
    let reach = 8i64 << (63 - PART_SHIFT);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for view in View::ALL {
        let root = tlb
            .table(view)
            .wrapping_add_signed(i64::from(LONG_ROOT_DISPLACEMENT));
        for (first, last) in [
            (root.wrapping_add_signed(-reach), root - 8 * 256 - 8),
            (root + 8 * 256, root.wrapping_add_signed(reach)),
        ] {
            let readable = maps.lines().find(|line| {
                let (range, rest) = line.split_once(' ').unwrap();
                let (start, end) = range.split_once('-').unwrap();
                let address = |text| u64::from_str_radix(text, 16).unwrap();
                address(start) <= last && first < address(end) && !rest.starts_with("---")
            });
            assert_eq!(
                readable, None,
                "readable memory next to the root at {root:x}"
            );
        }
    }
}

#[test]
fn a_guest_that_touches_pages_far_apart_cannot_have_unbounded_tables() {
    let mut tlb = LongTlb::new().unwrap();
    for part in -HALF..HALF {
        let linear = ((part << PART_SHIFT) as u64) + 0x1000;
        tlb.fill(View::User, entry(linear, HOST, false));
        assert!(tlb.parts_in_use <= MAX_PARTS);
        assert!(
            tlb.look_up(View::User, true, LinearAddress(linear))
                .is_some()
        );
    }
    for group in 0..u64::from(MAX_GROUPS) * 2 {
        tlb.fill(View::User, entry(group << 20, HOST, true));
        assert!(tlb.groups_in_use <= MAX_GROUPS);
    }
    for round in 0..MAX_LOG as u64 + 10 {
        tlb.fill(View::User, entry(0x1000, HOST + (round << 12), false));
        assert!(tlb.parts(View::User, 1).local.pages.len() <= MAX_LOG);
    }
}

#[test]
fn a_space_finds_its_own_pages_again_and_no_other_ones() {
    let mut tlb = LongTlb::new().unwrap();
    let found = |tlb: &LongTlb| generated(tlb, View::User, Table::Write, 0x7f00_0000_5000, 4);
    let delta = |host: u64| host.wrapping_sub(0x7f00_0000_5000);
    for number in 0..SPACES as u64 {
        tlb.load(SpaceNumber::new(number as usize), false);
        assert_eq!(found(&tlb), 0);
        let host = HOST + number * 0x1000;
        tlb.fill(View::User, entry(0x7f00_0000_5000, host, false));
    }
    for number in 0..SPACES as u64 {
        tlb.load(SpaceNumber::new(number as usize), true);
        let expected = match number {
            2 => 0,
            _ => delta(HOST + number * 0x1000),
        };
        assert_eq!(found(&tlb), expected);
        // A protected page is protected in all spaces.
        if number == 1 {
            tlb.protect(0x7f00_0000_5000 >> 12, HOST + 0x2000);
        }
        if number == 3 {
            tlb.drop_local();
            assert_eq!(found(&tlb), 0);
        }
    }
    tlb.load(SpaceNumber::new(0), true);
    assert_eq!(found(&tlb), delta(HOST));
    tlb.load(SpaceNumber::new(3), true);
    assert_eq!(found(&tlb), 0);
    tlb.load(SpaceNumber::new(0), false);
    assert_eq!(found(&tlb), 0);
}

#[test]
fn tables_of_other_spaces_are_given_back_before_those_of_the_loaded_one() {
    let mut tlb = LongTlb::new().unwrap();
    tlb.fill(View::Supervisor, entry(KERNEL, HOST, true));
    tlb.fill(View::User, entry(0x5000, HOST, false));
    tlb.load(SpaceNumber::new(1), false);
    tlb.fill(View::User, entry(0x6000, HOST, false));
    for part in 0..i64::from(MAX_PARTS) - 1 {
        tlb.fill(
            View::User,
            entry((part << PART_SHIFT) as u64 + 0x1000, HOST, false),
        );
    }
    let found =
        |tlb: &LongTlb, view, linear| tlb.look_up(view, true, LinearAddress(linear)).is_some();
    assert!(found(&tlb, View::User, 0x6000));
    assert!(found(&tlb, View::Supervisor, KERNEL));
    tlb.load(SpaceNumber::new(0), true);
    assert!(!found(&tlb, View::User, 0x5000));
}

#[test]
fn a_space_that_sleeps_long_does_without_its_tables_if_there_are_many() {
    let delta_of = |tlb: &mut LongTlb, space: usize| {
        tlb.load(SpaceNumber::new(space), true);
        generated(tlb, View::User, Table::Read, 0x5000, 4)
    };
    for groups in [u64::from(FEW_GROUPS) / 4, u64::from(FEW_GROUPS)] {
        let mut tlb = LongTlb::new().unwrap();
        for space in [1, 2, 3] {
            tlb.load(SpaceNumber::new(space), false);
            for group in 0..groups {
                let linear = 0x5000 + (group << 20);
                tlb.fill(View::User, entry(linear, HOST, false));
            }
        }
        let used_by_all = tlb.groups_in_use;
        for _ in 0..IDLE_LOADS {
            for space in [2, 3] {
                assert_ne!(delta_of(&mut tlb, space), 0);
            }
        }
        let are_many = used_by_all > FEW_GROUPS;
        assert_eq!(tlb.groups_in_use < used_by_all, are_many);
        assert_eq!(tlb.contradiction(), None);
        assert_eq!(delta_of(&mut tlb, 1) == 0, are_many);
        assert_eq!(tlb.contradiction(), None);
    }
}

/// Fills, invalidates and switches in random order, and compares the TLB with a plain map of pages.
#[test]
fn whatever_happens_generated_code_finds_only_what_was_filled_and_not_forgotten() {
    let mut seed = 0x1234_5678_9abc_def1u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) % below
    };
    let bases = [
        0,
        (1 << 39) - 0x4000,
        0x7fff_ffff_8000,
        KERNEL,
        0xffff_ffff_ffff_8000,
    ];
    let mut tlb = LongTlb::new().unwrap();
    // From (space of the lower half, view, page) to (host page, stores, global).
    let mut model: HashMap<(usize, usize, u64), (u64, Stores, bool)> = HashMap::new();
    let mut loaded = 0;
    let every = SPACES;
    let space_of = |loaded: usize, page: u64| if page >> 63 == 0 { loaded } else { every };
    for _ in 0..40_000 {
        let linear = bases[random(5) as usize] + random(8) * 0x1000;
        let view = View::ALL[random(2) as usize];
        match random(24) {
            0 => {
                tlb.drop_local();
                // An entry that was local before it became global may be forgotten with the local
                // ones.
                model.retain(|&(space, view, page), (_, _, global)| {
                    if space != loaded && space != every {
                        return true;
                    }
                    let left = tlb.look_up(View::ALL[view], false, LinearAddress(page));
                    assert!(*global || left.is_none());
                    left.is_some()
                });
            }
            1 if random(10) == 0 => {
                tlb.drop_everything();
                model.retain(|&(space, ..), _| space != loaded && space != every);
            }
            2 | 3 => {
                tlb.drop_pages(PageRange::of(LinearAddress(linear)));
                let space = space_of(loaded, linear);
                model.retain(|&(of, _, page), _| (of, page) != (space, linear));
            }
            20..24 => {
                let (left, to) = (loaded, random(4) as usize);
                let keeps = random(3) != 0;
                tlb.load(SpaceNumber::new(to), keeps);
                loaded = to;
                // No global entry is kept for a space, and in the upper half only global entries
                // are kept. A global page of the upper half may be gone if it was local once.
                model.retain(|&(space, view, page), (_, _, global)| match space {
                    _ if space == every => {
                        let left = tlb.look_up(View::ALL[view], false, LinearAddress(page));
                        assert!(*global || left.is_none());
                        left.is_some()
                    }
                    _ if space == left && *global => false,
                    _ => keeps || space != to,
                });
                // A page of a space may be gone if it was global once.
                model.retain(|&(space, view, page), _| {
                    let linear = LinearAddress(page);
                    space != to || tlb.look_up(View::ALL[view], false, linear).is_some()
                });
            }
            4 => {
                let host = HOST + random(8) * 0x1000;
                for page in bases.iter().flat_map(|&base| base >> 12..(base >> 12) + 8) {
                    tlb.protect(page, host);
                }
                for (_, stores, _) in model.values_mut().filter(|(at, ..)| *at == host) {
                    if *stores == Stores::Always {
                        *stores = Stores::BesideCode;
                    }
                }
            }
            _ => {
                let key = (space_of(loaded, linear), view as usize, linear);
                if model.contains_key(&key) {
                    continue;
                }
                let stores = [Stores::Never, Stores::BesideCode, Stores::Always];
                let stores = stores[random(3) as usize];
                let (host, global) = (HOST + random(8) * 0x1000, random(2) == 0);
                let filled = Entry {
                    stores,
                    ..entry(linear, host, global)
                };
                tlb.fill(view, filled);
                model.insert(key, (host, stores, global));
            }
        }
        let expected = |view: View, table: Table, page: u64| {
            let &(host, stores, _) = model.get(&(space_of(loaded, page), view as usize, page))?;
            let wanted = match table {
                Table::Read => true,
                Table::Write => stores == Stores::Always,
                Table::CodeWrite => stores == Stores::BesideCode,
            };
            wanted.then(|| host.wrapping_sub(page))
        };
        let page = bases[random(5) as usize] + random(8) * 0x1000;
        for view in View::ALL {
            for table in Table::ALL {
                let inside = generated(&tlb, view, table, page + 8, 8);
                assert_eq!(inside, expected(view, table, page).unwrap_or(0));
                let next = page.wrapping_add(0x1000);
                let straddling = generated(&tlb, view, table, page + 0xffc, 8);
                let both = expected(view, table, page)
                    .filter(|_| next >> PART_SHIFT == page >> PART_SHIFT)
                    .filter(|&delta| expected(view, table, next) == Some(delta));
                assert_eq!(straddling, both.unwrap_or(0), "{page:x}");
            }
        }
    }
}
