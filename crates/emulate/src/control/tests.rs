//! Tests of `control`.

use super::note_detected_access;
use crate::Outcome;
use crate::test_environment::{protected_mode, real_mode, run, virtual_8086_mode};
use tollgate_x86::{CpuModel, Cr0, Cr4, Exception, Gpr};
use tollgate_x86::{Space, TranslationChange};

const MOV_CR0_EAX: [u8; 3] = [0x0f, 0x22, 0xc0];
const MOV_CR3_EAX: [u8; 3] = [0x0f, 0x22, 0xd8];
const MOV_CR4_EAX: [u8; 3] = [0x0f, 0x22, 0xe0];
const MOV_DR7_EAX: [u8; 3] = [0x0f, 0x23, 0xf8];
const GP: Exception = Exception::general_protection(0);

#[test]
fn cr0_refuses_paging_without_protection_and_nw_without_cd() {
    let (mut state, mut environment) = real_mode();
    for value in [1 << 31, 1 << 29] {
        state.gpr[0] = value;
        assert_eq!(run(&mut state, &mut environment, &MOV_CR0_EAX), Err(GP));
    }
}

#[test]
fn cr0_keeps_et_and_drops_reserved_bits() {
    let (mut state, mut environment) = real_mode();
    state.gpr[0] = 0x0000_ffc1;
    assert_eq!(
        run(&mut state, &mut environment, &MOV_CR0_EAX),
        Ok(Outcome::Next)
    );
    assert_eq!(state.cr0, 0x11);
    assert!(environment.changes.is_empty());
}

#[test]
fn switching_paging_on_flushes_everything() {
    let (mut state, mut environment) = protected_mode(0);
    state.gpr[0] = state.cr0 | 1 << 31;
    assert_eq!(
        run(&mut state, &mut environment, &MOV_CR0_EAX),
        Ok(Outcome::Next)
    );
    assert_eq!(environment.changes, [TranslationChange::Everything]);
}

#[test]
fn pae_paging_loads_pdptes_and_refuses_reserved_bits_in_them() {
    let (mut state, mut environment) = protected_mode(0);
    state.cr4 = Cr4::PAE.bits();
    state.cr3 = 0x8020;
    environment.put_u64(0x8020, 0x9001);
    environment.put_u64(0x8038, 0xb001);
    state.gpr[0] = state.cr0 | Cr0::PG.bits();
    run(&mut state, &mut environment, &MOV_CR0_EAX).unwrap();
    assert_eq!(state.pdpte, [0x9001, 0, 0, 0xb001]);

    environment.put_u64(0x8040, 0x9003);
    state.gpr[0] = 0x8040;
    assert_eq!(run(&mut state, &mut environment, &MOV_CR3_EAX), Err(GP));
    assert_eq!(state.cr3, 0x8020);
    environment.put_u64(0x8040, 0x9002);
    run(&mut state, &mut environment, &MOV_CR3_EAX).unwrap();
    assert_eq!(state.pdpte[0], 0x9002);
}

#[test]
fn cr3_loads_change_the_address_space() {
    let (mut state, mut environment) = protected_mode(0);
    let before = state.cr3;
    state.gpr[0] = 0x7000;
    run(&mut state, &mut environment, &MOV_CR3_EAX).unwrap();
    let load = TranslationChange::Load {
        from: Space::of_cr3(&state, before),
        to: Space::of_cr3(&state, 0x7000),
        keeps: false,
    };
    assert_eq!(environment.changes, [load]);
    assert_eq!(state.cr3, 0x7000);
}

#[test]
fn cr4_accepts_only_what_cpuid_offers() {
    let (mut state, mut environment) = protected_mode(0);
    let vmxe = Cr4::from_bits_retain(1 << 13);
    for bit in [vmxe, Cr4::SMAP] {
        state.gpr[0] = bit.bits();
        assert_eq!(run(&mut state, &mut environment, &MOV_CR4_EAX), Err(GP));
    }
    state.gpr[0] = (Cr4::PGE | Cr4::PSE | Cr4::OSFXSR).bits();
    run(&mut state, &mut environment, &MOV_CR4_EAX).unwrap();
    assert_eq!(environment.changes, [TranslationChange::Everything]);
    state.gpr[0] |= Cr4::TSD.bits();
    run(&mut state, &mut environment, &MOV_CR4_EAX).unwrap();
    assert_eq!(environment.changes.len(), 1);
}

