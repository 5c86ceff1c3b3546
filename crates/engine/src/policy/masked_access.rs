//! Instructions that access only some elements of memory, selected by a mask, and that the monitor
//! executes.
//!
//! Elements that the mask excludes must not fault. EVEX-encoded instructions with one operand in
//! memory and a mask register are copied all the same: see
//! [`crate::policy::memory_operand::suppresses_faults`].

use iced_x86::{Instruction, Mnemonic};

/// Whether an instruction is a gather, a scatter or a masked move of vectors, whose elements the
/// monitor accesses one by one.
pub fn is_masked_access(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    instruction.is_vsib()
        || matches!(
            instruction.mnemonic(),
            Maskmovq | Maskmovdqu | Vmaskmovdqu | Vmaskmovps | Vmaskmovpd | Vpmaskmovd | Vpmaskmovq
        )
}
