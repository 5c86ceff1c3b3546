//! Immediate operands in translated code that can be replaced when the guest's code changes.

/// An immediate operand that was copied unchanged: replacing its bytes in the guest's code requires
/// only the same replacement in the host's code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Immediate {
    /// The offset in the guest's code.
    pub guest: u16,
    /// The size in bytes.
    pub size: u8,
    /// The offset in the host's code.
    pub host: u32,
}
