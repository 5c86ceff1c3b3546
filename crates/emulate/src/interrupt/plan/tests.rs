//! Tests of plans: what they list as read, and that they can be used again.

use crate::interrupt::{Event, FrameForm, Plan, Planned, Reads, Target, deliver, plan};
use crate::test_environment::{
    GDT, IDT, TSS, TestEnvironment, gate, long_gate, long_mode, long_selector, protected_mode,
    real_mode, selector, virtual_8086_mode,
};
use tollgate_x86::{Attributes, CpuState, Exception, Flags, Gpr, LinearAddress, Watched};

const HANDLER: u32 = 0x7_0000;
const VECTOR: usize = 32;

fn planned(state: &CpuState, environment: &mut TestEnvironment, event: &Event) -> (Plan, Reads) {
    let memory = environment.ram.clone();
    let mut planned = Planned::nothing();
    plan(state, environment, event, &mut planned).unwrap();
    assert!(environment.ram == memory, "a plan changes no memory");
    match planned.target {
        Target::Handler(plan) => (plan, planned.reads),
        other => panic!("{other:x?}"),
    }
}

fn places(reads: &Reads) -> Vec<(u64, u64)> {
    reads.iter().map(|it| (it.place, it.mask)).collect()
}

/// Machines whose vector 32 has a handler, in each kind of mode.
fn machines() -> Vec<(CpuState, TestEnvironment)> {
    let mut machines = Vec::new();
    let (state, mut environment) = real_mode();
    environment.put_u32(VECTOR * 4, 0x0abc_1234);
    machines.push((state, environment));
    let old = [protected_mode(0), protected_mode(3), virtual_8086_mode(3)];
    for (state, mut environment) in old {
        let entry = gate(selector::CODE0, HANDLER, 0x8e, 0);
        environment.put_u64(IDT + VECTOR * 8, entry);
        machines.push((state, environment));
    }
    for (cpl, stack) in [(0, 0), (0, 1), (3, 0), (3, 1)] {
        let (mut state, mut environment) = long_mode(cpl);
        state.tr.base = TSS as u64;
        let entry = long_gate(long_selector::CODE0, u64::from(HANDLER), 0x8e, stack);
        environment.put(IDT + VECTOR * 16, &entry);
        machines.push((state, environment));
    }
    for (state, environment) in &mut machines {
        // Planning sets the accessed bits of descriptors, once.
        let event = Event::external(VECTOR as u8, 0);
        plan(state, environment, &event, &mut Planned::nothing()).unwrap();
    }
    machines
}

#[test]
fn a_plan_lists_gate_code_and_stack_except_the_stack_pointer() {
    let gate = (IDT + VECTOR * 8) as u64;
    let code = (GDT + usize::from(selector::CODE0)) as u64;
    let listed: Vec<_> = machines()
        .iter_mut()
        .map(|(state, environment)| {
            let (_, reads) = planned(state, environment, &Event::external(VECTOR as u8, 0));
            assert!(reads.is_complete());
            places(&reads)
        })
        .collect();
    assert_eq!(listed[0], [(VECTOR as u64 * 4, 0xffff_ffff)]);
    assert_eq!(listed[1], [(gate, u64::MAX), (code, u64::MAX)]);
    let inner = [
        (gate, u64::MAX),
        (code, u64::MAX),
        (TSS as u64 + 4, 0xffff_0000_0000),
        ((GDT + usize::from(selector::DATA0)) as u64, u64::MAX),
    ];
    assert_eq!(listed[2], inner);
    assert_eq!(listed[3], inner);
    let gate = (IDT + VECTOR * 16) as u64;
    let code = (GDT + usize::from(long_selector::CODE0)) as u64;
    for words in &listed[4..] {
        assert_eq!(
            *words,
            [(gate, u64::MAX), (gate + 8, u64::MAX), (code, u64::MAX)]
        );
    }
}

