//! SYSENTER and SYSEXIT (SDM volume 2, SYSENTER, SYSEXIT). AMD's processors do not have them in
//! long mode (AMD's manual volume 3), where SYSEXIT above CPL 0 raises #GP(0), too.

use crate::Outcome;
use crate::canonical::require_canonical;
use crate::cpuid::{Vendor, policy};
use crate::operand::{flat_attributes, require_cpl0};
use iced_x86::{Code, Instruction};
use tollgate_x86::{
    Attributes, CpuState, Exception, Flags, Gpr, Segment, SegmentRegister, Selector,
};

/// The selector in IA32_SYSENTER_CS.
///
/// # Errors
/// #UD in IA-32e mode for AMD; #GP(0) in real mode, and if bits 2 to 15 of the MSR are clear.
fn base_selector(state: &CpuState) -> Result<u16, Exception> {
    if state.is_long_mode() && policy(state).vendor() == Vendor::Amd {
        return Err(Exception::invalid_opcode());
    }
    let selector = state.sysenter_cs as u16 & 0xfffc;
    if !state.is_protected() || selector == 0 {
        return Err(Exception::general_protection(0));
    }
    Ok(selector)
}

/// Loads flat CS and SS for `cpl`; no descriptor table is read.
pub(crate) fn load_flat_segments(
    state: &mut CpuState,
    code: u16,
    stack: u16,
    cpl: u8,
    is_64_bit: bool,
) {
    for (register, selector, is_code) in [
        (SegmentRegister::Cs, code, true),
        (SegmentRegister::Ss, stack, false),
    ] {
        let mut attributes = flat_attributes(is_code, cpl);
        if is_code && is_64_bit {
            attributes.remove(Attributes::DEFAULT_BIG);
            attributes.insert(Attributes::LONG);
        }
        *state.segment_mut(register) = Segment {
            base: 0,
            limit: u32::MAX,
            selector: Selector(selector & !3 | u16::from(cpl)),
            attributes,
        };
    }
}

/// SYSENTER: enters CPL 0 at IA32_SYSENTER_EIP with the stack at IA32_SYSENTER_ESP; in IA-32e mode
/// it enters 64-bit code.
///
/// # Errors
///
/// #GP(0) in real mode and with a null IA32_SYSENTER_CS; #UD in IA-32e mode for AMD.
pub fn sysenter(state: &mut CpuState) -> Result<Outcome, Exception> {
    let selector = base_selector(state)?;
    let is_long = state.is_long_mode();
    let mask = if is_long { u64::MAX } else { 0xffff_ffff };
    load_flat_segments(state, selector, selector.wrapping_add(8), 0, is_long);
    state.rip = state.sysenter_eip & mask;
    state.gpr[Gpr::Rsp as usize] = state.sysenter_esp & mask;
    let cleared = Flags::VM | Flags::IF | Flags::RF;
    state.flags &= !cleared.bits();
    Ok(Outcome::Jumped)
}

