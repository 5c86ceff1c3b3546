//! SYSCALL and SYSRET (SDM volume 2; AMD's manual volume 3).
//!
//! Where the makers differ, the vendor of the guest's processor decides. Intel has both
//! instructions only in 64-bit mode, and its SYSRET refuses a non-canonical RCX while still at
//! level 0; on AMD the fault is raised at the target. SYSRET loads all of SS, as on Intel; on AMD
//! it leaves the hidden part of SS unchanged, which no program can rely on.

use crate::Outcome;
use crate::canonical::require_canonical;
use crate::cpuid::{Vendor, policy};
use crate::fast_call::load_flat_segments;
use crate::operand::{next_rip, require_cpl0};
use iced_x86::{Code, CpuidFeature, Instruction};
use tollgate_x86::{CpuState, Efer, Exception, Flags, Gpr};

/// Fails unless the instructions exist in this mode and are enabled.
fn require_system_calls(state: &CpuState) -> Result<(), Exception> {
    let policy = policy(state);
    let exists = match policy.vendor() {
        Vendor::Amd => state.is_protected(),
        _ => state.is_64_bit(),
    };
    let offered = policy.offers(CpuidFeature::SYSCALL);
    if exists && offered && state.efer().contains(Efer::SCE) {
        Ok(())
    } else {
        Err(Exception::invalid_opcode())
    }
}

/// SYSCALL: enters CPL 0 at IA32_LSTAR (from compatibility mode IA32_CSTAR, from legacy mode the
/// low half of IA32_STAR), with the return address in RCX and the flags in R11.
///
/// # Errors
///
/// #UD without EFER.SCE, in real mode, and on Intel outside 64-bit mode.
pub fn syscall(state: &mut CpuState, instruction: &Instruction) -> Result<Outcome, Exception> {
    require_system_calls(state)?;
    let is_long = state.is_long_mode();
    state.gpr[Gpr::Rcx as usize] = next_rip(state, instruction);
    let (target, cleared) = if is_long {
        let image = state.flags().image() & !Flags::RF.bits();
        state.gpr[Gpr::R11 as usize] = image;
        let target = if state.is_64_bit() {
            state.lstar
        } else {
            state.cstar
        };
        (target, Flags::from_bits_truncate(state.sfmask) | Flags::RF)
    } else {
        let target = state.star & 0xffff_ffff;
        (target, Flags::IF | Flags::VM | Flags::RF)
    };
    let code = (state.star >> 32) as u16 & !3;
    load_flat_segments(state, code, code.wrapping_add(8), 0, is_long);
    state.rip = target;
    state.flags &= !cleared.bits();
    Ok(Outcome::Jumped)
}

/// SYSRET: returns to CPL 3 at RCX with the flags in R11; with REX.W to 64-bit code, otherwise to
/// 32-bit code at ECX.
///
/// # Errors
///
/// #UD as for [`syscall`]; #GP(0) above CPL 0, and on Intel for a non-canonical RCX.
pub fn sysret(state: &mut CpuState, instruction: &Instruction) -> Result<Outcome, Exception> {
    require_system_calls(state)?;
    require_cpl0(state)?;
    let is_wide = instruction.code() == Code::Sysretq && state.is_64_bit();
    let mut target = state.register(Gpr::Rcx);
    if !is_wide {
        target &= 0xffff_ffff;
    } else if policy(state).vendor() != Vendor::Amd {
        require_canonical(target)?;
    }
    let flags = if state.is_long_mode() {
        let loaded = Flags::ALL & !(Flags::RF | Flags::VM);
        Flags::from_bits_truncate(state.register(Gpr::R11)) & loaded
    } else {
        state.flags() | Flags::IF
    };
    let base = (state.star >> 48) as u16;
    let code = base.wrapping_add(if is_wide { 16 } else { 0 });
    load_flat_segments(state, code, base.wrapping_add(8), 3, is_wide);
    state.rip = target;
    state.set_flags(flags);
    Ok(Outcome::Jumped)
}

#[cfg(test)]
mod tests;
