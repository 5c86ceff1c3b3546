//! The limit of 15 bytes on an instruction's length (SDM volume 2, 2.3.11).

/// The length of the longest x86 instruction, in bytes.
pub(crate) const MAX_INSTRUCTION_LENGTH: usize = 15;
