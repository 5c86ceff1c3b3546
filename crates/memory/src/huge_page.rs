//! Memory from the host in huge pages.

mod ahead;

pub use ahead::Ahead;

use std::io;
use std::ptr;

/// Bytes of a huge page.
pub const HUGE_PAGE: u64 = 2 << 20;

/// Of madvise(2); the crate libc does not name it.
const MADV_COLLAPSE: libc::c_int = 25;

/// Asks the host to hold the [`HUGE_PAGE`] bytes at `start`, a multiple of that, in one huge page,
/// and to give at once what of it was not touched yet. They are shared writable memory, of a
/// memfd or anonymous; of anything else, and where the host has no huge page, nothing happens.
///
/// `MADV_COLLAPSE` (Linux 6.1) needs no privilege, and works where huge pages are off for shared
/// memory.
pub fn ask(start: *mut u8) {
    // Where nothing is there yet, the host refuses.
    let one_page = 4096;
    // SAFETY: both calls change how the range's pages are held, never what they contain; what
    // is not mapped, or not in one piece, is refused.
    unsafe {
        if libc::madvise(start.cast(), one_page, libc::MADV_POPULATE_WRITE) == 0 {
            libc::madvise(start.cast(), HUGE_PAGE as usize, MADV_COLLAPSE);
        }
    }
}

/// Reserves `bytes` of address space, inaccessible, from a multiple of [`HUGE_PAGE`] on. The
/// caller unmaps it.
///
/// # Errors
/// The host's: address space or the limit on it is exhausted.
pub fn reserve(bytes: usize) -> io::Result<*mut u8> {
    let more = HUGE_PAGE as usize;
    // SAFETY: a new private mapping at an address of the kernel's choice.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes + more,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start: *mut u8 = start.cast();
    let before = start.align_offset(more).min(more);
    let aligned = start.wrapping_add(before);
    for (surplus, length) in [
        (start, before),
        (aligned.wrapping_add(bytes), more - before),
    ] {
        // SAFETY: parts of the new mapping that nobody knows of.
        if length != 0 && unsafe { libc::munmap(surplus.cast(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(aligned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_are_aligned_and_leave_nothing_behind() {
        for bytes in [4096, 3 << 20, 64 << 20] {
            let start = reserve(bytes).unwrap();
            assert!(start.addr().is_multiple_of(HUGE_PAGE as usize));
            // SAFETY: what was just reserved.
            assert_eq!(unsafe { libc::munmap(start.cast(), bytes) }, 0);
        }
    }

    #[test]
    fn what_cannot_be_huge_stays_as_it_is() {
        let start = reserve(HUGE_PAGE as usize).unwrap();
        ask(start);
        // SAFETY: what was just reserved.
        assert_eq!(unsafe { libc::munmap(start.cast(), HUGE_PAGE as usize) }, 0);
    }
}