#[test]
fn virtual_interrupts_can_be_enabled_where_cpuid_offers_them() {
    for (model, expected) in [
        (CpuModel::Host, Ok(Outcome::Next)),
        (CpuModel::X86_64V1, Ok(Outcome::Next)),
        (CpuModel::Qemu64, Err(GP)),
    ] {
        let (mut state, mut environment) = protected_mode(0);
        state.model = model;
        let offered = crate::cpuid::policy(&state).leaf(&state, 1, 0)[3] & 2 != 0;
        assert_eq!(offered, expected.is_ok(), "{model:?}");
        for bits in [Cr4::VME, Cr4::PVI, Cr4::VME | Cr4::PVI] {
            state.gpr[0] = bits.bits();
            assert_eq!(run(&mut state, &mut environment, &MOV_CR4_EAX), expected);
        }
    }
}

#[test]
fn privileged_instructions_fault_at_cpl_3_and_in_v86_mode() {
    let codes: [&[u8]; 9] = [
        &MOV_CR0_EAX,
        &[0x0f, 0x20, 0xc0],
        &MOV_DR7_EAX,
        &[0x0f, 0x21, 0xf8],
        &[0x0f, 0x06],
        &[0x0f, 0x01, 0x38],
        &[0x0f, 0x08],
        &[0x0f, 0x09],
        &[0xf4],
    ];
    for code in codes {
        for (mut state, mut environment) in [protected_mode(3), virtual_8086_mode(3)] {
            assert_eq!(
                run(&mut state, &mut environment, code),
                Err(GP),
                "{code:x?}"
            );
        }
    }
}

#[test]
fn absent_control_registers_are_invalid_opcodes() {
    let (mut state, mut environment) = protected_mode(0);
    for modrm in [0xc8, 0xe8, 0xf0, 0xf8] {
        for opcode in [0x20, 0x22] {
            assert_eq!(
                run(&mut state, &mut environment, &[0x0f, opcode, modrm]),
                Err(Exception::invalid_opcode())
            );
        }
    }
}

#[test]
fn dr4_and_dr5_are_dr6_and_dr7() {
    let (mut state, mut environment) = protected_mode(0);
    state.gpr[0] = 0xffff_ffff;
    // mov dr4, eax; mov ecx, dr6
    run(&mut state, &mut environment, &[0x0f, 0x23, 0xe0]).unwrap();
    run(&mut state, &mut environment, &[0x0f, 0x21, 0xf1]).unwrap();
    assert_eq!(state.register(Gpr::Rcx), 0xffff_efff);
    // mov ecx, dr5
    run(&mut state, &mut environment, &[0x0f, 0x21, 0xe9]).unwrap();
    assert_eq!(state.register(Gpr::Rcx), 0x400);
}

#[test]
fn with_cr4_de_dr4_and_dr5_are_undefined_at_any_level() {
    for cpl in [0, 3] {
        for code in [[0x0f, 0x21, 0xe0], [0x0f, 0x23, 0xe8]] {
            let (mut state, mut environment) = protected_mode(cpl);
            state.cr4 |= Cr4::DE.bits();
            assert_eq!(
                run(&mut state, &mut environment, &code),
                Err(Exception::invalid_opcode())
            );
        }
    }
}

#[test]
fn every_model_offers_cr4_de_and_dr7_then_takes_breakpoints_on_ports() {
    for model in tollgate_x86::CpuModel::ALL {
        let (mut state, mut environment) = protected_mode(0);
        state.model = model;
        assert_ne!(crate::cpuid::policy(&state).leaf(&state, 1, 0)[3] & 4, 0);
        state.gpr[0] = Cr4::DE.bits();
        run(&mut state, &mut environment, &MOV_CR4_EAX).unwrap();
        for control in [0x2_0401, 0x2_0400, 0x1_0401, 0x401] {
            state.gpr[0] = control;
            run(&mut state, &mut environment, &MOV_DR7_EAX).unwrap();
            assert_eq!(state.dr[7], control);
        }
    }
}

