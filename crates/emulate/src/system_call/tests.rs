//! Tests of `system_call`. The model `qemu64` is AMD's; the tests for Intel run where the host is
//! Intel's.

use super::*;
use crate::test_environment::{compatibility_mode, long_mode, protected_mode, run};
use tollgate_x86::{CpuModel, Selector};

const UD: Exception = Exception::invalid_opcode();
const GP: Exception = Exception::general_protection(0);
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const SYSRETD: [u8; 2] = [0x0f, 0x07];
const SYSRETQ: [u8; 3] = [0x48, 0x0f, 0x07];
const STAR: u64 = 0x0023_0010_c010_0000;

#[test]
fn syscall_goes_to_lstar_with_the_return_address_in_rcx_and_the_flags_in_r11() {
    let (mut state, mut environment) = long_mode(3);
    state.star = STAR;
    state.lstar = 0xffff_ffff_8100_0000;
    state.sfmask = (Flags::IF | Flags::DF).bits();
    state.flags = (Flags::IF | Flags::CF | Flags::RF).bits();
    state.rip = 0x7fff_ffff_0000;
    let outcome = run(&mut state, &mut environment, &SYSCALL);
    assert_eq!(outcome, Ok(Outcome::Jumped));
    assert_eq!(state.rip, 0xffff_ffff_8100_0000);
    assert_eq!(state.register(Gpr::Rcx), 0x7fff_ffff_0002);
    assert_eq!(state.register(Gpr::R11), 0x203);
    assert_eq!(state.flags(), Flags::CF);
    assert_eq!(
        (state.cs().selector, state.ss().selector),
        (Selector(0x10), Selector(0x18))
    );
    assert_eq!((state.cpl(), state.is_64_bit()), (0, true));
    assert_eq!(state.register(Gpr::Rsp), 0x8000);
}

#[test]
fn sysret_returns_to_64_or_32_bit_code() {
    for (code, selector, is_64_bit, rip) in [
        (&SYSRETQ[..], 0x33, true, 0x7f00_1234_5678),
        (&SYSRETD[..], 0x23, false, 0x1234_5678),
    ] {
        let (mut state, mut environment) = long_mode(0);
        state.star = STAR;
        state.gpr[Gpr::Rcx as usize] = 0x7f00_1234_5678;
        state.gpr[Gpr::R11 as usize] = u64::MAX;
        run(&mut state, &mut environment, code).unwrap();
        assert_eq!(state.rip, rip);
        assert_eq!(state.cs().selector, Selector(selector));
        assert_eq!(state.ss().selector, Selector(0x2b));
        assert_eq!((state.cpl(), state.is_64_bit()), (3, is_64_bit));
        assert_eq!(state.flags(), Flags::ALL & !(Flags::RF | Flags::VM));
    }
}

#[test]
fn both_need_sce_and_sysret_level_0() {
    let (mut state, mut environment) = long_mode(3);
    state.star = STAR;
    assert_eq!(run(&mut state, &mut environment, &SYSRETQ), Err(GP));
    state.efer &= !Efer::SCE.bits();
    assert_eq!(run(&mut state, &mut environment, &SYSCALL), Err(UD));
    assert_eq!(run(&mut state, &mut environment, &SYSRETQ), Err(UD));
}

#[test]
fn a_non_canonical_rcx_is_refused_by_intel_and_taken_by_amd() {
    let (mut state, mut environment) = long_mode(0);
    state.gpr[Gpr::Rcx as usize] = 0x8000_0000_0000;
    if policy(&state).vendor() == Vendor::Intel {
        assert_eq!(run(&mut state, &mut environment, &SYSRETQ), Err(GP));
    }
    state.model = CpuModel::Qemu64;
    run(&mut state, &mut environment, &SYSRETQ).unwrap();
    assert_eq!((state.rip, state.cpl()), (0x8000_0000_0000, 3));
}

#[test]
fn outside_64_bit_mode_only_amd_has_them() {
    for (mut state, mut environment) in [compatibility_mode(3), protected_mode(3)] {
        state.efer |= Efer::SCE.bits();
        if policy(&state).vendor() == Vendor::Intel {
            assert_eq!(run(&mut state, &mut environment, &SYSCALL), Err(UD));
        }
    }
    let (mut state, mut environment) = compatibility_mode(3);
    (state.star, state.cstar) = (STAR, 0xffff_ffff_8200_0000);
    state.model = CpuModel::Qemu64;
    run(&mut state, &mut environment, &SYSCALL).unwrap();
    assert_eq!(state.rip, 0xffff_ffff_8200_0000);
    assert!(state.is_64_bit());
    let (mut state, mut environment) = protected_mode(3);
    state.efer |= Efer::SCE.bits();
    state.star = STAR;
    state.model = CpuModel::Qemu64;
    state.flags = (Flags::IF | Flags::CF).bits();
    run(&mut state, &mut environment, &SYSCALL).unwrap();
    assert_eq!((state.rip, state.flags()), (0xc010_0000, Flags::CF));
    assert_eq!(state.register(Gpr::Rcx), 0x5002);
    assert!(state.cs().is_big());
}
