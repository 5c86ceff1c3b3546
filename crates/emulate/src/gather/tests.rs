//! Tests of `gather`.

use super::*;
use crate::test_environment::{TestEnvironment, long_mode, protected_mode, real_mode, run};
use tollgate_x86::{Cr0, Cr4, LinearAddress};

fn ready() -> Option<(CpuState, TestEnvironment)> {
    let (mut state, environment) = protected_mode(0);
    state.cr4 |= (Cr4::OSFXSR | Cr4::OSXSAVE).bits();
    state.xcr0 = 7;
    policy(&state)
        .offers(iced_x86::CpuidFeature::AVX2)
        .then_some((state, environment))
}

fn is_amd(state: &CpuState) -> bool {
    policy(state).vendor() == Vendor::Amd
}

fn set(state: &mut CpuState, environment: &mut TestEnvironment, number: usize, of: [u32; 8]) {
    let mut bytes = [0; 32];
    for (chunk, value) in bytes.chunks_mut(4).zip(of) {
        chunk.copy_from_slice(&value.to_le_bytes());
    }
    Registers::of(state, environment).set_ymm(number, &bytes);
}

fn get(state: &mut CpuState, environment: &mut TestEnvironment, number: usize) -> [u32; 8] {
    let bytes = Registers::of(state, environment).ymm(number);
    std::array::from_fn(|at| u32::from_le_bytes(bytes[at * 4..at * 4 + 4].try_into().unwrap()))
}

/// vpgatherdd ymm1, [eax+ymm2*4], ymm3
const GATHER: [u8; 6] = [0xc4, 0xe2, 0x65, 0x90, 0x0c, 0x90];
const ON: u32 = 1 << 31;

#[test]
fn a_gather_loads_selected_elements_and_clears_the_mask() {
    let Some((mut state, mut environment)) = ready() else {
        return;
    };
    state.gpr[0] = 0x9000;
    environment.put_u32(0x9004, 11);
    environment.put_u32(0x8ffc, 22);
    set(&mut state, &mut environment, 1, [7; 8]);
    let far = 0x1000_0000;
    set(
        &mut state,
        &mut environment,
        2,
        [1, u32::MAX, far, 1, far, 1, far, 1],
    );
    set(
        &mut state,
        &mut environment,
        3,
        [ON, ON, 0, 0, 1, ON, 0, ON],
    );
    run(&mut state, &mut environment, &GATHER).unwrap();
    assert_eq!(
        get(&mut state, &mut environment, 1),
        [11, 22, 7, 7, 7, 11, 7, 11]
    );
    assert_eq!(get(&mut state, &mut environment, 3), [0; 8]);
}

#[test]
fn a_faulting_gather_keeps_what_is_done_and_resumes() {
    let Some((mut state, mut environment)) = ready() else {
        return;
    };
    state.gpr[0] = 0x9000;
    environment.ram[0x9000..0xb000].fill(0x44);
    environment.not_present.push(0xa000..0xb000);
    set(
        &mut state,
        &mut environment,
        2,
        [0, 1, 0x400, 3, 0, 0, 0, 0],
    );
    set(&mut state, &mut environment, 3, [ON; 8]);
    let instruction = crate::test_environment::decode(&state, &GATHER);
    let fault = crate::execute(&mut state, &mut environment, &instruction).unwrap_err();
    assert_eq!(fault.address, Some(LinearAddress(0xa000)));
    let filled = 0x4444_4444;
    assert_eq!(
        get(&mut state, &mut environment, 1)[..4],
        [filled, filled, 0, 0]
    );
    // Before the first access, each mask element was filled with its sign (SDM volume 2,
    // VPGATHERDD, "Operation"), except on AMD's processors.
    let on = if is_amd(&state) { ON } else { u32::MAX };
    assert_eq!(
        get(&mut state, &mut environment, 3),
        [0, 0, on, on, on, on, on, on]
    );
    environment.not_present.clear();
    run(&mut state, &mut environment, &GATHER).unwrap();
    assert_eq!(get(&mut state, &mut environment, 1), [filled; 8]);
}

