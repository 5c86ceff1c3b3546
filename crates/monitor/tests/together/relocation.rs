//! Tests that the code of programs is translated once, wherever it is mapped, and has the results
//! of the place where it runs: in one address space after the other, at two addresses of one space,
//! and after it has moved.

use crate::support::long_mode::spaces::{
    PAGE, make_empty_space, map, run_kernel, run_to_end, table, unmap,
};
use crate::support::long_mode::{Bench, CODE, DATA, STACK, as_user, caught, guest_code, vcpu};
use tollgate_memory::GuestMemory;
use tollgate_test_support::Computer;
use tollgate_x86::{Attributes, CpuState, PhysicalAddress, SegmentRegister, Selector};

/// Physical pages of the library: two of code, and one for each space's data.
const LIBRARY: [u64; 2] = [0x40_0000, 0x41_0000];
const LIBRARY_DATA: u64 = 0x42_0000;
/// Offsets in a space's data: the address of the second page's function, and a number.
const POINTER: u64 = 0;
pub const NUMBER: u64 = 8;
/// Offset at which x87 state is stored.
pub const IMAGE: u64 = 0x200;
/// Address of the entry for system calls.
const SYSTEM_CALL: u64 = CODE + 0x800;

/// The library: three rounds of everything that depends on the library's address.
pub fn library() -> &'static [u8] {
    guest_code!(
        library,
        "mov ebp, 3",
        "xor r8d, r8d",
        "2:",
        "lea rax, [rip]",
        "mov rbx, [rip + tollgate_test_library_start + 0x2008]",
        "call 3f",
        "3: pop rcx",
        "call tollgate_test_library_start + 0x1000",
        "lea rdx, [rip + tollgate_test_library_start + 0x1000]",
        "call rdx",
        "call [rip + tollgate_test_library_start + 0x2000]",
        "mov r9, [rsp - 8]",
        "fld1",
        "fnstenv [rip + tollgate_test_library_start + 0x2200]",
        "fninit",
        "mov r10, rcx",
        "syscall",
        "mov rsi, rcx",
        "mov rcx, r10",
        "dec ebp",
        "jnz 2b",
        "jmp tollgate_test_library_start + 0x1100",
        ".skip 4096 - (. - tollgate_test_library_start), 0xcc",
        // The second page of the library.
        "add r8, [rip + tollgate_test_library_start + 0x2008]",
        "ret",
        ".skip 4096 + 256 - (. - tollgate_test_library_start), 0xcc",
        "push 5",
        "pop rdi",
        "out 0xf4, al",
        "ud2",
    )
}

/// Offsets in the library that its registers hold at the end.
struct Known {
    rax: u64,
    rcx: u64,
    r9: u64,
    x87: u64,
    rsi: u64,
}

/// Finds these offsets by decoding the library.
fn known() -> Known {
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};
    let mut known = Known {
        rax: 0,
        rcx: 0,
        r9: 0,
        x87: 0,
        rsi: 0,
    };
    for instruction in Decoder::new(64, &library()[..0x100], DecoderOptions::NONE) {
        let (at, next) = (instruction.ip(), instruction.next_ip());
        match instruction.mnemonic() {
            Mnemonic::Lea if known.rax == 0 => known.rax = next,
            Mnemonic::Call if known.rcx == 0 => known.rcx = next,
            Mnemonic::Call => known.r9 = next,
            Mnemonic::Fld1 => known.x87 = at,
            Mnemonic::Syscall => known.rsi = next,
            _ => {}
        }
    }
    known
}

/// Physical address of the data of a space.
fn data(space: u64) -> u64 {
    LIBRARY_DATA + space * PAGE
}

/// Makes a space in which the library is at `linear`.
pub fn make_space(memory: &mut GuestMemory, space: u64, linear: u64) {
    make_empty_space(memory, space);
    place_library(memory, space, linear);
}

fn place_library(memory: &mut GuestMemory, space: u64, linear: u64) {
    map(
        memory,
        space,
        linear,
        &[LIBRARY[0], LIBRARY[1], data(space)],
    );
    memory.write_u64(PhysicalAddress(data(space) + POINTER), linear + PAGE);
    memory.write_u64(PhysicalAddress(data(space) + NUMBER), 100 + space);
}

pub fn prepared() -> Computer<Bench> {
    // invlpg [rdi]; out 0xf4, al
    let kernel = [0x0f, 0x01, 0x3f, 0xe6, 0xf4];
    vcpu(&kernel, |state, memory| {
        memory.write(PhysicalAddress(LIBRARY[0]), &library()[..0x1000]);
        memory.write(PhysicalAddress(LIBRARY[1]), &library()[0x1000..]);
        // sysretq
        memory.write(PhysicalAddress(SYSTEM_CALL), &[0x48, 0x0f, 0x07]);
        state.star = 0x0018_0008 << 32;
        state.lstar = SYSTEM_CALL;
        state.sfmask = 0x700;
    })
}

