//! Facts about `msr`.

use super::*;
use crate::test_environment::{protected_mode, run, virtual_8086_mode};

const RDMSR: [u8; 2] = [0x0f, 0x32];
const WRMSR: [u8; 2] = [0x0f, 0x30];
const GP: Exception = Exception::general_protection(0);

#[test]
fn msrs_are_privileged_and_unknown_ones_fault() {
    for (mut state, mut environment) in [protected_mode(3), virtual_8086_mode(3)] {
        state.gpr[1] = 0x10;
        assert_eq!(run(&mut state, &mut environment, &RDMSR), Err(GP));
        assert_eq!(run(&mut state, &mut environment, &WRMSR), Err(GP));
    }
    let (mut state, mut environment) = protected_mode(0);
    state.gpr[1] = 0x1234_5678;
    assert_eq!(run(&mut state, &mut environment, &RDMSR), Err(GP));
    assert_eq!(run(&mut state, &mut environment, &WRMSR), Err(GP));
}

#[test]
fn writing_the_time_stamp_counter_moves_its_offset() {
    let (mut state, mut environment) = protected_mode(0);
    environment.platform.time_stamp = 1000;
    (state.gpr[0], state.gpr[2]) = (5, 1);
    state.gpr[1] = 0x10;
    run(&mut state, &mut environment, &WRMSR).unwrap();
    environment.platform.time_stamp = 1010;
    run(&mut state, &mut environment, &[0x0f, 0x31]).unwrap();
    assert_eq!((state.gpr[0], state.gpr[2]), (15, 1));
    assert_eq!(time_stamp(&state, &mut environment), 0x1_0000_000f);
}

#[test]
fn adjustment_and_counter_move_together() {
    let (mut state, mut environment) = protected_mode(0);
    environment.platform.time_stamp = 77;
    let at_reset = read(&state, &mut environment, 0x3b).unwrap();
    assert_eq!(at_reset, 0);
    let before = read(&state, &mut environment, 0x10).unwrap();
    write(&mut state, &mut environment, 0x3b, 1000).unwrap();
    let after = read(&state, &mut environment, 0x10).unwrap();
    assert_eq!(after, before + 1000);
    write(&mut state, &mut environment, 0x10, before).unwrap();
    assert_eq!(read(&state, &mut environment, 0x3b).unwrap(), 0);
}

#[test]
fn time_stamp_disable_binds_only_above_cpl_0() {
    let (mut state, mut environment) = protected_mode(3);
    assert_eq!(
        run(&mut state, &mut environment, &[0x0f, 0x31]),
        Ok(Outcome::Next)
    );
    state.cr4 |= Cr4::TSD.bits();
    assert_eq!(run(&mut state, &mut environment, &[0x0f, 0x31]), Err(GP));
    let (mut state, mut environment) = protected_mode(0);
    state.cr4 |= Cr4::TSD.bits();
    assert_eq!(
        run(&mut state, &mut environment, &[0x0f, 0x31]),
        Ok(Outcome::Next)
    );
}

#[test]
fn there_are_no_performance_counters_and_no_rdtscp() {
    let (mut state, mut environment) = protected_mode(0);
    assert_eq!(run(&mut state, &mut environment, &[0x0f, 0x33]), Err(GP));
    assert_eq!(
        run(&mut state, &mut environment, &[0x0f, 0x01, 0xf9]),
        Err(Exception::invalid_opcode())
    );
}

#[test]
fn efer_takes_nxe_and_refuses_long_mode() {
    let (mut state, mut environment) = protected_mode(0);
    state.gpr[1] = u64::from(EFER);
    state.gpr[0] = 0x800;
    run(&mut state, &mut environment, &WRMSR).unwrap();
    assert_eq!(state.efer, 0x800);
    assert_eq!(environment.changes, [TranslationChange::Everything]);
    state.gpr[0] = 0x900;
    assert_eq!(run(&mut state, &mut environment, &WRMSR), Err(GP));
}

#[test]
fn pat_refuses_types_that_do_not_exist() {
    let (mut state, mut environment) = protected_mode(0);
    state.gpr[1] = u64::from(PAT);
    (state.gpr[0], state.gpr[2]) = (0x0701_0506, 0x0007_0106);
    run(&mut state, &mut environment, &WRMSR).unwrap();
    state.gpr[0] = 0x0000_0200;
    assert_eq!(run(&mut state, &mut environment, &WRMSR), Err(GP));
    run(&mut state, &mut environment, &RDMSR).unwrap();
    assert_eq!((state.gpr[0], state.gpr[2]), (0x0701_0506, 0x0007_0106));
}

#[test]
fn the_machines_msrs_are_asked_for_and_may_refuse() {
    let (mut state, mut environment) = protected_mode(0);
    environment.platform.msrs = vec![(APIC_BASE, 0xfee0_0900)];
    environment.platform.refused_msr_value = Some(1);
    state.gpr[1] = u64::from(APIC_BASE);
    run(&mut state, &mut environment, &RDMSR).unwrap();
    assert_eq!(state.gpr[0], 0xfee0_0900);
    (state.gpr[0], state.gpr[2]) = (1, 0);
    assert_eq!(run(&mut state, &mut environment, &WRMSR), Err(GP));
}

#[test]
fn sysenter_msrs_hold_32_bits() {
    let (mut state, mut environment) = protected_mode(0);
    state.gpr[1] = u64::from(SYSENTER_EIP);
    (state.gpr[0], state.gpr[2]) = (0xc010_0000, 7);
    run(&mut state, &mut environment, &WRMSR).unwrap();
    assert_eq!(state.sysenter_eip, 0xc010_0000);
}

#[test]
fn amd_systems_find_the_msrs_that_they_read_unasked() {
    assert_eq!(read_amd(0xc001_0015), Ok(1 << 24));
    assert_eq!(read_amd(0xc001_0010), Ok(0));
    assert_eq!(read_amd(0xc001_1029), Ok(2));
    assert_eq!(write_amd(0xc001_1029, 2), Ok(()));
    assert_eq!(write_amd(0xc001_0015, 1), Err(GP));
    assert_eq!(read_amd(0xc001_7777), Err(GP));
}