/// SYSEXIT: enters CPL 3 at EDX with the stack at ECX; with REX.W it enters 64-bit code at RDX with
/// the stack at RCX.
///
/// # Errors
///
/// #GP(0) in real mode, at CPL 1 to 3, with a null IA32_SYSENTER_CS, and for non-canonical RDX or
/// RCX in
/// the 64-bit form; #UD in IA-32e mode for AMD.
pub fn sysexit(state: &mut CpuState, instruction: &Instruction) -> Result<Outcome, Exception> {
    require_cpl0(state)?;
    let selector = base_selector(state)?;
    let is_wide = instruction.code() == Code::Sysexitq && state.is_64_bit();
    let (mut target, mut pointer) = (state.register(Gpr::Rdx), state.register(Gpr::Rcx));
    if is_wide {
        require_canonical(target)?;
        require_canonical(pointer)?;
    } else {
        target &= 0xffff_ffff;
        pointer &= 0xffff_ffff;
    }
    let code = selector.wrapping_add(if is_wide { 32 } else { 16 });
    load_flat_segments(state, code, code.wrapping_add(8), 3, is_wide);
    state.rip = target;
    state.gpr[Gpr::Rsp as usize] = pointer;
    state.flags &= !Flags::RF.bits();
    Ok(Outcome::Jumped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{compatibility_mode, long_mode, protected_mode, real_mode, run};
    use tollgate_x86::CpuModel;

    const SYSENTER: [u8; 2] = [0x0f, 0x34];
    const SYSEXIT: [u8; 2] = [0x0f, 0x35];

    #[test]
    fn sysenter_reads_no_descriptor_and_loads_flat_segments() {
        let (mut state, mut environment) = protected_mode(3);
        environment.not_present.push(0x1000..0x2000);
        state.sysenter_cs = 0x60;
        state.sysenter_esp = 0xc000_1000;
        state.sysenter_eip = 0xc000_2000;
        state.flags = (Flags::IF | Flags::TF | Flags::CF).bits();
        assert_eq!(
            run(&mut state, &mut environment, &SYSENTER),
            Ok(Outcome::Jumped)
        );
        assert_eq!(state.cpl(), 0);
        assert_eq!(state.cs().selector, Selector(0x60));
        assert_eq!(state.ss().selector, Selector(0x68));
        assert_eq!(state.ss().limit, u32::MAX);
        assert!(state.cs().attributes.is_code() && state.cs().is_big());
        assert!(state.ss().attributes.is_writable_data() && state.ss().is_big());
        assert_eq!(state.rip, 0xc000_2000);
        assert_eq!(state.register(Gpr::Rsp), 0xc000_1000);
        assert_eq!(state.flags(), Flags::TF | Flags::CF);
    }

    #[test]
    fn sysexit_goes_to_ring_3_at_edx_and_ecx() {
        let (mut state, mut environment) = protected_mode(0);
        state.sysenter_cs = 0x60;
        state.gpr[Gpr::Rdx as usize] = 0x1234;
        state.gpr[Gpr::Rcx as usize] = 0x5678;
        assert_eq!(
            run(&mut state, &mut environment, &SYSEXIT),
            Ok(Outcome::Jumped)
        );
        assert_eq!(state.cpl(), 3);
        assert_eq!(state.cs().selector, Selector(0x73));
        assert_eq!(state.ss().selector, Selector(0x7b));
        assert_eq!((state.rip, state.register(Gpr::Rsp)), (0x1234, 0x5678));
    }

    #[test]
    fn both_need_protected_mode_and_a_selector_and_sysexit_needs_cpl_0() {
        let refused = Err(Exception::general_protection(0));
        let (mut state, mut environment) = real_mode();
        state.sysenter_cs = 0x60;
        assert_eq!(run(&mut state, &mut environment, &SYSENTER), refused);
        let (mut state, mut environment) = protected_mode(0);
        state.sysenter_cs = 3;
        assert_eq!(run(&mut state, &mut environment, &SYSENTER), refused);
        assert_eq!(run(&mut state, &mut environment, &SYSEXIT), refused);
        let (mut state, mut environment) = protected_mode(3);
        state.sysenter_cs = 0x60;
        assert_eq!(run(&mut state, &mut environment, &SYSEXIT), refused);
    }

    #[test]
    fn in_long_mode_sysenter_goes_to_64_bit_code_and_sysexit_to_either() {
        let (mut state, mut environment) = compatibility_mode(3);
        if policy(&state).vendor() == Vendor::Amd {
            return;
        }
        state.sysenter_cs = 0x60;
        state.sysenter_esp = 0xffff_c900_0000_1000;
        state.sysenter_eip = 0xffff_ffff_8100_2000;
        run(&mut state, &mut environment, &SYSENTER).unwrap();
        assert_eq!((state.cpl(), state.is_64_bit()), (0, true));
        assert_eq!(state.rip, 0xffff_ffff_8100_2000);
        assert_eq!(state.register(Gpr::Rsp), 0xffff_c900_0000_1000);
        state.gpr[Gpr::Rdx as usize] = 0x7fff_1234_5678;
        state.gpr[Gpr::Rcx as usize] = 0x7fff_8765_4321;
        let mut narrow = state.clone();
        run(&mut state, &mut environment, &[0x48, 0x0f, 0x35]).unwrap();
        assert_eq!((state.cpl(), state.is_64_bit()), (3, true));
        let selectors = (state.cs().selector, state.ss().selector);
        assert_eq!(selectors, (Selector(0x83), Selector(0x8b)));
        assert_eq!(state.rip, 0x7fff_1234_5678);
        assert_eq!(state.register(Gpr::Rsp), 0x7fff_8765_4321);
        run(&mut narrow, &mut environment, &SYSEXIT).unwrap();
        assert_eq!((narrow.cpl(), narrow.is_64_bit()), (3, false));
        let (rip, rsp) = (narrow.rip, narrow.register(Gpr::Rsp));
        assert_eq!((rip, rsp), (0xffff_1234_5678 & 0xffff_ffff, 0x8765_4321));
        assert_eq!(narrow.cs().selector, Selector(0x73));
    }

    #[test]
    fn sysexit_to_64_bit_code_needs_canonical_addresses() {
        let (mut state, mut environment) = long_mode(0);
        if policy(&state).vendor() == Vendor::Amd {
            return;
        }
        state.sysenter_cs = 0x60;
        state.gpr[Gpr::Rcx as usize] = 0x8000_0000_0000;
        let refused = Err(Exception::general_protection(0));
        let sysexitq = [0x48, 0x0f, 0x35];
        assert_eq!(run(&mut state, &mut environment, &sysexitq), refused);
    }

    #[test]
    fn sysexit_above_level_0_is_a_protection_fault_in_long_mode_too() {
        for model in [CpuModel::Host, CpuModel::Qemu64] {
            let (mut state, mut environment) = long_mode(3);
            state.model = model;
            state.sysenter_cs = 0x60;
            let refused = Err(Exception::general_protection(0));
            assert_eq!(run(&mut state, &mut environment, &SYSEXIT), refused);
        }
    }

    #[test]
    fn amd_has_neither_in_long_mode() {
        let undefined = Err(Exception::invalid_opcode());
        for code in [SYSENTER, SYSEXIT] {
            let (mut state, mut environment) = long_mode(0);
            state.model = CpuModel::Qemu64;
            state.sysenter_cs = 0x60;
            assert_eq!(run(&mut state, &mut environment, &code), undefined);
        }
    }
}
