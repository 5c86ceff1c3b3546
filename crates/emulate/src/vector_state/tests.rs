//! Tests of `vector_state`.

use super::*;
use crate::test_environment::{protected_mode, run, virtual_8086_mode};

const GP: Exception = Exception::general_protection(0);
const UD: Exception = Exception::invalid_opcode();

#[test]
fn changing_the_top_keeps_values_in_their_physical_registers() {
    let mut bytes = VectorState::initial();
    let mut registers = Registers(&mut bytes.0);
    registers.set_top(6);
    registers.set_st(0, &[6; 10]);
    registers.set_st(3, &[1; 10]);
    registers.set_top(1);
    assert_eq!(registers.st(0), [1; 10]);
    assert_eq!(registers.st(5), [6; 10]);
    assert_eq!(registers.mm(6), [6; 8]);
    assert_eq!(registers.top(), 1);
}

#[test]
fn mxcsr_refuses_reserved_bits() {
    let (mut state, mut environment) = protected_mode(0);
    state.cr4 |= Cr4::OSFXSR.bits();
    state.gpr[0] = 0x9000;
    environment.put_u32(0x9000, 0x1_0000);
    // ldmxcsr [eax]
    let code = [0x0f, 0xae, 0x10];
    assert_eq!(run(&mut state, &mut environment, &code), Err(GP));
    environment.put_u32(0x9000, 0x9fc0);
    run(&mut state, &mut environment, &code).unwrap();
    state.gpr[0] = 0x9004;
    run(&mut state, &mut environment, &[0x0f, 0xae, 0x18]).unwrap();
    assert_eq!(environment.u32(0x9004), 0x9fc0);
}

#[test]
fn sse_needs_osfxsr_and_no_emulation() {
    let (mut state, mut environment) = protected_mode(0);
    let code = [0x0f, 0xae, 0x18];
    state.gpr[0] = 0x9000;
    assert_eq!(run(&mut state, &mut environment, &code), Err(UD));
    state.cr4 |= Cr4::OSFXSR.bits();
    state.cr0 |= Cr0::TS.bits();
    assert_eq!(
        run(&mut state, &mut environment, &code),
        Err(Exception::device_not_available())
    );
    state.cr0 |= Cr0::EM.bits();
    assert_eq!(run(&mut state, &mut environment, &code), Err(UD));
}

#[test]
fn xsetbv_checks_privilege_register_and_value() {
    let (mut state, mut environment) = protected_mode(0);
    let xsetbv = [0x0f, 0x01, 0xd1];
    state.gpr[0] = 1;
    assert_eq!(run(&mut state, &mut environment, &xsetbv), Err(UD));
    state.cr4 |= Cr4::OSXSAVE.bits();
    for value in [0, 2, 5, 0xb, 0x27, 0x67, 0xe3, 0x1e7] {
        state.gpr[0] = value;
        assert_eq!(run(&mut state, &mut environment, &xsetbv), Err(GP));
    }
    state.gpr[0] = policy(&state).xcr0_mask();
    run(&mut state, &mut environment, &xsetbv).unwrap();
    // xgetbv
    (state.gpr[0], state.gpr[2]) = (9, 9);
    run(&mut state, &mut environment, &[0x0f, 0x01, 0xd0]).unwrap();
    assert_eq!((state.gpr[0], state.gpr[2]), (state.xcr0, 0));
    state.gpr[1] = 1;
    assert_eq!(run(&mut state, &mut environment, &xsetbv), Err(GP));
    // xgetbv with ECX = 1: the components in use, including SSE because of MXCSR.
    state.vector.0[offset::HEADER] = 0;
    run(&mut state, &mut environment, &[0x0f, 0x01, 0xd0]).unwrap();
    assert_eq!((state.gpr[0], state.gpr[2]), (0, 0));
    state.vector.0[offset::HEADER] = 5;
    state.vector.0[offset::MXCSR] ^= 0x20;
    run(&mut state, &mut environment, &[0x0f, 0x01, 0xd0]).unwrap();
    assert_eq!((state.gpr[0], state.gpr[2]), (7, 0));
    state.gpr[1] = 2;
    assert_eq!(
        run(&mut state, &mut environment, &[0x0f, 0x01, 0xd0]),
        Err(GP)
    );
    let (mut state, mut environment) = virtual_8086_mode(3);
    state.cr4 |= Cr4::OSXSAVE.bits();
    state.gpr[0] = 1;
    assert_eq!(run(&mut state, &mut environment, &xsetbv), Err(GP));
}
