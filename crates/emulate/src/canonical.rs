//! What an instruction raises for a linear address that is not canonical
//! ([`tollgate_x86::canonical`]): #GP(0), or #SS for a stack. Accesses of data are checked
//! in [`crate::memory_access`], those of stacks in [`crate::stack_access`].

use tollgate_x86::Exception;
use tollgate_x86::canonical::{is_canonical, is_canonical_range};

/// Fails unless the address is canonical: for what a register is to hold.
///
/// # Errors
/// #GP(0).
pub fn require_canonical(address: u64) -> Result<(), Exception> {
    if is_canonical(address) {
        Ok(())
    } else {
        Err(Exception::general_protection(0))
    }
}

/// Fails with `fault` unless each of `size` bytes at `address` has a canonical address.
///
/// # Errors
/// `fault`.
pub fn require_canonical_range(address: u64, size: u64, fault: Exception) -> Result<(), Exception> {
    if is_canonical_range(address, size) {
        Ok(())
    } else {
        Err(fault)
    }
}
