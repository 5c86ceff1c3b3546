//! Tests of delivery, including double faults.

use super::*;
use crate::Outcome;
use crate::test_environment::{
    GDT, IDT, KERNEL_STACK, TSS, TestEnvironment, descriptor, gate, protected_mode, real_mode, run,
    selector, virtual_8086_mode,
};
use tollgate_x86::exception::PageFaultCode;
use tollgate_x86::{Attributes, Gpr, LinearAddress, SegmentRegister};

const HANDLER: u32 = 0x7_0000;
const INTERRUPT32: u8 = 0x8e;
const TRAP32: u8 = 0x8f;
const INTERRUPT16: u8 = 0x86;
const FOR_USERS: u8 = 0x60;

fn set_gate(environment: &mut TestEnvironment, vector: usize, kind: u8) {
    let entry = gate(selector::CODE0, HANDLER, kind, 0);
    environment.put_u64(IDT + vector * 8, entry);
}

fn external(
    state: &mut CpuState,
    environment: &mut TestEnvironment,
    vector: u8,
) -> Result<(), Exception> {
    let before = state.clone();
    let rip = state.rip;
    let result = deliver(
        state,
        environment,
        &Event::external(vector, rip),
        &mut Planned::nothing(),
    );
    if result.is_err() {
        assert_eq!(*state, before, "a failed delivery changed the registers");
    }
    result
}

#[test]
fn real_mode_pushes_three_words_and_clears_if_and_tf() {
    let (mut state, mut environment) = real_mode();
    environment.put_u16(0x21 * 4, 0x1234);
    environment.put_u16(0x21 * 4 + 2, 0x0abc);
    state.flags = (Flags::IF | Flags::TF | Flags::CF).bits();
    assert_eq!(
        run(&mut state, &mut environment, &[0xcd, 0x21]),
        Ok(Outcome::Jumped)
    );
    assert_eq!((state.rip, state.cs().base), (0x1234, 0xabc0));
    assert_eq!(state.register(Gpr::Rsp), 0xffa);
    assert_eq!(environment.u16(0x2ffa), 2);
    assert_eq!(environment.u16(0x2ffc), 0x100);
    assert_eq!(environment.u16(0x2ffe), 0x0303);
    assert_eq!(state.flags(), Flags::CF);
}

#[test]
fn real_mode_respects_lidt() {
    let (mut state, mut environment) = real_mode();
    state.idtr.base = 0x8000;
    state.idtr.limit = 0x21 * 4 + 2;
    environment.put_u32(0x8000 + 0x20 * 4, 0x0abc_1234);
    assert!(run(&mut state, &mut environment, &[0xcd, 0x20]).is_ok());
    assert_eq!(state.rip, 0x1234);
    assert_eq!(
        run(&mut state, &mut environment, &[0xcd, 0x21]).map_err(|fault| fault.vector),
        Err(Vector::GeneralProtection)
    );
}

#[test]
fn an_interrupt_gate_at_the_same_level_pushes_three_doublewords() {
    let (mut state, mut environment) = protected_mode(0);
    set_gate(&mut environment, 0x20, INTERRUPT32);
    state.flags = (Flags::IF | Flags::TF | Flags::NT).bits();
    assert_eq!(external(&mut state, &mut environment, 0x20), Ok(()));
    assert_eq!(state.rip, u64::from(HANDLER));
    assert_eq!(state.register(Gpr::Rsp), 0x7ff4);
    assert_eq!(environment.u32(0x7ff4), 0x5000);
    assert_eq!(environment.u32(0x7ff8), u32::from(selector::CODE0));
    assert_eq!(environment.u32(0x7ffc), 0x4302);
    assert_eq!(state.flags(), Flags::empty());
}

#[test]
fn a_trap_gate_keeps_if() {
    let (mut state, mut environment) = protected_mode(0);
    set_gate(&mut environment, 0x20, TRAP32);
    state.flags = Flags::IF.bits();
    assert_eq!(external(&mut state, &mut environment, 0x20), Ok(()));
    assert_eq!(state.flags(), Flags::IF);
}

