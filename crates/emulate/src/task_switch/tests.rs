use super::*;
use crate::Outcome;
use crate::interrupt::{Event, Planned, deliver, deliver_exception};
use crate::test_environment::{
    GDT, IDT, LDT, TSS, TestEnvironment, descriptor, gate, protected_mode, run, selector,
    virtual_8086_mode,
};
use tollgate_x86::exception::PageFaultCode;
use tollgate_x86::{Gpr, LinearAddress};
use tollgate_x86::{Space, TranslationChange};

/// Linear address of the new task's TSS.
const NEW: usize = 0xb000;
/// ESP of the new task.
const NEW_STACK: u32 = 0xd000;
const CALL: u8 = 0x9a;
const JMP: u8 = 0xea;
const IRET: [u8; 1] = [0xcf];

/// A far CALL or JMP to a selector.
fn far(opcode: u8, selector: u16) -> [u8; 7] {
    let [low, high] = selector.to_le_bytes();
    [opcode, 0xff, 0xff, 0xff, 0xff, low, high]
}

fn put_descriptor(environment: &mut TestEnvironment, selector: u16, value: u64) {
    environment.put_u64(GDT + usize::from(selector & !7), value);
}

fn access_byte(environment: &TestEnvironment, selector: u16) -> u8 {
    environment.ram[GDT + usize::from(selector & !7) + 5]
}

/// Ring 0 with a second task, whose descriptor follows SPARE, in flat segments of ring 0.
fn two_tasks() -> (CpuState, TestEnvironment) {
    let (state, mut environment) = protected_mode(0);
    let tss = descriptor(NEW as u32, 0x67, 0x89);
    put_descriptor(&mut environment, selector::SPARE, tss);
    environment.put_u32(NEW + 0x1c, 0x9000);
    environment.put_u32(NEW + 0x20, 0x6000);
    environment.put_u32(NEW + 0x24, 0x202);
    for (number, place) in (0x28..0x48).step_by(4).enumerate() {
        environment.put_u32(NEW + place, 0x1111_1111 * (number as u32 + 1));
    }
    environment.put_u32(NEW + 0x38, NEW_STACK);
    for place in (0x48..0x60).step_by(4) {
        environment.put_u16(NEW + place, selector::DATA0);
    }
    environment.put_u16(NEW + 0x4c, selector::CODE0);
    environment.put_u16(NEW + 0x60, selector::LDT);
    (state, environment)
}

#[test]
fn a_jump_saves_one_task_and_loads_the_other() {
    let (mut state, mut environment) = two_tasks();
    state.gpr = std::array::from_fn(|number| 0x100 + number as u64);
    state.flags = (Flags::CF | Flags::NT | Flags::IF).bits();
    state.dr[7] = 0x7ff;
    let code = far(JMP, selector::SPARE);
    assert_eq!(
        run(&mut state, &mut environment, &code),
        Ok(Outcome::Jumped)
    );
    // The old task, whose TSS is available again.
    assert_eq!(environment.u32(TSS + 0x20), 0x5007);
    assert_eq!(environment.u32(TSS + 0x24), 0x4203);
    assert_eq!(environment.u32(TSS + 0x28), 0x100);
    assert_eq!(environment.u32(TSS + 0x44), 0x107);
    assert_eq!(environment.u16(TSS + 0x48), selector::DATA0);
    assert_eq!(environment.u16(TSS + 0x4c), selector::CODE0);
    assert_eq!(access_byte(&environment, selector::TSS), 0x89);
    assert_eq!(environment.u16(TSS), 0);
    // The new task.
    assert_eq!(access_byte(&environment, selector::SPARE), 0x8b);
    assert_eq!(environment.u16(NEW), 0);
    assert_eq!((state.rip, state.flags()), (0x6000, Flags::IF));
    assert_eq!(state.gpr[Gpr::Rax as usize], 0x1111_1111);
    assert_eq!(state.gpr[Gpr::Rdi as usize], 0x8888_8888);
    assert_eq!(state.gpr[Gpr::Rsp as usize], u64::from(NEW_STACK));
    assert_eq!(state.tr.selector.0, selector::SPARE);
    assert_eq!(state.tr.base, NEW as u64);
    assert_eq!(state.tr.attributes.kind(), system_type::TSS32_BUSY);
    assert_eq!(state.ldtr.base, LDT as u64);
    assert!(state.cr0().contains(Cr0::TS));
    assert_eq!(state.dr[7], 0x7ff & !DR7_LOCAL);
    // Without paging CR3 is not loaded.
    assert_eq!((state.cr3, environment.changes.len()), (0, 0));
}

