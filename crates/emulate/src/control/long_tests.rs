//! Tests of control and debug registers around IA-32e mode.

use crate::Outcome;
use crate::test_environment::{compatibility_mode, long_mode, long_selector, protected_mode, run};
use tollgate_x86::{Attributes, CpuState, Cr0, Cr4, Efer, Exception, SegmentRegister};
use tollgate_x86::{Space, TranslationChange};

const MOV_CR0_RAX: [u8; 3] = [0x0f, 0x22, 0xc0];
const MOV_CR2_RAX: [u8; 3] = [0x0f, 0x22, 0xd0];
const MOV_CR3_RAX: [u8; 3] = [0x0f, 0x22, 0xd8];
const MOV_CR4_RAX: [u8; 3] = [0x0f, 0x22, 0xe0];
const MOV_CR8_RAX: [u8; 4] = [0x44, 0x0f, 0x22, 0xc0];
const MOV_RBX_CR8: [u8; 4] = [0x44, 0x0f, 0x20, 0xc3];
const MOV_DR0_RAX: [u8; 3] = [0x0f, 0x23, 0xc0];
const MOV_DR6_RAX: [u8; 3] = [0x0f, 0x23, 0xf0];
const MOV_DR8_RAX: [u8; 4] = [0x44, 0x0f, 0x23, 0xc0];
const GP: Result<Outcome, Exception> = Err(Exception::general_protection(0));
const UD: Result<Outcome, Exception> = Err(Exception::invalid_opcode());

/// Protected mode with EFER.LME and CR4.PAE, and with a value that sets PG in EAX.
fn before_long_mode() -> (CpuState, crate::test_environment::TestEnvironment) {
    let (mut state, environment) = protected_mode(0);
    state.efer |= Efer::LME.bits();
    state.cr4 |= Cr4::PAE.bits();
    state.gpr[0] = state.cr0 | Cr0::PG.bits();
    (state, environment)
}

#[test]
fn paging_with_lme_activates_long_mode_without_pdptes() {
    let (mut state, mut environment) = before_long_mode();
    // These values would be refused as PDPTEs.
    environment.put_u64(0, u64::MAX);
    run(&mut state, &mut environment, &MOV_CR0_RAX).unwrap();
    assert!(state.is_long_mode() && !state.is_64_bit());
    assert_eq!(environment.changes, [TranslationChange::Everything]);
}

#[test]
fn long_mode_needs_pae_and_neither_64_bit_code_nor_a_16_bit_task() {
    let (mut state, mut environment) = before_long_mode();
    state.cr4 = 0;
    assert_eq!(run(&mut state, &mut environment, &MOV_CR0_RAX), GP);
    let (mut state, mut environment) = before_long_mode();
    let code = state.segment_mut(SegmentRegister::Cs);
    code.attributes |= Attributes::LONG;
    assert_eq!(run(&mut state, &mut environment, &MOV_CR0_RAX), GP);
    let (mut state, mut environment) = before_long_mode();
    state.tr.attributes = Attributes::from_bits_retain(0x83);
    assert_eq!(run(&mut state, &mut environment, &MOV_CR0_RAX), GP);
}

#[test]
fn compatibility_code_leaves_long_mode_and_64_bit_code_may_not() {
    let (mut state, mut environment) = compatibility_mode(0);
    state.gpr[0] = state.cr0 & !Cr0::PG.bits();
    run(&mut state, &mut environment, &MOV_CR0_RAX).unwrap();
    assert_eq!(state.efer() & (Efer::LMA | Efer::LME), Efer::LME);
    let (mut state, mut environment) = long_mode(0);
    state.gpr[0] = state.cr0 & !Cr0::PG.bits();
    assert_eq!(run(&mut state, &mut environment, &MOV_CR0_RAX), GP);
    state.gpr[0] = state.cr0 | 1 << 32;
    assert_eq!(run(&mut state, &mut environment, &MOV_CR0_RAX), GP);
}

#[test]
fn pae_stays_and_cr3_refuses_bits_above_the_physical_width() {
    let (mut state, mut environment) = long_mode(0);
    state.gpr[0] = 0;
    assert_eq!(run(&mut state, &mut environment, &MOV_CR4_RAX), GP);
    state.gpr[0] = state.cr4 | 1 << 32;
    assert_eq!(run(&mut state, &mut environment, &MOV_CR4_RAX), GP);
    for bit in [40, 51, 52, 63] {
        state.gpr[0] = 1 << bit;
        assert_eq!(run(&mut state, &mut environment, &MOV_CR3_RAX), GP);
    }
    let before = state.cr3;
    state.gpr[0] = 0xff_ffff_f018;
    run(&mut state, &mut environment, &MOV_CR3_RAX).unwrap();
    assert_eq!(state.cr3, 0xff_ffff_f018);
    let load = TranslationChange::Load {
        from: Space::of_cr3(&state, before),
        to: Space::of_cr3(&state, 0xff_ffff_f018),
        keeps: false,
    };
    assert_eq!(environment.changes, [load]);
}

#[test]
fn cr2_and_the_breakpoint_addresses_have_64_bits_and_dr6_32() {
    let (mut state, mut environment) = long_mode(0);
    state.gpr[0] = 0xffff_8123_4567_89ab;
    run(&mut state, &mut environment, &MOV_CR2_RAX).unwrap();
    run(&mut state, &mut environment, &MOV_DR0_RAX).unwrap();
    assert_eq!((state.cr2, state.dr[0]), (state.gpr[0], state.gpr[0]));
    assert_eq!(run(&mut state, &mut environment, &MOV_DR6_RAX), GP);
    assert_eq!(run(&mut state, &mut environment, &MOV_DR8_RAX), UD);
    state.dr[7] |= 1;
    assert_eq!(state.code_breakpoints_at(0xffff_8123_4567_89ab), 1);
}

#[test]
fn cr8_is_the_task_priority_of_the_local_apic() {
    let (mut state, mut environment) = long_mode(0);
    state.gpr[0] = 9;
    run(&mut state, &mut environment, &MOV_CR8_RAX).unwrap();
    assert_eq!(environment.platform.task_priority, 9);
    run(&mut state, &mut environment, &MOV_RBX_CR8).unwrap();
    assert_eq!(state.gpr[3], 9);
    state.gpr[0] = 16;
    assert_eq!(run(&mut state, &mut environment, &MOV_CR8_RAX), GP);
    let (mut state, mut environment) = long_mode(3);
    assert_eq!(run(&mut state, &mut environment, &MOV_RBX_CR8), GP);
}

#[test]
fn cr4_offers_fsgsbase_as_the_model_does() {
    let (mut state, mut environment) = long_mode(0);
    state.gpr[0] = state.cr4 | Cr4::FSGSBASE.bits();
    run(&mut state, &mut environment, &MOV_CR4_RAX).unwrap();
    state.model = tollgate_x86::CpuModel::Qemu64;
    assert_eq!(run(&mut state, &mut environment, &MOV_CR4_RAX), GP);
    assert_eq!(state.cs().selector.0, long_selector::CODE0);
}
