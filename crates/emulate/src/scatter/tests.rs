//! Tests of `scatter`.

use super::*;
use crate::test_environment::{TestEnvironment, long_mode, run};
use tollgate_test_support::skip;
use tollgate_x86::Cr4;

/// Base address of the elements.
const TABLE: u64 = 0x9000;
/// vpgatherdd zmm1{k1}, [rax+zmm2*4]
const GATHER: [u8; 7] = [0x62, 0xf2, 0x7d, 0x49, 0x90, 0x0c, 0x90];
/// vpscatterdd [rax+zmm2*4]{k1}, zmm1
const SCATTER: [u8; 7] = [0x62, 0xf2, 0x7d, 0x49, 0xa0, 0x0c, 0x90];

/// A guest with AVX-512, if the host has it: zmm1 holds 100 to 115, zmm2 the indexes.
fn ready(indexes: [i32; 16], mask: u64) -> Option<(CpuState, TestEnvironment)> {
    let (mut state, mut environment) = long_mode(0);
    state.cr4 |= (Cr4::OSFXSR | Cr4::OSXSAVE).bits();
    state.xcr0 = policy(&state).xcr0_mask();
    if !policy(&state).offers(iced_x86::CpuidFeature::AVX512F) {
        skip::impossible("the host has no AVX-512");
        return None;
    }
    state.gpr[0] = TABLE;
    let mut registers = Registers::of(&mut state, &mut environment);
    registers.set_zmm(1, &vector(std::array::from_fn(|lane| 100 + lane as i32)));
    registers.set_zmm(2, &vector(indexes));
    registers.set_opmask(1, mask);
    for lane in 0..16 {
        environment.put_u32(TABLE as usize + lane * 4, lane as u32);
    }
    Some((state, environment))
}

fn vector(lanes: [i32; 16]) -> [u8; VECTOR_SIZE] {
    let mut bytes = [0; VECTOR_SIZE];
    for (chunk, lane) in bytes.chunks_mut(4).zip(lanes) {
        chunk.copy_from_slice(&lane.to_le_bytes());
    }
    bytes
}

/// ZMM1 by lanes, and K1.
fn result(state: &mut CpuState, environment: &mut TestEnvironment) -> ([i32; 16], u64) {
    let registers = Registers::of(state, environment);
    let bytes = registers.zmm(1);
    let lane = |at: usize| i32::from_le_bytes(bytes[at * 4..at * 4 + 4].try_into().unwrap());
    (std::array::from_fn(lane), registers.opmask(1))
}

const REVERSED: [i32; 16] = [15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0];

#[test]
fn a_gather_loads_the_lanes_of_its_mask_and_clears_it() {
    let Some((mut state, mut environment)) = ready(REVERSED, 0xff_8003) else {
        return;
    };
    run(&mut state, &mut environment, &GATHER).unwrap();
    let (lanes, mask) = result(&mut state, &mut environment);
    assert_eq!((lanes[0], lanes[1], lanes[15]), (15, 14, 0));
    assert_eq!((lanes[2], lanes[14]), (102, 114));
    assert_eq!(mask, 0);
}

#[test]
fn lanes_that_the_mask_leaves_out_do_not_fault() {
    let mut far = REVERSED;
    far[7] = 0x1000_0000;
    let Some((mut state, mut environment)) = ready(far, 0xff7f) else {
        return;
    };
    for code in [GATHER, SCATTER] {
        run(&mut state, &mut environment, &code).unwrap();
    }
}

#[test]
fn a_fault_leaves_what_is_done_and_the_instruction_resumes_behind_it() {
    let mut far = REVERSED;
    far[3] = 0x1000_0000;
    let Some((mut state, mut environment)) = ready(far, 0xffff) else {
        return;
    };
    assert!(run(&mut state, &mut environment, &GATHER).is_err());
    let (lanes, mask) = result(&mut state, &mut environment);
    assert_eq!((lanes[2], lanes[3], lanes[4], mask), (13, 103, 104, 0xfff8));
    let Some((mut state, mut environment)) = ready(far, 0xffff) else {
        return;
    };
    assert!(run(&mut state, &mut environment, &SCATTER).is_err());
    let (_, mask) = result(&mut state, &mut environment);
    assert_eq!(mask, 0xfff8);
    assert_eq!(environment.u32(TABLE as usize + 15 * 4), 100);
    assert_eq!(environment.u32(TABLE as usize + 11 * 4), 11);
}

#[test]
fn of_equal_addresses_the_last_lane_is_stored() {
    let Some((mut state, mut environment)) = ready([5; 16], 0x7fff) else {
        return;
    };
    run(&mut state, &mut environment, &SCATTER).unwrap();
    assert_eq!(environment.u32(TABLE as usize + 20), 114);
}

#[test]
fn avx_512s_state_must_be_enabled() {
    let Some((mut state, mut environment)) = ready(REVERSED, 1) else {
        return;
    };
    state.xcr0 = 7;
    for code in [GATHER, SCATTER] {
        assert_eq!(
            run(&mut state, &mut environment, &code),
            Err(Exception::invalid_opcode())
        );
    }
}