#[test]
fn paging_takes_cr3_from_the_new_task_before_its_segments() {
    let (mut state, mut environment) = two_tasks();
    state.cr0 |= Cr0::PG.bits();
    let code = far(JMP, selector::SPARE);
    assert_eq!(
        run(&mut state, &mut environment, &code),
        Ok(Outcome::Jumped)
    );
    assert_eq!(state.cr3, 0x9000);
    let load = TranslationChange::Load {
        from: Space::of_cr3(&state, 0),
        to: Space::of_cr3(&state, 0x9000),
        keeps: false,
    };
    assert_eq!(environment.changes, [load]);
}

#[test]
fn a_call_nests_and_iret_returns() {
    let (mut state, mut environment) = two_tasks();
    let before = state.clone();
    let code = far(CALL, selector::SPARE);
    assert_eq!(
        run(&mut state, &mut environment, &code),
        Ok(Outcome::Jumped)
    );
    assert_eq!(state.flags(), Flags::IF | Flags::NT);
    assert_eq!(environment.u16(NEW), selector::TSS);
    assert_eq!(access_byte(&environment, selector::TSS), 0x8b);
    assert_eq!(access_byte(&environment, selector::SPARE), 0x8b);
    assert_eq!(
        run(&mut state, &mut environment, &IRET),
        Ok(Outcome::Jumped)
    );
    assert_eq!(access_byte(&environment, selector::TSS), 0x8b);
    assert_eq!(access_byte(&environment, selector::SPARE), 0x89);
    assert_eq!(environment.u32(NEW + 0x24), 0x202);
    assert_eq!(environment.u32(NEW + 0x20), 0x6001);
    assert_eq!(state.rip, before.rip + 7);
    assert_eq!((state.flags, state.gpr), (before.flags, before.gpr));
    assert_eq!(
        state.segments.map(|s| s.base),
        before.segments.map(|s| s.base)
    );
    assert_eq!(state.tr, before.tr);
}

#[test]
fn a_16_bit_tss_holds_words() {
    let (mut state, mut environment) = two_tasks();
    let tss = descriptor(NEW as u32, 0x2b, 0x81);
    put_descriptor(&mut environment, selector::SPARE, tss);
    for (place, value) in [
        (0x0e, 0x6000),
        (0x10, 0x0203),
        (0x12, 0x1234),
        (0x1a, 0xd000),
        (0x22, selector::DATA0),
        (0x24, selector::CODE0),
        (0x26, selector::DATA0),
        (0x28, selector::DATA0),
        (0x2a, 0),
    ] {
        environment.put_u16(NEW + place, value);
    }
    state.gpr[0] = 0xaaaa_bbbb;
    let code = far(CALL, selector::SPARE);
    assert_eq!(
        run(&mut state, &mut environment, &code),
        Ok(Outcome::Jumped)
    );
    assert_eq!((state.rip, state.gpr[0]), (0x6000, 0xaaaa_1234));
    assert_eq!(state.flags(), Flags::CF | Flags::IF | Flags::NT);
    let fs = state.segment(SegmentRegister::Fs);
    assert!(fs.selector.is_null() && !fs.is_usable());
    state.gpr[0] = 0x5678_9abc;
    environment.put_u16(NEW + 0x2a, 0xffff);
    assert_eq!(
        run(&mut state, &mut environment, &IRET),
        Ok(Outcome::Jumped)
    );
    assert_eq!(environment.u16(NEW + 0x0e), 0x6001);
    assert_eq!(environment.u16(NEW + 0x10), 0x0203);
    assert_eq!(environment.u16(NEW + 0x12), 0x9abc);
    assert_eq!(environment.u16(NEW + 0x28), selector::DATA0);
    assert_eq!(environment.u16(NEW + 0x2a), 0xffff);
    assert_eq!(access_byte(&environment, selector::SPARE), 0x81);
    assert_eq!(state.rip, 0x5007);
}