#[test]
fn from_ring_3_the_stack_comes_from_the_tss() {
    let (mut state, mut environment) = protected_mode(3);
    set_gate(&mut environment, 0x80, TRAP32 | FOR_USERS);
    assert_eq!(
        run(&mut state, &mut environment, &[0xcd, 0x80]),
        Ok(Outcome::Jumped)
    );
    assert_eq!(state.cpl(), 0);
    assert_eq!(state.cs().selector.0, selector::CODE0);
    assert_eq!(state.ss().selector.0, selector::DATA0);
    let esp = KERNEL_STACK as usize - 20;
    assert_eq!(state.register(Gpr::Rsp), esp as u64);
    assert_eq!(environment.u32(esp), 0x5002);
    assert_eq!(environment.u32(esp + 4), u32::from(selector::CODE3));
    assert_eq!(environment.u32(esp + 12), 0x8000);
    assert_eq!(environment.u32(esp + 16), u32::from(selector::DATA3));
    // Data segments do not change.
    assert_eq!(
        state.segment(SegmentRegister::Ds).selector.0,
        selector::DATA3
    );
}

#[test]
fn int_n_and_int3_are_checked_against_the_gates_dpl_but_interrupts_and_int1_are_not() {
    let (mut state, mut environment) = protected_mode(3);
    for vector in [1, 3, 4, 0x20] {
        set_gate(&mut environment, vector, INTERRUPT32);
    }
    state.flags = Flags::OF.bits();
    for (code, error_code) in [(&[0xcd, 0x20][..], 0x102), (&[0xcc], 0x1a), (&[0xce], 0x22)] {
        assert_eq!(
            run(&mut state, &mut environment, code),
            Err(Exception::general_protection(error_code))
        );
    }
    let mut other = state.clone();
    assert_eq!(external(&mut other, &mut environment, 0x20), Ok(()));
    assert_eq!(
        run(&mut state, &mut environment, &[0xf1]),
        Ok(Outcome::Jumped)
    );
}

#[test]
fn into_without_overflow_does_nothing() {
    let (mut state, mut environment) = protected_mode(3);
    assert_eq!(
        run(&mut state, &mut environment, &[0xce]),
        Ok(Outcome::Next)
    );
    assert_eq!(state.rip, 0x5001);
}

#[test]
fn bad_gates_and_targets_have_their_error_codes() {
    let ext = |code| Exception::general_protection(code);
    let cases = [
        // The entry is not a gate.
        (descriptor(0, 0xffff, 0xc092), ext(0x103)),
        // The gate is not present.
        (
            gate(selector::CODE0, HANDLER, 0x0e, 0),
            Exception::segment_not_present(0x103),
        ),
        // The target is null, a data segment, or outside the table.
        (gate(0, HANDLER, INTERRUPT32, 0), ext(1)),
        (gate(selector::DATA0, HANDLER, INTERRUPT32, 0), ext(0x11)),
        (gate(0x1000, HANDLER, INTERRUPT32, 0), ext(0x1001)),
        // The target is less privileged.
        (gate(selector::CODE3, HANDLER, INTERRUPT32, 0), ext(0x19)),
        // The offset is outside the 64 KiB segment.
        (gate(selector::CODE16, 0x1_0000, INTERRUPT32, 0), ext(1)),
    ];
    for (entry, expected) in cases {
        let (mut state, mut environment) = protected_mode(0);
        environment.put_u64(IDT + 0x20 * 8, entry);
        assert_eq!(external(&mut state, &mut environment, 0x20), Err(expected));
    }
    let (mut state, mut environment) = protected_mode(0);
    state.idtr.limit = 0x106;
    assert_eq!(
        external(&mut state, &mut environment, 0x20),
        Err(ext(0x103))
    );
}

#[test]
fn a_bad_inner_stack_is_an_invalid_tss_fault() {
    let bad = |code| Err(Exception::invalid_tss(code));
    for (ss, expected) in [
        (0, bad(1)),
        (selector::DATA3, bad(0x21)),
        (selector::CODE0, bad(9)),
        (0x1000, bad(0x1001)),
        (selector::ABSENT0, Err(Exception::stack_fault(0x51))),
    ] {
        let (mut state, mut environment) = protected_mode(3);
        set_gate(&mut environment, 0x20, INTERRUPT32);
        environment.put_u16(TSS + 8, ss);
        assert_eq!(external(&mut state, &mut environment, 0x20), expected);
    }
    let (mut state, mut environment) = protected_mode(3);
    set_gate(&mut environment, 0x20, INTERRUPT32);
    state.tr.limit = 8;
    assert_eq!(external(&mut state, &mut environment, 0x20), bad(0x59));
}

