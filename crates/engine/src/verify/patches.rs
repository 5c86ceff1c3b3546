//! What is written into code that has been verified: the distances of links, and immediate
//! operands of a block that is in force again.
//!
//! [`super::verify`] has seen that each link's distance is that of a direct branch, and each
//! operand that may be replaced one whose value no rule asks for. What remains to be seen is
//! where links lead, which only the engine knows: to the start of a block in force.

use super::{Finding, Subject, Walk};

/// Checks a block's code as it lies in the code cache now: links lead to other blocks, operands
/// have been replaced. `is_block` says whether a block begins at an offset from this one's
/// start.
pub fn verify_patched(subject: &Subject<'_>, is_block: &dyn Fn(i64) -> bool) -> Vec<Finding> {
    Walk::new(subject, is_block).run()
}

/// Whether the bytes before a 32-bit distance are those of a direct branch. `code` ends where
/// the distance begins.
pub fn is_link_distance(code: &[u8]) -> bool {
    matches!(code, [.., 0xe9] | [.., 0x0f, 0x80..=0x8f])
}
