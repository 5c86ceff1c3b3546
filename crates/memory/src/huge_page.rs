//! Memory from the host in huge pages.

mod ahead;

pub use ahead::Ahead;

use std::io;
use std::ptr;

/// Size in bytes of a huge page.
pub const HUGE_PAGE: u64 = 2 << 20;

/// A constant of madvise(2) that the crate libc does not define.
const MADV_COLLAPSE: libc::c_int = 25;

/// Asks the host to back the [`HUGE_PAGE`] bytes at `start`, a multiple of that size, by one huge
/// page, and to populate all of it immediately. The memory is shared and writable, of a memfd or
/// anonymous; for any other memory, and where the host has no huge page, nothing happens.
///
/// `MADV_COLLAPSE` (Linux 6.1) needs no privilege, and works even if huge pages are disabled for
/// shared memory.
pub fn ask(start: *mut u8) {
    // The host refuses to collapse a range without any page, so one page is populated first.
    let one_page = 4096;
    // SAFETY: both calls change how the range's pages are backed, never their contents; the host
    // refuses a range that is not mapped, or not as one mapping.
    unsafe {
        if libc::madvise(start.cast(), one_page, libc::MADV_POPULATE_WRITE) == 0 {
            libc::madvise(start.cast(), HUGE_PAGE as usize, MADV_COLLAPSE);
        }
    }
}

/// Reserves `bytes` of inaccessible address space that starts at a multiple of [`HUGE_PAGE`]. The
/// caller unmaps it.
///
/// # Errors
///
/// The host's error: the address space, or the limit on it, is exhausted.
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
        // SAFETY: these are parts of the new mapping to which no pointer exists.
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
            // SAFETY: the range was just reserved.
            assert_eq!(unsafe { libc::munmap(start.cast(), bytes) }, 0);
        }
    }

    #[test]
    fn what_cannot_be_huge_stays_as_it_is() {
        let start = reserve(HUGE_PAGE as usize).unwrap();
        ask(start);
        // SAFETY: the range was just reserved.
        assert_eq!(unsafe { libc::munmap(start.cast(), HUGE_PAGE as usize) }, 0);
    }
}
