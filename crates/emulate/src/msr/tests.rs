//! Tests of `msr`.

use super::*;
use crate::plain_msr::{
    CSTAR, FMASK, FS_BASE, GS_BASE, KERNEL_GS_BASE, LSTAR, STAR, SYSENTER_CS, SYSENTER_EIP,
    SYSENTER_ESP, TSC_AUX,
};
use crate::test_environment::{long_mode, protected_mode, run, virtual_8086_mode};
use crate::tsc_offset::time_stamp;
use tollgate_x86::local_apic_msrs::APIC_BASE;
use tollgate_x86::{CpuModel, Cr4, SegmentRegister};

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
fn no_supervisor_state_component_can_be_enabled() {
    let (mut state, mut environment) = protected_mode(0);
    assert_eq!(read(&state, &mut environment, 0xda0), Ok(0));
    assert_eq!(write(&mut state, &mut environment, 0xda0, 0), Ok(()));
    for value in [1, 1 << 8, 1 << 63] {
        assert_eq!(write(&mut state, &mut environment, 0xda0, value), Err(GP));
    }
    state.model = CpuModel::X86_64V2;
    assert_eq!(read(&state, &mut environment, 0xda0), Err(GP));
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
fn rdtscp_shows_tsc_aux_where_the_model_has_it() {
    let (mut state, mut environment) = protected_mode(0);
    environment.platform.time_stamp = 0x2_0000_0001;
    state.tsc_aux = 0x1234;
    let rdtscp = [0x0f, 0x01, 0xf9];
    run(&mut state, &mut environment, &rdtscp).unwrap();
    assert_eq!(state.gpr[..3], [1, 0x1234, 2]);
    state.model = CpuModel::Qemu64;
    assert_eq!(
        run(&mut state, &mut environment, &rdtscp),
        Err(Exception::invalid_opcode())
    );
    assert_eq!(read(&state, &mut environment, TSC_AUX), Err(GP));
}

#[test]
fn efer_takes_what_is_offered_and_a_change_of_nxe_drops_translations() {
    let (mut state, mut environment) = protected_mode(0);
    let everything = [TranslationChange::Everything];
    write(&mut state, &mut environment, EFER, 0x800).unwrap();
    assert_eq!(environment.changes, everything);
    write(&mut state, &mut environment, EFER, 0x901).unwrap();
    assert_eq!((state.efer, environment.changes.len()), (0x901, 1));
    // The bits SVME, LMSLE, FFXSR and TCE.
    for bit in 12..16 {
        let refused = write(&mut state, &mut environment, EFER, 1 << bit);
        assert_eq!(refused, Err(GP));
    }
}

#[test]
fn lma_is_not_written_and_lme_stays_while_there_is_paging() {
    let (mut state, mut environment) = protected_mode(0);
    write(&mut state, &mut environment, EFER, 0x500).unwrap();
    assert_eq!(state.efer, 0x100);
    let (mut state, mut environment) = long_mode(0);
    assert_eq!(write(&mut state, &mut environment, EFER, 0x400), Err(GP));
    write(&mut state, &mut environment, EFER, 0x101).unwrap();
    assert_eq!(state.efer, 0x501);
    let (mut state, mut environment) = protected_mode(0);
    state.cr0 |= 1 << 31;
    assert_eq!(write(&mut state, &mut environment, EFER, 0x100), Err(GP));
}

#[test]
fn addresses_in_msrs_must_be_canonical() {
    let (mut state, mut environment) = long_mode(0);
    for index in [
        LSTAR,
        CSTAR,
        FS_BASE,
        GS_BASE,
        KERNEL_GS_BASE,
        SYSENTER_ESP,
        SYSENTER_EIP,
    ] {
        let refused = write(&mut state, &mut environment, index, 0x8000_0000_0000);
        assert_eq!(refused, Err(GP), "{index:#x}");
        let value = 0xffff_8000_0000_0000 + u64::from(index);
        write(&mut state, &mut environment, index, value).unwrap();
        assert_eq!(read(&state, &mut environment, index), Ok(value));
    }
    assert_eq!(
        state.segment(SegmentRegister::Fs).base,
        0xffff_8000_c000_0100
    );
    assert_eq!(
        state.segment(SegmentRegister::Gs).base,
        0xffff_8000_c000_0101
    );
}

#[test]
fn fmask_has_32_bits_and_star_64() {
    let (mut state, mut environment) = long_mode(0);
    assert_eq!(write(&mut state, &mut environment, FMASK, 1 << 32), Err(GP));
    write(&mut state, &mut environment, FMASK, 0x47700).unwrap();
    write(&mut state, &mut environment, STAR, u64::MAX).unwrap();
    assert_eq!((state.sfmask, state.star), (0x47700, u64::MAX));
}

#[test]
fn arch_capabilities_are_there_to_be_read_unless_amd_made_the_processor() {
    let (mut state, mut environment) = long_mode(0);
    let host = policy(&state).arch_capabilities();
    let expected = host.ok_or(GP);
    assert_eq!(read(&state, &mut environment, ARCH_CAPABILITIES), expected);
    assert_eq!(
        write(&mut state, &mut environment, ARCH_CAPABILITIES, 1),
        Err(GP)
    );
    state.model = CpuModel::Qemu64;
    assert_eq!(read(&state, &mut environment, ARCH_CAPABILITIES), Err(GP));
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
fn the_sysenter_selector_has_32_bits() {
    let (mut state, mut environment) = protected_mode(0);
    write(&mut state, &mut environment, SYSENTER_CS, 0x7_0000_0060).unwrap();
    assert_eq!(state.sysenter_cs, 0x60);
}

#[test]
fn amd_systems_find_the_msrs_that_they_read_unasked() {
    let (mut state, _) = protected_mode(0);
    assert_eq!(read_amd(&state, 0xc001_0015), Ok(1 << 24));
    assert_eq!(read_amd(&state, 0xc001_0010), Ok(0));
    assert_eq!(read_amd(&state, 0xc001_1029), Ok(2));
    assert_eq!(write_amd(&mut state, 0xc001_1029, 2), Ok(()));
    assert_eq!(write_amd(&mut state, 0xc001_0015, 1), Err(GP));
    assert_eq!(read_amd(&state, 0xc001_7777), Err(GP));
}

#[test]
fn mtrrs_and_machine_check_are_reached_by_their_instructions() {
    let (mut state, mut environment) = protected_mode(0);
    for (index, value) in [
        (0x2ff, 0xc06),
        (0x201, 0xff_8000_0800),
        (0x17a, 4),
        (0x400, 7),
    ] {
        state.gpr[1] = index;
        (state.gpr[0], state.gpr[2]) = (value & 0xffff_ffff, value >> 32);
        run(&mut state, &mut environment, &WRMSR).unwrap();
        assert_eq!(read(&state, &mut environment, index as u32), Ok(value));
    }
    // Capabilities, a memory type that does not exist, and an error in a bank.
    for (index, value) in [(0xfe, 0x508), (0x179, 0x10a), (0x2ff, 2), (0x401, 1)] {
        assert_eq!(write(&mut state, &mut environment, index, value), Err(GP));
    }
}

#[test]
fn amds_hwcr_has_the_banks_statuses_take_any_value() {
    let (mut state, mut environment) = protected_mode(0);
    state.model = CpuModel::Qemu64;
    assert_eq!(write(&mut state, &mut environment, 0x401, 1), Err(GP));
    write(&mut state, &mut environment, 0xc001_0015, 1 << 18).unwrap();
    let configuration = read(&state, &mut environment, 0xc001_0015);
    assert_eq!(configuration, Ok(1 << 24 | 1 << 18));
    write(&mut state, &mut environment, 0x401, 1).unwrap();
    assert_eq!(read(&state, &mut environment, 0x401), Ok(1));
}
