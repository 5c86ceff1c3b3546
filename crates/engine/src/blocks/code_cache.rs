//! The code cache: one memory area of fixed size for the code of all blocks, mapped twice.
//!
//! One mapping is writable and the other executable, at different addresses, so no page is ever
//! both. Space is handed out in order, in [`SEGMENTS`] segments that are used as a ring: when the
//! current segment is full, room is made in the next one, which is then filled again.

use std::io;
use tollgate_memory::huge_page::{self, Ahead, HUGE_PAGE};

/// Number of segments of the ring.
pub const SEGMENTS: usize = 8;
/// Smallest code cache, in bytes.
pub const MINIMUM_SIZE: usize = 1 << 20;
/// Largest code cache, in bytes: distances in the cache must fit into 32 bits with a sign.
pub const MAXIMUM_SIZE: usize = 1 << 30;
/// Bytes that are left of one huge page when the next one is requested. A program that starts needs
/// code at some 100 MB/s, so the host has milliseconds to clear the page.
const LEFT: usize = HUGE_PAGE as usize / 2;
/// Alignment of a block's code, in bytes.
pub const ALIGNMENT: usize = 16;

/// The result of [`CodeCache::allocate`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// The requested space begins at this offset.
    At(u32),
    /// Room must be made in the segment with this range of offsets. The caller then reports with
    /// [`CodeCache::go_on_at`] where the code ends that stays in the segment (without this call, no
    /// code stays), and tries again.
    Evict {
        /// First offset of the segment.
        start: u32,
        /// First offset after the segment.
        end: u32,
    },
}

/// The memory for generated code.
pub struct CodeCache {
    writable: *mut u8,
    executable: *mut u8,
    size: usize,
    next: usize,
    segment_end: usize,
    /// Number of huge pages, from the beginning of the cache, that were requested from the host.
    huge_pages: usize,
    /// The thread that requests all huge pages except the first. It is dropped before the mappings
    /// are.
    ahead: Option<Ahead>,
}

// SAFETY: the mappings are owned by the structure and not tied to a thread.
unsafe impl Send for CodeCache {}

