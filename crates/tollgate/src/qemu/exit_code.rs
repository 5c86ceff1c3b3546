//! The exit codes of `tollgate-qemu`, which are QEMU's, and failures with them.

use crate::failure::Failure;

/// The guest switched itself off or was reset, or the machine was ended from outside.
pub const SUCCESS: u8 = 0;
/// Something is wrong.
pub const FAILED: u8 = 1;

/// A failure of the machine, in one line.
pub fn failed(message: impl Into<String>) -> Failure {
    Failure {
        message: message.into(),
        code: FAILED,
    }
}
