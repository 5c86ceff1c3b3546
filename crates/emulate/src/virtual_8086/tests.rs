use super::*;
use crate::Outcome;
use crate::test_environment::{
    TSS, TestEnvironment, compatibility_mode, gate, long_mode, protected_mode, real_mode, run,
    selector, virtual_8086_mode,
};
use tollgate_x86::exception::PageFaultCode;
use tollgate_x86::{Attributes, Gpr, LinearAddress, SegmentRegister};

const REFUSED: Result<Outcome, Exception> = Err(Exception::general_protection(0));
const NEXT: Result<Outcome, Exception> = Ok(Outcome::Next);
const JUMPED: Result<Outcome, Exception> = Ok(Outcome::Jumped);

const CLI: &[u8] = &[0xfa];
const STI: &[u8] = &[0xfb];
const PUSHF: &[u8] = &[0x9c];
const PUSHFD: &[u8] = &[0x66, 0x9c];
const POPF: &[u8] = &[0x9d];
const POPFD: &[u8] = &[0x66, 0x9d];
const IRET: &[u8] = &[0xcf];
const IRETD: &[u8] = &[0x66, 0xcf];
const INT_21: &[u8] = &[0xcd, 0x21];
const INT_3: &[u8] = &[0xcd, 3];
const INT3: &[u8] = &[0xcc];
const INTO: &[u8] = &[0xce];
const INT1: &[u8] = &[0xf1];

/// Offset in the TSS of the I/O permission bitmap of [`with_vme`].
const IO_MAP: u16 = 0x88;
/// The SP of [`virtual_8086_mode`], and its linear address.
const STACK_POINTER: u64 = 0x1000;
const STACK_PLACE: usize = 0x3000;

/// V86 mode with VME and a redirection bitmap that is clear; vector 21h leads to 4321:8765.
fn with_vme(iopl: u8) -> (CpuState, TestEnvironment) {
    let (mut state, mut environment) = virtual_8086_mode(iopl);
    state.cr4 |= Cr4::VME.bits();
    environment.put_u16(TSS + 0x66, IO_MAP);
    state.tr.limit = u32::from(IO_MAP) - 1;
    environment.put_u32(0x21 * 4, 0x4321_8765);
    environment.put_u32(3 * 4, 0x1111_2222);
    (state, environment)
}

fn redirection_byte(vector: u8) -> usize {
    TSS + usize::from(IO_MAP) - 32 + usize::from(vector / 8)
}

/// Writes a gate to ring 0 that INT n in ring 3 may use.
fn put_gate(environment: &mut TestEnvironment, vector: usize, dpl: u8) {
    let kind = 0x8e | dpl << 5;
    let entry = gate(selector::CODE0, 0x6000, kind, 0);
    environment.put_u64(crate::test_environment::IDT + vector * 8, entry);
}

#[test]
fn cli_and_sti_change_vif_below_iopl_3_with_vme() {
    for iopl in 0..4 {
        let (mut state, mut environment) = with_vme(iopl);
        let flag = if iopl == 3 { Flags::IF } else { Flags::VIF };
        let before = state.flags();
        assert_eq!(run(&mut state, &mut environment, STI), NEXT);
        assert_eq!(state.flags(), before | flag, "IOPL {iopl}");
        // Only an STI that sets IF holds interrupts off.
        assert_eq!(state.shadow_rip == 1, iopl == 3, "IOPL {iopl}");
        state.flags |= (Flags::IF | Flags::VIF).bits();
        assert_eq!(run(&mut state, &mut environment, CLI), NEXT);
        let kept = (Flags::IF | Flags::VIF) - flag;
        assert_eq!(state.flags(), before | kept, "IOPL {iopl}");
    }
}

