//! INVPCID (SDM volume 2; volume 3, 4.10.4.1).

use crate::Outcome;
use crate::operand::{memory_address, read_memory, read_register, require_cpl0};
use iced_x86::Instruction;
use tollgate_platform::Environment;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::translation_change::CR3_PCID;
use tollgate_x86::{CpuState, Cr4, Exception, LinearAddress, Space, TranslationChange};

/// INVPCID. Type 0 also drops a global page, as a processor may do.
///
/// # Errors
///
/// #GP(0) above CPL 0; for a type above 3; for reserved bits of the descriptor; for type 0 and an
/// address
/// that is not canonical; for types 0 and 1 and an identifier other than 0 without CR4.PCIDE.
/// Faults of the operand's segment and page faults.
pub fn invalidate_identifier(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_cpl0(state)?;
    let mut descriptor = [0; 16];
    let operand = memory_address(state, instruction);
    read_memory(state, environment, operand, &mut descriptor)?;
    let descriptor = u128::from_le_bytes(descriptor);
    let (identifier, linear) = (descriptor as u64, (descriptor >> 64) as u64);
    if identifier & !CR3_PCID != 0 {
        return Err(Exception::general_protection(0));
    }
    let names_one = state.cr4().contains(Cr4::PCIDE) || identifier == 0;
    let space = Space::identified(identifier as u16);
    let change = match read_register(state, instruction.op0_register()) {
        0 if names_one && is_canonical(linear) => {
            TranslationChange::page(space, LinearAddress(linear))
        }
        1 if names_one => TranslationChange::Space(space),
        2 => TranslationChange::Everything,
        3 => TranslationChange::Spaces,
        _ => return Err(Exception::general_protection(0)),
    };
    if !environment.prepare_change(state, change) {
        return Ok(Outcome::Repeat);
    }
    environment.translations_changed(state, change);
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests;
