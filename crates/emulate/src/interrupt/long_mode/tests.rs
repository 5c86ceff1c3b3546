//! Tests of delivery in IA-32e mode.

use super::*;
use crate::interrupt::{EventSource, Planned, deliver, deliver_exception};
use crate::test_environment::{
    IDT, INTERRUPT_STACK, KERNEL_STACK, STACK, TSS, TestEnvironment, compatibility_mode, long_gate,
    long_mode, long_selector, run, selector,
};
use tollgate_x86::{Gpr, Selector, Vector};

const HANDLER: u64 = 0xffff_ffff_8123_4567;
const INTERRUPT: u8 = 0x8e;
const TRAP: u8 = 0x8f;
const FOR_USERS: u8 = 0x60;

/// 64-bit code, with the TSS in RAM.
fn ready(cpl: u8) -> (CpuState, TestEnvironment) {
    let (mut state, environment) = long_mode(cpl);
    state.tr.base = TSS as u64;
    (state, environment)
}

fn set_gate(environment: &mut TestEnvironment, vector: usize, code: u16, kind: u8, stack: u8) {
    let gate = long_gate(code, HANDLER, kind, stack);
    environment.put(IDT + vector * 16, &gate);
}

fn interrupt(
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
        assert_eq!(*state, before);
    }
    result
}

fn refused(code: u32) -> Result<(), Exception> {
    Err(Exception::general_protection(code))
}

#[test]
fn from_user_code_rsp0_is_used_and_ss_becomes_null() {
    let (mut state, mut environment) = ready(3);
    set_gate(&mut environment, 32, long_selector::CODE0, INTERRUPT, 0);
    state.flags = (Flags::IF | Flags::TF | Flags::CF).bits();
    state.rip = 0x7fff_0000_1234;
    state.gpr[Gpr::Rsp as usize] = 0x7fff_8000_0003;
    interrupt(&mut state, &mut environment, 32).unwrap();
    assert_eq!(state.rip, HANDLER);
    assert_eq!((state.cpl(), state.cs().selector.0), (0, 0x80));
    assert_eq!((state.cs().base, state.cs().limit), (0, u32::MAX));
    assert_eq!(state.ss().selector, Selector(0));
    assert!(!state.ss().is_usable());
    assert_eq!(state.flags(), Flags::CF);
    let top = KERNEL_STACK as usize;
    assert_eq!(state.register(Gpr::Rsp), top as u64 - 40);
    assert_eq!(environment.u64(top - 8), u64::from(selector::DATA3));
    assert_eq!(environment.u64(top - 16), 0x7fff_8000_0003);
    assert_eq!(environment.u64(top - 24), 0x303);
    assert_eq!(environment.u64(top - 32), u64::from(long_selector::CODE3));
    assert_eq!(environment.u64(top - 40), 0x7fff_0000_1234);
}

#[test]
fn at_the_same_level_the_frame_is_aligned_and_holds_ss_and_rsp() {
    let (mut state, mut environment) = ready(0);
    set_gate(&mut environment, 3, long_selector::CODE0, TRAP, 0);
    state.gpr[Gpr::Rsp as usize] = u64::from(STACK) - 1;
    state.flags |= Flags::IF.bits();
    // INT3
    run(&mut state, &mut environment, &[0xcc]).unwrap();
    let top = STACK as usize - 16;
    assert_eq!(state.register(Gpr::Rsp), top as u64 - 40);
    assert_eq!(environment.u64(top - 16), u64::from(STACK) - 1);
    assert_eq!(environment.u64(top - 40), 0x5001);
    assert_eq!(state.flags(), Flags::IF);
    assert_eq!(state.ss().selector.0, selector::DATA0);
}

#[test]
fn an_error_code_takes_eight_bytes() {
    let (mut state, mut environment) = ready(0);
    set_gate(&mut environment, 13, long_selector::CODE0, INTERRUPT, 0);
    deliver_exception(
        &mut state,
        &mut environment,
        Exception::general_protection(0x18),
        &mut Planned::nothing(),
    )
    .unwrap();
    assert_eq!(state.register(Gpr::Rsp), u64::from(STACK) - 48);
    assert_eq!(environment.u64(STACK as usize - 48), 0x18);
}

#[test]
fn a_stack_number_chooses_a_stack_at_any_level() {
    for cpl in [0, 3] {
        let (mut state, mut environment) = ready(cpl);
        set_gate(&mut environment, 2, long_selector::CODE0, INTERRUPT, 1);
        let old = *state.ss();
        interrupt(&mut state, &mut environment, 2).unwrap();
        let top = INTERRUPT_STACK & !15;
        assert_eq!(state.register(Gpr::Rsp), top - 40);
        assert_eq!(environment.u64(top as usize - 16), u64::from(STACK));
        assert_eq!(*state.ss() == old, cpl == 0);
    }
}