/// Makes the guest's kernel execute INVLPG.
fn invalidate(vcpu: &mut Computer<Bench>, linear: u64) {
    run_kernel(vcpu, CODE, linear);
}

/// Sets the processor to the library's first instruction, at `linear`.
pub fn enter(cpu: &mut CpuState, linear: u64) {
    as_user(cpu);
    cpu.gpr[4] = STACK;
    cpu.rip = linear;
}

/// Sets the processor to the first instruction of 32-bit code at `linear`.
fn enter_narrow(cpu: &mut CpuState, linear: u64) {
    enter(cpu, linear);
    let code = cpu.segment_mut(SegmentRegister::Cs);
    code.attributes = Attributes::from_bits_retain(0xc0fb);
    code.selector = Selector(0x18 | 3);
}

/// Runs the library at `linear` and checks what it found.
fn run_library(vcpu: &mut Computer<Bench>, space: u64, linear: u64) {
    vcpu.change_state(|cpu| enter(cpu, linear));
    run_to_end(vcpu);
    check(vcpu, space, linear);
}

pub fn check(vcpu: &mut Computer<Bench>, space: u64, linear: u64) {
    let known = known();
    let gpr = vcpu.state().gpr;
    let offset = |register: usize| gpr[register].wrapping_sub(linear);
    let dump = vcpu.dump();
    assert_eq!(offset(0), known.rax, "{dump}");
    assert_eq!(offset(1), known.rcx, "{dump}");
    assert_eq!(offset(9), known.r9, "{dump}");
    assert_eq!(offset(6), known.rsi, "{dump}");
    assert_eq!(gpr[3], 100 + space);
    assert_eq!(gpr[8], 9 * (100 + space));
    assert_eq!(gpr[4], STACK);
    // FNSTENV stores the lower half of the instruction's address. FXSAVE stores all of it, but on
    // AMD's processors only while an exception is pending (AMD volume 2, 11.4.4).
    let image = PhysicalAddress(data(space) + IMAGE + 12);
    let x87 = vcpu.memory_mut().read_u32(image);
    assert_eq!(x87.wrapping_sub(linear as u32), known.x87 as u32, "{dump}");
    let end = vcpu.state().rip.wrapping_sub(linear);
    assert!((0x1100..0x1110).contains(&end), "{dump}");
}

/// Loads CR3 as a guest's kernel would, without keeping what is known about the space.
pub fn switch(vcpu: &mut Computer<Bench>, space: u64) {
    vcpu.change_state(|cpu| cpu.cr3 ^= 8);
    vcpu.change_state(|cpu| cpu.cr3 = table(space));
}

pub const PLACES: [u64; 6] = [
    0x7f12_3456_7000,
    0x7f98_7654_3000,
    0x5555_5678_9000,
    0x8000_0000,
    0x7ffe_ffff_d000,
    0x1_2345_6000,
];

#[test]
fn every_space_has_the_library_elsewhere_and_it_is_translated_once() {
    // With an anchor, the parts that it does not lead to are detected by a fault, and the code is
    // then translated again.
    is_translated_once(false, 0);
}

#[test]
fn by_anchors_too_it_is_not_translated_anew_once_it_has_run_everywhere() {
    is_translated_once(true, 1);
}

/// Checks that from round `from` over all places on, nothing is translated except at the first
/// place.
fn is_translated_once(by_anchors: bool, from: u32) {
    let mut vcpu = prepared();
    vcpu.change_settings(|settings| settings.anchors = by_anchors);
    for (space, linear) in (0..).zip(PLACES) {
        make_space(vcpu.memory_mut(), space, linear);
    }
    let mut translations = None;
    for round in 0..3 {
        for (space, linear) in (0..).zip(PLACES) {
            switch(&mut vcpu, space);
            run_library(&mut vcpu, space, linear);
            // The library runs a second time in the same space.
            run_library(&mut vcpu, space, linear);
            let now = vcpu.counts().engine.translations;
            if round >= from {
                assert_eq!(*translations.get_or_insert(now), now, "{round} {space}");
            }
        }
    }
}

#[test]
fn two_places_of_one_space_do_not_disturb_each_other() {
    // A page may have several link addresses.
    for places in 2..=PLACES.len() {
        let mut vcpu = prepared();
        let places = &PLACES[..places];
        make_space(vcpu.memory_mut(), 0, places[0]);
        for &linear in places {
            map(
                vcpu.memory_mut(),
                0,
                linear,
                &[LIBRARY[0], LIBRARY[1], data(0)],
            );
        }
        switch(&mut vcpu, 0);
        for _ in 0..3 {
            for &linear in places {
                // The pointer to the function must be the one of this place.
                let pointer = PhysicalAddress(data(0) + POINTER);
                vcpu.memory_mut().write_u64(pointer, linear + PAGE);
                run_library(&mut vcpu, 0, linear);
            }
        }
        // The pointer leads to the function of another place, and back.
        let pointer = PhysicalAddress(data(0) + POINTER);
        vcpu.memory_mut().write_u64(pointer, places[1] + PAGE);
        for _ in 0..3 {
            run_library(&mut vcpu, 0, places[0]);
        }
    }
}

