//! Immediate operands in translated code that can be replaced when the guest's code changes.

/// An immediate operand that was copied as it is: other bytes of the guest's in its place
/// make the same difference to the translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Immediate {
    /// Offset in the guest's code.
    pub guest: u16,
    /// Bytes.
    pub size: u8,
    /// Offset in the host's code.
    pub host: u32,
}
