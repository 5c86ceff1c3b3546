//! Host memory with inaccessible pages, for copies of operands whose pages are inaccessible in the
//! guest.

use std::io;
use tollgate_x86::address::PAGE_SIZE;

const PAGE: usize = PAGE_SIZE as usize;
/// Number of pages: two that cannot be accessed, two that can, and two that cannot.
const PAGES: usize = 6;
const FIRST_USABLE: usize = 2;

/// Two accessible pages between inaccessible ones.
pub struct GuardedPages {
    start: *mut u8,
}

impl GuardedPages {
    /// Maps the pages.
    ///
    /// # Errors
    /// The host refused memory.
    pub fn new() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the mapping is new and replaces none.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGES * PAGE,
                libc::PROT_NONE,
                flags,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let pages = Self {
            start: start.cast(),
        };
        let usable = pages.start.wrapping_add(FIRST_USABLE * PAGE);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the pages are part of the mapping, which belongs to this function.
        if unsafe { libc::mprotect(usable.cast(), 2 * PAGE, access) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(pages)
    }

    /// Host address for an operand at `offset` in its page, at the same offset in a host page.
    /// `accessible` says for the part in the first page and the part in the next one whether it can
    /// be accessed.
    pub fn place(&self, offset: usize, accessible: [bool; 2]) -> u64 {
        let page = match accessible {
            [true, true] => FIRST_USABLE,
            [true, false] => FIRST_USABLE + 1,
            [false, true] => FIRST_USABLE - 1,
            [false, false] => 0,
        };
        self.start as u64 + (page * PAGE + offset % PAGE) as u64
    }

    /// The bytes of a part that [`GuardedPages::place`] has made accessible.
    ///
    /// # Panics
    /// The part does not lie in the accessible pages.
    pub fn bytes(&mut self, address: u64, size: usize) -> &mut [u8] {
        let usable = self.start as u64 + (FIRST_USABLE * PAGE) as u64;
        let offset = address.wrapping_sub(usable) as usize;
        assert!(offset <= 2 * PAGE && size <= 2 * PAGE - offset);
        // SAFETY: the assertion above has checked the range; the two pages can be accessed, and
        // nothing else refers to them while guest code does not run.
        unsafe { std::slice::from_raw_parts_mut(address as *mut u8, size) }
    }
}

impl Drop for GuardedPages {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this structure, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), PAGES * PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operand_lies_across_the_boundary_that_its_parts_need() {
        let mut pages = GuardedPages::new().unwrap();
        let start = pages.start as u64;
        let offset = PAGE - 24;
        for (accessible, page) in [
            ([true, true], 2),
            ([true, false], 3),
            ([false, true], 1),
            ([false, false], 0),
        ] {
            let place = pages.place(offset, accessible);
            assert_eq!(place, start + (page * PAGE + offset) as u64);
            if accessible[0] {
                pages.bytes(place, 24).fill(1);
            }
            if accessible[1] {
                pages.bytes(place + 24, 40).fill(2);
            }
        }
    }
}
