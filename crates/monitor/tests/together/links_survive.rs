//! Tests that links from page to page become active again with their address space, and never lead
//! where the guest's page tables do not lead now.

use crate::support::long_mode::spaces::{
    PAGE, entry, make_empty_space, map, run_kernel, start, table, unmap,
};
use crate::support::long_mode::{Bench, CODE, caught, guest_code, vcpu};
use tollgate_engine::stored::StoredTranslations;
use tollgate_exits::ExitKind;
use tollgate_test_support::Computer;
use tollgate_x86::PhysicalAddress;

/// Physical pages: the program, and two pages of functions, of which one follows the program.
const PROGRAM: u64 = 0x40_0000;
const FUNCTIONS: [u64; 2] = [0x41_0000, 0x42_0000];
/// The numbers that the two functions add.
const ADDED: [u8; 2] = [1, 16];
/// Addresses of the program: near the end of the lower half, where code is translated for its
/// address, and two where code is relocatable.
const PLACES: [u64; 3] = [0x7fff_8765_4000, 0x7f12_3456_7000, 0x5555_5678_9000];
/// Addresses of the kernel's programs.
const INVLPG: u64 = CODE;
const LOAD_CR3: u64 = CODE + 0x10;
const TOGGLE_GLOBAL_PAGES: u64 = CODE + 0x20;
/// Bits of entries in page tables.
const USER: u64 = 1 << 2;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;

fn kernel() -> &'static [u8] {
    guest_code!(
        kernel,
        "2:",
        "invlpg [rdi]",
        "out 0xf4, al",
        ".skip 0x10 - (. - 2b), 0xcc",
        "mov cr3, rdi",
        "out 0xf4, al",
        ".skip 0x20 - (. - 2b), 0xcc",
        "mov rax, cr4",
        "xor eax, 0x80",
        "mov cr4, rax",
        "xor eax, 0x80",
        "mov cr4, rax",
        "out 0xf4, al",
    )
}

/// Calls the function three times directly and three times indirectly, and ends after it.
fn program() -> &'static [u8] {
    guest_code!(
        survivor,
        "xor r8d, r8d",
        "mov ebp, 3",
        "2:",
        "call tollgate_test_survivor_start + 0x1000",
        "lea rdx, [rip + tollgate_test_survivor_start + 0x1000]",
        "call rdx",
        "dec ebp",
        "jnz 2b",
        "jmp tollgate_test_survivor_start + 0x1100",
    )
}

fn prepared() -> Computer<Bench> {
    vcpu(kernel(), |state, memory| {
        memory.write(PhysicalAddress(PROGRAM), program());
        for (page, added) in FUNCTIONS.into_iter().zip(ADDED) {
            // add r8d,ADDED; ret, and out 0xf4,al
            let function = [0x41, 0x83, 0xc0, added, 0xc3];
            memory.write(PhysicalAddress(page), &function);
            memory.write(PhysicalAddress(page + 0x100), &[0xe6, 0xf4]);
        }
        for space in 0..3 {
            make_empty_space(memory, space);
        }
        state.efer |= 1 << 11;
        state.cr3 = table(0);
    })
}

/// Runs the program with these functions in the page that follows.
fn run(vcpu: &mut Computer<Bench>, linear: u64, functions: usize) {
    start(vcpu, linear);
    assert_eq!(vcpu.state().rip, linear + PAGE + 0x102, "{}", vcpu.dump());
    assert_eq!(vcpu.state().gpr[8], 6 * u64::from(ADDED[functions]));
}

/// Runs the program, which must fault where the functions begin, or at its first instruction.
fn run_into_fault(vcpu: &mut Computer<Bench>, linear: u64) {
    start(vcpu, linear);
    let caught = caught(vcpu);
    assert_eq!(caught.vector, 14, "{}", vcpu.dump());
    assert_eq!(caught.at.wrapping_add(CODE), linear + PAGE);
}

