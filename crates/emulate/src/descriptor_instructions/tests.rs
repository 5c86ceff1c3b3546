//! Tests of descriptor-table instructions.

use super::*;
use crate::test_environment::{
    GDT, LDT, TestEnvironment, gate, protected_mode, real_mode, run, selector, virtual_8086_mode,
};

const REFUSED: Result<Outcome, Exception> = Err(Exception::general_protection(0));
const UNDEFINED: Result<Outcome, Exception> = Err(Exception::invalid_opcode());
/// The instruction 0F 01 /n with a disp32 operand at 6000h.
const fn group7(extension: u8) -> [u8; 7] {
    [0x0f, 0x01, 5 | extension << 3, 0x00, 0x60, 0, 0]
}
const LLDT_AX: [u8; 3] = [0x0f, 0x00, 0xd0];
const LTR_AX: [u8; 3] = [0x0f, 0x00, 0xd8];
const SLDT_EAX: [u8; 3] = [0x0f, 0x00, 0xc0];
const STR_EAX: [u8; 3] = [0x0f, 0x00, 0xc8];
const VERR_AX: [u8; 3] = [0x0f, 0x00, 0xe0];
const VERW_AX: [u8; 3] = [0x0f, 0x00, 0xe8];
const SMSW_EAX: [u8; 3] = [0x0f, 0x01, 0xe0];
const LMSW_AX: [u8; 3] = [0x0f, 0x01, 0xf0];
const LAR_ECX_EAX: [u8; 3] = [0x0f, 0x02, 0xc8];
const LSL_ECX_EAX: [u8; 3] = [0x0f, 0x03, 0xc8];
const ARPL_AX_CX: [u8; 2] = [0x63, 0xc8];

fn zero_flag(state: &CpuState) -> bool {
    state.flags().contains(Flags::ZF)
}

#[test]
fn lgdt_loads_24_or_32_bits_of_base_as_the_operand_size_says() {
    let (mut state, mut environment) = protected_mode(0);
    environment.put(0x6000, &[0x34, 0x12, 1, 2, 3, 4]);
    assert!(run(&mut state, &mut environment, &group7(2)).is_ok());
    assert_eq!((state.gdtr.limit, state.gdtr.base), (0x1234, 0x0403_0201));
    let mut narrow = vec![0x66];
    narrow.extend(group7(3));
    assert!(run(&mut state, &mut environment, &narrow).is_ok());
    assert_eq!((state.idtr.limit, state.idtr.base), (0x1234, 0x0003_0201));
}

#[test]
fn loads_of_table_registers_need_cpl_0() {
    let (mut state, mut environment) = protected_mode(3);
    for extension in [2, 3] {
        let code = group7(extension);
        assert_eq!(run(&mut state, &mut environment, &code), REFUSED);
    }
    assert_eq!(run(&mut state, &mut environment, &LLDT_AX), REFUSED);
    assert_eq!(run(&mut state, &mut environment, &LTR_AX), REFUSED);
    assert_eq!(run(&mut state, &mut environment, &LMSW_AX), REFUSED);
}

#[test]
fn sgdt_and_sidt_store_six_bytes() {
    let (mut state, mut environment) = protected_mode(3);
    state.gdtr.base = 0x1234_5678;
    environment.put_u64(0x6000, u64::MAX);
    assert!(run(&mut state, &mut environment, &group7(0)).is_ok());
    assert_eq!(environment.u64(0x6000), 0xffff_1234_5678_007f);
    assert!(run(&mut state, &mut environment, &group7(1)).is_ok());
    assert_eq!(environment.u64(0x6000), 0xffff_0000_2000_07ff);
}

#[test]
fn umip_hides_system_registers_from_ring_3() {
    let (mut state, mut environment) = protected_mode(3);
    state.cr4 |= Cr4::UMIP.bits();
    for code in [&group7(0)[..], &group7(1), &SLDT_EAX, &STR_EAX, &SMSW_EAX] {
        assert_eq!(run(&mut state, &mut environment, code), REFUSED);
    }
    let (mut state, mut environment) = protected_mode(0);
    state.cr4 |= Cr4::UMIP.bits();
    assert!(run(&mut state, &mut environment, &SLDT_EAX).is_ok());
}

