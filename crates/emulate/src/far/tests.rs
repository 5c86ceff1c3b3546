//! Tests of far transfers.

use super::*;
use crate::test_environment::{
    GDT, KERNEL_STACK, TSS, TestEnvironment, descriptor, gate, protected_mode, real_mode, run,
    selector, virtual_8086_mode,
};
use tollgate_x86::{Attributes, Gpr};

const TARGET: u32 = 0x7_0000;
const RETF: [u8; 1] = [0xcb];
const RETF_8: [u8; 3] = [0xca, 8, 0];
const CALL_GATE32: u8 = 0x8c;
const CALL_GATE16: u8 = 0x84;
const FOR_USERS: u8 = 0x60;

/// JMP or CALL ptr16:32.
fn direct(opcode: u8, selector: u16, offset: u32) -> Vec<u8> {
    let mut code = vec![opcode];
    code.extend(offset.to_le_bytes());
    code.extend(selector.to_le_bytes());
    code
}

fn jmp(selector: u16, offset: u32) -> Vec<u8> {
    direct(0xea, selector, offset)
}

fn call(selector: u16, offset: u32) -> Vec<u8> {
    direct(0x9a, selector, offset)
}

fn set_spare(environment: &mut TestEnvironment, entry: u64) {
    environment.put_u64(GDT + usize::from(selector::SPARE), entry);
}

#[test]
fn a_real_mode_jump_loads_cs_by_shifting() {
    let (mut state, mut environment) = real_mode();
    let code = [0xea, 0x34, 0x12, 0xcd, 0xab];
    assert_eq!(
        run(&mut state, &mut environment, &code),
        Ok(Outcome::Jumped)
    );
    assert_eq!((state.cs().base, state.rip), (0xabcd0, 0x1234));
}

#[test]
fn a_real_mode_target_beyond_64_kib_is_a_general_protection_fault() {
    let (mut state, mut environment) = real_mode();
    let code = [0x66, 0xea, 0, 0, 1, 0, 0xcd, 0xab];
    assert_eq!(
        run(&mut state, &mut environment, &code),
        Err(Exception::general_protection(0))
    );
}

#[test]
fn the_selector_of_a_far_pointer_in_memory_wraps_with_the_address() {
    for limit in [0x1_2345, u32::MAX] {
        let (mut state, mut environment) = real_mode();
        let ds = state.segment_mut(SegmentRegister::Ds);
        ds.limit = limit;
        let base = ds.base as usize;
        environment.put_u16(base + 0xfffe, 0x1234);
        environment.put_u16(base, 0xabcd);
        environment.put_u16(base + 0x1_0000, 0x5555);
        state.gpr[Gpr::Rbx as usize] = 0xfffe;
        // jmp far [bx]
        run(&mut state, &mut environment, &[0xff, 0x2f]).unwrap();
        assert_eq!((state.cs().base, state.rip), (0xabcd0, 0x1234));
    }
}

#[test]
fn the_jump_after_setting_pe_enters_32_bit_code() {
    let (protected, mut environment) = protected_mode(0);
    let (mut state, _) = real_mode();
    state.cr0 |= 1;
    state.gdtr = protected.gdtr;
    let code = [0x66, 0xea, 0, 0, 7, 0, selector::CODE0 as u8, 0];
    assert_eq!(
        run(&mut state, &mut environment, &code),
        Ok(Outcome::Jumped)
    );
    assert!(state.cs().is_big());
    assert!(state.cs().attributes.contains(Attributes::ACCESSED));
    assert_eq!(state.cs().selector.0, selector::CODE0);
    assert_eq!(state.rip, u64::from(TARGET));
}

