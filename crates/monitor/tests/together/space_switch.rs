//! Tests loads of CR3 that keep what is known about the space: they need no exit, and the code that
//! runs afterwards is that of the new space.

use crate::support::fast_path_time::assert_timed_apart;
use crate::support::long_mode::spaces::{entry, make_empty_space, map, run_kernel, table};
use crate::support::long_mode::{Bench, CODE, guest_code, vcpu};
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_exits::ExitKind;
use tollgate_monitor::shadow_tables::{Invalidation, ShadowChoices};
use tollgate_monitor::space_switch::SpaceSwitch;
use tollgate_test_support::Computer;
use tollgate_x86::{Cr4, PhysicalAddress};

/// Address of the kernel's page in all spaces.
const KERNEL: u64 = 0xffff_ff00_0000_0000;
/// Addresses of two pages of a program, and of its data.
const PROGRAM: u64 = 0x7f12_3456_7000;
const DATA: u64 = 0x7f12_3460_0000;
/// Physical pages: the first page of the program, which spaces share; and by space the second page,
/// and the data.
const SHARED: u64 = 0x40_0000;
const FUNCTIONS: [u64; 3] = [0x41_0000, 0x42_0000, 0x43_0000];
const VALUES: [u64; 3] = [0x44_0000, 0x45_0000, 0x46_0000];
/// The numbers that the functions and the data add.
const ADDED: [u8; 3] = [1, 16, 100];
const GLOBAL: u64 = 1 << 8;
/// The bit in values of CR3 that keeps what is known about the space.
const KEEPS: u64 = 1 << 63;
const ROUNDS: u64 = 200;

/// Loads RDI and RSI in turn as CR3 and calls the program, RCX times.
fn kernel() -> &'static [u8] {
    guest_code!(
        switching,
        "2:",
        "mov cr3, rdi",
        "call rbx",
        "mov cr3, rsi",
        "call rbx",
        "dec ecx",
        "jnz 2b",
        "out 0xf4, al",
        ".skip 0x40 - (. - 2b), 0xcc",
        "invlpg [rdi]",
        "out 0xf4, al",
    )
}

/// Three spaces with identifiers 1 to 3. The kernel's page is `global` or not.
fn prepared(global: bool) -> Computer<Bench> {
    prepared_with(global, true)
}

fn prepared_with(global: bool, has_identifiers: bool) -> Computer<Bench> {
    vcpu(kernel(), |state, memory| {
        // jmp to the second page
        memory.write(PhysicalAddress(SHARED), &[0xe9, 0xfb, 0x0f, 0, 0]);
        for (space, added) in (0..3).zip(ADDED) {
            let (function, value) = (FUNCTIONS[space as usize], VALUES[space as usize]);
            // add r8d,ADDED; add r9,[rbp]; ret
            let code = [0x41, 0x83, 0xc0, added, 0x4c, 0x03, 0x4d, 0, 0xc3];
            memory.write(PhysicalAddress(function), &code);
            memory.write_u64(PhysicalAddress(value), added.into());
            make_empty_space(memory, space);
            map(memory, space, PROGRAM, &[SHARED, function]);
            map(memory, space, DATA, &[value]);
            map(memory, space, KERNEL, &[CODE]);
            if global {
                let entry = entry(memory, space, KERNEL);
                memory.write_u64(entry, CODE | GLOBAL | 7);
            }
        }
        state.cr4 |= Cr4::PGE.bits();
        if has_identifiers {
            state.cr4 |= Cr4::PCIDE.bits();
            state.cr3 = cr3(0);
        } else {
            state.cr3 = table(0);
        }
    })
}

fn cr3(space: u64) -> u64 {
    table(space) | (space + 1)
}

/// Makes the kernel switch between spaces, with these bits in the values of CR3, and checks what
/// was added.
fn switch(vcpu: &mut Computer<Bench>, spaces: [u64; 2], bits: u64) {
    let added: u64 = spaces.iter().map(|&it| u64::from(ADDED[it as usize])).sum();
    switch_between(vcpu, spaces.map(cr3), bits, [added, added]);
}

/// Makes the kernel switch between these values of CR3. In each round the functions and the data
/// add `added`.
fn switch_between(vcpu: &mut Computer<Bench>, roots: [u64; 2], bits: u64, added: [u64; 2]) {
    vcpu.change_state(|cpu| {
        (cpu.gpr[6], cpu.gpr[3], cpu.gpr[1]) = (roots[1] | bits, PROGRAM, ROUNDS);
        (cpu.gpr[5], cpu.gpr[8], cpu.gpr[9]) = (DATA, 0, 0);
    });
    run_kernel(vcpu, KERNEL, roots[0] | bits);
    let cpu = vcpu.state();
    let expected = (ROUNDS * added[0], ROUNDS * added[1], roots[1]);
    assert_eq!(
        (cpu.gpr[8], cpu.gpr[9], cpu.cr3),
        expected,
        "{}",
        vcpu.dump()
    );
}

