//! Tests of far transfers in IA-32e mode.

use super::*;
use crate::test_environment::{
    GDT, KERNEL_STACK, STACK, TSS, TestEnvironment, compatibility_mode, long_gate, long_mode,
    long_selector, run, selector,
};
use tollgate_x86::Gpr;

const TARGET: u64 = 0xffff_ffff_8123_4567;
const CALL_GATE: u8 = 0xec;
/// A jump through the far pointer at 9000h.
const JMP_M1632: [u8; 7] = [0xff, 0x2c, 0x25, 0x00, 0x90, 0, 0];
const JMP_M1664: [u8; 8] = [0x48, 0xff, 0x2c, 0x25, 0x00, 0x90, 0, 0];
const CALL_M1632: [u8; 7] = [0xff, 0x1c, 0x25, 0x00, 0x90, 0, 0];
const CALL_M1664: [u8; 8] = [0x48, 0xff, 0x1c, 0x25, 0x00, 0x90, 0, 0];
const RETFQ: [u8; 2] = [0x48, 0xcb];
const RETFQ_16: [u8; 4] = [0x48, 0xca, 16, 0];

fn put_pointer(environment: &mut TestEnvironment, offset: u64, selector: u16) {
    environment.put_u64(0x9000, offset);
    environment.put_u16(0x9008, selector);
}

fn refused(code: u16) -> Result<Outcome, Exception> {
    Err(Exception::general_protection(u32::from(code)))
}

#[test]
fn a_far_jump_leaves_64_bit_mode_and_comes_back() {
    let (mut state, mut environment) = long_mode(0);
    environment.put_u32(0x9000, 0x1234);
    environment.put_u16(0x9004, selector::CODE0);
    run(&mut state, &mut environment, &JMP_M1632).unwrap();
    assert_eq!((state.rip, state.is_64_bit()), (0x1234, false));
    assert!(state.cs().is_big() && state.is_long_mode());
    // JMP ptr16:32
    let back = [0xea, 0x78, 0x56, 0x34, 0x12, 0x80, 0];
    run(&mut state, &mut environment, &back).unwrap();
    assert_eq!((state.rip, state.is_64_bit()), (0x1234_5678, true));
    assert_eq!(state.cs().base, 0);
}

#[test]
fn a_jump_with_rex_w_has_a_64_bit_offset_that_must_be_canonical() {
    let (mut state, mut environment) = long_mode(0);
    put_pointer(&mut environment, TARGET, long_selector::CODE0);
    run(&mut state, &mut environment, &JMP_M1664).unwrap();
    assert_eq!(state.rip, TARGET);
    put_pointer(&mut environment, 0x8000_0000_0000, long_selector::CODE0);
    assert_eq!(run(&mut state, &mut environment, &JMP_M1664), refused(0));
    put_pointer(&mut environment, TARGET, long_selector::BOTH0);
    let both = refused(long_selector::BOTH0);
    assert_eq!(run(&mut state, &mut environment, &JMP_M1664), both);
}

#[test]
fn calls_push_as_many_bytes_as_their_operand_says() {
    for (code, bytes) in [(&CALL_M1664[..], 8u64), (&CALL_M1632[..], 4)] {
        let (mut state, mut environment) = long_mode(0);
        environment.put_u32(0x9000, 0x1234);
        environment.put_u32(0x9004, 0);
        let selector = 0x9000 + bytes as usize;
        environment.put_u16(selector, long_selector::CODE0);
        run(&mut state, &mut environment, code).unwrap();
        let top = u64::from(STACK) - 2 * bytes;
        assert_eq!(state.register(Gpr::Rsp), top);
        assert_eq!(environment.u32(top as usize), 0x5000 + code.len() as u32);
        let cs = environment.u16((top + bytes) as usize);
        assert_eq!(cs, long_selector::CODE0);
    }
}

