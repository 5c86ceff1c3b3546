//! Tests of IRET.

use super::*;
use crate::test_environment::{
    TSS, TestEnvironment, protected_mode, real_mode, run, selector, virtual_8086_mode,
};

const IRET: [u8; 1] = [0xcf];
const OTHER_SIZE: [u8; 2] = [0x66, 0xcf];
const TARGET: u32 = 0x7_0000;

fn put_frame(environment: &mut TestEnvironment, values: &[u32]) {
    for (index, value) in values.iter().enumerate() {
        environment.put_u32(0x8000 + index * 4, *value);
    }
}

#[test]
fn real_mode_loads_every_flag_of_the_low_half() {
    let (mut state, mut environment) = real_mode();
    for (index, value) in [0x1234, 0xabcd, 0xffff].iter().enumerate() {
        environment.put_u16(0x3000 + index * 2, *value);
    }
    state.flags = Flags::AC.bits();
    assert_eq!(
        run(&mut state, &mut environment, &IRET),
        Ok(Outcome::Jumped)
    );
    assert_eq!((state.cs().base, state.rip), (0xabcd0, 0x1234));
    assert_eq!(state.flags, 0x7fd5 | Flags::AC.bits());
    assert_eq!(state.register(Gpr::Rsp), 0x1006);
}

#[test]
fn real_mode_32_bit_form_never_sets_vm_and_checks_the_limit() {
    let (mut state, mut environment) = real_mode();
    for (index, value) in [0x1234, 0xabcd, u32::MAX].iter().enumerate() {
        environment.put_u32(0x3000 + index * 4, *value);
    }
    assert!(run(&mut state.clone(), &mut environment, &OTHER_SIZE).is_ok());
    environment.put_u32(0x3000, 0x1_0000);
    assert_eq!(
        run(&mut state, &mut environment, &OTHER_SIZE),
        Err(Exception::general_protection(0))
    );
}

#[test]
fn v86_mode_needs_iopl_3_and_keeps_it() {
    let (mut state, mut environment) = virtual_8086_mode(2);
    assert_eq!(
        run(&mut state, &mut environment, &IRET),
        Err(Exception::general_protection(0))
    );
    let (mut state, mut environment) = virtual_8086_mode(3);
    for (index, value) in [0x1234, 0xabcd, 0x0201].iter().enumerate() {
        environment.put_u16(0x3000 + index * 2, *value);
    }
    assert!(run(&mut state, &mut environment, &IRET).is_ok());
    assert_eq!(*state.cs(), Segment::real_mode(0xabcd, 3));
    assert_eq!(
        state.flags(),
        Flags::VM | Flags::IOPL | Flags::IF | Flags::CF
    );
}

#[test]
fn at_the_same_level_esp_moves_by_the_frame() {
    let (mut state, mut environment) = protected_mode(0);
    put_frame(&mut environment, &[TARGET, selector::CODE0.into(), 0x202]);
    assert_eq!(
        run(&mut state, &mut environment, &IRET),
        Ok(Outcome::Jumped)
    );
    assert_eq!(state.rip, u64::from(TARGET));
    assert_eq!(state.register(Gpr::Rsp), 0x800c);
    assert_eq!(state.flags(), Flags::IF);
}

#[test]
fn to_ring_3_the_stack_is_loaded_and_inner_data_segments_dropped() {
    let (mut state, mut environment) = protected_mode(0);
    let (cs, ss) = (selector::CODE3.into(), selector::DATA3.into());
    put_frame(&mut environment, &[TARGET, cs, 0x1_0202, 0x9000, ss]);
    assert!(run(&mut state, &mut environment, &IRET).is_ok());
    assert_eq!((state.cpl(), state.rip), (3, u64::from(TARGET)));
    assert_eq!(state.register(Gpr::Rsp), 0x9000);
    assert_eq!(state.flags(), Flags::IF | Flags::RF);
    for register in [SegmentRegister::Ds, SegmentRegister::Es] {
        assert_eq!(
            *state.segment(register),
            Segment::null(Selector(0)),
            "{register:?}"
        );
    }
}

#[test]
fn what_changes_in_the_flags_depends_on_the_level_left() {
    for (cpl, iopl, unchanged) in [
        (0, 0, Flags::VM),
        (
            3,
            0,
            Flags::VM | Flags::IOPL | Flags::IF | Flags::VIF | Flags::VIP,
        ),
        (3, 3, Flags::VM | Flags::VIF | Flags::VIP),
    ] {
        let (mut state, mut environment) = protected_mode(cpl);
        let cs = state.cs().selector.0;
        state.flags = iopl << 12;
        // VM in the popped flags means V86 mode only at CPL 0.
        let image = !(Flags::VM.bits() as u32);
        put_frame(&mut environment, &[TARGET, cs.into(), image]);
        assert!(run(&mut state, &mut environment, &IRET).is_ok());
        let expected = (Flags::ALL & !unchanged) | (state.flags() & Flags::IOPL);
        assert_eq!(state.flags(), expected, "CPL {cpl} IOPL {iopl}");
    }
}