/// The numbers of loads without an exit, and with one.
fn loads(vcpu: &Computer<Bench>) -> (u64, u64) {
    let inline = vcpu.counts().fast_path(FastPath::LoadSpace);
    (inline, vcpu.exit_counts().get(ExitKind::Cr3Load))
}

#[test]
fn known_spaces_are_loaded_without_an_exit() {
    let mut vcpu = prepared(true);
    switch(&mut vcpu, [0, 1], KEEPS);
    switch(&mut vcpu, [1, 2], KEEPS);
    let (inline, exits) = loads(&vcpu);
    assert!(exits < 40, "{exits} exits");
    assert_eq!(inline + exits, 4 * ROUNDS);
    let counts = vcpu.counts().space_loads;
    assert_eq!(counts.inline, inline);
    assert_eq!(counts.kept + counts.same + counts.missed, 4 * ROUNDS);
    assert_timed_apart(&vcpu, &[ExitKind::Cr3Load]);
}

#[test]
fn the_choice_of_exits_and_what_is_not_certain_exit() {
    let mut vcpu = prepared(true);
    vcpu.change_settings(|settings| settings.space_switch = SpaceSwitch::Exit);
    switch(&mut vcpu, [0, 1], KEEPS);
    assert_eq!(loads(&vcpu), (0, 2 * ROUNDS));
    vcpu.change_settings(|settings| settings.space_switch = SpaceSwitch::Inline);
    vcpu.change_settings(|settings| {
        settings.shadow = ShadowChoices {
            compares_entries: false,
            ..ShadowChoices::default()
        }
    });
    switch(&mut vcpu, [0, 1], 0);
    assert_eq!(
        loads(&vcpu),
        (0, 4 * ROUNDS),
        "the guest has them forgotten"
    );
    // The page of the kernel may lead elsewhere in each space.
    let mut vcpu = prepared(false);
    switch(&mut vcpu, [0, 1], KEEPS);
    assert_eq!(loads(&vcpu), (0, 2 * ROUNDS));
}

#[test]
fn spaces_whose_tables_are_as_they_were_are_loaded_without_an_exit_though_nothing_is_to_be_kept() {
    for has_identifiers in [true, false] {
        let mut vcpu = prepared_with(true, has_identifiers);
        let root = |space| match has_identifiers {
            true => cr3(space),
            false => table(space),
        };
        let run = |vcpu: &mut Computer<Bench>, spaces: [u64; 2], added| {
            switch_between(vcpu, spaces.map(root), 0, added);
        };
        run(&mut vcpu, [0, 1], [17, 17]);
        run(&mut vcpu, [1, 2], [116, 116]);
        let counts = vcpu.counts().space_loads;
        assert!(counts.inline > 4 * ROUNDS - 40, "{counts:?}");
        assert_eq!((counts.kept, counts.changed), (0, 0), "{counts:?}");
        // An entry that is edited while another space is loaded counts when its own space is
        // loaded, and no other page is forgotten: first the data, then the function as well.
        let data = entry(vcpu.memory_mut(), 1, DATA);
        vcpu.memory_mut().write_u64(data, VALUES[2] | 7);
        run(&mut vcpu, [2, 1], [116, 200]);
        let function = entry(vcpu.memory_mut(), 1, PROGRAM + 0x1000);
        vcpu.memory_mut().write_u64(function, FUNCTIONS[0] | 7);
        vcpu.memory_mut().write_u64(data, VALUES[0] | 7);
        run(&mut vcpu, [2, 1], [101, 101]);
        let counts = vcpu.counts().space_loads;
        assert_eq!(counts.changed, 3, "{counts:?}");
        assert!(counts.inline > 8 * ROUNDS - 60, "{counts:?}");
        assert!(counts.flushed < 8, "{counts:?}");
    }
}