#[test]
fn a_library_that_has_moved_in_its_space_runs_there() {
    let mut vcpu = prepared();
    make_space(vcpu.memory_mut(), 0, PLACES[0]);
    switch(&mut vcpu, 0);
    for linear in PLACES.into_iter().cycle().skip(1).take(20) {
        let old = place(&mut vcpu);
        run_library(&mut vcpu, 0, old);
        map(
            vcpu.memory_mut(),
            0,
            old,
            &[0, 0, 0].map(|_: u64| LIBRARY_DATA + 0x8000),
        );
        place_library(vcpu.memory_mut(), 0, linear);
        for page in 0..3 {
            invalidate(&mut vcpu, old + page * PAGE);
            invalidate(&mut vcpu, linear + page * PAGE);
        }
    }
}

/// The address of the library, according to its pointer.
fn place(vcpu: &mut Computer<Bench>) -> u64 {
    let pointer = PhysicalAddress(data(0) + POINTER);
    vcpu.memory_mut().read_u64(pointer) - PAGE
}

#[test]
fn pages_of_one_library_may_lie_apart_elsewhere() {
    // The second page leads elsewhere, so the direct branch to it leads to other code.
    let mut vcpu = prepared();
    make_space(vcpu.memory_mut(), 0, PLACES[0]);
    switch(&mut vcpu, 0);
    run_library(&mut vcpu, 0, PLACES[0]);
    make_space(vcpu.memory_mut(), 1, PLACES[1]);
    let copy = 0x43_0000;
    vcpu.memory_mut()
        .write(PhysicalAddress(copy), &library()[0x1000..]);
    map(vcpu.memory_mut(), 1, PLACES[1] + PAGE, &[copy]);
    // The old second page is mapped as well, two pages further on.
    map(
        vcpu.memory_mut(),
        1,
        PLACES[1] + 3 * PAGE,
        &[LIBRARY[1], data(1)],
    );
    for _ in 0..3 {
        switch(&mut vcpu, 1);
        run_library(&mut vcpu, 1, PLACES[1]);
        let pointer = PhysicalAddress(data(1) + POINTER);
        vcpu.memory_mut().write_u64(pointer, PLACES[1] + 3 * PAGE);
        // The library finds zero in the page that follows.
        let number = PhysicalAddress(data(1) + NUMBER);
        run_library(&mut vcpu, 1, PLACES[1]);
        assert_eq!(vcpu.memory_mut().read_u64(number), 101);
        vcpu.memory_mut().write_u64(pointer, PLACES[1] + PAGE);
        switch(&mut vcpu, 0);
        run_library(&mut vcpu, 0, PLACES[0]);
    }
}

#[test]
fn a_fault_names_the_address_at_which_the_code_lies() {
    // Code that faults in ring 3, with the offset of the faulting instruction and the vector.
    let faults: [(&[u8], u64, u8); 5] = [
        (&[0x90, 0x0f, 0x0b], 1, 6),                       // ud2
        (&[0x31, 0xc9, 0xf7, 0xf1], 2, 0),                 // div ecx
        (&[0x90, 0x48, 0x8b, 0x05, 0, 0x10, 0, 0], 1, 14), // mov rax,[rip+1000h]
        (&[0x90, 0xf4], 1, 13),                            // hlt
        // mov eax,1; ror rax,1; jmp rax: the address is not canonical
        (&[0xb8, 1, 0, 0, 0, 0x48, 0xd1, 0xc8, 0xff, 0xe0], 8, 13),
    ];
    for (code, at, vector) in faults {
        let mut vcpu = prepared();
        vcpu.memory_mut().write(PhysicalAddress(LIBRARY[0]), code);
        for (space, linear) in (0..).zip(PLACES) {
            make_space(vcpu.memory_mut(), space, linear);
            map(vcpu.memory_mut(), space, linear, &[LIBRARY[0]]);
            let absent = linear + PAGE;
            map(vcpu.memory_mut(), space, absent, &[LIBRARY[1]]);
            unmap(vcpu.memory_mut(), space, absent);
            switch(&mut vcpu, space);
            vcpu.change_state(|cpu| {
                enter(cpu, linear);
                cpu.gpr[2] = 0;
            });
            run_to_end(&mut vcpu);
            let caught = caught(&mut vcpu);
            assert_eq!(caught.vector, vector);
            let rip = caught.at.wrapping_add(CODE);
            assert_eq!(rip, linear + at);
        }
    }
}