#[test]
fn sti_with_vip_set_is_the_monitors_whatever_vif_is() {
    for vif in [Flags::empty(), Flags::VIF] {
        let (mut state, mut environment) = with_vme(0);
        state.flags |= (Flags::VIP | vif).bits();
        assert_eq!(run(&mut state, &mut environment, STI), REFUSED);
        assert_eq!(run(&mut state, &mut environment, CLI), NEXT);
        assert_eq!(state.flags(), Flags::VM | Flags::VIP);
    }
    // With IOPL 3, VIP has no effect.
    let (mut state, mut environment) = with_vme(3);
    state.flags |= Flags::VIP.bits();
    assert_eq!(run(&mut state, &mut environment, STI), NEXT);
    assert!(state.flags().contains(Flags::IF | Flags::VIP));
}

#[test]
fn the_extension_of_the_other_mode_does_not_help() {
    let (mut state, mut environment) = virtual_8086_mode(2);
    state.cr4 = Cr4::PVI.bits();
    for code in [CLI, STI, PUSHF, POPF, IRET, INT_21] {
        assert_eq!(run(&mut state, &mut environment, code), REFUSED);
    }
    let (mut state, mut environment) = protected_mode(3);
    state.cr4 = Cr4::VME.bits();
    for code in [CLI, STI] {
        assert_eq!(run(&mut state, &mut environment, code), REFUSED);
    }
}

#[test]
fn pvi_gives_vif_to_level_3_alone_in_every_mode_but_v86() {
    for mode in [protected_mode, long_mode, compatibility_mode] {
        let (mut state, mut environment) = mode(3);
        state.cr4 |= Cr4::PVI.bits();
        assert_eq!(run(&mut state, &mut environment, STI), NEXT);
        assert_eq!(state.flags(), Flags::VIF);
        state.flags |= Flags::IF.bits();
        assert_eq!(run(&mut state, &mut environment, CLI), NEXT);
        assert_eq!(state.flags(), Flags::IF);
        state.flags |= Flags::VIP.bits();
        assert_eq!(run(&mut state, &mut environment, STI), REFUSED);
        // With IOPL 3, the flag is IF as usual.
        state.flags = (Flags::IOPL | Flags::VIP).bits();
        assert_eq!(run(&mut state, &mut environment, STI), NEXT);
        assert_eq!(state.flags(), Flags::IOPL | Flags::VIP | Flags::IF);
    }
    for (cpl, mut attributes) in [(1, 0xb2u16), (2, 0xd2)] {
        let (mut state, mut environment) = protected_mode(0);
        attributes |= 0xc000;
        state.segment_mut(SegmentRegister::Ss).attributes =
            Attributes::from_bits_retain(attributes);
        state.cr4 = Cr4::PVI.bits();
        assert_eq!(state.cpl(), cpl);
        assert_eq!(run(&mut state, &mut environment, STI), REFUSED);
        assert_eq!(run(&mut state, &mut environment, CLI), REFUSED);
    }
    let (mut state, mut environment) = real_mode();
    state.cr4 = (Cr4::PVI | Cr4::VME).bits();
    assert_eq!(run(&mut state, &mut environment, STI), NEXT);
    assert_eq!(state.flags(), Flags::IF);
}

#[test]
fn pvi_leaves_pushf_popf_and_iret_to_the_real_flag() {
    let (mut state, mut environment) = protected_mode(3);
    state.cr4 = Cr4::PVI.bits();
    state.flags = (Flags::VIF | Flags::VIP).bits();
    assert_eq!(run(&mut state, &mut environment, &[0x9c]), NEXT);
    assert_eq!(environment.u32(0x7ffc), 0x18_0002);
    environment.put_u32(0x7ffc, 0x0000_0302);
    assert_eq!(run(&mut state, &mut environment, &[0x9d]), NEXT);
    assert_eq!(state.flags(), Flags::VIF | Flags::VIP | Flags::TF);
}