#[test]
fn real_mode_call_and_return_are_inverse() {
    let (mut state, mut environment) = real_mode();
    let code = [0x9a, 0x34, 0x12, 0xcd, 0xab];
    assert!(run(&mut state, &mut environment, &code).is_ok());
    assert_eq!(state.register(Gpr::Rsp), 0xffc);
    assert_eq!(environment.u16(0x2ffc), 5);
    assert_eq!(environment.u16(0x2ffe), 0x100);
    assert_eq!(
        run(&mut state, &mut environment, &RETF_8),
        Ok(Outcome::Jumped)
    );
    assert_eq!((state.cs().base, state.rip), (0x1000, 5));
    assert_eq!(state.register(Gpr::Rsp), 0x1008);
}

#[test]
fn a_16_bit_stack_keeps_the_upper_half_of_esp_and_wraps() {
    let (mut state, mut environment) = real_mode();
    state.gpr[Gpr::Rsp as usize] = 0xabcd_0002;
    let code = [0x9a, 0x34, 0x12, 0xcd, 0xab];
    assert!(run(&mut state, &mut environment, &code).is_ok());
    assert_eq!(state.register(Gpr::Rsp), 0xabcd_fffe);
    assert_eq!(environment.u16(0x2000), 0x100);
    assert_eq!(environment.u16(0x2000 + 0xfffe), 5);
    assert!(run(&mut state, &mut environment, &RETF).is_ok());
    assert_eq!(state.register(Gpr::Rsp), 0xabcd_0002);
    assert_eq!(state.rip, 5);
}

#[test]
fn a_word_that_straddles_the_top_of_a_16_bit_stack_is_a_stack_fault() {
    let (mut state, mut environment) = real_mode();
    state.gpr[Gpr::Rsp as usize] = 0xffff;
    assert_eq!(
        run(&mut state, &mut environment, &RETF),
        Err(Exception::stack_fault(0))
    );
}

#[test]
fn v86_mode_transfers_read_no_descriptor_and_keep_level_3() {
    let (mut state, mut environment) = virtual_8086_mode(0);
    environment.not_present.push(0x0..0x2000);
    let code = [0xea, 0x34, 0x12, 0xcd, 0xab];
    assert!(run(&mut state, &mut environment, &code).is_ok());
    assert_eq!(*state.cs(), Segment::real_mode(0xabcd, 3));
    assert_eq!(state.cpl(), 3);
}

#[test]
fn protected_jumps_check_type_privilege_presence_and_limit() {
    let refused = |code| Err(Exception::general_protection(code));
    for (cpl, target, offset, expected) in [
        (0, selector::CODE0, TARGET, Ok(Outcome::Jumped)),
        (0, selector::CODE16, 0xffff, Ok(Outcome::Jumped)),
        (3, selector::CODE3, TARGET, Ok(Outcome::Jumped)),
        (3, selector::CODE3 & !3, TARGET, Ok(Outcome::Jumped)),
        (3, selector::CONFORMING0, TARGET, Ok(Outcome::Jumped)),
        (0, selector::CODE16, 0x1_0000, refused(0)),
        (0, 0, TARGET, refused(0)),
        (0, 0x1000, TARGET, refused(0x1000)),
        (0, selector::DATA0, TARGET, refused(0x10)),
        (0, selector::LDT, TARGET, refused(0x60)),
        (0, selector::CODE3, TARGET, refused(0x18)),
        (0, selector::CODE0 | 3, TARGET, refused(8)),
        (3, selector::CODE0, TARGET, refused(8)),
        // The target is a busy TSS.
        (0, selector::TSS, TARGET, refused(0x58)),
    ] {
        let (mut state, mut environment) = protected_mode(cpl);
        let result = run(&mut state, &mut environment, &jmp(target, offset));
        assert_eq!(result, expected, "jump to {target:#x} at CPL {cpl}");
        if result.is_ok() {
            assert_eq!(state.cs().selector.0, target & !3 | u16::from(cpl));
            assert_eq!(state.cpl(), cpl);
        }
    }
    let (mut state, mut environment) = protected_mode(0);
    set_spare(&mut environment, descriptor(0, 0xf_ffff, 0xc01a));
    assert_eq!(
        run(&mut state, &mut environment, &jmp(selector::SPARE, 0)),
        Err(Exception::segment_not_present(0x68))
    );
}