#[test]
fn lldt_takes_only_ldts_of_the_gdt_and_null() {
    let (mut state, mut environment) = protected_mode(0);
    state.gpr[0] = u64::from(selector::LDT);
    state.ldtr = Segment::null(Selector(0));
    assert!(run(&mut state, &mut environment, &LLDT_AX).is_ok());
    assert_eq!((state.ldtr.base, state.ldtr.limit), (LDT as u64, 0xff));
    for (value, code) in [(0x10, 0x10), (4, 4), (0x1000, 0x1000)] {
        state.gpr[0] = value;
        let expected = Err(Exception::general_protection(code));
        assert_eq!(run(&mut state, &mut environment, &LLDT_AX), expected);
    }
    state.gpr[0] = 0;
    assert!(run(&mut state, &mut environment, &LLDT_AX).is_ok());
    assert!(!state.ldtr.is_usable());
    // A selector into an unusable LDT names no descriptor.
    state.gpr[0] = 0xc;
    assert_eq!(
        run(&mut state, &mut environment, &[0x8e, 0xd8]),
        Err(Exception::general_protection(0xc))
    );
}

#[test]
fn ltr_marks_the_tss_busy_and_refuses_a_busy_one() {
    let (mut state, mut environment) = protected_mode(0);
    environment.ram[GDT + 0x5d] = 0x89;
    state.gpr[0] = u64::from(selector::TSS);
    assert!(run(&mut state, &mut environment, &LTR_AX).is_ok());
    assert_eq!(environment.ram[GDT + 0x5d], 0x8b);
    assert_eq!(state.tr.attributes.kind(), system_type::TSS32_BUSY);
    assert_eq!(
        run(&mut state, &mut environment, &LTR_AX),
        Err(Exception::general_protection(0x58))
    );
    environment.ram[GDT + 0x5d] = 0x09;
    assert_eq!(
        run(&mut state, &mut environment, &LTR_AX),
        Err(Exception::segment_not_present(0x58))
    );
    state.gpr[0] = 0;
    assert_eq!(run(&mut state, &mut environment, &LTR_AX), REFUSED);
}

#[test]
fn stores_of_selectors_zero_extend_into_registers() {
    let (mut state, mut environment) = protected_mode(0);
    state.gpr[0] = 0xffff_ffff;
    assert!(run(&mut state, &mut environment, &STR_EAX).is_ok());
    assert_eq!(state.gpr[0], u64::from(selector::TSS));
}

#[test]
fn real_and_v86_mode_know_no_ldt_tr_or_probes() {
    for (mut state, mut environment) in [real_mode(), virtual_8086_mode(3)] {
        for code in [
            &LLDT_AX[..],
            &LTR_AX,
            &SLDT_EAX,
            &STR_EAX,
            &VERR_AX,
            &VERW_AX,
            &LAR_ECX_EAX,
            &LSL_ECX_EAX,
            &ARPL_AX_CX,
        ] {
            assert_eq!(run(&mut state, &mut environment, code), UNDEFINED);
        }
    }
}

#[test]
fn smsw_reads_all_of_cr0_into_a_32_bit_register_and_16_bits_into_memory() {
    let (mut state, mut environment) = protected_mode(3);
    assert!(run(&mut state, &mut environment, &SMSW_EAX).is_ok());
    assert_eq!(state.gpr[0], 0x6000_0011);
    environment.put_u32(0x6000, 0);
    assert!(run(&mut state, &mut environment, &group7(4)).is_ok());
    assert_eq!(environment.u32(0x6000), 0x11);
}

#[test]
fn lmsw_can_set_pe_but_not_clear_it() {
    let (mut state, mut environment) = real_mode();
    state.gpr[0] = 0xffff;
    assert!(run(&mut state, &mut environment, &LMSW_AX).is_ok());
    assert_eq!(state.cr0, 0x6000_001f);
    state.gpr[0] = 0;
    assert!(run(&mut state, &mut environment, &LMSW_AX).is_ok());
    assert_eq!(state.cr0, 0x6000_0011);
}