#[test]
fn pushf_shows_vif_as_if_and_iopl_3() {
    for (flags, shown) in [
        (Flags::IF | Flags::CF, 0x3003),
        (Flags::VIF | Flags::CF, 0x3203),
        (Flags::VIF | Flags::VIP | Flags::IF | Flags::NT, 0x7202),
    ] {
        let (mut state, mut environment) = with_vme(1);
        state.flags |= flags.bits();
        let before = state.flags();
        assert_eq!(run(&mut state, &mut environment, PUSHF), NEXT);
        assert_eq!(environment.u16(STACK_PLACE - 2), shown);
        assert_eq!(state.flags(), before);
        assert_eq!(run(&mut state, &mut environment, PUSHFD), REFUSED);
    }
    let (mut state, mut environment) = with_vme(3);
    state.flags |= (Flags::VIF | Flags::VIP).bits();
    assert_eq!(run(&mut state, &mut environment, PUSHF), NEXT);
    assert_eq!(environment.u16(STACK_PLACE - 2), 0x3002);
    assert_eq!(run(&mut state, &mut environment, PUSHFD), NEXT);
    assert_eq!(environment.u32(STACK_PLACE - 6), 0x18_3002);
}

/// A stack with an IRET frame to 0100:0123 whose flags are `image`; POPF pops only the flags.
fn put_frame(environment: &mut TestEnvironment, code: &[u8], image: u16) {
    if code == POPF {
        environment.put_u16(STACK_PLACE, image);
    } else {
        environment.put_u16(STACK_PLACE, 0x123);
        environment.put_u16(STACK_PLACE + 2, 0x100);
        environment.put_u16(STACK_PLACE + 4, image);
    }
}

#[test]
fn popf_and_iret_load_vif_and_keep_if_and_iopl() {
    for (code, ended) in [(POPF, NEXT), (IRET, JUMPED)] {
        for real in [Flags::empty(), Flags::IF] {
            let (mut state, mut environment) = with_vme(1);
            state.flags |= (real | Flags::AC | Flags::ID).bits();
            let kept = state.flags();
            put_frame(&mut environment, code, 0xfeff);
            assert_eq!(run(&mut state, &mut environment, code), ended);
            let loaded = Flags::ARITHMETIC | Flags::DF | Flags::NT | Flags::VIF;
            assert_eq!(state.flags(), kept | loaded);
            state.gpr[Gpr::Rsp as usize] = STACK_POINTER;
            put_frame(&mut environment, code, 0);
            assert_eq!(run(&mut state, &mut environment, code), ended);
            assert_eq!(state.flags(), kept);
        }
    }
}

#[test]
fn popf_and_iret_that_set_tf_or_vif_with_vip_are_the_monitors() {
    for (code, ended) in [(POPF, NEXT), (IRET, JUMPED)] {
        for (flags, image, expected) in [
            (Flags::empty(), 0x100, REFUSED),
            (Flags::TF, 0x100, REFUSED),
            (Flags::VIP, 0x200, REFUSED),
            (Flags::VIP | Flags::VIF, 0x200, REFUSED),
            (Flags::VIP | Flags::VIF, 0, ended),
            (Flags::VIP | Flags::IF, 0, ended),
        ] {
            let (mut state, mut environment) = with_vme(2);
            state.flags |= flags.bits();
            put_frame(&mut environment, code, image);
            assert_eq!(run(&mut state, &mut environment, code), expected);
        }
        // With IOPL 3, TF may be set, and VIP has no effect.
        let (mut state, mut environment) = with_vme(3);
        state.flags |= Flags::VIP.bits();
        put_frame(&mut environment, code, 0x300);
        assert_eq!(run(&mut state, &mut environment, code), ended);
        let expected = Flags::VM | Flags::IOPL | Flags::VIP | Flags::TF | Flags::IF;
        assert_eq!(state.flags(), expected);
    }
}

#[test]
fn images_of_32_bits_are_the_monitors_below_iopl_3() {
    for iopl in 0..3 {
        let (mut state, mut environment) = with_vme(iopl);
        for code in [PUSHFD, POPFD, IRETD] {
            assert_eq!(run(&mut state, &mut environment, code), REFUSED);
        }
    }
}