#[test]
fn a_task_gate_leads_to_its_task_whatever_that_ones_privilege_is() {
    let (mut state, mut environment) = two_tasks();
    let (ring3, _) = protected_mode(3);
    state.segments = ring3.segments;
    let entry = gate(selector::SPARE, 0, 0xe5, 0);
    put_descriptor(&mut environment, selector::SPARE2, entry);
    let refused = run(&mut state, &mut environment, &far(JMP, selector::SPARE));
    let fault = Exception::general_protection(selector::SPARE.into());
    assert_eq!(refused, Err(fault));
    let code = far(JMP, selector::SPARE2 | 3);
    assert_eq!(
        run(&mut state, &mut environment, &code),
        Ok(Outcome::Jumped)
    );
    assert_eq!((state.cpl(), state.tr.selector.0), (0, selector::SPARE));
}

#[test]
fn a_task_that_may_not_be_entered_is_refused_with_nothing_changed() {
    let spare = u32::from(selector::SPARE);
    let absent = Exception::segment_not_present(spare);
    let short = Exception::invalid_tss(spare);
    let refused = Exception::general_protection(spare);
    for (limit, attributes, expected) in [
        (0x67, 0x8b, refused),
        (0x67, 0x83, refused),
        (0x67, 0x09, absent),
        (0x66, 0x89, short),
        (0x2a, 0x81, short),
    ] {
        let (mut state, mut environment) = two_tasks();
        let tss = descriptor(NEW as u32, limit, attributes);
        put_descriptor(&mut environment, selector::SPARE, tss);
        for opcode in [JMP, CALL] {
            let code = far(opcode, selector::SPARE);
            assert_eq!(run(&mut state, &mut environment, &code), Err(expected));
        }
        assert_eq!(access_byte(&environment, selector::TSS), 0x8b);
    }
    // The old TSS must have room for the state.
    let (mut state, mut environment) = two_tasks();
    state.tr.limit = 0x66;
    let code = far(JMP, selector::SPARE);
    let fault = Exception::invalid_tss(selector::TSS.into());
    assert_eq!(run(&mut state, &mut environment, &code), Err(fault));
    // A TSS descriptor in the LDT is not accepted.
    let (mut state, mut environment) = two_tasks();
    environment.put_u64(LDT + 8, descriptor(NEW as u32, 0x67, 0x89));
    let fault = Exception::general_protection(0xc);
    assert_eq!(
        run(&mut state, &mut environment, &far(JMP, 0xc)),
        Err(fault)
    );
}

#[test]
fn page_faults_of_either_tss_come_before_anything_changes() {
    let write = PageFaultCode::PRESENT | PageFaultCode::WRITE;
    for (opcode, at, code) in [
        (JMP, TSS + 0x20, write),
        (JMP, TSS + 0x5c, write),
        (JMP, GDT + 0x5d, write),
        (JMP, GDT + usize::from(selector::SPARE) + 5, write),
        (CALL, NEW, write),
    ] {
        let (mut state, mut environment) = two_tasks();
        let at = at as u64;
        environment.read_only.push(at..at + 1);
        let before = environment.ram.clone();
        let result = run(&mut state, &mut environment, &far(opcode, selector::SPARE));
        assert_eq!(result, Err(Exception::page_fault(LinearAddress(at), code)));
        assert_eq!(environment.ram, before);
    }
    for at in [NEW + 0x1c, NEW + 0x64] {
        let (mut state, mut environment) = two_tasks();
        let at = at as u64;
        environment.not_present.push(at..at + 1);
        let before = environment.ram.clone();
        let result = run(&mut state, &mut environment, &far(JMP, selector::SPARE));
        let fault = Exception::page_fault(LinearAddress(at), PageFaultCode::empty());
        assert_eq!(result, Err(fault));
        assert_eq!(environment.ram, before);
    }
}

/// The result of a jump to the second task that faults there.
fn fault_of_new_task(environment: &mut TestEnvironment) -> (CpuState, Result<(), Exception>) {
    let (mut state, _) = two_tasks();
    let named = Selector(selector::SPARE);
    let entry = find_task(&state, environment, named, Cause::Jump).unwrap();
    let result = switch_task(&mut state, environment, entry, Cause::Jump, 0x5007, 2);
    (state, result)
}

