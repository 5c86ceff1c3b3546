//! Tests of `vector_image`.

use super::*;
use crate::cpuid::{Vendor, policy};
use crate::test_environment::{TestEnvironment, protected_mode, run};
use tollgate_x86::{Cr0, Cr4};

const FXSAVE: [u8; 3] = [0x0f, 0xae, 0x00];
const FXRSTOR: [u8; 3] = [0x0f, 0xae, 0x08];
const XSAVE: [u8; 3] = [0x0f, 0xae, 0x20];
const XRSTOR: [u8; 3] = [0x0f, 0xae, 0x28];
const XSAVEOPT: [u8; 3] = [0x0f, 0xae, 0x30];
const GP: Exception = Exception::general_protection(0);

fn ready() -> (CpuState, TestEnvironment) {
    let (mut state, environment) = protected_mode(0);
    state.cr4 |= (Cr4::OSFXSR | Cr4::OSXSAVE).bits();
    state.xcr0 = policy(&state).xcr0_mask();
    state.gpr[0] = 0x9000;
    for (index, byte) in state.vector.0[offset::ST..416].iter_mut().enumerate() {
        // The last six bytes of an x87 slot are reserved.
        if index >= 128 || index % 16 < 10 {
            *byte = index as u8 ^ 0x5a;
        }
    }
    (state, environment)
}

#[test]
fn fxsave_and_fxrstor_round_trip_eight_registers() {
    let (mut state, mut environment) = ready();
    environment.ram[0x9000 + 288..0x9200].fill(0xee);
    run(&mut state, &mut environment, &FXSAVE).unwrap();
    assert_eq!(environment.u16(0x9000), 0x37f);
    assert_eq!(environment.u32(0x901c), 0xffff);
    assert_eq!(
        environment.ram[0x9020..0x9120],
        state.vector.0[offset::ST..288]
    );
    assert!(environment.ram[0x9120..0x9200].iter().all(|b| *b == 0xee));

    let saved = state.vector.clone();
    state.vector = tollgate_x86::state::VectorState::initial();
    run(&mut state, &mut environment, &FXRSTOR).unwrap();
    assert_eq!(state.vector.0[..288], saved.0[..288].to_vec()[..]);
    assert!(state.vector.0[288..416].iter().all(|b| *b == 0), "XMM8-15");
}

#[test]
fn amd_saves_pointers_while_an_exception_is_pending_and_restores_them_always() {
    let cases = [(FXSAVE, FXRSTOR), (XSAVE, XRSTOR)];
    let cases = cases.map(|(save, restore)| [false, true].map(|pending| (save, restore, pending)));
    for (save, restore, is_pending) in cases.into_iter().flatten() {
        let (mut state, mut environment) = ready();
        if is_pending {
            // An unmasked invalid operation.
            state.vector.0[offset::FCW] &= !1;
            state.vector.0[offset::FSW] = 0x81;
        }
        state.gpr[2] = 0;
        let pointers: [u8; 16] = std::array::from_fn(|index| index as u8 + 1);
        state.vector.0[offset::FIP..offset::MXCSR].copy_from_slice(&pointers);
        state.vector.0[offset::HEADER] |= component::X87 as u8;
        state.gpr[0] = 0x9000;
        state.gpr[6] = 0x9000;
        if save == XSAVE {
            // The operand is at [ESI], because EAX is the mask.
            state.gpr[0] = component::X87;
        }
        let form = |code: [u8; 3]| match save {
            XSAVE => [code[0], code[1], code[2] | 6],
            _ => code,
        };
        run(&mut state, &mut environment, &form(save)).unwrap();
        assert_eq!(state.vector.0[offset::FIP..offset::MXCSR], pointers);
        let is_amd = policy(&state).vendor() == Vendor::Amd;
        let expected = match is_amd && !is_pending {
            true => [0; 16],
            false => pointers,
        };
        assert_eq!(environment.ram[0x9008..0x9018], expected);
        environment.ram[0x9008..0x9018].copy_from_slice(&pointers);
        state.vector.0[offset::FIP..offset::MXCSR].fill(0);
        run(&mut state, &mut environment, &form(restore)).unwrap();
        assert_eq!(state.vector.0[offset::FIP..offset::MXCSR], pointers);
    }
}

