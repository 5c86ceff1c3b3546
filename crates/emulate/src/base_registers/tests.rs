//! Tests of `base_registers`.

use super::*;
use crate::test_environment::{compatibility_mode, long_mode, run};

const UD: Exception = Exception::invalid_opcode();
const GP: Exception = Exception::general_protection(0);
const SWAPGS: [u8; 3] = [0x0f, 0x01, 0xf8];
const RDFSBASE_RAX: [u8; 5] = [0xf3, 0x48, 0x0f, 0xae, 0xc0];
const RDGSBASE_EAX: [u8; 4] = [0xf3, 0x0f, 0xae, 0xc8];
const WRGSBASE_RAX: [u8; 5] = [0xf3, 0x48, 0x0f, 0xae, 0xd8];
const WRFSBASE_EAX: [u8; 4] = [0xf3, 0x0f, 0xae, 0xd0];

#[test]
fn swapgs_exchanges_the_bases_and_is_privileged() {
    let (mut state, mut environment) = long_mode(0);
    state.kernel_gs_base = 0xffff_8880_0000_1000;
    state.segment_mut(SegmentRegister::Gs).base = 0x7f12_3456_7000;
    run(&mut state, &mut environment, &SWAPGS).unwrap();
    assert_eq!(
        state.segment(SegmentRegister::Gs).base,
        0xffff_8880_0000_1000
    );
    assert_eq!(state.kernel_gs_base, 0x7f12_3456_7000);
    let (mut state, mut environment) = long_mode(3);
    assert_eq!(run(&mut state, &mut environment, &SWAPGS), Err(GP));
    let (mut state, mut environment) = compatibility_mode(0);
    assert_eq!(run(&mut state, &mut environment, &SWAPGS), Err(UD));
}

#[test]
fn base_instructions_need_64_bit_code_and_cr4() {
    let (mut state, mut environment) = long_mode(3);
    assert_eq!(run(&mut state, &mut environment, &RDFSBASE_RAX), Err(UD));
    state.cr4 |= Cr4::FSGSBASE.bits();
    assert!(run(&mut state, &mut environment, &RDFSBASE_RAX).is_ok());
    let (mut state, mut environment) = compatibility_mode(3);
    state.cr4 |= Cr4::FSGSBASE.bits();
    assert_eq!(run(&mut state, &mut environment, &RDGSBASE_EAX), Err(UD));
}

#[test]
fn bases_must_be_canonical_and_32_bit_forms_zero_extend() {
    let (mut state, mut environment) = long_mode(3);
    state.cr4 |= Cr4::FSGSBASE.bits();
    state.gpr[0] = 0x8000_0000_0000;
    assert_eq!(run(&mut state, &mut environment, &WRGSBASE_RAX), Err(GP));
    state.gpr[0] = 0xffff_9234_8765_4321;
    run(&mut state, &mut environment, &WRGSBASE_RAX).unwrap();
    run(&mut state, &mut environment, &WRFSBASE_EAX).unwrap();
    assert_eq!(state.segment(SegmentRegister::Fs).base, 0x8765_4321);
    run(&mut state, &mut environment, &RDGSBASE_EAX).unwrap();
    assert_eq!(state.gpr[0], 0x8765_4321);
}
