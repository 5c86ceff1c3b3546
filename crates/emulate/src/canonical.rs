//! The exceptions for linear addresses that are not canonical ([`tollgate_x86::canonical`]):
//! #GP(0), or #SS for a stack. [`crate::memory_access`] checks accesses to data,
//! [`crate::stack_access`] those to
//! stacks.

use tollgate_x86::Exception;
use tollgate_x86::canonical::{is_canonical, is_canonical_range};

/// Fails unless the address is canonical, for values that a register will hold.
///
/// # Errors
///
/// #GP(0) if it is not.
pub fn require_canonical(address: u64) -> Result<(), Exception> {
    if is_canonical(address) {
        Ok(())
    } else {
        Err(Exception::general_protection(0))
    }
}

/// Fails with `fault` unless all `size` bytes at `address` have canonical addresses.
///
/// # Errors
///
/// `fault` if one of them does not.
pub fn require_canonical_range(address: u64, size: u64, fault: Exception) -> Result<(), Exception> {
    if is_canonical_range(address, size) {
        Ok(())
    } else {
        Err(fault)
    }
}