#[test]
fn popf_reports_the_stacks_fault_before_its_own() {
    let (mut state, mut environment) = with_vme(0);
    let place = STACK_PLACE as u64;
    environment.not_present.push(place..place + 2);
    let fault = Exception::page_fault(LinearAddress(place), PageFaultCode::USER);
    assert_eq!(run(&mut state, &mut environment, POPF), Err(fault));
}

#[test]
fn a_software_interrupt_is_handled_by_one_of_six_methods() {
    for (vme, iopl, bit, expected) in [
        (false, 3, 0, Ok(0x6000)),
        (false, 3, 1, Ok(0x6000)),
        (false, 2, 0, Err(Exception::general_protection(0))),
        (true, 2, 1, Err(Exception::general_protection(0))),
        (true, 3, 1, Ok(0x6000)),
        (true, 3, 0, Ok(0x8765)),
        (true, 2, 0, Ok(0x8765)),
    ] {
        let (mut state, mut environment) = with_vme(iopl);
        state.cr4 = if vme { Cr4::VME.bits() } else { 0 };
        put_gate(&mut environment, 0x21, 3);
        environment.ram[redirection_byte(0x21)] = if bit == 1 { 0x02 } else { 0xfd };
        let result = run(&mut state, &mut environment, INT_21);
        assert_eq!(
            result.map(|_| state.rip),
            expected,
            "VME {vme} IOPL {iopl} bit {bit}"
        );
        let stays = expected == Ok(0x8765);
        assert_eq!(state.is_virtual_8086(), stays || result.is_err());
    }
}

#[test]
fn a_redirected_interrupt_pushes_three_words_and_disables_its_flag() {
    for (iopl, flags, image, after) in [
        (3, Flags::IF | Flags::TF | Flags::AC, 0x3302, Flags::AC),
        (3, Flags::VIF, 0x3002, Flags::VIF),
        (1, Flags::VIF | Flags::NT, 0x7202, Flags::NT),
        (1, Flags::IF | Flags::TF, 0x3102, Flags::IF),
        (0, Flags::VIF | Flags::VIP, 0x3202, Flags::VIP),
    ] {
        let (mut state, mut environment) = with_vme(iopl);
        state.flags |= (flags | Flags::RF).bits();
        state.rip = 0x40;
        assert_eq!(run(&mut state, &mut environment, INT_21), JUMPED);
        assert_eq!((state.cs().selector.0, state.rip), (0x4321, 0x8765));
        assert_eq!(state.cs().base, 0x4_3210);
        assert_eq!(state.register(Gpr::Rsp), STACK_POINTER - 6);
        assert_eq!(environment.u16(STACK_PLACE - 2), image);
        assert_eq!(environment.u16(STACK_PLACE - 4), 0x100);
        assert_eq!(environment.u16(STACK_PLACE - 6), 0x42);
        let mode = Flags::VM.bits() | u64::from(iopl) << 12;
        assert_eq!(state.flags, mode | after.bits());
    }
}

#[test]
fn only_int_n_is_redirected() {
    let (mut state, mut environment) = with_vme(0);
    assert_eq!(run(&mut state, &mut environment, INT_3), JUMPED);
    assert_eq!((state.cs().selector.0, state.rip), (0x1111, 0x2222));
    for (code, vector, dpl) in [(INT3, 3, 3), (INTO, 4, 3), (INT1, 1, 0)] {
        let (mut state, mut environment) = with_vme(0);
        state.flags |= (Flags::OF | Flags::VIF | Flags::VIP | Flags::IF).bits();
        let before = state.flags().image() as u32;
        put_gate(&mut environment, vector, dpl);
        assert_eq!(run(&mut state, &mut environment, code), JUMPED);
        assert_eq!(state.rip, 0x6000);
        // The frame holds the real EFLAGS, and the handler keeps VIF and VIP.
        let stack = crate::test_environment::KERNEL_STACK as usize;
        assert_eq!(environment.u32(stack - 28), before);
        assert_eq!(state.flags(), Flags::OF | Flags::VIF | Flags::VIP);
    }
    // The privilege of their gates is checked as usual.
    let (mut state, mut environment) = with_vme(0);
    put_gate(&mut environment, 3, 0);
    let fault = Exception::general_protection(3 * 8 + 2);
    assert_eq!(run(&mut state, &mut environment, INT3), Err(fault));
}

