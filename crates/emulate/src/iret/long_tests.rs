//! Tests of IRET in IA-32e mode.

use super::*;
use crate::test_environment::{
    TestEnvironment, compatibility_mode, long_mode, long_selector, run, selector,
};
use tollgate_x86::Attributes;

const IRETQ: [u8; 2] = [0x48, 0xcf];
const IRETD: [u8; 1] = [0xcf];
const TARGET: u64 = 0x7f12_3456_789a;
const GP: Result<Outcome, Exception> = Err(Exception::general_protection(0));

fn put_frame(environment: &mut TestEnvironment, values: &[u64]) {
    for (index, value) in values.iter().enumerate() {
        environment.put_u64(0x8000 + index * 8, *value);
    }
}

#[test]
fn iretq_pops_ss_and_rsp_at_the_same_level_too() {
    let (mut state, mut environment) = long_mode(0);
    let cs = u64::from(long_selector::CODE0);
    let ss = u64::from(selector::DATA0);
    put_frame(
        &mut environment,
        &[TARGET, cs, 0x202, 0xffff_8000_0000_1233, ss],
    );
    run(&mut state, &mut environment, &IRETQ).unwrap();
    assert_eq!((state.rip, state.cpl()), (TARGET, 0));
    assert_eq!(state.register(Gpr::Rsp), 0xffff_8000_0000_1233);
    assert_eq!(state.flags(), Flags::IF);
}

#[test]
fn iretq_goes_to_level_3_in_64_bit_and_in_32_bit_code() {
    for (cs, is_64_bit, rip, rsp) in [
        (long_selector::CODE3, true, TARGET, 0x7fff_0000_0008),
        (selector::CODE3, false, 0x1234, 0x8),
    ] {
        let (mut state, mut environment) = long_mode(0);
        let ss = u64::from(selector::DATA3);
        put_frame(
            &mut environment,
            &[rip, u64::from(cs), 0, 0x7fff_0000_0008, ss],
        );
        run(&mut state, &mut environment, &IRETQ).unwrap();
        assert_eq!((state.rip, state.register(Gpr::Rsp)), (rip, rsp));
        assert_eq!((state.cpl(), state.is_64_bit()), (3, is_64_bit));
        assert_eq!(state.ss().selector.0, selector::DATA3);
    }
}

#[test]
fn a_null_ss_is_for_64_bit_code_below_level_3() {
    let (mut state, mut environment) = long_mode(0);
    let cs = u64::from(long_selector::CODE0);
    put_frame(&mut environment, &[TARGET, cs, 0, 0x9000, 0]);
    run(&mut state, &mut environment, &IRETQ).unwrap();
    assert_eq!((state.cpl(), state.ss().is_usable()), (0, false));
    for cs in [long_selector::CODE3, selector::CODE0] {
        let (mut state, mut environment) = long_mode(0);
        put_frame(&mut environment, &[0x1000, u64::from(cs), 0, 0x9000, 0]);
        assert_eq!(run(&mut state, &mut environment, &IRETQ), GP);
    }
}

#[test]
fn null_fs_and_gs_keep_their_bases_on_the_way_out() {
    let (mut state, mut environment) = long_mode(0);
    *state.segment_mut(SegmentRegister::Fs) = Segment {
        base: 0x7f00_0000_1000,
        ..Segment::null(Selector(3))
    };
    let (cs, ss) = (long_selector::CODE3, selector::DATA3);
    put_frame(
        &mut environment,
        &[TARGET, u64::from(cs), 0, 0, u64::from(ss)],
    );
    run(&mut state, &mut environment, &IRETQ).unwrap();
    assert_eq!(state.segment(SegmentRegister::Fs).base, 0x7f00_0000_1000);
    // The RPL of the selector is cleared, as on real processors.
    assert_eq!(state.segment(SegmentRegister::Fs).selector, Selector(0));
    // GS contained data of level 0.
    assert!(!state.segment(SegmentRegister::Gs).is_usable());
}

#[test]
fn data_segments_of_level_0_lose_their_selector_and_not_the_base_of_an_msr() {
    let (mut state, mut environment) = long_mode(0);
    for (register, base) in [
        (SegmentRegister::Fs, 0x7f00_0000_1000),
        (SegmentRegister::Gs, 0xffff_8000_0000_2000),
    ] {
        assert!(state.segment(register).is_usable());
        state.segment_mut(register).base = base;
    }
    let (cs, ss) = (long_selector::CODE3, selector::DATA3);
    put_frame(
        &mut environment,
        &[TARGET, u64::from(cs), 0, 0, u64::from(ss)],
    );
    run(&mut state, &mut environment, &IRETQ).unwrap();
    let fs = Segment {
        base: 0x7f00_0000_1000,
        ..Segment::null(Selector(0))
    };
    let gs = Segment {
        base: 0xffff_8000_0000_2000,
        ..Segment::null(Selector(0))
    };
    assert_eq!(*state.segment(SegmentRegister::Fs), fs);
    assert_eq!(*state.segment(SegmentRegister::Gs), gs);
    let null = Segment::null(Selector(0));
    assert_eq!(*state.segment(SegmentRegister::Ds), null);
}

#[test]
fn targets_are_canonical_and_code_is_not_both_long_and_big() {
    let ss = u64::from(selector::DATA0);
    for (rip, cs, error) in [
        (0x8000_0000_0000, long_selector::CODE0, 0),
        (0x1000, long_selector::BOTH0, 0x98),
    ] {
        let (mut state, mut environment) = long_mode(0);
        put_frame(&mut environment, &[rip, u64::from(cs), 0, 0x9000, ss]);
        assert_eq!(
            run(&mut state, &mut environment, &IRETQ),
            Err(Exception::general_protection(error))
        );
    }
}

#[test]
fn nested_tasks_do_not_exist() {
    let (mut state, mut environment) = long_mode(0);
    state.flags |= Flags::NT.bits();
    assert_eq!(run(&mut state, &mut environment, &IRETQ), GP);
}

#[test]
fn iretd_in_64_bit_code_pops_five_words() {
    let (mut state, mut environment) = long_mode(0);
    let values = [0x1234, long_selector::CODE0.into(), 2, 0x8765_4321, 0];
    for (index, value) in values.into_iter().enumerate() {
        environment.put_u32(0x8000 + index * 4, value);
    }
    run(&mut state, &mut environment, &IRETD).unwrap();
    assert_eq!((state.rip, state.register(Gpr::Rsp)), (0x1234, 0x8765_4321));
}

#[test]
fn compatibility_code_pops_three_words_at_its_level_and_ignores_vm() {
    let (mut state, mut environment) = compatibility_mode(0);
    let values = [0x1234, selector::CODE0.into(), 1 << 17 | 1];
    for (index, value) in values.into_iter().enumerate() {
        environment.put_u32(0x8000 + index * 4, value);
    }
    run(&mut state, &mut environment, &IRETD).unwrap();
    assert_eq!((state.rip, state.register(Gpr::Rsp)), (0x1234, 0x800c));
    assert_eq!(state.flags(), Flags::CF);
    assert!(!state.cs().attributes.contains(Attributes::LONG));
}