#[test]
fn the_16_bit_form_keeps_the_upper_flags() {
    let (mut state, mut environment) = protected_mode(0);
    state.flags = (Flags::AC | Flags::ID | Flags::CF).bits();
    for (index, value) in [0x1234, selector::CODE0, 0].iter().enumerate() {
        environment.put_u16(0x8000 + index * 2, *value);
    }
    assert!(run(&mut state, &mut environment, &OTHER_SIZE).is_ok());
    assert_eq!(state.rip, 0x1234);
    assert_eq!(state.flags(), Flags::AC | Flags::ID);
}

#[test]
fn a_16_bit_outer_stack_takes_only_sp() {
    let (mut state, mut environment) = protected_mode(0);
    let entry = crate::test_environment::descriptor(0, 0xffff, 0x00f2);
    environment.put_u64(
        crate::test_environment::GDT + usize::from(selector::SPARE),
        entry,
    );
    state.gpr[Gpr::Rsp as usize] = 0x8000;
    *state.segment_mut(SegmentRegister::Ss) = Segment {
        base: 0xfff8_0000,
        ..*state.ss()
    };
    state.gpr[Gpr::Rsp as usize] = 0x8_8000;
    let ss = u32::from(selector::SPARE | 3);
    put_frame(
        &mut environment,
        &[TARGET, selector::CODE3.into(), 0, 0xffff_9000, ss],
    );
    assert!(run(&mut state, &mut environment, &IRET).is_ok());
    // The upper half of the inner ESP remains visible, as on real processors.
    assert_eq!(state.register(Gpr::Rsp), 0x8_9000);
}

#[test]
fn with_vm_in_the_image_at_cpl_0_the_whole_frame_is_popped() {
    let (mut state, mut environment) = protected_mode(0);
    let frame = [
        0x1234, 0xaaaa, 0x2_3202, 0xfff0, 0x200, 0x300, 0x400, 0x500, 0x600,
    ];
    put_frame(&mut environment, &frame);
    assert_eq!(
        run(&mut state, &mut environment, &IRET),
        Ok(Outcome::Jumped)
    );
    assert!(state.is_virtual_8086());
    assert_eq!(state.cpl(), 3);
    assert_eq!(*state.cs(), Segment::real_mode(0xaaaa, 3));
    assert_eq!(*state.ss(), Segment::real_mode(0x200, 3));
    let es = state.segment(SegmentRegister::Es);
    assert_eq!(*es, Segment::real_mode(0x300, 3));
    let gs = state.segment(SegmentRegister::Gs);
    assert_eq!(*gs, Segment::real_mode(0x600, 3));
    assert_eq!((state.rip, state.register(Gpr::Rsp)), (0x1234, 0xfff0));
    assert_eq!(state.flags(), Flags::VM | Flags::IOPL | Flags::IF);
}

#[test]
fn at_cpl_3_vm_in_the_image_is_ignored() {
    let (mut state, mut environment) = protected_mode(3);
    put_frame(
        &mut environment,
        &[TARGET, selector::CODE3.into(), 0x2_0002],
    );
    assert!(run(&mut state, &mut environment, &IRET).is_ok());
    assert_eq!(state.flags(), Flags::empty());
}

#[test]
fn a_fault_halfway_changes_nothing() {
    let (mut state, mut environment) = protected_mode(0);
    let cs = selector::CODE3.into();
    put_frame(&mut environment, &[TARGET, cs, 2, 0x9000, 0]);
    assert_eq!(
        run(&mut state, &mut environment, &IRET),
        Err(Exception::general_protection(0))
    );
    environment.not_present.push(0x800c..0x8010);
    assert!(run(&mut state, &mut environment, &IRET).is_err());
}

#[test]
fn nt_without_a_linked_task_is_an_invalid_tss_fault() {
    let (mut state, mut environment) = protected_mode(3);
    state.flags = Flags::NT.bits();
    for (link, code) in [(0, 0), (selector::DATA0, 0x10), (selector::TSS | 4, 0x5c)] {
        environment.put_u16(TSS, link);
        assert_eq!(
            run(&mut state, &mut environment, &IRET),
            Err(Exception::invalid_tss(code))
        );
    }
}
