//! The check of what is written into code that has been verified: the distances of links, and
//! immediate operands of a block that is active again.
//!
//! [`super::verify`] has checked that each link's distance is that of a direct branch, and that no
//! rule depends on the value of an operand that may be replaced. What remains to be checked is
//! where links lead, which only the engine knows: each must lead to the start of an active block.

use super::{Finding, Subject, Walk};

/// Checks a block's code as it lies in the code cache now: links may lead to other blocks, and
/// operands may have been replaced. `is_block` says whether a block begins at an offset from this
/// block's start.
pub fn verify_patched(subject: &Subject<'_>, is_block: &dyn Fn(i64) -> bool) -> Vec<Finding> {
    Walk::new(subject, is_block).run()
}

/// Whether the bytes before a 32-bit distance are those of a direct branch. `code` ends where the
/// distance begins.
pub fn is_link_distance(code: &[u8]) -> bool {
    matches!(code, [.., 0xe9] | [.., 0x0f, 0x80..=0x8f])
}
