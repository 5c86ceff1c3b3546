//! The code cache: one bounded piece of memory, mapped twice.
//!
//! The writable and the executable mapping are different, so no page is ever both.
//! Space is handed out in order, in [`SEGMENTS`] segments used as a ring: when the
//! current one is full, room is made in the next, which is then filled again.

use std::io;
use tollgate_memory::huge_page::{self, Ahead, HUGE_PAGE};

/// Segments of the ring.
pub const SEGMENTS: usize = 8;
/// Smallest code cache, in bytes.
pub const MINIMUM_SIZE: usize = 1 << 20;
/// Largest code cache, in bytes: distances are 32 bits signed.
pub const MAXIMUM_SIZE: usize = 1 << 30;
/// What is left of one huge page, in bytes, when the next is asked for. Code of a program that starts
/// comes at some 100 MB/s, so that the host has milliseconds for it.
const LEFT: usize = HUGE_PAGE as usize / 2;
/// What the code of a block is aligned to, in bytes.
pub const ALIGNMENT: usize = 16;

/// What [`CodeCache::allocate`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// Space at this offset.
    At(u32),
    /// Room must be made in the segment with this range of offsets, from the end of what stays
    /// in it (see [`CodeCache::go_on_at`]; nothing, if that is not told). Then try again.
    Evict {
        /// First offset.
        start: u32,
        /// First offset behind.
        end: u32,
    },
}

/// Memory for generated code.
pub struct CodeCache {
    writable: *mut u8,
    executable: *mut u8,
    size: usize,
    next: usize,
    segment_end: usize,
    /// Huge pages that the host has been asked for, from the beginning on.
    huge_pages: usize,
    /// Asks for all but the first. Gone before the mappings are.
    ahead: Option<Ahead>,
}

// SAFETY: the mappings are owned by the structure and not tied to a thread.
unsafe impl Send for CodeCache {}

impl CodeCache {
    /// Maps a cache of about `size` bytes (rounded and clamped to the limits).
    ///
    /// # Errors
    /// mmap or mremap failed, or the host forbids executable mappings.
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
        // Not a memfd: profilers look up names for code in anonymous memory only, and a
        // shared anonymous mapping shows as that (/dev/zero) in both places.
        // SAFETY: takes the place of a range that is the cache's own.
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
        // SAFETY: the second mapping, into which no reference exists yet.
        let result =
            unsafe { libc::mprotect(executable.cast(), size, libc::PROT_READ | libc::PROT_EXEC) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(cache)
    }

    /// Bytes in all.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Addresses at which code runs.
    pub fn executable_range(&self) -> std::ops::Range<u64> {
        let start = self.executable as u64;
        start..start + self.size as u64
    }

    /// Address at which the code at an offset runs.
    pub fn address(&self, offset: u32) -> *const u8 {
        debug_assert!((offset as usize) < self.size);
        self.executable.wrapping_add(offset as usize)
    }

    /// Largest block that can be placed.
    pub fn largest_block(&self) -> usize {
        self.size / SEGMENTS
    }

    /// Finds room for `bytes` of code.
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

    /// Has the host give what is needed next in a huge page, if it is inside the cache: that
    /// costs a tenth of the faults of its pages, and generated code, which is much, needs fewer
    /// entries of the host's TLB. The first one is waited for: it is used at once.
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

    /// Has space handed out from this offset to the end of its segment.
    ///
    /// # Panics
    /// It does not lie in the segment in which room was to be made: a bug in the caller.
    pub fn go_on_at(&mut self, offset: u32) {
        let segment = self.segment_end - self.size / SEGMENTS..=self.segment_end;
        assert!(segment.contains(&(offset as usize)));
        self.next = offset as usize;
    }

    /// Moves code to an offset that does not lie behind its own.
    ///
    /// # Panics
    /// The code does not lie inside the cache, or the offset lies behind it: a bug in the
    /// caller.
    pub fn move_code(&mut self, from: std::ops::Range<u32>, to: u32) {
        assert!(to <= from.start && from.start <= from.end && from.end as usize <= self.size);
        // SAFETY: both ranges were just checked to lie inside the mapping, no Rust reference to
        // it exists, and guest code does not run.
        unsafe {
            let source = self.writable.add(from.start as usize);
            let target = self.writable.add(to as usize);
            std::ptr::copy(source, target, (from.end - from.start) as usize);
        }
    }

    /// Starts again at the beginning; every block must be dead.
    pub fn reset(&mut self) {
        self.next = 0;
        self.segment_end = self.size / SEGMENTS;
    }

    /// The code in a range of offsets as it is now.
    ///
    /// # Panics
    /// The range does not lie inside the cache: a bug in the caller.
    pub fn read(&self, range: std::ops::Range<u32>) -> Vec<u8> {
        assert!(range.start <= range.end && range.end as usize <= self.size);
        let length = (range.end - range.start) as usize;
        let mut code = vec![0; length];
        // SAFETY: the range was just checked to lie inside the mapping, and no Rust reference
        // to it exists.
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
    /// The code does not lie inside the cache: a bug in the caller.
    pub fn write(&mut self, offset: u32, code: &[u8]) {
        assert!(offset as usize + code.len() <= self.size);
        // SAFETY: the range was just checked to lie inside the writable mapping, and
        // no Rust reference to it exists.
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
        // SAFETY: both mappings were made by `new`; no guest code runs any more.
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
