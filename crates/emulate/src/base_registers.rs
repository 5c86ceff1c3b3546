//! SWAPGS, RDFSBASE, RDGSBASE, WRFSBASE and WRGSBASE (SDM volume 2), which exist only in 64-bit
//! mode.

use crate::Outcome;
use crate::canonical::require_canonical;
use crate::operand::{read_register, require_64_bit_mode, require_cpl0, write_register};
use iced_x86::{Instruction, Mnemonic};
use tollgate_x86::{CpuState, Cr4, Exception, SegmentRegister};

/// SWAPGS: exchanges the base of GS with IA32_KERNEL_GS_BASE.
///
/// # Errors
///
/// #UD outside 64-bit mode; #GP(0) above CPL 0.
pub fn swap_gs(state: &mut CpuState) -> Result<Outcome, Exception> {
    require_64_bit_mode(state)?;
    require_cpl0(state)?;
    let kernel = state.kernel_gs_base;
    let gs = state.segment_mut(SegmentRegister::Gs);
    let user = std::mem::replace(&mut gs.base, kernel);
    state.kernel_gs_base = user;
    Ok(Outcome::Next)
}

/// RDFSBASE, RDGSBASE, WRFSBASE and WRGSBASE. The 32-bit forms read the low half and
/// write zero-extended.
///
/// # Errors
/// #UD outside 64-bit mode or without CR4.FSGSBASE; #GP(0) for a non-canonical base.
pub fn access_base(state: &mut CpuState, instruction: &Instruction) -> Result<Outcome, Exception> {
    require_64_bit_mode(state)?;
    if !state.cr4().contains(Cr4::FSGSBASE) {
        return Err(Exception::invalid_opcode());
    }
    let mnemonic = instruction.mnemonic();
    let segment = match mnemonic {
        Mnemonic::Rdfsbase | Mnemonic::Wrfsbase => SegmentRegister::Fs,
        _ => SegmentRegister::Gs,
    };
    let register = instruction.op0_register();
    if matches!(mnemonic, Mnemonic::Rdfsbase | Mnemonic::Rdgsbase) {
        let base = state.segment(segment).base;
        write_register(state, register, base);
    } else {
        let base = read_register(state, register);
        require_canonical(base)?;
        state.segment_mut(segment).base = base;
    }
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests;
