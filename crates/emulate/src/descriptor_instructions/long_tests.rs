//! Tests of descriptor-table instructions in IA-32e mode.

use super::*;
use crate::test_environment::{
    FAR_BASE, GDT, TestEnvironment, compatibility_mode, long_mode, long_selector, run, selector,
};

const LLDT_AX: [u8; 3] = [0x0f, 0x00, 0xd0];
const LTR_AX: [u8; 3] = [0x0f, 0x00, 0xd8];
const LAR_RBX_RAX: [u8; 4] = [0x48, 0x0f, 0x02, 0xd8];
const LSL_RBX_RAX: [u8; 4] = [0x48, 0x0f, 0x03, 0xd8];
const LGDT_RAX: [u8; 3] = [0x0f, 0x01, 0x10];
const SIDT_RAX: [u8; 3] = [0x0f, 0x01, 0x08];
const SMSW_RBX: [u8; 4] = [0x48, 0x0f, 0x01, 0xe3];

fn refused(code: u16) -> Result<Outcome, Exception> {
    Err(Exception::general_protection(u32::from(code)))
}

fn load(
    state: &mut CpuState,
    environment: &mut TestEnvironment,
    code: &[u8],
    selector: u16,
) -> Result<Outcome, Exception> {
    state.gpr[0] = u64::from(selector);
    run(state, environment, code)
}

#[test]
fn ltr_and_lldt_load_bases_of_64_bits_from_16_bytes() {
    for (mut state, mut environment) in [long_mode(0), compatibility_mode(0)] {
        let tss = long_selector::TSS;
        load(&mut state, &mut environment, &LTR_AX, tss).unwrap();
        assert_eq!((state.tr.base, state.tr.limit), (FAR_BASE, 0x67));
        assert_eq!(state.tr.attributes.kind(), system_type::TSS32_BUSY);
        assert_eq!(environment.ram[GDT + usize::from(tss) + 5], 0x8b);
        let ldt = long_selector::LDT;
        load(&mut state, &mut environment, &LLDT_AX, ldt).unwrap();
        assert_eq!((state.ldtr.base, state.ldtr.selector.0), (FAR_BASE, ldt));
    }
}

#[test]
fn a_system_descriptor_lies_whole_in_the_table_with_a_canonical_base() {
    let (mut state, mut environment) = long_mode(0);
    let tss = long_selector::TSS;
    state.gdtr.limit = tss + 14;
    let result = load(&mut state, &mut environment, &LTR_AX, tss);
    assert_eq!(result, refused(tss));
    state.gdtr.limit = tss + 15;
    environment.ram[GDT + usize::from(tss) + 13] = 2;
    let result = load(&mut state, &mut environment, &LTR_AX, tss);
    assert_eq!(result, refused(tss));
    environment.ram[GDT + usize::from(tss) + 13] = 0;
    environment.put_u32(GDT + usize::from(tss) + 8, 0x8000);
    let result = load(&mut state, &mut environment, &LTR_AX, tss);
    assert_eq!(result, refused(tss));
    environment.ram[GDT + usize::from(tss) + 5] = 0x81;
    let result = load(&mut state, &mut environment, &LTR_AX, tss);
    assert_eq!(result, refused(tss), "a 16-bit TSS");
}

#[test]
fn descriptor_tables_have_64_bits_of_base_that_must_be_canonical() {
    let (mut state, mut environment) = long_mode(0);
    state.gpr[0] = 0x9000;
    environment.put_u16(0x9000, 0x1234);
    environment.put_u64(0x9002, 0xffff_8001_2345_6000);
    run(&mut state, &mut environment, &LGDT_RAX).unwrap();
    assert_eq!(state.gdtr.base, 0xffff_8001_2345_6000);
    environment.put_u64(0x9002, 0x8000_0000_0000);
    assert_eq!(run(&mut state, &mut environment, &LGDT_RAX), refused(0));
    state.idtr.base = 0xffff_8fff_1234_5678;
    run(&mut state, &mut environment, &SIDT_RAX).unwrap();
    assert_eq!(environment.u16(0x9000), 0xfff);
    assert_eq!(environment.u64(0x9002), 0xffff_8fff_1234_5678);
}

#[test]
fn lar_and_lsl_do_not_see_what_long_mode_does_not_have() {
    let (mut state, mut environment) = long_mode(0);
    for (kind, rights, limit) in [
        (0x82, true, true),
        (0x89, true, true),
        (0x8b, true, true),
        (0x8c, true, false),
        (0x81, false, false),
        (0x83, false, false),
        (0x84, false, false),
        (0x85, false, false),
        (0x8e, false, false),
    ] {
        environment.put_u64(GDT + usize::from(long_selector::SPARE), kind << 40);
        for (code, seen) in [(LAR_RBX_RAX, rights), (LSL_RBX_RAX, limit)] {
            state.gpr[0] = u64::from(long_selector::SPARE);
            run(&mut state, &mut environment, &code).unwrap();
            assert_eq!(state.flags().contains(Flags::ZF), seen, "{kind:#x}");
        }
    }
    state.gpr[3] = u64::MAX;
    state.gpr[0] = u64::from(selector::CODE0);
    run(&mut state, &mut environment, &LAR_RBX_RAX).unwrap();
    assert_eq!(state.gpr[3], 0xc0_9a00);
}

#[test]
fn smsw_to_a_64_bit_register_gives_all_of_cr0() {
    let (mut state, mut environment) = long_mode(0);
    state.gpr[3] = u64::MAX;
    run(&mut state, &mut environment, &SMSW_RBX).unwrap();
    assert_eq!(state.gpr[3], state.cr0);
}