#[test]
fn smep_and_umip_are_offered_by_all_models_but_qemu64() {
    for model in tollgate_x86::CpuModel::ALL {
        let (mut state, mut environment) = protected_mode(0);
        state.model = model;
        let expected = model != tollgate_x86::CpuModel::Qemu64;
        let [_, ebx, ecx, _] = crate::cpuid::policy(&state).leaf(&state, 7, 0);
        assert_eq!(ebx & 1 << 7 != 0, expected, "{model:?}");
        assert_eq!(ecx & 1 << 2 != 0, expected, "{model:?}");
        for bit in [Cr4::SMEP, Cr4::UMIP] {
            state.gpr[0] = bit.bits();
            let result = run(&mut state, &mut environment, &MOV_CR4_EAX);
            assert_eq!(result.is_ok(), expected, "{model:?} {bit:?}");
        }
    }
}

#[test]
fn a_change_of_smep_drops_all_translations_and_loads_the_pdptes() {
    let (mut state, mut environment) = protected_mode(0);
    for value in [Cr4::SMEP.bits(), 0] {
        environment.changes.clear();
        state.gpr[0] = value;
        run(&mut state, &mut environment, &MOV_CR4_EAX).unwrap();
        assert_eq!(environment.changes, [TranslationChange::Everything]);
    }
    // With PAE paging, an invalid PDPTE makes the instruction fail.
    let (mut state, mut environment) = protected_mode(0);
    state.cr0 |= Cr0::PG.bits();
    state.cr4 = Cr4::PAE.bits();
    state.cr3 = 0x2000;
    environment.put_u64(0x2000, 0x1e7);
    state.gpr[0] = (Cr4::PAE | Cr4::SMEP).bits();
    assert_eq!(run(&mut state, &mut environment, &MOV_CR4_EAX), Err(GP));
}

#[test]
fn general_detect_refuses_one_access_to_the_debug_registers() {
    let (mut state, mut environment) = protected_mode(0);
    state.dr[7] |= 1 << 13;
    assert_eq!(
        run(&mut state, &mut environment, &MOV_DR7_EAX),
        Err(Exception::new(tollgate_x86::Vector::Debug))
    );
    note_detected_access(&mut state);
    assert_eq!((state.dr[6] & 1 << 13, state.dr[7]), (1 << 13, 0x400));
    assert!(run(&mut state, &mut environment, &MOV_DR7_EAX).is_ok());
}

#[test]
fn hlt_waits_behind_itself_and_clts_clears_only_ts() {
    let (mut state, mut environment) = real_mode();
    assert_eq!(
        run(&mut state, &mut environment, &[0xf4]),
        Ok(Outcome::Halted)
    );
    assert_eq!(state.rip, 1);
    state.cr0 |= (Cr0::TS | Cr0::MP).bits();
    run(&mut state, &mut environment, &[0x0f, 0x06]).unwrap();
    assert_eq!(state.cr0 & 0xf, Cr0::MP.bits());
}

#[test]
fn what_cpuid_does_not_offer_is_an_invalid_opcode() {
    let (mut state, mut environment) = protected_mode(0);
    let codes: [&[u8]; 4] = [
        &[0x0f, 0x01, 0xc8], // monitor
        &[0x0f, 0x01, 0xc9], // mwait
        &[0x0f, 0xaa],       // rsm
        &[0x0f, 0xc7, 0x20], // xsavec
    ];
    for code in codes {
        assert_eq!(
            run(&mut state, &mut environment, code),
            Err(Exception::invalid_opcode()),
            "{code:x?}"
        );
    }
}

#[test]
fn a_load_of_cr3_that_stops_has_changed_nothing() {
    let (mut state, mut environment) = protected_mode(0);
    state.cr4 = Cr4::PAE.bits();
    state.cr0 |= Cr0::PG.bits();
    environment.put_u64(0x8040, 0x9001);
    state.gpr[0] = 0x8040;
    let before = state.clone();
    environment.interrupted = true;
    let stopped = run(&mut state, &mut environment, &MOV_CR3_EAX);
    assert_eq!(stopped, Ok(Outcome::Repeat));
    assert_eq!(state, before);
    assert!(environment.changes.is_empty());
    environment.interrupted = false;
    run(&mut state, &mut environment, &MOV_CR3_EAX).unwrap();
    assert_eq!((state.cr3, state.pdpte[0]), (0x8040, 0x9001));
}