#[test]
fn a_page_fault_on_the_new_stack_is_that_of_the_first_push_and_changes_nothing() {
    let (mut state, mut environment) = protected_mode(3);
    set_gate(&mut environment, 0x20, INTERRUPT32);
    environment.not_present.push(0x9000..0xa000);
    let expected = Exception::page_fault(
        LinearAddress(u64::from(KERNEL_STACK) - 4),
        PageFaultCode::WRITE,
    );
    assert_eq!(external(&mut state, &mut environment, 0x20), Err(expected));
}

#[test]
fn a_16_bit_gate_pushes_words() {
    let (mut state, mut environment) = protected_mode(0);
    set_gate(&mut environment, 0x20, INTERRUPT16);
    assert_eq!(external(&mut state, &mut environment, 0x20), Ok(()));
    assert_eq!(state.rip, u64::from(HANDLER & 0xffff));
    assert_eq!(state.register(Gpr::Rsp), 0x7ffa);
    assert_eq!(environment.u16(0x7ffa), 0x5000);
}

#[test]
fn a_16_bit_tss_gives_a_16_bit_stack_pointer() {
    let (mut state, mut environment) = protected_mode(3);
    set_gate(&mut environment, 0x20, INTERRUPT32);
    state.tr.attributes = Attributes::from_bits_retain(0x83);
    environment.put_u16(TSS + 2, 0x9000);
    environment.put_u16(TSS + 4, selector::DATA0);
    assert_eq!(external(&mut state, &mut environment, 0x20), Ok(()));
    assert_eq!(state.register(Gpr::Rsp), 0x9000 - 20);
}

#[test]
fn a_conforming_handler_runs_at_the_interrupted_level() {
    let (mut state, mut environment) = protected_mode(3);
    environment.put_u64(
        IDT + 0x100,
        gate(selector::CONFORMING0, HANDLER, INTERRUPT32, 0),
    );
    assert_eq!(external(&mut state, &mut environment, 0x20), Ok(()));
    assert_eq!(state.cpl(), 3);
    assert_eq!(state.cs().selector.0, selector::CONFORMING0 | 3);
    assert_eq!(state.register(Gpr::Rsp), 0x7ff4);
}

#[test]
fn from_v86_mode_nine_doublewords_are_pushed_and_data_segments_nulled() {
    let (mut state, mut environment) = virtual_8086_mode(3);
    set_gate(&mut environment, 0x20, INTERRUPT32 | FOR_USERS);
    assert_eq!(
        run(&mut state, &mut environment, &[0xcd, 0x20]),
        Ok(Outcome::Jumped)
    );
    assert!(!state.is_virtual_8086());
    assert_eq!(state.cpl(), 0);
    let esp = KERNEL_STACK as usize - 36;
    assert_eq!(state.register(Gpr::Rsp), esp as u64);
    let frame: Vec<u32> = (0..9).map(|i| environment.u32(esp + i * 4)).collect();
    assert_eq!(
        frame,
        [2, 0x100, 0x2_3002, 0x1000, 0x200, 0x300, 0x300, 0, 0]
    );
    for register in [SegmentRegister::Ds, SegmentRegister::Gs] {
        assert!(!state.segment(register).is_usable());
    }
}

#[test]
fn int_n_in_v86_mode_needs_iopl_3_and_int3_does_not() {
    let (mut state, mut environment) = virtual_8086_mode(0);
    set_gate(&mut environment, 0x20, INTERRUPT32 | FOR_USERS);
    set_gate(&mut environment, 3, INTERRUPT32 | FOR_USERS);
    assert_eq!(
        run(&mut state, &mut environment, &[0xcd, 0x20]),
        Err(Exception::general_protection(0))
    );
    assert_eq!(
        run(&mut state, &mut environment, &[0xcc]),
        Ok(Outcome::Jumped)
    );
}

#[test]
fn from_v86_mode_a_conforming_handler_is_refused() {
    let (mut state, mut environment) = virtual_8086_mode(0);
    environment.put_u64(
        IDT + 0x100,
        gate(selector::CONFORMING0, HANDLER, INTERRUPT32, 0),
    );
    assert_eq!(
        external(&mut state, &mut environment, 0x20),
        Err(Exception::general_protection(0x39))
    );
}