fn probe(cpl: u8, code: &[u8], value: u16) -> (bool, u64) {
    let (mut state, mut environment): (CpuState, TestEnvironment) = protected_mode(cpl);
    let call_gate = gate(selector::CODE0, 0, 0xec, 0);
    let trap_gate = gate(selector::CODE0, 0, 0xef, 0);
    environment.put_u64(GDT + usize::from(selector::SPARE), call_gate);
    environment.put_u64(GDT + usize::from(selector::SPARE2), trap_gate);
    state.gpr[0] = u64::from(value);
    state.gpr[1] = 0x5555;
    assert_eq!(run(&mut state, &mut environment, code), Ok(Outcome::Next));
    (zero_flag(&state), state.gpr[1])
}

#[test]
fn lar_shows_rights_and_lsl_limits_of_what_the_level_may_see() {
    assert_eq!(probe(3, &LAR_ECX_EAX, selector::DATA3), (true, 0x00c0_f200));
    assert_eq!(probe(3, &LSL_ECX_EAX, selector::DATA3), (true, 0xffff_ffff));
    assert_eq!(
        probe(3, &LAR_ECX_EAX, selector::CONFORMING0),
        (true, 0x00c0_9e00)
    );
    assert_eq!(probe(3, &LAR_ECX_EAX, selector::DATA0), (false, 0x5555));
    assert_eq!(probe(0, &LAR_ECX_EAX, selector::DATA0 | 3), (false, 0x5555));
    assert_eq!(probe(0, &LAR_ECX_EAX, 0), (false, 0x5555));
    assert_eq!(probe(0, &LAR_ECX_EAX, 0x1000), (false, 0x5555));
    assert_eq!(probe(0, &LSL_ECX_EAX, selector::TSS), (true, 0x67));
    assert_eq!(probe(0, &LAR_ECX_EAX, selector::SPARE), (true, 0xec00));
    assert_eq!(probe(0, &LSL_ECX_EAX, selector::SPARE), (false, 0x5555));
    assert_eq!(probe(0, &LAR_ECX_EAX, selector::SPARE2), (false, 0x5555));
}

#[test]
fn verr_and_verw_tell_rights() {
    let ask = |code: &[u8], value| probe(3, code, value).0;
    assert!(ask(&VERR_AX, selector::READ_ONLY3));
    assert!(!ask(&VERW_AX, selector::READ_ONLY3));
    assert!(ask(&VERW_AX, selector::DATA3));
    assert!(!ask(&VERR_AX, selector::DATA0));
    assert!(ask(&VERR_AX, selector::CONFORMING0));
    assert!(!ask(&VERW_AX, selector::CODE3));
    assert!(!probe(0, &VERR_AX, selector::EXECUTE_ONLY0).0);
    assert!(!probe(0, &VERR_AX, selector::TSS).0);
    assert!(!probe(0, &VERR_AX, 0).0);
}

#[test]
fn arpl_only_raises_the_rpl() {
    let (mut state, mut environment) = protected_mode(3);
    state.gpr[0] = 0xabcd_0010;
    state.gpr[1] = 0x23;
    assert!(run(&mut state, &mut environment, &ARPL_AX_CX).is_ok());
    assert_eq!(state.gpr[0], 0xabcd_0013);
    assert!(zero_flag(&state));
    assert!(run(&mut state, &mut environment, &ARPL_AX_CX).is_ok());
    assert!(!zero_flag(&state));
}

#[test]
fn arpl_that_changes_nothing_does_not_write() {
    let (mut state, mut environment) = protected_mode(0);
    environment.read_only.push(0x9000..0xa000);
    environment.put_u16(0x9000, 3);
    (state.gpr[0], state.gpr[1]) = (0x9000, 1);
    // arpl [eax], cx
    assert!(run(&mut state, &mut environment, &[0x63, 0x08]).is_ok());
    environment.put_u16(0x9000, 0);
    assert!(run(&mut state, &mut environment, &[0x63, 0x08]).is_err());
}