#[test]
fn spaces_beyond_the_limit_lose_their_tables_to_others() {
    let run = |tables| {
        let mut vcpu = prepared(true);
        let choices = ShadowChoices {
            tables,
            ..ShadowChoices::default()
        };
        vcpu.change_settings(|settings| settings.shadow = choices);
        assert_eq!(vcpu.settings().shadow, choices);
        for _ in 0..5 {
            for spaces in [[0, 1], [1, 2], [2, 0]] {
                switch(&mut vcpu, spaces, KEEPS);
            }
        }
        vcpu.counts().space_loads
    };
    let [one, two, three, usual] = [Some(1), Some(2), Some(3), None].map(run);
    let all = 5 * 3 * 2 * ROUNDS;
    // If one space is kept, all loads of another space miss, and the first load of each run is of
    // the loaded space.
    assert_eq!((one.kept, one.missed + one.same), (0, all));
    assert!(one.inline <= one.same, "{one:?}");
    assert!(two.missed >= 14 && two.stolen >= 13, "{two:?}");
    assert!(three.missed <= 3 && three.stolen == 0, "{three:?}");
    assert!(
        three.inline > all * 9 / 10 && usual == three,
        "{three:?} {usual:?}"
    );
    assert!([one.missed, two.missed, three.missed].is_sorted_by(|more, less| more > less));
}

/// A value that is read from pages which are mapped elsewhere again and again.
#[test]
fn a_page_is_invalidated_alone_or_with_its_space_in_a_fast_path_or_by_an_exit() {
    let code = guest_code!(
        invalidating,
        "2:",
        "mov [rsi], rdx",
        "invlpg [rdi]",
        "add r8, [rdi]",
        "add r10, [rdi + 0x1000]",
        "mov [rsi], rbx",
        "invlpg [rdi]",
        "add r9, [rdi]",
        "dec ecx",
        "jnz 2b",
        "out 0xf4, al",
    );
    for invalidation in [
        Invalidation::Full,
        Invalidation::Selective,
        Invalidation::Inline,
    ] {
        let mut vcpu = vcpu(code, |state, memory| {
            make_empty_space(memory, 0);
            map(memory, 0, DATA, &VALUES[..2]);
            map(memory, 0, KERNEL, &[CODE]);
            let entry = entry(memory, 0, DATA);
            map(memory, 0, KERNEL + 0x1000, &[entry.0 & !0xfff]);
            for (value, added) in VALUES.into_iter().zip(ADDED) {
                memory.write_u64(PhysicalAddress(value), added.into());
            }
            state.cr3 = table(0);
            (state.gpr[2], state.gpr[3]) = (VALUES[1] | 7, VALUES[2] | 7);
            state.gpr[6] = KERNEL + 0x1000 + (entry.0 & 0xfff);
            state.gpr[1] = ROUNDS;
        });
        vcpu.set_verify_shadow(true);
        vcpu.change_settings(|settings| {
            settings.shadow = ShadowChoices {
                invalidation,
                ..ShadowChoices::default()
            }
        });
        run_kernel(&mut vcpu, KERNEL, DATA);
        let sums = [8, 9, 10].map(|register| vcpu.state().gpr[register]);
        let [_, second, third] = ADDED.map(|added| ROUNDS * u64::from(added));
        assert_eq!(sums, [second, third, second], "{invalidation:?}");
        let counts = vcpu.counts().shadow;
        let by_exit = vcpu.exit_counts().get(ExitKind::Invlpg);
        let by_choice = match invalidation {
            Invalidation::Full => counts.page_full,
            Invalidation::Selective => counts.page_selective,
            Invalidation::Inline => counts.page_inline,
        };
        match invalidation {
            // The first load may find vector registers in use.
            Invalidation::Inline => assert!(by_exit < 3 && by_choice > 2 * ROUNDS - 3),
            _ => assert_eq!((by_exit, by_choice), (2 * ROUNDS, 2 * ROUNDS)),
        }
    }
}

#[test]
fn what_is_invalidated_in_a_space_is_not_found_when_it_is_loaded_so() {
    let mut vcpu = prepared(true);
    switch(&mut vcpu, [0, 1], KEEPS);
    // INVLPG in the loaded space makes the second page of the program and the data those of the
    // third space.
    for (linear, physical) in [(PROGRAM + 0x1000, FUNCTIONS[2]), (DATA, VALUES[2])] {
        let entry = entry(vcpu.memory_mut(), 1, linear);
        vcpu.memory_mut().write_u64(entry, physical | 7);
        run_kernel(&mut vcpu, KERNEL + 0x40, linear);
    }
    vcpu.change_state(|cpu| {
        (cpu.gpr[6], cpu.gpr[3], cpu.gpr[1]) = (cr3(1) | KEEPS, PROGRAM, ROUNDS);
        (cpu.gpr[5], cpu.gpr[8], cpu.gpr[9]) = (DATA, 0, 0);
    });
    run_kernel(&mut vcpu, KERNEL, cr3(0) | KEEPS);
    let expected = ROUNDS * u64::from(ADDED[0] + ADDED[2]);
    assert_eq!(
        (vcpu.state().gpr[8], vcpu.state().gpr[9]),
        (expected, expected)
    );
}
