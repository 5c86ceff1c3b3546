//! Tests of images in 64-bit and compatibility code.

use super::*;
use crate::cpuid::policy;
use crate::test_environment::{TestEnvironment, compatibility_mode, long_mode, run};
use tollgate_x86::Cr4;

const FXSAVE: [u8; 3] = [0x0f, 0xae, 0x00];
const FXSAVE64: [u8; 4] = [0x48, 0x0f, 0xae, 0x00];
const FXRSTOR64: [u8; 4] = [0x48, 0x0f, 0xae, 0x08];
const XSAVE64: [u8; 4] = [0x48, 0x0f, 0xae, 0x20];
const XRSTOR: [u8; 3] = [0x0f, 0xae, 0x28];
const XRSTOR64: [u8; 4] = [0x48, 0x0f, 0xae, 0x28];
const XSAVEOPT64: [u8; 4] = [0x48, 0x0f, 0xae, 0x30];

fn fill(pair: (CpuState, TestEnvironment)) -> (CpuState, TestEnvironment) {
    let (mut state, environment) = pair;
    state.cr4 |= (Cr4::OSFXSR | Cr4::OSXSAVE).bits();
    state.xcr0 = policy(&state).xcr0_mask();
    state.gpr[0] = 0x9000;
    for number in 0..16 {
        let at = offset::XMM + number * 16;
        state.vector.0[at..at + 16].fill(number as u8 + 1);
    }
    // An invalid operation is pending: without one, AMD's processors store no pointers (AMD volume
    // 2, 11.4.4).
    state.vector.0[offset::FCW..offset::FCW + 2].copy_from_slice(&0x037eu16.to_le_bytes());
    state.vector.0[offset::FSW..offset::FSW + 2].copy_from_slice(&0x8081u16.to_le_bytes());
    state.vector.0[offset::FIP..offset::FIP + 8]
        .copy_from_slice(&0xffff_ffff_8123_4567u64.to_le_bytes());
    (state, environment)
}

#[test]
fn sixteen_registers_and_whole_pointers_round_trip() {
    for (save, restore) in [
        (FXSAVE64, FXRSTOR64),
        (XSAVE64, XRSTOR64),
        (XSAVEOPT64, XRSTOR64),
    ] {
        let (mut state, mut environment) = fill(long_mode(0));
        if state.xcr0 == 0 && save != FXSAVE64 {
            continue;
        }
        (state.gpr[0], state.gpr[2]) = (0x9007, 0);
        state.gpr[3] = 0x9000;
        // The operand is [rbx] with the mask in EAX.
        let by_rbx = |code: [u8; 4]| [code[0], code[1], code[2], code[3] | 3];
        let saved = state.vector.clone();
        run(&mut state, &mut environment, &by_rbx(save)).unwrap();
        assert_eq!(environment.u64(0x9008), 0xffff_ffff_8123_4567);
        assert_eq!(environment.ram[0x9000 + offset::XMM + 15 * 16], 16);
        state.vector = tollgate_x86::state::VectorState::initial();
        run(&mut state, &mut environment, &by_rbx(restore)).unwrap();
        assert_eq!(state.vector.0[..416], saved.0[..416]);
    }
}

#[test]
fn compatibility_code_saves_and_loads_eight_registers() {
    let (mut state, mut environment) = fill(compatibility_mode(0));
    environment.ram[0x9000..0x9200].fill(0xee);
    run(&mut state, &mut environment, &FXSAVE).unwrap();
    assert_eq!(environment.ram[0x9000 + offset::XMM + 7 * 16], 8);
    assert_eq!(environment.ram[0x9000 + offset::XMM + 8 * 16], 0xee);
}

#[test]
fn registers_out_of_reach_survive_an_initialization() {
    let (mut state, mut environment) = fill(compatibility_mode(0));
    if state.xcr0 == 0 {
        return;
    }
    (state.gpr[0], state.gpr[3]) = (7, 0x9000);
    environment.put_u32(0x9000 + offset::MXCSR, 0x1f80);
    // xrstor [ebx] from an area of zeros
    run(
        &mut state,
        &mut environment,
        &[XRSTOR[0], XRSTOR[1], XRSTOR[2] | 3],
    )
    .unwrap();
    assert_eq!(state.vector.0[offset::XMM + 7 * 16], 0);
    assert_eq!(state.vector.0[offset::XMM + 8 * 16], 9);
    assert_ne!(state.vector.0[offset::HEADER] & 2, 0);
}

#[test]
fn alignment_is_that_of_the_address_without_the_ignored_base() {
    let (mut state, mut environment) = fill(long_mode(0));
    let data = state.segment_mut(tollgate_x86::SegmentRegister::Ds);
    data.base = 8;
    assert!(run(&mut state, &mut environment, &FXSAVE).is_ok());
    state.gpr[0] = 0x9008;
    let misaligned = Err(Exception::general_protection(0));
    assert_eq!(run(&mut state, &mut environment, &FXSAVE), misaligned);
}
