//! SYSENTER and SYSEXIT, 32-bit (SDM volume 2, SYSENTER, SYSEXIT).

use crate::Outcome;
use crate::operand::{flat_attributes, require_cpl0};
use tollgate_x86::{CpuState, Exception, Flags, Gpr, Segment, SegmentRegister, Selector};

/// The selector in IA32_SYSENTER_CS.
///
/// # Errors
/// #GP(0) in real mode, and if bits 2 to 15 of the MSR are clear.
fn base_selector(state: &CpuState) -> Result<u16, Exception> {
    let selector = state.sysenter_cs as u16 & 0xfffc;
    if !state.is_protected() || selector == 0 {
        return Err(Exception::general_protection(0));
    }
    Ok(selector)
}

/// Loads flat CS and SS for `cpl`; no descriptor table is read.
fn load_flat_segments(state: &mut CpuState, code: u16, cpl: u8) {
    for (register, selector, is_code) in [
        (SegmentRegister::Cs, code, true),
        (SegmentRegister::Ss, code.wrapping_add(8), false),
    ] {
        *state.segment_mut(register) = Segment {
            base: 0,
            limit: u32::MAX,
            selector: Selector(selector & !3 | u16::from(cpl)),
            attributes: flat_attributes(is_code, cpl),
        };
    }
}

/// SYSENTER: to CPL 0 at IA32_SYSENTER_EIP with the stack at IA32_SYSENTER_ESP.
///
/// # Errors
/// #GP(0) in real mode and with a null IA32_SYSENTER_CS.
pub fn sysenter(state: &mut CpuState) -> Result<Outcome, Exception> {
    let selector = base_selector(state)?;
    load_flat_segments(state, selector, 0);
    state.rip = state.sysenter_eip & 0xffff_ffff;
    state.gpr[Gpr::Rsp as usize] = state.sysenter_esp & 0xffff_ffff;
    let cleared = Flags::VM | Flags::IF | Flags::RF;
    state.flags &= !cleared.bits();
    Ok(Outcome::Jumped)
}

/// SYSEXIT: to CPL 3 at EDX with the stack at ECX.
///
/// # Errors
/// #GP(0) in real mode, at CPL 1 to 3, and with a null IA32_SYSENTER_CS.
pub fn sysexit(state: &mut CpuState) -> Result<Outcome, Exception> {
    let selector = base_selector(state)?;
    require_cpl0(state)?;
    load_flat_segments(state, selector.wrapping_add(16), 3);
    state.rip = state.register(Gpr::Rdx) & 0xffff_ffff;
    state.gpr[Gpr::Rsp as usize] = state.register(Gpr::Rcx) & 0xffff_ffff;
    state.flags &= !Flags::RF.bits();
    Ok(Outcome::Jumped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{protected_mode, real_mode, run};

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
}