fn load(vcpu: &mut Computer<Bench>, space: u64) {
    run_kernel(vcpu, LOAD_CR3, table(space));
}

#[test]
fn a_space_that_comes_back_finds_its_links() {
    for linear in PLACES {
        let mut vcpu = prepared();
        for space in 0..2 {
            let pages = [PROGRAM, FUNCTIONS[0]];
            map(vcpu.memory_mut(), space, linear, &pages);
        }
        // The first run in a space may fault where it accesses memory directly, and resume in the
        // middle.
        for space in [0, 1, 0, 1] {
            load(&mut vcpu, space);
            run(&mut vcpu, linear, 0);
        }
        let links = vcpu.counts().engine.links;
        for _ in 0..5 {
            for space in [0, 1] {
                load(&mut vcpu, space);
                run(&mut vcpu, linear, 0);
            }
        }
        assert_eq!(vcpu.counts().engine.links, links, "at {linear:x}");
    }
}

/// The number of misses of branches between pages so far.
fn misses(vcpu: &Computer<Bench>) -> u64 {
    let counts = vcpu.exit_counts();
    counts.get(ExitKind::LinkMiss) + counts.get(ExitKind::IndirectMiss)
}

#[test]
fn a_page_comes_back_with_one_near_it_that_is_met() {
    for linear in PLACES {
        let mut vcpu = prepared();
        for space in 0..2 {
            let pages = [PROGRAM, FUNCTIONS[0]];
            map(vcpu.memory_mut(), space, linear, &pages);
        }
        // The first run in a space may fault where it accesses memory directly, and resume in the
        // middle.
        for space in [0, 1, 0, 1] {
            load(&mut vcpu, space);
            run(&mut vcpu, linear, 0);
        }
        let before = misses(&vcpu);
        for space in [0, 1, 0, 1] {
            load(&mut vcpu, space);
            run(&mut vcpu, linear, 0);
        }
        assert_eq!(misses(&vcpu), before, "at {linear:x}");
    }
}

#[test]
fn looking_ahead_leaves_the_accessed_bit_to_the_first_fetch() {
    const ACCESSED: u64 = 1 << 5;
    const END: u64 = 0x800;
    for linear in PLACES {
        let mut vcpu = prepared();
        let memory = vcpu.memory_mut();
        map(memory, 0, linear, &[PROGRAM, FUNCTIONS[0]]);
        // out 0xf4,al
        memory.write(PhysicalAddress(PROGRAM + END), &[0xe6, 0xf4]);
        load(&mut vcpu, 0);
        run(&mut vcpu, linear, 0);
        for _ in 0..3 {
            let place = entry(vcpu.memory_mut(), 0, linear + PAGE);
            let accessed = vcpu.memory_mut().read_u64(place);
            assert_ne!(accessed & ACCESSED, 0);
            let unused = accessed & !ACCESSED;
            vcpu.memory_mut().write_u64(place, unused);
            load(&mut vcpu, 0);
            start(&mut vcpu, linear + END);
            assert_eq!(vcpu.memory_mut().read_u64(place), unused);
            run(&mut vcpu, linear, 0);
            assert_eq!(vcpu.memory_mut().read_u64(place), accessed);
        }
    }
}

#[test]
fn a_new_space_finds_the_links_of_a_library_that_it_maps_elsewhere() {
    let mut vcpu = prepared();
    for (space, linear) in (0..).zip(PLACES) {
        map(vcpu.memory_mut(), space, linear, &[PROGRAM, FUNCTIONS[0]]);
    }
    load(&mut vcpu, 1);
    run(&mut vcpu, PLACES[1], 0);
    load(&mut vcpu, 0);
    let links = vcpu.counts().engine.links;
    load(&mut vcpu, 2);
    run(&mut vcpu, PLACES[2], 0);
    assert_eq!(vcpu.counts().engine.links, links);
}