#[test]
fn code_that_changes_is_translated_anew_for_every_space() {
    let mut vcpu = prepared();
    for (space, linear) in (0..).zip(PLACES) {
        make_space(vcpu.memory_mut(), space, linear);
    }
    // The immediate of the library's first instruction, which is the number of rounds.
    for rounds in [3_u8, 1, 7, 3] {
        let memory = vcpu.memory_mut();
        memory.write(PhysicalAddress(LIBRARY[0] + 1), &[rounds]);
        for (space, linear) in (0..).zip(PLACES) {
            switch(&mut vcpu, space);
            vcpu.change_state(|cpu| enter(cpu, linear));
            run_to_end(&mut vcpu);
            let sum = 3 * u64::from(rounds) * (100 + space);
            assert_eq!(vcpu.state().gpr[8], sum, "{rounds} {space}");
        }
    }
}

/// A small library of 32-bit code in compatibility mode.
fn narrow_library() -> &'static [u8] {
    guest_code!(
        narrow,
        ".code32",
        "mov ebp, 3",
        "2:",
        "call 3f",
        "3: pop ecx",
        "call tollgate_test_narrow_start + 0x1000",
        "lea edx, [ecx - 10 + 0x1000]",
        "call edx",
        "mov esi, [esp - 4]",
        "dec ebp",
        "jnz 2b",
        "jmp tollgate_test_narrow_start + 0x1100",
        ".skip 4096 - (. - tollgate_test_narrow_start), 0xcc",
        "mov ebx, [esp]",
        "fld1",
        "fnstenv [0x20000]",
        "ret",
        ".skip 4096 + 256 - (. - tollgate_test_narrow_start), 0xcc",
        "out 0xf4, al",
        "ud2",
        ".code64",
    )
}

#[test]
fn code_of_32_bits_is_translated_once_too() {
    // An address for programs that are linked for a fixed address.
    const LINKED: u64 = 0x0800_0000;
    let places = [
        0x4567_8000_u64,
        0xb7ff_e000,
        0xffff_c000,
        0x1000_0000,
        0x0410_0000,
        0x07ff_e000,
        LINKED,
    ];
    let mut vcpu = prepared();
    let memory = vcpu.memory_mut();
    memory.write(PhysicalAddress(LIBRARY[0]), &narrow_library()[..0x1000]);
    memory.write(PhysicalAddress(LIBRARY[1]), &narrow_library()[0x1000..]);
    for (space, linear) in (0..).zip(places) {
        make_space(memory, space, linear);
    }
    let mut translations = None;
    for round in 0..3 {
        for (space, linear) in (0..).zip(places) {
            switch(&mut vcpu, space);
            vcpu.change_state(|cpu| enter_narrow(cpu, linear));
            run_to_end(&mut vcpu);
            let dump = vcpu.dump();
            let gpr = vcpu.state().gpr;
            assert_eq!(gpr[1], linear + 10, "{dump}");
            assert_eq!(gpr[3], gpr[6], "{dump}");
            assert_eq!(gpr[6], linear + 24, "{dump}");
            let fip = vcpu.memory_mut().read_u64(PhysicalAddress(DATA + 12));
            assert_eq!(fip & 0xffff_ffff, linear + 0x1003, "{dump}");
            let now = vcpu.counts().engine.translations;
            if (round, linear) == (0, LINKED) {
                // Code that is linked for a fixed address is translated separately.
                assert!(translations.replace(now).is_some_and(|before| before < now));
            }
            assert_eq!(now, *translations.get_or_insert(now), "{linear:x}");
        }
    }
}

#[test]
fn a_branch_that_keeps_16_bits_of_eip_leads_where_it_does_from_there() {
    // nop; nop; jmp with a 16-bit operand back to E000h, which clears the upper half of EIP.
    const TARGET: u64 = 0xe000;
    let code = [0x90, 0x90, 0x66, 0xe9, 0xfa, 0x5f];
    let mut vcpu = prepared();
    vcpu.memory_mut().write(PhysicalAddress(LIBRARY[0]), &code);
    // out 0xf4, al
    vcpu.memory_mut()
        .write(PhysicalAddress(TARGET), &[0xe6, 0xf4]);
    for (space, linear) in (0..).zip([0x4567_8000_u64, 0xb7ff_8000, 0x7654_8000]) {
        make_space(vcpu.memory_mut(), space, linear);
        switch(&mut vcpu, space);
        for _ in 0..3 {
            vcpu.change_state(|cpu| enter_narrow(cpu, linear));
            run_to_end(&mut vcpu);
            assert_eq!(vcpu.state().rip, TARGET + 2, "{}", vcpu.dump());
        }
    }
}