#[test]
fn fxrstor_refuses_misalignment_and_reserved_mxcsr_bits() {
    let (mut state, mut environment) = ready();
    environment.put_u32(0x9018, 0x1_0000);
    assert_eq!(run(&mut state, &mut environment, &FXRSTOR), Err(GP));
    environment.put_u32(0x9018, 0x1f80);
    state.gpr[0] = 0x9008;
    assert_eq!(run(&mut state, &mut environment, &FXRSTOR), Err(GP));
    assert_eq!(run(&mut state, &mut environment, &FXSAVE), Err(GP));
    state.cr0 |= Cr0::EM.bits();
    assert_eq!(
        run(&mut state, &mut environment, &FXSAVE),
        Err(Exception::device_not_available())
    );
}

#[test]
fn fxsave_writes_nothing_if_a_part_cannot_be_written() {
    let (mut state, mut environment) = ready();
    environment.read_only.push(0xa000..0xb000);
    state.gpr[0] = 0x9f00;
    assert!(run(&mut state, &mut environment, &FXSAVE).is_err());
    assert!(environment.ram[0x9f00..0xa000].iter().all(|b| *b == 0));
}

#[test]
fn xsave_writes_only_what_is_asked_for() {
    let (mut state, mut environment) = ready();
    environment.ram[0x9000..0x9340].fill(0xee);
    environment.put_u64(0x9200, 0xf4);
    state.gpr[0] = 0x9000;
    state.gpr[2] = 0;
    // xsave [ebx] with EAX = 2: SSE.
    (state.gpr[3], state.gpr[0]) = (0x9000, 2);
    run(&mut state, &mut environment, &[0x0f, 0xae, 0x23]).unwrap();
    assert_eq!(environment.u64(0x9200), 0xf6);
    assert_eq!(environment.u16(0x9000), 0xeeee);
    assert_eq!(environment.u32(0x9018), 0x1f80);
    assert_eq!(environment.ram[0x90a0..0x9120], state.vector.0[160..288]);
    assert_eq!(environment.ram[0x9120], 0xee);
    assert_eq!(environment.ram[0x9240], 0xee);
}

#[test]
fn xsaveopt_leaves_out_what_is_initial() {
    let (mut state, mut environment) = ready();
    state.vector.0[offset::HEADER] = 1;
    environment.ram[0x9000..0x9200].fill(0xee);
    (state.gpr[0], state.gpr[3]) = (7, 0x9000);
    // xsaveopt [ebx], then xsave [ebx].
    run(&mut state, &mut environment, &[0x0f, 0xae, 0x33]).unwrap();
    assert_eq!(environment.u64(0x9200), 1);
    assert_eq!(environment.u16(0x9000), 0x37f);
    assert_eq!(environment.ram[0x90a0], 0xee);
    run(&mut state, &mut environment, &[0x0f, 0xae, 0x23]).unwrap();
    assert_eq!(environment.ram[0x90a0], 0);
}

#[test]
fn xrstor_initializes_what_the_header_leaves_out() {
    let (mut state, mut environment) = ready();
    (state.gpr[0], state.gpr[3]) = (7, 0x9000);
    environment.put_u32(0x9018, 0x1fa0);
    environment.put(0x90a0, &[0x77; 16]);
    environment.put_u64(0x9200, 2);
    // xrstor [ebx]
    run(&mut state, &mut environment, &[0x0f, 0xae, 0x2b]).unwrap();
    let registers = Registers::of(&mut state, &mut environment);
    assert_eq!(registers.u16(offset::FCW), 0x37f);
    assert_eq!(registers.u32(offset::MXCSR), 0x1fa0);
    assert_eq!(registers.ymm(0)[..16], [0x77; 16]);
    assert_eq!(registers.st(0), [0; 10]);
    assert_eq!(registers.in_use(), 2);
}