#[test]
fn two_spaces_with_other_code_at_one_address_run_their_own() {
    for linear in PLACES {
        let mut vcpu = prepared();
        for (space, function) in (0..).zip(FUNCTIONS) {
            map(vcpu.memory_mut(), space, linear, &[PROGRAM, function]);
        }
        for _ in 0..4 {
            for space in [0, 1, 1, 0] {
                load(&mut vcpu, space);
                run(&mut vcpu, linear, space as usize);
                run(&mut vcpu, linear, space as usize);
            }
        }
    }
}

#[test]
fn a_page_that_leads_elsewhere_now_runs_what_is_there() {
    for linear in PLACES {
        for invalidates in [INVLPG, LOAD_CR3, TOGGLE_GLOBAL_PAGES] {
            let mut vcpu = prepared();
            map(vcpu.memory_mut(), 0, linear, &[PROGRAM]);
            load(&mut vcpu, 0);
            for round in 0..6 {
                let functions = round % 2;
                let page = FUNCTIONS[functions];
                map(vcpu.memory_mut(), 0, linear + PAGE, &[page]);
                if invalidates == TOGGLE_GLOBAL_PAGES {
                    let entry = entry(vcpu.memory_mut(), 0, linear + PAGE);
                    vcpu.memory_mut().write_u64(entry, page | GLOBAL | 7);
                }
                let rdi = match invalidates {
                    LOAD_CR3 => table(0),
                    _ => linear + PAGE,
                };
                run_kernel(&mut vcpu, invalidates, rdi);
                run(&mut vcpu, linear, functions);
                run(&mut vcpu, linear, functions);
            }
        }
    }
}

#[test]
fn a_page_that_may_not_be_run_now_faults_until_it_may_again() {
    for linear in PLACES {
        for invalidates in [INVLPG, LOAD_CR3] {
            let mut vcpu = prepared();
            map(vcpu.memory_mut(), 0, linear, &[PROGRAM, FUNCTIONS[0]]);
            load(&mut vcpu, 0);
            run(&mut vcpu, linear, 0);
            let rdi = match invalidates {
                LOAD_CR3 => table(0),
                _ => linear + PAGE,
            };
            let entry = entry(vcpu.memory_mut(), 0, linear + PAGE);
            let allowed = vcpu.memory_mut().read_u64(entry);
            for refused in [allowed | NO_EXECUTE, allowed & !USER, 0] {
                vcpu.memory_mut().write_u64(entry, refused);
                run_kernel(&mut vcpu, invalidates, rdi);
                run_into_fault(&mut vcpu, linear);
                vcpu.memory_mut().write_u64(entry, allowed);
                run_kernel(&mut vcpu, invalidates, rdi);
                run(&mut vcpu, linear, 0);
            }
            unmap(vcpu.memory_mut(), 0, linear + PAGE);
            run_kernel(&mut vcpu, invalidates, rdi);
            run_into_fault(&mut vcpu, linear);
        }
    }
}

#[test]
fn functions_that_were_written_are_not_brought_back() {
    for linear in PLACES {
        let mut vcpu = prepared();
        map(vcpu.memory_mut(), 0, linear, &[PROGRAM, FUNCTIONS[0]]);
        for round in 0..6_u8 {
            load(&mut vcpu, 1);
            let added = PhysicalAddress(FUNCTIONS[0] + 3);
            vcpu.memory_mut().write(added, &[round]);
            load(&mut vcpu, 0);
            start(&mut vcpu, linear);
            assert_eq!(vcpu.state().gpr[8], 6 * u64::from(round));
        }
    }
}

