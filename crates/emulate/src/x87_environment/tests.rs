//! Tests of `x87_environment`.

use super::*;
use crate::test_environment::{TestEnvironment, protected_mode, real_mode, run};
use tollgate_x86::{Cr0, Vector};

const FNSTENV: [u8; 2] = [0xd9, 0x37];
const FLDENV: [u8; 2] = [0xd9, 0x27];
const FNSAVE: [u8; 2] = [0xdd, 0x37];
const FRSTOR: [u8; 2] = [0xdd, 0x27];

/// ST0 = 1.0, ST1 = 0, ST2 = infinity in R5 to R7; pointers and opcode are set. The operands above
/// are [BX] in 16-bit code and [EDI] in 32-bit code.
fn load(state: &mut CpuState, environment: &mut TestEnvironment, at: u64) {
    (state.gpr[3], state.gpr[7]) = (at, at);
    let mut registers = Registers::of(state, environment);
    registers.set_top(5);
    registers.set_st(0, &[0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f]);
    registers.set_st(2, &[0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x7f]);
    registers.0[offset::TAGS] = 0xe0;
    registers.set_u16(offset::FOP, 0x5dd);
    registers.set_u32(offset::FIP, 0x0001_2345);
    registers.set_u16(offset::FCS, 0x8);
    registers.set_u32(offset::FDP, 0x0002_6789);
    registers.set_u16(offset::FDS, 0x10);
}

#[test]
fn protected_mode_32_bit_layout() {
    let (mut state, mut environment) = protected_mode(0);
    load(&mut state, &mut environment, 0x9000);
    run(&mut state, &mut environment, &FNSTENV).unwrap();
    let fields: Vec<u32> = (0..7).map(|n| environment.u32(0x9000 + 4 * n)).collect();
    // R5 is valid, R6 zero, R7 special, the rest empty.
    let tags = 0b10_01_00_11_11_11_11_11;
    assert_eq!(
        fields,
        [
            0xffff_037f,
            0xffff_2800,
            0xffff_0000 | tags,
            0x0001_2345,
            0x05dd_0008,
            0x0002_6789,
            0xffff_0010
        ]
    );
}

#[test]
fn protected_mode_16_bit_layout() {
    let (mut state, mut environment) = protected_mode(0);
    load(&mut state, &mut environment, 0x9000);
    run(&mut state, &mut environment, &[0x66, 0xd9, 0x37]).unwrap();
    let fields: Vec<u16> = (0..8).map(|n| environment.u16(0x9000 + 2 * n)).collect();
    assert_eq!(fields, [0x037f, 0x2800, 0x93ff, 0x2345, 8, 0x6789, 0x10, 0]);
}

#[test]
fn real_mode_layouts_hold_linear_pointers() {
    let (mut state, mut environment) = real_mode();
    load(&mut state, &mut environment, 0x100);
    // The linear addresses are 123C5h and 26889h.
    run(&mut state, &mut environment, &FNSTENV).unwrap();
    let fields: Vec<u16> = (3..7).map(|n| environment.u16(0x3100 + 2 * n)).collect();
    assert_eq!(fields, [0x23c5, 0x15dd, 0x6889, 0x2000]);
    run(&mut state, &mut environment, &[0x66, 0xd9, 0x37]).unwrap();
    let fields: Vec<u32> = (3..7).map(|n| environment.u32(0x3100 + 4 * n)).collect();
    assert_eq!(fields, [0xffff_23c5, 0x0000_15dd, 0xffff_6889, 0x0000_2000]);
    // After loading it again, the selectors are lost, and the addresses are linear.
    run(&mut state, &mut environment, &[0x66, 0xd9, 0x27]).unwrap();
    let registers = Registers::of(&mut state, &mut environment);
    assert_eq!(registers.u32(offset::FIP), 0x123c5);
    assert_eq!(registers.u32(offset::FDP), 0x26889);
    assert_eq!(registers.u16(offset::FOP), 0x5dd);
}

#[test]
fn loading_an_environment_leaves_values_in_their_physical_registers() {
    let (mut state, mut environment) = protected_mode(0);
    load(&mut state, &mut environment, 0x9000);
    run(&mut state, &mut environment, &FNSTENV).unwrap();
    environment.put_u16(0x9004, 6 << 11);
    run(&mut state, &mut environment, &FLDENV).unwrap();
    let registers = Registers::of(&mut state, &mut environment);
    assert_eq!(registers.st(7), [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f]);
    assert_eq!(registers.0[offset::TAGS], 0xe0);
}

