//! The exit codes of `tollgate-qemu`, which are QEMU's.

/// The guest switched itself off or was reset, or the machine was ended from outside.
pub const SUCCESS: u8 = 0;
/// Something is wrong.
pub const FAILED: u8 = 1;