#[test]
fn a_bit_outside_the_tss_is_general_protection_at_any_iopl() {
    // The byte of vector 21h is the fifth of the bitmap.
    let byte = u32::from(IO_MAP) - 32 + 4;
    for iopl in [0, 3] {
        for (limit, io_map, expected) in [
            (byte, IO_MAP, JUMPED),
            (byte - 1, IO_MAP, REFUSED),
            (0x67, 0x67, JUMPED),
            (0x66, 0x67, REFUSED),
            (0x3ff, 0xffff, REFUSED),
            (0x3ff, 28, JUMPED),
            (0x3ff, 27, REFUSED),
            (0x3ff, 0, REFUSED),
        ] {
            let (mut state, mut environment) = with_vme(iopl);
            put_gate(&mut environment, 0x21, 3);
            state.tr.limit = limit;
            environment.put_u16(TSS + 0x66, io_map);
            let result = run(&mut state, &mut environment, INT_21);
            assert_eq!(result, expected, "limit {limit:#x} map {io_map:#x}");
        }
    }
    let (mut state, mut environment) = with_vme(3);
    state.tr.attributes = Attributes::from_bits_retain(0x83);
    assert_eq!(run(&mut state, &mut environment, INT_21), REFUSED);
}

#[test]
fn the_bitmap_and_the_vector_are_read_as_the_processors_own() {
    let bitmap = redirection_byte(0x21) as u64;
    let map_offset = (TSS + 0x66) as u64;
    for address in [map_offset, bitmap, 0x21 * 4] {
        let (mut state, mut environment) = with_vme(0);
        environment.supervisor_only.push(address..address + 1);
        assert_eq!(run(&mut state, &mut environment, INT_21), JUMPED);
        let (mut state, mut environment) = with_vme(0);
        environment.not_present.push(address..address + 1);
        let fault = Exception::page_fault(LinearAddress(address), PageFaultCode::empty());
        assert_eq!(run(&mut state, &mut environment, INT_21), Err(fault));
    }
    // The frame is written with the program's privilege.
    let (mut state, mut environment) = with_vme(0);
    let place = STACK_PLACE as u64 - 4;
    environment.supervisor_only.push(place..place + 1);
    let code = PageFaultCode::PRESENT | PageFaultCode::WRITE | PageFaultCode::USER;
    let fault = Exception::page_fault(LinearAddress(place), code);
    assert_eq!(run(&mut state, &mut environment, INT_21), Err(fault));
    assert_eq!(environment.u16(STACK_PLACE - 2), 0);
}

#[test]
fn a_pending_and_enabled_virtual_interrupt_is_due_only_where_vif_counts() {
    let both = (Flags::VIF | Flags::VIP).bits();
    for (iopl, cr4, due) in [
        (0, Cr4::VME, true),
        (2, Cr4::VME, true),
        (3, Cr4::VME, false),
        (0, Cr4::PVI, false),
    ] {
        let (mut state, _) = virtual_8086_mode(iopl);
        state.cr4 = cr4.bits();
        state.flags |= both;
        assert_eq!(virtual_interrupt_is_due(&state), due);
        for flag in [Flags::VIF, Flags::VIP] {
            state.flags ^= flag.bits();
            assert!(!virtual_interrupt_is_due(&state));
            state.flags ^= flag.bits();
        }
    }
    for (cpl, cr4, due) in [
        (3, Cr4::PVI, true),
        (0, Cr4::PVI, false),
        (3, Cr4::VME, false),
    ] {
        let (mut state, _) = long_mode(cpl);
        state.cr4 = cr4.bits();
        state.flags |= both;
        assert_eq!(virtual_interrupt_is_due(&state), due);
    }
}