#[test]
fn a_call_gate_takes_rsp_from_the_tss_and_makes_ss_null() {
    let (mut state, mut environment) = long_mode(3);
    state.tr.base = TSS as u64;
    let gate = long_gate(long_selector::CODE0, TARGET, CALL_GATE, 0);
    environment.put(GDT + usize::from(long_selector::SPARE), &gate);
    put_pointer(&mut environment, 0xdead, long_selector::SPARE | 3);
    run(&mut state, &mut environment, &CALL_M1664).unwrap();
    assert_eq!((state.rip, state.cpl()), (TARGET, 0));
    assert_eq!(state.ss().selector.0, 0);
    let top = KERNEL_STACK as usize - 32;
    assert_eq!(state.register(Gpr::Rsp), top as u64);
    assert_eq!(environment.u64(top), 0x5008);
    assert_eq!(environment.u64(top + 8), u64::from(long_selector::CODE3));
    assert_eq!(environment.u64(top + 16), u64::from(STACK));
    assert_eq!(environment.u64(top + 24), u64::from(selector::DATA3));
    // The return pops two quadwords from each stack.
    environment.put_u64(top + 16, 0x5008);
    environment.put_u64(top + 24, u64::from(long_selector::CODE3));
    environment.put_u64(top + 32, u64::from(STACK));
    environment.put_u64(top + 40, u64::from(selector::DATA3));
    state.gpr[Gpr::Rsp as usize] = top as u64;
    environment.put_u64(top, 0x5008);
    environment.put_u64(top + 8, u64::from(long_selector::CODE3));
    run(&mut state, &mut environment, &RETFQ_16).unwrap();
    assert_eq!((state.rip, state.cpl()), (0x5008, 3));
    assert_eq!(state.register(Gpr::Rsp), u64::from(STACK) + 16);
}

#[test]
fn a_gate_needs_16_bytes_with_a_zero_type_above_and_64_bit_code() {
    let (mut state, mut environment) = long_mode(0);
    let spare = long_selector::SPARE;
    let at = GDT + usize::from(spare);
    put_pointer(&mut environment, 0, spare);
    let mut gate = long_gate(selector::CODE0, 0x1000, CALL_GATE, 0);
    environment.put(at, &gate);
    let target = refused(selector::CODE0);
    assert_eq!(run(&mut state, &mut environment, &JMP_M1664), target);
    gate = long_gate(long_selector::CODE0, 0x1000, CALL_GATE, 0);
    gate[13] = 1;
    environment.put(at, &gate);
    assert_eq!(
        run(&mut state, &mut environment, &JMP_M1664),
        refused(spare)
    );
    gate[13] = 0;
    environment.put(at, &gate);
    state.gdtr.limit -= 8;
    assert_eq!(
        run(&mut state, &mut environment, &JMP_M1664),
        refused(spare)
    );
    state.gdtr.limit += 8;
    run(&mut state, &mut environment, &JMP_M1664).unwrap();
    assert_eq!(state.rip, 0x1000);
}

#[test]
fn tasks_and_16_bit_gates_do_not_exist() {
    for (mut state, mut environment) in [long_mode(0), compatibility_mode(0)] {
        environment.put_u64(0x9000, 0);
        for kind in [0x84, 0x85, 0x81, 0x89] {
            let gate = long_gate(long_selector::CODE0, 0x1000, kind, 0);
            environment.put(GDT + usize::from(long_selector::SPARE), &gate);
            environment.put_u16(0x9004, long_selector::SPARE);
            let code = if state.is_64_bit() {
                JMP_M1632.to_vec()
            } else {
                vec![0xff, 0x2d, 0x00, 0x90, 0, 0]
            };
            let result = run(&mut state, &mut environment, &code);
            assert_eq!(result, refused(long_selector::SPARE));
        }
    }
}

#[test]
fn a_return_may_load_a_null_ss_below_level_3() {
    let (mut state, mut environment) = long_mode(0);
    environment.put_u64(0x8000, TARGET);
    environment.put_u64(0x8008, u64::from(long_selector::CODE0));
    run(&mut state, &mut environment, &RETFQ).unwrap();
    assert_eq!((state.rip, state.register(Gpr::Rsp)), (TARGET, 0x8010));
    let (mut state, mut environment) = long_mode(0);
    environment.put_u64(0x8000, 0x1000);
    environment.put_u64(0x8008, u64::from(long_selector::CODE3));
    environment.put_u64(0x8018, 0);
    assert_eq!(run(&mut state, &mut environment, &RETFQ), refused(0));
}

#[test]
fn a_return_to_level_3_keeps_the_bases_of_fs_and_gs() {
    let (mut state, mut environment) = long_mode(0);
    for (register, base) in [
        (SegmentRegister::Fs, 0x7f00_0000_1000),
        (SegmentRegister::Gs, 0xffff_8000_0000_2000),
    ] {
        state.segment_mut(register).base = base;
    }
    for (index, value) in [
        0x1000,
        u64::from(long_selector::CODE3),
        0,
        u64::from(selector::DATA3),
    ]
    .into_iter()
    .enumerate()
    {
        environment.put_u64(0x8000 + index * 8, value);
    }
    run(&mut state, &mut environment, &RETFQ).unwrap();
    let (fs, gs) = (
        state.segment(SegmentRegister::Fs),
        state.segment(SegmentRegister::Gs),
    );
    assert_eq!((fs.selector.0, gs.selector.0), (0, 0));
    assert_eq!(
        (fs.base, gs.base),
        (0x7f00_0000_1000, 0xffff_8000_0000_2000)
    );
}