#[test]
fn compatibility_code_is_interrupted_into_64_bit_code() {
    let (mut state, mut environment) = compatibility_mode(3);
    state.tr.base = TSS as u64;
    set_gate(
        &mut environment,
        128,
        long_selector::CODE0,
        INTERRUPT | FOR_USERS,
        0,
    );
    run(&mut state, &mut environment, &[0xcd, 0x80]).unwrap();
    assert!(state.is_64_bit());
    assert_eq!(environment.u64(KERNEL_STACK as usize - 40), 0x5002);
    assert_eq!(
        environment.u64(KERNEL_STACK as usize - 32),
        u64::from(selector::CODE3)
    );
}

#[test]
fn conforming_handlers_keep_the_level() {
    let (mut state, mut environment) = ready(3);
    set_gate(
        &mut environment,
        32,
        long_selector::CONFORMING0,
        INTERRUPT,
        0,
    );
    interrupt(&mut state, &mut environment, 32).unwrap();
    assert_eq!((state.cpl(), state.cs().selector.0), (3, 0x93));
    assert_eq!(state.register(Gpr::Rsp), u64::from(STACK) - 40);
}

#[test]
fn gates_are_checked_for_limit_type_level_and_presence() {
    for (kind, code, software, expected) in [
        // 16-bit gates and task gates do not exist.
        (0x86, long_selector::CODE0, false, refused(32 * 8 + 3)),
        (0x85, long_selector::CODE0, false, refused(32 * 8 + 3)),
        (0x9e, long_selector::CODE0, false, refused(32 * 8 + 3)),
        (INTERRUPT, long_selector::CODE0, true, refused(32 * 8 + 2)),
        (
            0x0e,
            long_selector::CODE0,
            false,
            Err(Exception::segment_not_present(32 * 8 + 3)),
        ),
        (INTERRUPT, 0, false, refused(1)),
        (INTERRUPT, selector::CODE0, false, refused(9)),
        (INTERRUPT, selector::DATA0, false, refused(0x11)),
        (INTERRUPT, long_selector::BOTH0, false, refused(0x99)),
    ] {
        let (mut state, mut environment) = ready(3);
        set_gate(&mut environment, 32, code, kind, 0);
        let mut event = Event::external(32, 0);
        if software {
            event.source = EventSource::Software;
        }
        let result = deliver(
            &mut state,
            &mut environment,
            &event,
            &mut Planned::nothing(),
        );
        assert_eq!(result, expected, "{kind:#x} {code:#x}");
    }
    let (mut state, mut environment) = ready(3);
    set_gate(&mut environment, 32, long_selector::CODE0, INTERRUPT, 0);
    state.idtr.limit = 32 * 16 + 14;
    let result = interrupt(&mut state, &mut environment, 32);
    assert_eq!(result, refused(32 * 8 + 3));
}

#[test]
fn handlers_and_stacks_must_be_canonical_and_the_stack_inside_the_tss() {
    let (mut state, mut environment) = ready(3);
    let gate = long_gate(long_selector::CODE0, 0x8000_0000_0000, INTERRUPT, 0);
    environment.put(IDT + 32 * 16, &gate);
    assert_eq!(interrupt(&mut state, &mut environment, 32), refused(1));
    set_gate(&mut environment, 32, long_selector::CODE0, INTERRUPT, 0);
    environment.put_u64(TSS + 4, 0x8000_0000_0000);
    let fault = Exception::stack_fault(1);
    let result = interrupt(&mut state, &mut environment, 32);
    assert_eq!(result, Err(fault));
    state.tr.limit = 10;
    let fault = Exception::invalid_tss(u32::from(selector::TSS) | 1);
    let result = interrupt(&mut state, &mut environment, 32);
    assert_eq!(result, Err(fault));
}

#[test]
fn a_non_canonical_stack_at_level_0_is_a_double_fault_on_its_own_stack() {
    let (mut state, mut environment) = ready(0);
    let vectors = [Vector::PageFault, Vector::StackFault];
    for vector in vectors {
        let code = long_selector::CODE0;
        set_gate(&mut environment, vector as usize, code, INTERRUPT, 0);
    }
    set_gate(&mut environment, 8, long_selector::CODE0, INTERRUPT, 1);
    state.gpr[Gpr::Rsp as usize] = 0x8000_0000_0000;
    let fault = Exception::stack_fault(0);
    deliver_exception(&mut state, &mut environment, fault, &mut Planned::nothing()).unwrap();
    assert_eq!(state.register(Gpr::Rsp), (INTERRUPT_STACK & !15) - 48);
}