#[test]
fn faults_of_what_its_tss_holds_are_the_new_tasks() {
    let invalid = Exception::invalid_tss;
    let absent = Exception::segment_not_present;
    for (place, value, expected) in [
        (0x60, selector::DATA0, invalid(0x10)),
        (0x60, selector::LDT | 4, invalid(0x64)),
        (0x60, 0x1000, invalid(0x1000)),
        (0x4c, 0, invalid(0)),
        (0x4c, selector::DATA0, invalid(0x10)),
        (0x4c, selector::CODE0 | 3, invalid(8)),
        (0x4c, selector::CODE3 & !3, invalid(0x18)),
        (0x50, 0, invalid(0)),
        (0x50, selector::DATA3, invalid(0x20)),
        (0x50, selector::CODE0, invalid(8)),
        (0x50, selector::ABSENT0, Exception::stack_fault(0x50)),
        (0x54, selector::EXECUTE_ONLY0, invalid(0x48)),
        (0x48, selector::DATA0 | 3, invalid(0x10)),
        (0x58, selector::ABSENT0, absent(0x50)),
        (0x5c, 0x1000, invalid(0x1000)),
    ] {
        let (_, mut environment) = two_tasks();
        environment.put_u16(NEW + place, value);
        let (state, result) = fault_of_new_task(&mut environment);
        assert_eq!(result, Err(expected), "{value:#x} at {place:#x}");
        assert_eq!(state.tr.selector.0, selector::SPARE);
        assert_eq!(state.rip, 0x6000);
    }
    let (_, mut environment) = two_tasks();
    environment.put_u16(NEW + 0x4c, selector::CODE16);
    environment.put_u32(NEW + 0x20, 0x1_0000);
    let (_, result) = fault_of_new_task(&mut environment);
    assert_eq!(result, Err(Exception::general_protection(0)));
}

#[test]
fn null_data_segments_and_no_ldt_are_good() {
    let (_, mut environment) = two_tasks();
    for place in [0x48, 0x54, 0x58, 0x5c, 0x60] {
        environment.put_u16(NEW + place, 0);
    }
    let (state, result) = fault_of_new_task(&mut environment);
    assert_eq!(result, Ok(()));
    assert!(!state.ldtr.is_usable());
    assert!(!state.segment(SegmentRegister::Ds).is_usable());
}

#[test]
fn the_debug_trap_bit_strikes_in_the_new_task() {
    let (_, mut environment) = two_tasks();
    environment.put_u16(NEW + 0x64, 1);
    let (state, result) = fault_of_new_task(&mut environment);
    assert_eq!(result, Err(Exception::new(Vector::Debug)));
    assert_eq!(state.dr[6] & DR6_TASK_SWITCH, DR6_TASK_SWITCH);
    assert_eq!((state.rip, state.cpl()), (0x6000, 0));
}

#[test]
fn an_exception_through_a_task_gate_brings_its_error_code() {
    for (wide, expected) in [(true, NEW_STACK - 4), (false, 0xcffe)] {
        let (mut state, mut environment) = two_tasks();
        if !wide {
            let tss = descriptor(NEW as u32, 0x2b, 0x81);
            put_descriptor(&mut environment, selector::SPARE, tss);
            environment.put(NEW + 0x0e, &[0; 30]);
            environment.put_u16(NEW + 0x1a, 0xd000);
            environment.put_u16(NEW + 0x24, selector::CODE0);
            environment.put_u16(NEW + 0x26, selector::DATA0);
        }
        environment.put_u64(IDT + 13 * 8, gate(selector::SPARE, 0, 0x85, 0));
        let fault = Exception::general_protection(0x1234);
        deliver_exception(&mut state, &mut environment, fault, &mut Planned::nothing()).unwrap();
        assert_eq!(state.tr.selector.0, selector::SPARE);
        assert_eq!(state.register(Gpr::Rsp), u64::from(expected));
        assert_eq!(environment.u16(expected as usize), 0x1234);
        assert!(state.flags().contains(Flags::NT));
        // The old task will continue at the instruction, with RF.
        assert_eq!(environment.u32(TSS + 0x20), 0x5000);
        assert_eq!(environment.u32(TSS + 0x24), 0x1_0002);
    }
}