#[test]
fn xrstor_refuses_bad_headers() {
    let (mut state, mut environment) = ready();
    state.gpr[2] = 0;
    for (at, value) in [(0x9200, 8u64), (0x9208, 1), (0x9210, 1)] {
        environment.put_u64(at, value);
        assert_eq!(run(&mut state, &mut environment, &XRSTOR), Err(GP));
        environment.put_u64(at, 0);
    }
    assert!(run(&mut state, &mut environment, &XRSTOR).is_ok());
    state.gpr[0] = 0x9010;
    for code in [XSAVE, XRSTOR, XSAVEOPT] {
        assert_eq!(run(&mut state, &mut environment, &code), Err(GP));
    }
    state.cr4 &= !Cr4::OSXSAVE.bits();
    for code in [XSAVE, XRSTOR, XSAVEOPT] {
        assert_eq!(
            run(&mut state, &mut environment, &code),
            Err(Exception::invalid_opcode())
        );
    }
}

/// xsavec [ebx], xrstor [ebx], xsaves [ebx], xrstors [ebx]
const XSAVEC_EBX: [u8; 3] = [0x0f, 0xc7, 0x23];
const XRSTOR_EBX: [u8; 3] = [0x0f, 0xae, 0x2b];
const XSAVES_EBX: [u8; 3] = [0x0f, 0xc7, 0x2b];
const XRSTORS_EBX: [u8; 3] = [0x0f, 0xc7, 0x1b];

#[test]
fn xsavec_and_xsaves_store_what_is_in_use_and_say_that_the_image_is_compacted() {
    for code in [XSAVEC_EBX, XSAVES_EBX] {
        let (mut state, mut environment) = ready();
        state.vector.0[offset::HEADER] = 1;
        environment.ram[0x9000..0x9340].fill(0xee);
        (state.gpr[0], state.gpr[3]) = (7, 0x9000);
        run(&mut state, &mut environment, &code).unwrap();
        let header = (environment.u64(0x9200), environment.u64(0x9208));
        assert_eq!(header, (1, 7 | 1 << 63));
        assert_eq!(environment.u16(0x9000), 0x37f);
        assert_eq!(environment.u32(0x9018), 0xeeee_eeee, "MXCSR is initial");
        assert_eq!(environment.ram[0x90a0], 0xee);
        assert_eq!(environment.ram[0x9210], 0xee, "the rest of the header");
        assert_eq!(environment.ram[0x9240], 0xee);
        // MXCSR is saved together with SSE's registers.
        state.vector.0[offset::MXCSR] = 0xa0;
        run(&mut state, &mut environment, &code).unwrap();
        assert_eq!(environment.u64(0x9200), 3);
        assert_eq!(environment.u32(0x9018), 0x1fa0);
        assert_eq!(environment.ram[0x90a0], 0);
    }
}

#[test]
fn a_compacted_image_comes_back_without_what_it_leaves_out() {
    for restore in [XRSTOR_EBX, XRSTORS_EBX] {
        let (mut state, mut environment) = ready();
        (state.gpr[0], state.gpr[3]) = (7, 0x9000);
        state.vector.0[offset::MXCSR] = 0xa0;
        state.vector.0[offset::HEADER] = 3;
        let before = state.vector.clone();
        run(&mut state, &mut environment, &XSAVEC_EBX).unwrap();
        let mut registers = Registers::of(&mut state, &mut environment);
        registers.set_ymm(3, &[9; 32]);
        registers.set_u32(offset::MXCSR, 0x1fc0);
        run(&mut state, &mut environment, &restore).unwrap();
        assert!(state.vector == before);
        // SSE is not in the image: its registers and MXCSR become initial.
        environment.put_u64(0x9200, 1);
        run(&mut state, &mut environment, &restore).unwrap();
        let registers = Registers::of(&mut state, &mut environment);
        assert_eq!(registers.u32(offset::MXCSR), 0x1f80);
        assert_eq!(registers.ymm(0), [0; 32]);
    }
}