#[test]
fn a_jump_through_memory_reads_offset_then_selector() {
    let (mut state, mut environment) = protected_mode(0);
    environment.put_u32(0x6000, TARGET);
    environment.put_u16(0x6004, selector::CODE0);
    let code = [0xff, 0x2d, 0x00, 0x60, 0, 0];
    assert_eq!(
        run(&mut state, &mut environment, &code),
        Ok(Outcome::Jumped)
    );
    assert_eq!(state.rip, u64::from(TARGET));
}

#[test]
fn a_call_at_the_same_level_pushes_cs_and_eip() {
    let (mut state, mut environment) = protected_mode(0);
    let code = call(selector::CONFORMING0, TARGET);
    assert!(run(&mut state, &mut environment, &code).is_ok());
    assert_eq!(state.register(Gpr::Rsp), 0x7ff8);
    assert_eq!(environment.u32(0x7ff8), 0x5007);
    assert_eq!(environment.u32(0x7ffc), u32::from(selector::CODE0));
    assert!(run(&mut state, &mut environment, &RETF).is_ok());
    assert_eq!(state.rip, 0x5007);
    assert_eq!(state.register(Gpr::Rsp), 0x8000);
}

#[test]
fn a_call_gate_switches_stacks_and_copies_parameters_in_order() {
    let (mut state, mut environment) = protected_mode(3);
    let entry = gate(selector::CODE0, TARGET, CALL_GATE32 | FOR_USERS, 2);
    set_spare(&mut environment, entry);
    environment.put_u32(0x8000, 0x1111);
    environment.put_u32(0x8004, 0x2222);
    let code = call(selector::SPARE | 3, 0xdead_beef);
    assert_eq!(
        run(&mut state, &mut environment, &code),
        Ok(Outcome::Jumped)
    );
    assert_eq!((state.cpl(), state.rip), (0, u64::from(TARGET)));
    assert_eq!(state.cs().selector.0, selector::CODE0);
    let esp = KERNEL_STACK as usize - 24;
    assert_eq!(state.register(Gpr::Rsp), esp as u64);
    let frame: Vec<u32> = (0..6).map(|i| environment.u32(esp + i * 4)).collect();
    let (cs, ss) = (selector::CODE3.into(), selector::DATA3.into());
    assert_eq!(frame, [0x5007, cs, 0x1111, 0x2222, 0x8000, ss]);

    // The return releases the parameters on both stacks.
    state.segment_mut(SegmentRegister::Fs).attributes = Attributes::from_bits_retain(0xc093);
    assert_eq!(
        run(&mut state, &mut environment, &RETF_8),
        Ok(Outcome::Jumped)
    );
    assert_eq!((state.cpl(), state.rip), (3, 0x5007));
    assert_eq!(state.register(Gpr::Rsp), 0x8008);
    assert_eq!(state.ss().selector.0, selector::DATA3);
    // FS was too privileged for the outer level, DS was not.
    assert_eq!(
        *state.segment(SegmentRegister::Fs),
        Segment::null(Selector(0))
    );
    assert!(state.segment(SegmentRegister::Ds).is_usable());
}

#[test]
fn a_16_bit_call_gate_copies_words() {
    let (mut state, mut environment) = protected_mode(3);
    let entry = gate(selector::CODE0, TARGET, CALL_GATE16 | FOR_USERS, 1);
    set_spare(&mut environment, entry);
    environment.put_u16(0x8000, 0x1111);
    let code = call(selector::SPARE, 0);
    assert!(run(&mut state, &mut environment, &code).is_ok());
    let esp = KERNEL_STACK as usize - 10;
    assert_eq!(state.register(Gpr::Rsp), esp as u64);
    let frame: Vec<u16> = (0..5).map(|i| environment.u16(esp + i * 2)).collect();
    let (cs, ss) = (selector::CODE3, selector::DATA3);
    assert_eq!(frame, [0x5007, cs, 0x1111, 0x8000, ss]);
    assert_eq!(state.rip, u64::from(TARGET & 0xffff));
}

