//! The local descriptor table of this process, for operands in segments that are not flat.

use crate::layout::LOCALS;
use std::io;
use std::sync::OnceLock;

/// Fills the process's local descriptor table.
///
/// # Errors
///
/// The host's kernel does not support it, or forbids it.
fn set_local_descriptors() -> io::Result<()> {
    /// The kernel's `struct user_desc`.
    #[repr(C)]
    struct UserDescriptor {
        entry: u32,
        base: u32,
        limit: u32,
        bits: u32,
    }
    for (entry, local) in LOCALS.iter().enumerate() {
        let pages = local.limit > 0xf_ffff;
        let contents = u32::from(local.code) << 1 | u32::from(local.expand_down);
        let descriptor = UserDescriptor {
            entry: entry as u32,
            base: local.base,
            limit: if pages {
                local.limit >> 12
            } else {
                local.limit
            },
            bits: u32::from(local.big)
                | contents << 1
                | u32::from(local.read_only) << 3
                | u32::from(pages) << 4
                | 1 << 6,
        };
        // SAFETY: writes one entry of this process's local descriptor table, which nothing else
        // uses.
        let result = unsafe {
            libc::syscall(
                libc::SYS_modify_ldt,
                0x11,
                &raw const descriptor,
                size_of::<UserDescriptor>(),
            )
        };
        // The system call returns an int: its sign is in the low half.
        if (result as i32) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

static HAS_LOCALS: OnceLock<bool> = OnceLock::new();

/// Whether the host permits a process to have local descriptors; determined once.
pub fn has_locals() -> bool {
    *HAS_LOCALS.get_or_init(|| set_local_descriptors().is_ok())
}