#[test]
fn xrstor_refuses_bad_compacted_headers_and_xrstors_the_standard_format() {
    let (mut state, mut environment) = ready();
    (state.gpr[0], state.gpr[3]) = (7, 0x9000);
    let compacted = 1 << 63;
    for (bitmap, layout, more) in [
        (1, compacted | 2, 0u64),
        (0, compacted | 1 << 3, 0),
        (0, compacted | 7, 1),
    ] {
        environment.put_u64(0x9200, bitmap);
        environment.put_u64(0x9208, layout);
        environment.put_u64(0x9210, more);
        for code in [XRSTOR_EBX, XRSTORS_EBX] {
            assert_eq!(run(&mut state, &mut environment, &code), Err(GP));
        }
    }
    environment.put(0x9200, &[0; 24]);
    assert_eq!(run(&mut state, &mut environment, &XRSTORS_EBX), Err(GP));
    assert!(run(&mut state, &mut environment, &XRSTOR_EBX).is_ok());
}

#[test]
fn xsaves_and_xrstors_are_for_cpl_0() {
    let (mut state, mut environment) = crate::test_environment::protected_mode(3);
    state.cr4 |= (Cr4::OSXSAVE | Cr4::OSFXSR).bits();
    state.xcr0 = 7;
    (state.gpr[0], state.gpr[3]) = (7, 0x9000);
    assert!(run(&mut state, &mut environment, &XSAVEC_EBX).is_ok());
    for code in [XSAVES_EBX, XRSTORS_EBX] {
        assert_eq!(run(&mut state, &mut environment, &code), Err(GP));
    }
}

#[test]
fn the_host_accepts_what_fxrstor_leaves() {
    let (mut state, mut environment) = ready();
    environment.put_u16(0x9000, 0x37e);
    environment.put_u16(0x9002, 0x0001);
    environment.put_u32(0x9018, 0x1f80);
    run(&mut state, &mut environment, &FXRSTOR).unwrap();
    // An unmasked invalid-operation exception is pending now.
    assert_eq!(state.vector.0[2..4], [0x81, 0x80]);
}

#[test]
fn only_the_parts_that_are_asked_for_can_fault_and_with_amd_the_legacy_region() {
    let (mut state, mut environment) = ready();
    environment.read_only.push(0x9000..0xa000);
    // xsave [ebx]: the header lies in the next page.
    (state.gpr[0], state.gpr[3]) = (0, 0x9e00);
    let xsave = [0x0f, 0xae, 0x23];
    let result = run(&mut state, &mut environment, &xsave);
    assert_eq!(result.is_err(), policy(&state).vendor() == Vendor::Amd);
    state.gpr[0] = 1;
    assert!(run(&mut state, &mut environment, &xsave).is_err());
}

#[test]
fn misalignment_comes_before_the_limit() {
    let (mut state, mut environment) = ready();
    state.segments[3].limit = 0x90ff;
    state.gpr[0] = 0x9001;
    for code in [FXSAVE, FXRSTOR, XSAVE, XRSTOR] {
        assert_eq!(run(&mut state, &mut environment, &code), Err(GP));
    }
    state.segments[2].limit = 0x90ff;
    // fxsave ss:[eax]
    let code = [0x36, 0x0f, 0xae, 0x00];
    assert_eq!(run(&mut state, &mut environment, &code), Err(GP));
    state.gpr[0] = 0x9000;
    assert_eq!(
        run(&mut state, &mut environment, &code),
        Err(Exception::stack_fault(0))
    );
}