#[test]
fn a_jump_through_a_call_gate_stays_at_its_level() {
    let (mut state, mut environment) = protected_mode(0);
    set_spare(
        &mut environment,
        gate(selector::CODE0, TARGET, CALL_GATE32, 0),
    );
    let code = jmp(selector::SPARE, 0);
    assert!(run(&mut state, &mut environment, &code).is_ok());
    assert_eq!(state.rip, u64::from(TARGET));

    let (mut state, mut environment) = protected_mode(3);
    let entry = gate(selector::CODE0, TARGET, CALL_GATE32 | FOR_USERS, 0);
    set_spare(&mut environment, entry);
    assert_eq!(
        run(&mut state, &mut environment, &code),
        Err(Exception::general_protection(8))
    );
}

#[test]
fn call_gates_are_checked_for_privilege_presence_and_target() {
    let refused = |code| Err(Exception::general_protection(code));
    for (entry, expected) in [
        (gate(selector::CODE0, TARGET, CALL_GATE32, 0), refused(0x68)),
        (
            gate(selector::CODE0, TARGET, 0x0c | FOR_USERS, 0),
            Err(Exception::segment_not_present(0x68)),
        ),
        (gate(0, TARGET, CALL_GATE32 | FOR_USERS, 0), refused(0)),
        (
            gate(selector::DATA0, TARGET, CALL_GATE32 | FOR_USERS, 0),
            refused(0x10),
        ),
        (
            gate(selector::CODE16, 0x1_0000, CALL_GATE32 | FOR_USERS, 0),
            refused(0),
        ),
    ] {
        let (mut state, mut environment) = protected_mode(3);
        set_spare(&mut environment, entry);
        let code = call(selector::SPARE, 0);
        assert_eq!(run(&mut state, &mut environment, &code), expected);
    }
}

#[test]
fn a_call_gate_needs_a_good_inner_stack() {
    for (ss, limit, expected) in [
        (0, 0x67, Exception::invalid_tss(0)),
        (selector::DATA3, 0x67, Exception::invalid_tss(0x20)),
        (selector::ABSENT0, 0x67, Exception::stack_fault(0x50)),
        (selector::DATA0, 8, Exception::invalid_tss(0x58)),
    ] {
        let (mut state, mut environment) = protected_mode(3);
        let entry = gate(selector::CODE0, TARGET, CALL_GATE32 | FOR_USERS, 0);
        set_spare(&mut environment, entry);
        environment.put_u16(TSS + 8, ss);
        state.tr.limit = limit;
        let code = call(selector::SPARE, 0);
        assert_eq!(run(&mut state, &mut environment, &code), Err(expected));
    }
}

#[test]
fn returns_check_the_code_segment_and_the_outer_stack() {
    let refused = |code| Err(Exception::general_protection(code));
    for (cpl, cs, ss, expected) in [
        (0, 0, 0, refused(0)),
        (0, selector::DATA0, 0, refused(0x10)),
        (3, selector::CODE0, 0, refused(8)),
        (0, selector::CODE0 | 3, 0, refused(8)),
        (0, selector::CODE3, 0, refused(0)),
        (0, selector::CODE3, selector::DATA0, refused(0x10)),
        (0, selector::CODE3, selector::READ_ONLY3, refused(0x40)),
        (0, selector::CODE3, selector::DATA3, Ok(Outcome::Jumped)),
    ] {
        let (mut state, mut environment) = protected_mode(cpl);
        environment.put_u32(0x8000, TARGET);
        environment.put_u16(0x8004, cs);
        environment.put_u32(0x8008, 0x9000);
        environment.put_u16(0x800c, ss);
        let result = run(&mut state, &mut environment, &RETF);
        assert_eq!(result, expected, "to {cs:#x} {ss:#x} from {cpl}");
    }
}