#[test]
fn an_interrupt_through_a_task_gate_checks_the_gate_and_names_the_task() {
    let external = |state: &mut CpuState, environment: &mut TestEnvironment| {
        deliver(
            state,
            environment,
            &Event::external(0x20, 0x5000),
            &mut Planned::nothing(),
        )
    };
    let (mut state, mut environment) = two_tasks();
    state.flags = Flags::IF.bits();
    environment.put_u64(IDT + 0x20 * 8, gate(selector::SPARE, 0, 0x85, 0));
    assert_eq!(external(&mut state, &mut environment), Ok(()));
    assert_eq!(state.register(Gpr::Rsp), u64::from(NEW_STACK));
    assert_eq!(state.flags(), Flags::IF | Flags::NT);
    assert_eq!(environment.u16(NEW), selector::TSS);
    // The event occurs again, while the task is busy.
    let busy = Exception::general_protection(u32::from(selector::SPARE) | 1);
    let again = external(&mut state, &mut environment);
    assert_eq!(again, Err(busy));
    // From ring 3, INT n needs a gate of DPL 3; the event itself does not.
    let (mut state, mut environment) = two_tasks();
    let (ring3, _) = protected_mode(3);
    state.segments = ring3.segments;
    environment.put_u64(IDT + 0x20 * 8, gate(selector::SPARE, 0, 0x85, 0));
    let refused = Exception::general_protection(0x20 * 8 + 2);
    assert_eq!(
        run(&mut state, &mut environment, &[0xcd, 0x20]),
        Err(refused)
    );
    assert_eq!(external(&mut state, &mut environment), Ok(()));
    assert_eq!(state.cpl(), 0);
}

#[test]
fn a_task_may_be_a_virtual_8086_one_and_be_left_by_a_task_gate() {
    let (_, mut environment) = two_tasks();
    environment.put_u32(NEW + 0x24, 0x2_3002);
    for (place, segment) in [
        (0x48, 0x300u16),
        (0x4c, 0x100),
        (0x50, 0x200),
        (0x5c, 0x456),
    ] {
        environment.put_u16(NEW + place, segment);
    }
    environment.put_u32(NEW + 0x20, 0x12);
    let (state, result) = fault_of_new_task(&mut environment);
    assert_eq!(result, Ok(()));
    assert!(state.is_virtual_8086());
    assert_eq!((state.cs().base, state.rip, state.cpl()), (0x1000, 0x12, 3));
    assert_eq!(state.segment(SegmentRegister::Gs).base, 0x4560);
    assert_eq!(state.segment(SegmentRegister::Gs).limit, 0xffff);

    let (mut state, _) = virtual_8086_mode(3);
    let (_, mut environment) = two_tasks();
    environment.put_u64(IDT + 0x20 * 8, gate(selector::SPARE, 0, 0xe5, 0));
    state.rip = 0x40;
    let result = run(&mut state, &mut environment, &[0xcd, 0x20]);
    assert_eq!(result, Ok(Outcome::Jumped));
    assert!(!state.is_virtual_8086());
    assert_eq!(environment.u32(TSS + 0x24), 0x2_3002);
    assert_eq!(environment.u32(TSS + 0x20), 0x42);
    assert_eq!(environment.u16(TSS + 0x4c), 0x100);
}

#[test]
fn iret_follows_a_link_to_a_busy_task_only() {
    let invalid = Exception::invalid_tss;
    for (link, attributes, expected) in [
        (selector::SPARE, 0x89, invalid(0x68)),
        (selector::SPARE, 0x0b, Exception::segment_not_present(0x68)),
        (selector::SPARE | 4, 0x8b, invalid(0x6c)),
        (selector::DATA0, 0x8b, invalid(0x10)),
        (0, 0x8b, invalid(0)),
    ] {
        let (mut state, mut environment) = two_tasks();
        state.flags = Flags::NT.bits();
        environment.put_u16(TSS, link);
        let tss = descriptor(NEW as u32, 0x67, attributes);
        put_descriptor(&mut environment, selector::SPARE, tss);
        assert_eq!(run(&mut state, &mut environment, &IRET), Err(expected));
    }
}
