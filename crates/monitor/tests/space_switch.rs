//! A load of CR3 that keeps what is known of the space needs no exit, and what runs behind it is the
//! new space's own.

mod long_mode_support;

use long_mode_support::spaces::{entry, make_empty_space, map, run_kernel, table};
use long_mode_support::{Bench, CODE, guest_code, vcpu};
use tollgate_engine::abi::leaves::LeafRoutine;
use tollgate_exits::ExitKind;
use tollgate_monitor::space_switch::SpaceSwitch;
use tollgate_test_support::Computer;
use tollgate_x86::{Cr4, PhysicalAddress};

/// Where the kernel's page lies in all spaces.
const KERNEL: u64 = 0xffff_ff00_0000_0000;
/// Two pages of a program, and its data.
const PROGRAM: u64 = 0x7f12_3456_7000;
const DATA: u64 = 0x7f12_3460_0000;
/// Physical pages: the first page of the program, which spaces share; by space its second one, and
/// its data.
const SHARED: u64 = 0x40_0000;
const FUNCTIONS: [u64; 3] = [0x41_0000, 0x42_0000, 0x43_0000];
const VALUES: [u64; 3] = [0x44_0000, 0x45_0000, 0x46_0000];
/// What the functions and the data add.
const ADDED: [u8; 3] = [1, 16, 100];
const GLOBAL: u64 = 1 << 8;
/// In values of CR3: what is known is kept.
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

/// Three spaces with identifiers 1 to 3; the kernel's page is `global`.
fn prepared(global: bool) -> Computer<Bench> {
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
        state.cr4 |= (Cr4::PCIDE | Cr4::PGE).bits();
        state.cr3 = cr3(0);
    })
}

fn cr3(space: u64) -> u64 {
    table(space) | (space + 1)
}

/// Has the kernel switch between spaces, with these bits in the values of CR3, and checks what was
/// added.
fn switch(vcpu: &mut Computer<Bench>, spaces: [u64; 2], bits: u64) {
    vcpu.change_state(|cpu| {
        (cpu.gpr[6], cpu.gpr[3], cpu.gpr[1]) = (cr3(spaces[1]) | bits, PROGRAM, ROUNDS);
        (cpu.gpr[5], cpu.gpr[8], cpu.gpr[9]) = (DATA, 0, 0);
    });
    run_kernel(vcpu, KERNEL, cr3(spaces[0]) | bits);
    let added: u64 = spaces.iter().map(|&it| u64::from(ADDED[it as usize])).sum();
    let cpu = vcpu.state();
    let expected = (ROUNDS * added, ROUNDS * added, cr3(spaces[1]));
    assert_eq!(
        (cpu.gpr[8], cpu.gpr[9], cpu.cr3),
        expected,
        "{}",
        vcpu.dump()
    );
}

/// Loads without an exit, and with one.
fn loads(vcpu: &Computer<Bench>) -> (u64, u64) {
    let inline = vcpu.leaf_count(LeafRoutine::LoadSpace);
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
    let counts = vcpu.space_loads();
    assert_eq!(counts.inline, inline);
    assert_eq!(counts.kept + counts.same + counts.missed, 4 * ROUNDS);
}

#[test]
fn the_choice_of_exits_and_what_is_not_certain_exit() {
    let mut vcpu = prepared(true);
    vcpu.set_space_switch(SpaceSwitch::Exit);
    switch(&mut vcpu, [0, 1], KEEPS);
    assert_eq!(loads(&vcpu), (0, 2 * ROUNDS));
    vcpu.set_space_switch(SpaceSwitch::Inline);
    switch(&mut vcpu, [0, 1], 0);
    assert_eq!(
        loads(&vcpu),
        (0, 4 * ROUNDS),
        "the guest has them forgotten"
    );
    // The kernel's page may lie elsewhere in each space.
    let mut vcpu = prepared(false);
    switch(&mut vcpu, [0, 1], KEEPS);
    assert_eq!(loads(&vcpu), (0, 2 * ROUNDS));
}

#[test]
fn what_is_invalidated_in_a_space_is_not_found_when_it_is_loaded_so() {
    let mut vcpu = prepared(true);
    switch(&mut vcpu, [0, 1], KEEPS);
    // The second page of the program and the data become the third space's, by INVLPG in the
    // loaded space.
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