#[test]
fn loading_the_handlers_cs_sets_its_accessed_bit() {
    let (mut state, mut environment) = protected_mode(0);
    set_gate(&mut environment, 0x20, INTERRUPT32);
    assert_eq!(external(&mut state, &mut environment, 0x20), Ok(()));
    assert_eq!(environment.ram[GDT + 13], 0x9b);
}

#[test]
fn a_page_fault_sets_cr2_and_shows_rf_and_its_error_code() {
    let (mut state, mut environment) = protected_mode(0);
    set_gate(&mut environment, 14, INTERRUPT32);
    let fault = Exception::page_fault(LinearAddress(0xdead_b000), PageFaultCode::WRITE);
    assert_eq!(
        deliver_exception(&mut state, &mut environment, fault, &mut Planned::nothing()),
        Ok(())
    );
    assert_eq!(state.cr2, 0xdead_b000);
    assert_eq!(state.register(Gpr::Rsp), 0x7ff0);
    assert_eq!(environment.u32(0x7ff0), 2);
    assert_eq!(environment.u32(0x7ffc), 0x1_0002);
    assert_eq!(state.flags(), Flags::empty());
}

#[test]
fn traps_do_not_show_rf() {
    let (mut state, mut environment) = protected_mode(0);
    set_gate(&mut environment, 1, INTERRUPT32);
    let trap = Exception::new(Vector::Debug);
    assert_eq!(
        deliver_exception(&mut state, &mut environment, trap, &mut Planned::nothing()),
        Ok(())
    );
    assert_eq!(environment.u32(0x7ffc), 2);
}

#[test]
fn a_contributory_fault_during_another_is_a_double_fault() {
    let (mut state, mut environment) = protected_mode(0);
    set_gate(&mut environment, 8, INTERRUPT32);
    // There is no gate for #GP, so its delivery raises #GP.
    assert_eq!(
        deliver_exception(
            &mut state,
            &mut environment,
            Exception::general_protection(0),
            &mut Planned::nothing()
        )
        .map(drop),
        Ok(())
    );
    assert_eq!(state.rip, u64::from(HANDLER));
    assert_eq!(environment.u32(0x7ff0), 0);
    assert_eq!(environment.u32(0x7ff4), 0x5000);
}

#[test]
fn a_page_fault_during_a_general_protection_fault_is_delivered_instead() {
    let (mut state, mut environment) = protected_mode(3);
    set_gate(&mut environment, 13, INTERRUPT32);
    environment.put_u64(
        IDT + 14 * 8,
        gate(selector::CONFORMING0, HANDLER, TRAP32, 0),
    );
    environment.not_present.push(0x9000..0xa000);
    assert_eq!(
        deliver_exception(
            &mut state,
            &mut environment,
            Exception::general_protection(0),
            &mut Planned::nothing()
        )
        .map(drop),
        Ok(())
    );
    assert_eq!(state.cr2, u64::from(KERNEL_STACK) - 4);
    assert_eq!(state.cpl(), 3);
}

#[test]
fn a_benign_exception_never_doubles() {
    let (mut state, mut environment) = protected_mode(0);
    set_gate(&mut environment, 11, INTERRUPT32);
    environment.put_u64(IDT + 6 * 8, gate(selector::CODE0, HANDLER, 0x0e, 0));
    assert_eq!(
        deliver_exception(
            &mut state,
            &mut environment,
            Exception::invalid_opcode(),
            &mut Planned::nothing()
        ),
        Ok(())
    );
    // #NP refers to the gate of vector 6, with the EXT bit.
    assert_eq!(environment.u32(0x7ff0), 6 * 8 + 3);
}

#[test]
fn a_fault_during_a_double_fault_is_a_triple_fault() {
    let (mut state, mut environment) = protected_mode(0);
    let before = state.clone();
    assert_eq!(
        deliver_exception(
            &mut state,
            &mut environment,
            Exception::general_protection(0),
            &mut Planned::nothing()
        ),
        Err(TripleFault)
    );
    assert_eq!(state, before);
}

#[test]
fn an_interrupt_wakes_a_halted_processor() {
    let (mut state, mut environment) = protected_mode(0);
    set_gate(&mut environment, 0x20, INTERRUPT32);
    state.activity = Activity::Halted;
    assert_eq!(external(&mut state, &mut environment, 0x20), Ok(()));
    assert_eq!(state.activity, Activity::Running);
}