#[test]
fn wide_indexes_fill_half_a_register_and_clear_the_rest() {
    let Some((mut state, mut environment)) = ready() else {
        return;
    };
    state.gpr[0] = 0x9000;
    environment.put_u32(0x9008, 5);
    set(&mut state, &mut environment, 1, [9; 8]);
    set(&mut state, &mut environment, 2, [8, 0, 0, 0, 1, 1, 1, 1]);
    set(&mut state, &mut environment, 3, [ON; 8]);
    // vpgatherqd xmm1, [eax+xmm2], xmm3
    let code = [0xc4, 0xe2, 0x61, 0x91, 0x0c, 0x10];
    run(&mut state, &mut environment, &code).unwrap();
    assert_eq!(
        get(&mut state, &mut environment, 1),
        [5, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(get(&mut state, &mut environment, 3), [0; 8]);
}

#[test]
fn vex_instructions_need_their_state_enabled() {
    let Some((mut state, mut environment)) = ready() else {
        return;
    };
    let mut fault = |change: &dyn Fn(&mut CpuState)| {
        let mut changed = state.clone();
        change(&mut changed);
        run(&mut changed, &mut environment, &GATHER)
    };
    let invalid = Err(Exception::invalid_opcode());
    assert_eq!(fault(&|s| s.cr4 &= !Cr4::OSXSAVE.bits()), invalid);
    assert_eq!(fault(&|s| s.xcr0 = 3), invalid);
    assert_eq!(
        fault(&|s| s.cr0 |= Cr0::TS.bits()),
        Err(Exception::device_not_available())
    );
    state.gpr[0] = 0;
    // The index and the destination are the same register.
    let code = [0xc4, 0xe2, 0x65, 0x90, 0x14, 0x90];
    assert_eq!(run(&mut state, &mut environment, &code), invalid);
}

#[test]
fn masked_moves_skip_what_they_may_not_touch() {
    let Some((mut state, mut environment)) = ready() else {
        return;
    };
    environment.read_only.push(0xa000..0xb000);
    environment.not_present.push(0xb000..0xc000);
    state.gpr[0] = 0x9ff8;
    set(&mut state, &mut environment, 1, [1, 2, 3, 4, 5, 6, 7, 8]);
    set(&mut state, &mut environment, 3, [ON, ON, 0, 0, 0, 0, 0, 0]);
    // vmaskmovps [eax], ymm3, ymm1
    let store = [0xc4, 0xe2, 0x65, 0x2e, 0x08];
    run(&mut state, &mut environment, &store).unwrap();
    assert_eq!(environment.u64(0x9ff8), 0x2_0000_0001);
    set(&mut state, &mut environment, 3, [ON; 8]);
    environment.ram[0x9ff8..0xa000].fill(0);
    assert!(run(&mut state, &mut environment, &store).is_err());
    assert_eq!(environment.u64(0x9ff8), 0);

    // vpmaskmovd xmm2, xmm3, [eax]
    state.gpr[0] = 0xaff8;
    environment.put_u32(0xaffc, 77);
    set(&mut state, &mut environment, 2, [9; 8]);
    set(&mut state, &mut environment, 3, [0, ON, 0, 0, 0, 0, 0, 0]);
    let load = [0xc4, 0xe2, 0x61, 0x8c, 0x10];
    run(&mut state, &mut environment, &load).unwrap();
    assert_eq!(
        get(&mut state, &mut environment, 2),
        [0, 77, 0, 0, 0, 0, 0, 0]
    );
}

#[test]
fn maskmovdqu_stores_single_bytes_or_none() {
    let (mut state, mut environment) = protected_mode(0);
    state.cr4 |= Cr4::OSFXSR.bits();
    environment.read_only.push(0xa000..0xb000);
    state.gpr[7] = 0x9ffe;
    set(
        &mut state,
        &mut environment,
        1,
        [0x0403_0201, 0x0807_0605, 0, 0, 0, 0, 0, 0],
    );
    set(
        &mut state,
        &mut environment,
        2,
        [0x7f80, 0, 0, 0, 0, 0, 0, 0],
    );
    // maskmovdqu xmm1, xmm2
    let code = [0x66, 0x0f, 0xf7, 0xca];
    run(&mut state, &mut environment, &code).unwrap();
    assert_eq!(environment.ram[0x9ffe..0xa000], [1, 0]);
    set(&mut state, &mut environment, 2, [0x0080_0080; 8]);
    environment.ram[0x9ffe] = 0;
    assert!(run(&mut state, &mut environment, &code).is_err());
    assert_eq!(environment.ram[0x9ffe], 0);
    set(&mut state, &mut environment, 2, [0; 8]);
    state.gpr[7] = 0xffff_fff0;
    assert!(run(&mut state, &mut environment, &code).is_ok());
}

#[test]
fn maskmovq_takes_physical_registers_and_enters_mmx_state() {
    let (mut state, mut environment) = real_mode();
    let mut registers = Registers::of(&mut state, &mut environment);
    registers.set_top(3);
    // mm1 is ST(6), mm2 is ST(7).
    registers.set_st(6, &[1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0xff]);
    registers.set_st(7, &[0x80, 0, 0x80, 0, 0, 0, 0, 0x80, 0xff, 0xff]);
    (state.gpr[7], state.gpr[0]) = (0x10, 0);
    // maskmovq mm1, mm2
    run(&mut state, &mut environment, &[0x0f, 0xf7, 0xca]).unwrap();
    assert_eq!(environment.ram[0x3010..0x3018], [1, 0, 3, 0, 0, 0, 0, 8]);
    let registers = Registers::of(&mut state, &mut environment);
    assert_eq!(registers.top(), 0);
    assert_eq!(registers.mm(1), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(registers.0[4], 0xff);
}

#[test]
fn gathers_of_64_bit_code_use_sixteen_registers_and_64_bit_indexes() {
    let Some((legacy, _)) = ready() else {
        return;
    };
    let (mut state, mut environment) = long_mode(3);
    (state.cr4, state.xcr0) = (legacy.cr4 | state.cr4, legacy.xcr0);
    environment.put_u64(0x9000, 0x1122_3344_5566_7788);
    environment.put_u64(0x9010, 0x99aa_bbcc_ddee_ff00);
    // The base lies far above the elements; the indexes are negative.
    state.gpr[8] = 0x7000_0000_9000;
    let low = 0u64.wrapping_sub(0x7000_0000_0000 / 8);
    let index = [low, low + 2];
    let words = |values: [u64; 2]| {
        let mut words = [0; 8];
        for (at, value) in values.into_iter().enumerate() {
            words[at * 2] = value as u32;
            words[at * 2 + 1] = (value >> 32) as u32;
        }
        words
    };
    set(&mut state, &mut environment, 14, words(index));
    set(&mut state, &mut environment, 15, [u32::MAX; 8]);
    // vpgatherqq xmm9, [r8+xmm14*8], xmm15
    let code = [0xc4, 0x02, 0x81, 0x91, 0x0c, 0xf0];
    run(&mut state, &mut environment, &code).unwrap();
    let loaded = words([0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00]);
    assert_eq!(get(&mut state, &mut environment, 9), loaded);
    assert_eq!(get(&mut state, &mut environment, 15), [0; 8]);
}

#[test]
fn maskmovdqu_of_64_bit_code_stores_at_rdi() {
    let (mut state, mut environment) = long_mode(3);
    state.cr4 |= Cr4::OSFXSR.bits();
    set(&mut state, &mut environment, 9, [0x0403_0201; 8]);
    set(&mut state, &mut environment, 10, [0x8000_0080; 8]);
    // maskmovdqu xmm9, xmm10
    let code = [0x66, 0x45, 0x0f, 0xf7, 0xca];
    state.gpr[7] = 0x9000;
    run(&mut state, &mut environment, &code).unwrap();
    assert_eq!(environment.ram[0x9000..0x9004], [1, 0, 0, 4]);
    state.gpr[7] = 0x7fff_ffff_fffc;
    let fault = run(&mut state, &mut environment, &code);
    let canonical = Exception::general_protection(0);
    assert!(fault.is_err_and(|fault| fault == canonical || fault.address.is_some()));
}

#[test]
fn a_fault_leaves_signs_in_the_mask_and_nothing_above_the_vector_or_what_was_there() {
    let Some((mut state, mut environment)) = ready() else {
        return;
    };
    state.gpr[0] = 0x9000;
    let far = 0x1000_0000;
    set(&mut state, &mut environment, 1, [7; 8]);
    set(&mut state, &mut environment, 2, [1, far, 1, 1, 9, 9, 9, 9]);
    set(
        &mut state,
        &mut environment,
        3,
        [ON | 5, ON, 5, ON, 9, 9, 9, 9],
    );
    // vpgatherdd xmm1, [eax+xmm2*4], xmm3
    let code = [0xc4, 0xe2, 0x61, 0x90, 0x0c, 0x90];
    let instruction = crate::test_environment::decode(&state, &code);
    assert!(crate::execute(&mut state, &mut environment, &instruction).is_err());
    let (mask, target) = if is_amd(&state) {
        ([0, ON, 5, ON, 9, 9, 9, 9], [0, 7, 7, 7, 7, 7, 7, 7])
    } else {
        let on = u32::MAX;
        ([0, on, 0, on, 0, 0, 0, 0], [0, 7, 7, 7, 0, 0, 0, 0])
    };
    assert_eq!(get(&mut state, &mut environment, 3), mask);
    assert_eq!(get(&mut state, &mut environment, 1), target);
}

#[test]
fn a_gather_of_few_elements_widens_the_whole_masks_signs_or_none() {
    let Some((mut state, mut environment)) = ready() else {
        return;
    };
    state.gpr[0] = 0x1000_0000;
    set(
        &mut state,
        &mut environment,
        3,
        [ON, 1, ON, 1, ON, 1, ON, 9],
    );
    // vpgatherqd xmm1, [eax+ymm2*4], xmm3: four elements, a mask of 128 bits.
    let code = [0xc4, 0xe2, 0x65, 0x91, 0x0c, 0x90];
    let instruction = crate::test_environment::decode(&state, &code);
    assert!(crate::execute(&mut state, &mut environment, &instruction).is_err());
    let on = u32::MAX;
    let mask = if is_amd(&state) {
        [ON, 1, ON, 1, ON, 1, ON, 9]
    } else {
        [on, 0, on, 0, on, 0, on, 0]
    };
    assert_eq!(get(&mut state, &mut environment, 3), mask);
}

#[test]
fn an_element_of_a_masked_move_wraps_with_older_amd_and_lies_behind_the_others_elsewhere() {
    let Some((legacy, _)) = ready() else {
        return;
    };
    let (mut state, mut environment) = long_mode(3);
    (state.cr4, state.xcr0) = (legacy.cr4 | state.cr4, legacy.xcr0);
    environment.put_u32(0x1b, 5);
    state.gpr[0] = 0xffff_ffff;
    set(&mut state, &mut environment, 3, [0, 0, 0, 0, 0, 0, 0, ON]);
    // vmaskmovps ymm1, ymm3, [eax]
    let code = [0x67, 0xc4, 0xe2, 0x65, 0x2c, 0x08];
    let result = run(&mut state, &mut environment, &code);
    if wraps_each_element(policy(&state)) {
        assert_eq!(result, Ok(Outcome::Next));
        assert_eq!(get(&mut state, &mut environment, 1)[7], 5);
    } else {
        let address = result.unwrap_err().address;
        assert_eq!(address, Some(LinearAddress(0x1_0000_001b)));
    }
}