/// The translations that a second run has made are taken only by runs that need them too.
#[test]
fn stored_translations_of_other_runs_wait_until_they_are_needed() {
    const ELSEWHERE: u64 = 0x800;
    let with_code = |stored: Option<Vec<u8>>| {
        let mut vcpu = prepared();
        vcpu.change_settings(|settings| settings.anchors = false);
        let memory = vcpu.memory_mut();
        // add r8d,7; out 0xf4,al
        let code = [0x41, 0x83, 0xc0, 7, 0xe6, 0xf4];
        memory.write(PhysicalAddress(PROGRAM + ELSEWHERE), &code);
        map(memory, 0, PLACES[1], &[PROGRAM, FUNCTIONS[0]]);
        if let Some(stored) = stored {
            let stored = StoredTranslations::open(Box::new(stored), 1, None).unwrap();
            assert!(vcpu.use_stored_translations(stored));
        }
        vcpu
    };
    let go_elsewhere = |vcpu: &mut Computer<Bench>| {
        let before = vcpu.state().gpr[8];
        start(vcpu, PLACES[1] + ELSEWHERE);
        assert_eq!(vcpu.state().gpr[8], before + 7);
    };
    let store = |vcpu: &Computer<Bench>| vcpu.store_translations(1, None).expect("there is room");
    let mut first = with_code(None);
    run(&mut first, PLACES[1], 0);
    let mut second = with_code(Some(store(&first)));
    run(&mut second, PLACES[1], 0);
    let of_program = second.counts().engine;
    assert!(of_program.brought > 4, "{of_program:?}");
    go_elsewhere(&mut second);
    let of_both = second.counts().engine;
    assert_eq!(of_both.brought, of_program.brought);
    assert!(of_both.translations > of_program.translations);
    let mut third = with_code(Some(store(&second)));
    run(&mut third, PLACES[1], 0);
    let before = third.counts().engine;
    assert_eq!(before.translations, of_program.translations, "{before:?}");
    go_elsewhere(&mut third);
    let after = third.counts().engine;
    assert!(after.brought > before.brought, "{before:?} {after:?}");
    assert_eq!(after.translations, before.translations);
    // A run that begins elsewhere takes what the second one has made, and nothing else.
    let mut fourth = with_code(Some(store(&third)));
    go_elsewhere(&mut fourth);
    let least = fourth.counts().engine;
    assert!(least.brought < before.brought, "{least:?} {before:?}");
    assert_eq!(least.translations, 0);
    run(&mut fourth, PLACES[1], 0);
}

/// A program at another address, whose code is in other physical pages, takes the translations of an
/// earlier one, with the links between its pages.
#[test]
fn stored_translations_move_with_the_contents_of_their_pages() {
    // Which of the machines of this process have anchors is a matter of chance, and their code is
    // other code.
    let without_anchors = || {
        let mut vcpu = prepared();
        vcpu.change_settings(|settings| settings.anchors = false);
        vcpu
    };
    let pages = [PROGRAM, FUNCTIONS[0]];
    let mut first = without_anchors();
    map(first.memory_mut(), 0, PLACES[1], &pages);
    run(&mut first, PLACES[1], 0);
    let translated = first.counts().engine.translations;
    let stored = first.store_translations(1, None).expect("there is room");
    for (linear, moved) in [(PLACES[1], 0), (PLACES[2], 0), (PLACES[1], 0x10_0000)] {
        let mut second = without_anchors();
        let memory = second.memory_mut();
        for from in pages {
            let mut page = [0; PAGE as usize];
            memory.read(PhysicalAddress(from), &mut page);
            memory.write(PhysicalAddress(from + moved), &page);
        }
        map(memory, 0, linear, &pages.map(|page| page + moved));
        let stored = StoredTranslations::open(Box::new(stored.clone()), 1, None).unwrap();
        assert!(second.use_stored_translations(stored));
        run(&mut second, linear, 0);
        let counts = second.counts().engine;
        assert!(counts.brought > 4, "at {linear:x}: {counts:?}");
        // Where an access faults for the first time, what follows it is translated as a block of its
        // own, and so is one instruction that is run alone.
        assert!(
            counts.translations < translated,
            "at {linear:x}: {counts:?} after {translated}"
        );
        assert!(misses(&second) < misses(&first), "{}", misses(&second));
    }
}