#[test]
fn a_plan_is_good_for_other_registers_and_flags() {
    for (mut state, mut environment) in machines() {
        let first = Event::external(VECTOR as u8, state.rip);
        let (plan, _) = planned(&state, &mut environment, &first);
        state.gpr[Gpr::Rsp as usize] -= 0x123;
        state.rip += 5;
        state.flags ^= (Flags::CF | Flags::IF | Flags::DF).bits();
        let event = Event::external(VECTOR as u8, state.rip);
        let mut expected = state.clone();
        let mut other = TestEnvironment::new(0);
        other.ram = environment.ram.clone();
        let mut applied = Planned::nothing();
        deliver(&mut expected, &mut other, &event, &mut applied).unwrap();
        assert_eq!(applied.target, Target::Handler(plan));
        plan.apply(&mut state, &mut environment, &event).unwrap();
        assert_eq!(state, expected);
        assert!(environment.ram == other.ram);
    }
}

#[test]
fn the_stack_pointer_comes_from_the_slot_each_time() {
    for (state, mut environment) in machines() {
        let event = Event::external(VECTOR as u8, 0);
        let (plan, reads) = planned(&state, &mut environment, &event);
        let Some(slot) = plan.stack.slot else {
            continue;
        };
        let pointer = 0x7788;
        environment.put_u32(slot.place as usize, pointer);
        let (moved, reads_of_moved) = planned(&state, &mut environment, &event);
        let stack = plan.stack(&state, Some(pointer.into()));
        assert_eq!(stack, moved.stack(&state, Some(pointer.into())));
        assert_eq!(places(&reads), places(&reads_of_moved));
        assert_eq!(moved.stack.slot.map(|it| it.pointer), Some(pointer.into()));
    }
}

#[test]
fn a_pointer_of_the_tss_that_is_not_canonical_gives_no_stack() {
    let (state, mut environment) = machines().pop().unwrap();
    let (plan, _) = planned(&state, &mut environment, &Event::external(VECTOR as u8, 0));
    assert_eq!(plan.stack(&state, Some(1 << 47)), None);
    assert!(plan.stack(&state, Some(1 << 46)).is_some());
}

#[test]
fn a_plan_that_sets_an_accessed_bit_is_not_complete() {
    let (state, mut environment) = machines().swap_remove(1);
    let rights = GDT + usize::from(selector::CODE0) + 5;
    environment.ram[rights] &= !(Attributes::ACCESSED.bits() as u8);
    let event = Event::external(VECTOR as u8, 0);
    let mut planned = Planned::nothing();
    let first = plan(&state, &mut environment, &event, &mut planned);
    assert!(first.is_ok() && !planned.reads.is_complete());
    let second = plan(&state, &mut environment, &event, &mut planned);
    assert!(second.is_ok() && planned.reads.is_complete());
}

#[test]
fn a_refused_event_lists_what_refused_it() {
    let (state, mut environment) = machines().swap_remove(2);
    let mut event = Event::external(VECTOR as u8, 0);
    event.source = crate::interrupt::EventSource::Software;
    let mut planned = Planned::nothing();
    let refused = plan(&state, &mut environment, &event, &mut planned);
    let code = VECTOR as u32 * 8 + 2;
    assert_eq!(refused, Err(Exception::general_protection(code)));
    let entry = gate(selector::CODE0, HANDLER, 0x8e, 0);
    let place = (IDT + VECTOR * 8) as u64;
    assert_eq!(planned.target, Target::Nothing);
    assert_eq!(*planned.reads, [Watched::all(place, entry)]);
}

#[test]
fn frames_of_a_vector_table_have_no_error_code() {
    let (state, mut environment) = machines().swap_remove(0);
    let fault = Exception::page_fault(
        LinearAddress(0),
        tollgate_x86::exception::PageFaultCode::WRITE,
    );
    let event = Event::of_exception(fault, 0x5000);
    let (plan, _) = planned(&state, &mut environment, &event);
    assert_eq!(plan.form, FrameForm::VectorTable);
    assert_eq!(plan.frame(&state, &event).values().len(), 3);
}
