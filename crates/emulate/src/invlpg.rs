//! INVLPG (SDM volume 2; volume 3, 4.10.4.1).

use crate::Outcome;
use crate::memory_access::{SegmentedAddress, linear_mask};
use crate::operand::{memory_address, require_cpl0};
use iced_x86::Instruction;
use tollgate_platform::Environment;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::{CpuState, Exception, LinearAddress, Space, TranslationChange};

/// INVLPG. The operand is only an address: neither limit nor rights are checked. An address that is
/// not canonical has no translation to drop.
///
/// # Errors
///
/// #GP(0) above CPL 0.
pub fn invalidate_page(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_cpl0(state)?;
    let SegmentedAddress { segment, offset } = memory_address(state, instruction);
    let linear = state.segment_base(segment).wrapping_add(offset) & linear_mask(state);
    if is_canonical(linear) {
        let page = TranslationChange::page(Space::loaded(state), LinearAddress(linear));
        if !environment.prepare_change(state, page) {
            return Ok(Outcome::Repeat);
        }
        environment.translations_changed(state, page);
    }
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests;
