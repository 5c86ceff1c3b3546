//! Tests links to code whose first instruction lies in two pages: they become active again with an
//! address space as other links do, and never lead there if either page has changed.

use crate::support::long_mode::spaces::{
    PAGE, entry, make_empty_space, map, run_kernel, start, table, unmap,
};
use crate::support::long_mode::{Bench, CODE, caught, guest_code, vcpu};
use tollgate_exits::ExitKind;
use tollgate_test_support::Computer;
use tollgate_x86::PhysicalAddress;

/// Physical pages: the program, the page in which the function begins, and two pages in which it
/// may end.
const PROGRAM: u64 = 0x40_0000;
const BEGINNING: u64 = 0x41_0000;
const ENDS: [u64; 2] = [0x42_0000, 0x43_0000];
/// The number that the function adds, with each end.
const ADDED: [u8; 2] = [1, 16];
/// Addresses of the program: near the end of the lower half, where code is translated for its
/// address, and two where code is relocatable.
const PLACES: [u64; 3] = [0x7fff_8765_4000, 0x7f12_3456_7000, 0x5555_5678_9000];
/// Addresses of the kernel's programs.
const INVLPG: u64 = CODE;
const LOAD_CR3: u64 = CODE + 0x10;

fn kernel() -> &'static [u8] {
    guest_code!(
        straddling_kernel,
        "2:",
        "invlpg [rdi]",
        "out 0xf4, al",
        ".skip 0x10 - (. - 2b), 0xcc",
        "mov cr3, rdi",
        "out 0xf4, al",
    )
}

/// Calls the function three times directly and three times indirectly.
fn program() -> &'static [u8] {
    guest_code!(
        straddling_caller,
        "xor r8d, r8d",
        "mov ebp, 3",
        "2:",
        "call tollgate_test_straddling_caller_start + 0x1ffd",
        "lea rdx, [rip + tollgate_test_straddling_caller_start + 0x1ffd]",
        "call rdx",
        "dec ebp",
        "jnz 2b",
        "jmp tollgate_test_straddling_caller_start + 0x1100",
    )
}

/// Space 0 has the first end. Space 1 has `other_end`, which may be the other one.
fn prepared(linear: u64, other_end: usize) -> Computer<Bench> {
    vcpu(kernel(), |state, memory| {
        memory.write(PhysicalAddress(PROGRAM), program());
        // add r8d, and out 0xf4, al
        memory.write(PhysicalAddress(BEGINNING + 0xffd), &[0x41, 0x83, 0xc0]);
        memory.write(PhysicalAddress(BEGINNING + 0x100), &[0xe6, 0xf4]);
        for (page, added) in ENDS.into_iter().zip(ADDED) {
            // The operand; ret
            memory.write(PhysicalAddress(page), &[added, 0xc3]);
        }
        for (space, end) in [(0, 0), (1, other_end)] {
            make_empty_space(memory, space);
            map(memory, space, linear, &[PROGRAM, BEGINNING, ENDS[end]]);
        }
        state.cr3 = table(0);
    })
}

fn run(vcpu: &mut Computer<Bench>, linear: u64, end: usize) {
    start(vcpu, linear);
    assert_eq!(vcpu.state().rip, linear + PAGE + 0x102, "{}", vcpu.dump());
    assert_eq!(vcpu.state().gpr[8], 6 * u64::from(ADDED[end]));
}

fn load(vcpu: &mut Computer<Bench>, space: u64) {
    run_kernel(vcpu, LOAD_CR3, table(space));
}

#[test]
fn a_space_that_comes_back_finds_them() {
    for linear in PLACES {
        let mut vcpu = prepared(linear, 0);
        let round = |vcpu: &mut Computer<Bench>| {
            for space in [0, 1, 0, 1] {
                load(vcpu, space);
                run(vcpu, linear, 0);
            }
        };
        // The first run may fault where it accesses memory directly, and resume in the middle.
        round(&mut vcpu);
        let links = vcpu.counts().engine.links;
        assert!(links > 0);
        round(&mut vcpu);
        assert_eq!(vcpu.counts().engine.links, links, "at {linear:x}");
        assert_eq!(vcpu.exit_counts().get(ExitKind::GuestPageFault), 0);
    }
}

#[test]
fn spaces_with_different_ends_run_their_own() {
    for linear in PLACES {
        let mut vcpu = prepared(linear, 1);
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
fn an_end_that_is_another_one_now_is_what_runs() {
    for linear in PLACES {
        for invalidates in [INVLPG, LOAD_CR3] {
            let mut vcpu = prepared(linear, 0);
            let rdi = match invalidates {
                LOAD_CR3 => table(0),
                _ => linear + 2 * PAGE,
            };
            for round in 0..6 {
                map(vcpu.memory_mut(), 0, linear + 2 * PAGE, &[ENDS[round % 2]]);
                run_kernel(&mut vcpu, invalidates, rdi);
                run(&mut vcpu, linear, round % 2);
                run(&mut vcpu, linear, round % 2);
            }
            let place = entry(vcpu.memory_mut(), 0, linear + 2 * PAGE);
            let allowed = vcpu.memory_mut().read_u64(place);
            unmap(vcpu.memory_mut(), 0, linear + 2 * PAGE);
            run_kernel(&mut vcpu, invalidates, rdi);
            start(&mut vcpu, linear);
            let caught = caught(&mut vcpu);
            assert_eq!(caught.vector, 14, "{}", vcpu.dump());
            assert_eq!(caught.at.wrapping_add(CODE), linear + 2 * PAGE - 3);
            assert_eq!(vcpu.state().cr2, linear + 2 * PAGE);
            vcpu.memory_mut().write_u64(place, allowed);
            run_kernel(&mut vcpu, invalidates, rdi);
            run(&mut vcpu, linear, 1);
        }
    }
}
