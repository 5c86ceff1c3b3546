use super::*;
use crate::abi::link_layout::{MAX_SLOTS, ModeId};
use std::collections::BTreeMap;
use tollgate_test_support::Random;

fn in_mode_7(table: BranchTable) -> ModeTable {
    let mode = ModeId(7);
    ModeTable { mode, table }
}

/// The sum that emitted code computes for an entry, `choice` entries after the first one: zero if
/// the entry is that of the target.
fn sought(memory: &LinkMemory, rip: u64, mode: ModeTable, choice: u32) -> u64 {
    let tag = memory.read(entry_offset(rip, mode.table) + choice * ENTRY_BYTES as u32);
    let added = indirect_tag(mode.table, mode.mode);
    tag.wrapping_add(rip).wrapping_add(added)
}

/// The target that emitted code finds.
fn found(memory: &LinkMemory, rip: u64, mode: ModeTable) -> Option<u64> {
    let choice = (0..2).find(|&choice| sought(memory, rip, mode, choice) == 0)?;
    let offset = entry_offset(rip, mode.table) + choice * ENTRY_BYTES as u32;
    Some(memory.read(offset + ENTRY_TARGET as u32))
}

#[test]
fn a_far_target_is_found_by_its_pointer_and_family_until_its_block_dies() {
    let mut memory = LinkMemory::new().unwrap();
    let sought = |memory: &LinkMemory, pointer: FarPointer, family| {
        let tag = memory.read(far_entry_offset(pointer));
        let key = u64::from(pointer.packed());
        tag.wrapping_add(key).wrapping_add(far_tag_base(family))
    };
    let family = FamilyId(3);
    for (selector, ip) in [(0, 0), (0x1000, 5), (0xffff, 0xffff), (0xf000, 0xfff0)] {
        let pointer = FarPointer { selector, ip };
        assert_ne!(sought(&memory, pointer, family), 0);
        let offset = memory.fill_far(pointer, family, 0x1234);
        assert_eq!(sought(&memory, pointer, family), 0);
        assert_ne!(sought(&memory, pointer, FamilyId(4)), 0);
        // Another selector may lead to the same linear address.
        let other = FarPointer {
            selector: selector ^ 1,
            ip: ip ^ 0x10,
        };
        assert_ne!(sought(&memory, other, family), 0);
        memory.empty_far(pointer, 0x4321);
        assert_eq!(sought(&memory, pointer, family), 0);
        memory.empty_far(pointer, 0x1234);
        assert_ne!(sought(&memory, pointer, family), 0);
        memory.fill_far(pointer, family, 0x1234);
        memory.empty(Entry::Far(offset));
        assert_ne!(sought(&memory, pointer, family), 0);
    }
}

#[test]
fn no_target_is_found_in_an_empty_entry() {
    let mut memory = LinkMemory::new().unwrap();
    for table in [
        BranchTable::Shared,
        BranchTable::SharedByPrograms,
        BranchTable::Own(0),
        BranchTable::Own(63),
        BranchTable::Own(64),
        BranchTable::Own(159),
    ] {
        memory.prepare(table);
        let mode = in_mode_7(table);
        let mut rips = vec![
            0,
            1,
            0xfffe,
            0xffff,
            0xf_fffc,
            0xf_ffff,
            0x10_0000,
            0x7fff_fffe,
            0x7fff_ffff,
        ];
        if !table.is_shared() {
            rips.extend((0..8).map(|back| u64::MAX - back));
            rips.extend([0x7fff_ffff_ffff, u64::MAX - 0xf_ffff, u64::MAX - 0xf_fffe]);
        }
        for &rip in &rips {
            assert_eq!(found(&memory, rip, mode), None, "{rip:x}");
            let offset = memory.fill_indirect(rip, mode, Target::fixed(0x1234));
            for &other in &rips {
                let expected = (other == rip).then_some(0x1234);
                assert_eq!(found(&memory, other, mode), expected, "{rip:x} {other:x}");
            }
            match rip % 2 {
                0 => memory.empty_indirect(rip, table, 0x1234),
                _ => memory.empty(Entry::Indirect(offset)),
            }
            for &other in &rips {
                assert_eq!(found(&memory, other, mode), None, "{rip:x} {other:x}");
            }
        }
    }
}

#[test]
fn two_targets_with_the_same_first_choice_are_both_found() {
    let mut memory = LinkMemory::new().unwrap();
    for table in [BranchTable::Shared, BranchTable::Own(5)] {
        let mode = in_mode_7(table);
        let rips = [0x10_5678, 0x20_5679, 0x30_567b];
        for round in 0..6 {
            let rip = rips[round % 2];
            memory.fill_indirect(rip, mode, Target::fixed(rip));
            assert_eq!(
                sought(&memory, rip, mode, 0),
                0,
                "the target that was filled last is found first"
            );
        }
        assert_eq!(found(&memory, rips[0], mode), Some(rips[0]));
        assert_eq!(found(&memory, rips[1], mode), Some(rips[1]));
        // A third target replaces the one that was filled earlier of the first two.
        memory.fill_indirect(rips[2], mode, Target::fixed(rips[2]));
        assert_eq!(found(&memory, rips[0], mode), None);
        assert_eq!(found(&memory, rips[1], mode), Some(rips[1]));
        // The first entry of the neighbour is the second entry of these targets.
        memory.fill_indirect(0x567c, mode, Target::fixed(9));
        assert_eq!(found(&memory, rips[1], mode), None);
        assert_eq!(found(&memory, rips[2], mode), Some(rips[2]));
        assert_eq!(found(&memory, 0x567c, mode), Some(9));
        memory.empty(Entry::Indirect(entry_offset(0x5678, table)));
        assert_eq!(found(&memory, rips[2], mode), None);
        assert_eq!(found(&memory, 0x567c, mode), Some(9));
    }
}