impl CodeCache {
    /// Maps a cache of about `size` bytes (clamped to the limits and rounded up to whole segments).
    pub fn new(size: usize) -> io::Result<Self> {
        let size = size
            .clamp(MINIMUM_SIZE, MAXIMUM_SIZE)
            .next_multiple_of(SEGMENTS * 4096);
        let writable = huge_page::reserve(size)?;
        let executable = huge_page::reserve(size).inspect_err(|_| {
            // SAFETY: the range was just reserved.
            unsafe { libc::munmap(writable.cast(), size) };
        })?;
        let cache = Self {
            writable,
            executable,
            size,
            next: 0,
            segment_end: size / SEGMENTS,
            huge_pages: 0,
            ahead: Some(Ahead::default()),
        };
        // The memory is not a memfd: profilers look up names of generated code only in anonymous
        // memory, and a shared anonymous mapping counts as that (/dev/zero) in both places.
        // SAFETY: the mapping replaces an address range that the cache itself has reserved.
        let mapped = unsafe {
            libc::mmap(
                writable.cast(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let moves = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // An old size of zero maps shared pages a second time (mremap(2)).
        // SAFETY: both ranges are the cache's own.
        let mapped = unsafe { libc::mremap(writable.cast(), 0, size, moves, executable) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range is the second mapping, to which no reference exists yet.
        let result =
            unsafe { libc::mprotect(executable.cast(), size, libc::PROT_READ | libc::PROT_EXEC) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(cache)
    }

    /// Size of the cache in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Host addresses at which code of the cache runs.
    pub fn executable_range(&self) -> std::ops::Range<u64> {
        let start = self.executable as u64;
        start..start + self.size as u64
    }

    /// Host address at which the code at an offset runs.
    pub fn address(&self, offset: u32) -> *const u8 {
        debug_assert!((offset as usize) < self.size);
        self.executable.wrapping_add(offset as usize)
    }

    /// Length in bytes of the largest block that can be placed.
    #[cfg(test)]
    pub fn largest_block(&self) -> usize {
        self.size / SEGMENTS
    }

    /// Finds room for `bytes` bytes of code.
    pub fn allocate(&mut self, bytes: usize) -> Allocation {
        let start = self.next.next_multiple_of(ALIGNMENT);
        if start + bytes <= self.segment_end {
            self.next = start + bytes;
            if self.next + LEFT > self.huge_pages * HUGE_PAGE as usize {
                self.ask_for_huge_page();
            }
            return Allocation::At(start as u32);
        }
        let segment = self.size / SEGMENTS;
        let start = if self.segment_end >= self.size {
            0
        } else {
            self.segment_end
        };
        self.next = start;
        self.segment_end = start + segment;
        Allocation::Evict {
            start: start as u32,
            end: (start + segment) as u32,
        }
    }

    /// Requests a huge page from the host for the memory that is needed next, if the huge page lies
    /// inside the cache. A huge page costs a tenth of the page faults of its small pages, and the
    /// generated code, which is large, then needs fewer entries of the host's TLB. The request for
    /// the first huge page blocks, because that page is used immediately.
    #[cold]
    fn ask_for_huge_page(&mut self) {
        let start = self.huge_pages * HUGE_PAGE as usize;
        self.huge_pages += 1;
        if start + HUGE_PAGE as usize > self.size {
            return;
        }
        let page = self.writable.wrapping_add(start);
        match &mut self.ahead {
            Some(ahead) if start != 0 => ahead.ask(page),
            _ => huge_page::ask(page),
        }
    }

    /// Continues handing out space at this offset, up to the end of the offset's segment.
    ///
    /// # Panics
    /// The offset is not in the segment in which room had to be made: a bug in the caller.
    pub fn go_on_at(&mut self, offset: u32) {
        let segment = self.segment_end - self.size / SEGMENTS..=self.segment_end;
        assert!(segment.contains(&(offset as usize)));
        self.next = offset as usize;
    }

    /// Moves code to the same offset or to a lower one.
    ///
    /// # Panics
    /// The code is not inside the cache, or `to` is higher than its offset: a bug in the caller.
    pub fn move_code(&mut self, from: std::ops::Range<u32>, to: u32) {
        assert!(to <= from.start && from.start <= from.end && from.end as usize <= self.size);
        // SAFETY: the assertion has checked that both ranges are inside the mapping, no Rust
        // reference to the mapping exists, and guest code is not running.
        unsafe {
            let source = self.writable.add(from.start as usize);
            let target = self.writable.add(to as usize);
            std::ptr::copy(source, target, (from.end - from.start) as usize);
        }
    }

    /// Starts again at the beginning of the cache. No block may be alive.
    pub fn reset(&mut self) {
        self.next = 0;
        self.segment_end = self.size / SEGMENTS;
    }

    /// Returns a copy of the code in a range of offsets.
    ///
    /// # Panics
    /// The range is not inside the cache: a bug in the caller.
    pub fn read(&self, range: std::ops::Range<u32>) -> Vec<u8> {
        assert!(range.start <= range.end && range.end as usize <= self.size);
        let length = (range.end - range.start) as usize;
        let mut code = vec![0; length];
        // SAFETY: the assertion has checked that the range is inside the mapping, and no Rust
        // reference to the mapping exists.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.writable.add(range.start as usize),
                code.as_mut_ptr(),
                length,
            );
        }
        code
    }

    /// Copies code to an offset.
    ///
    /// # Panics
    /// The code does not fit inside the cache: a bug in the caller.
    pub fn write(&mut self, offset: u32, code: &[u8]) {
        assert!(offset as usize + code.len() <= self.size);
        // SAFETY: the assertion has checked that the range is inside the writable mapping, and no
        // Rust reference to the mapping exists.
        unsafe {
            std::ptr::copy_nonoverlapping(
                code.as_ptr(),
                self.writable.add(offset as usize),
                code.len(),
            )
        };
    }
}

impl Drop for CodeCache {
    fn drop(&mut self) {
        self.ahead = None;
        // SAFETY: `new` made both mappings, and no guest code runs any more.
        unsafe {
            libc::munmap(self.writable.cast(), self.size);
            libc::munmap(self.executable.cast(), self.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_filled_in_a_ring() {
        let mut cache = CodeCache::new(0).unwrap();
        let segment = cache.largest_block();
        assert_eq!(cache.allocate(segment), Allocation::At(0));
        for turn in 1..=SEGMENTS {
            let start = (turn % SEGMENTS * segment) as u32;
            assert_eq!(
                cache.allocate(segment),
                Allocation::Evict {
                    start,
                    end: start + segment as u32
                }
            );
            assert_eq!(cache.allocate(segment), Allocation::At(start));
        }
    }

    #[test]
    fn written_code_appears_in_the_executable_mapping() {
        let mut cache = CodeCache::new(0).unwrap();
        cache.write(64, &[0xc3]);
        // SAFETY: the address lies inside the mapping that the cache owns.
        assert_eq!(unsafe { cache.address(64).read() }, 0xc3);
    }
}