#[test]
fn fnsave_initializes_and_frstor_brings_all_back() {
    let (mut state, mut environment) = protected_mode(0);
    load(&mut state, &mut environment, 0x9000);
    let before = state.vector.clone();
    run(&mut state, &mut environment, &FNSAVE).unwrap();
    assert_eq!(state.vector.0[..6], [0x7f, 3, 0, 0, 0, 0]);
    assert_eq!(environment.u16(0x9000 + 28 + 8), 0x3fff);
    run(&mut state, &mut environment, &FRSTOR).unwrap();
    assert!(state.vector == before);
}

#[test]
fn fnstenv_masks_and_fldenv_unmasks_a_pending_exception() {
    let (mut state, mut environment) = protected_mode(0);
    load(&mut state, &mut environment, 0x9000);
    let mut registers = Registers::of(&mut state, &mut environment);
    registers.set_u16(offset::FCW, 0x37e);
    registers.set_u16(offset::FSW, 5 << 11 | 1);
    registers.update_error_summary();
    run(&mut state, &mut environment, &FNSTENV).unwrap();
    assert_eq!(state.vector.0[..4], [0x7f, 3, 1, 0x28]);
    run(&mut state, &mut environment, &FLDENV).unwrap();
    assert_eq!(state.vector.0[..4], [0x7e, 3, 0x81, 0xa8]);
    // The exception now waits for the next waiting instruction.
    state.cr0 |= Cr0::NE.bits();
    assert_eq!(
        run(&mut state, &mut environment, &FLDENV),
        Err(Exception::new(Vector::FloatingPoint))
    );
    state.cr0 &= !Cr0::NE.bits();
    assert_eq!(
        run(&mut state, &mut environment, &FRSTOR),
        Ok(Outcome::Repeat)
    );
    assert_eq!(environment.platform.fpu_errors, 1);
}

#[test]
fn a_switched_task_must_first_get_its_registers() {
    let (mut state, mut environment) = protected_mode(0);
    state.cr0 |= Cr0::TS.bits();
    for code in [FNSTENV, FLDENV, FNSAVE, FRSTOR] {
        assert_eq!(
            run(&mut state, &mut environment, &code),
            Err(Exception::device_not_available())
        );
    }
}

#[test]
fn full_tags_agree_with_the_host() {
    let (mut state, mut environment) = protected_mode(0);
    load(&mut state, &mut environment, 0x9000);
    let registers = Registers::of(&mut state, &mut environment);
    // A denormal, and a pattern whose integer bit is missing.
    registers.0[offset::ST + 3 * 16] = 1;
    registers.0[offset::ST + 4 * 16 + 8] = 1;
    registers.0[offset::TAGS] = 0xe3;
    let ours = full_tags(&registers);
    #[repr(align(16))]
    struct Area([u8; 512]);
    let (mut area, mut kept) = (Area([0; 512]), Area([0; 512]));
    area.0.copy_from_slice(&registers.0[..512]);
    let mut host = [0u32; 7];
    // SAFETY: the host's own x87 state is saved before and restored afterwards; the areas are
    // aligned and large enough; XMM registers keep their values in `kept`, because nothing between
    // the two FXRSTORs uses them.
    unsafe {
        std::arch::asm!(
            "fxsave64 [{kept}]", "fxrstor [{area}]", "fnstenv [{host}]", "fxrstor64 [{kept}]",
            kept = in(reg) &mut kept, area = in(reg) &area, host = in(reg) &mut host);
    }
    assert_eq!(host[2] as u16, ours);
}

#[test]
fn reserved_bits_of_a_loaded_control_word_read_as_they_always_do() {
    let (mut state, mut environment) = protected_mode(0);
    state.gpr[7] = 0x9000;
    for (image, control) in [(0u16, 0x40u16), (0xffff, 0x1f7f)] {
        environment.put_u16(0x9000, image);
        run(&mut state, &mut environment, &FLDENV).unwrap();
        let registers = Registers::of(&mut state, &mut environment);
        assert_eq!(registers.u16(offset::FCW), control);
    }
}