/// A target that is found was filled last for its address and was not emptied since.
#[test]
fn nothing_is_found_that_was_emptied_or_filled_anew() {
    let mut random = Random::new(5);
    let mut memory = LinkMemory::new().unwrap();
    let table = BranchTable::Own(1);
    memory.prepare(table);
    let mode = in_mode_7(table);
    let rips: Vec<u64> = (0..64)
        .map(|index| (index / 8) << 20 | (0xf_fff0 + 3 * (index % 8)) & 0xf_ffff)
        .chain([u64::MAX, u64::MAX - 1, u64::MAX - 2])
        .collect();
    let mut filled = BTreeMap::new();
    let mut hits = 0;
    for step in 1..20_000 {
        let rip = random.pick(&rips);
        match random.below(8) {
            0 => {
                if let Some(target) = filled.remove(&rip) {
                    memory.empty_indirect(rip, table, target);
                }
            }
            1 => {
                memory.empty(Entry::Indirect(entry_offset(rip, table)));
                filled.retain(|&other: &u64, _| first_choice(other) != first_choice(rip));
            }
            _ => {
                // A block dies before another block takes its place.
                if let Some(target) = filled.insert(rip, step) {
                    memory.empty_indirect(rip, table, target);
                }
                memory.fill_indirect(rip, mode, Target::fixed(step));
                assert_eq!(found(&memory, rip, mode), Some(step));
            }
        }
        for &rip in &rips {
            let now = found(&memory, rip, mode);
            assert_eq!(now, memory.indirect(rip, mode).map(|it| it.address));
            assert!(now.is_none() || now == filled.get(&rip).copied(), "{rip:x}");
            hits += u32::from(now.is_some());
        }
    }
    assert!(hits > 20_000, "two targets are kept for each first entry");
}

#[test]
fn a_slot_leads_to_its_stub_or_so_far_from_it() {
    let mut memory = LinkMemory::new().unwrap();
    let (stub, slot) = (0x7000_1234_5678, 3);
    let leads_to = |memory: &LinkMemory| memory.read(slot_offset(slot) as u32);
    memory.set_stub(slot, stub);
    assert_eq!((leads_to(&memory), memory.slot(slot)), (stub, 0));
    memory.set_slot(slot, -0x1000_i64 as u64);
    assert_eq!(leads_to(&memory), stub - 0x1000);
    assert_eq!(memory.slot(slot) as i64, -0x1000);
    memory.empty(Entry::Slot(slot));
    assert_eq!(leads_to(&memory), stub);
    // The block of the slot's site moves.
    memory.set_slot(slot, 0x2000);
    memory.set_stub(slot, stub - 0x100);
    assert_eq!((leads_to(&memory), memory.slot(slot)), (stub - 0x100, 0));
}

#[test]
fn each_space_has_programs_slots_and_tables_of_its_own_and_all_have_the_rest_in_common() {
    let mut memory = LinkMemory::new().unwrap();
    let spaces = [0, 7, 3].map(SpaceNumber::new);
    let (programs, kernels) = (3, MAX_SLOTS as u32 + 3);
    let tables = [
        (BranchTable::SharedByPrograms, false),
        (BranchTable::Own(1), false),
        (BranchTable::Shared, true),
        (BranchTable::Own(64), true),
    ];
    // Some stubs and tables are set before the other spaces have tables, and some later.
    memory.set_stub(programs, 0x7000_0000);
    memory.prepare(BranchTable::Own(1));
    let bases = spaces.map(|space| {
        memory.load(space, |_| panic!("there is memory for tables"));
        memory.base()
    });
    memory.set_stub(kernels, 0x7000_1000);
    memory.set_stub(programs + 1, 0x7000_2000);
    for (index, space) in (1..).zip(spaces) {
        memory.load(space, |_| panic!("the space has tables"));
        assert_eq!(memory.base(), bases[index - 1]);
        let stubs = [programs, kernels, programs + 1].map(|slot| memory.slot(slot));
        assert_eq!(stubs, [0, if index == 1 { 0 } else { 77 }, 0]);
        memory.set_slot(programs, index as u64);
        memory.set_slot(kernels, 77);
        for (table, is_common) in tables {
            let mode = in_mode_7(table);
            assert_eq!(
                found(&memory, 0x1234, mode).is_some(),
                is_common && index > 1
            );
            // No target is found at the highest address of a table that was never written.
            let is_programs = is_programs_part(table_offset(table) as u32);
            assert!(!is_programs || found(&memory, u64::MAX, mode).is_none() || table.is_shared());
            memory.fill_indirect(0x1234, mode, Target::fixed(index as u64));
        }
    }
    for (index, space) in (1..).zip(spaces) {
        let tables = memory.of(Owner::Space(space)).unwrap();
        assert_eq!(tables.slot(programs), index);
        let own = tables.indirect(0x1234, in_mode_7(BranchTable::Own(1)));
        assert_eq!(own, Some(Target::fixed(index)));
    }
    memory.empty_slot(programs);
    memory.empty_slot(kernels);
    for space in spaces {
        let tables = memory.of(Owner::Space(space)).unwrap();
        assert_eq!([programs, kernels].map(|slot| tables.slot(slot)), [0, 0]);
    }
    assert!(memory.of(Owner::Space(SpaceNumber::new(1))).is_none());
}
