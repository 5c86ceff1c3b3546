//! Reserved address space for sparse tables, which reads as zero until it is written.

use std::io;
use std::ptr::NonNull;

/// An anonymous private mapping, released on drop.
pub struct Reservation {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is owned memory; nothing about it is tied to a thread.
unsafe impl Send for Reservation {}

impl Reservation {
    /// Maps `bytes` of zeroes; memory is used only where it is written.
    ///
    /// # Errors
    /// The host's mmap failed.
    pub fn new(bytes: usize) -> io::Result<Self> {
        Self::map(bytes, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Maps `bytes` of zeroes that cannot be written.
    ///
    /// # Errors
    /// The host's mmap failed.
    pub fn zeroes(bytes: usize) -> io::Result<Self> {
        Self::map(bytes, libc::PROT_READ)
    }

    /// Reserves `bytes` of addresses where every access faults.
    ///
    /// # Errors
    /// The host's mmap failed.
    pub fn inaccessible(bytes: usize) -> io::Result<Self> {
        Self::map(bytes, libc::PROT_NONE)
    }

    /// Whether an address lies inside.
    pub fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base.as_ptr() as u64) < self.bytes as u64
    }

    /// Lets whole pages inside be read and written.
    ///
    /// # Errors
    /// The range does not lie inside, or the host's mprotect failed.
    pub fn open(&self, offset: usize, bytes: usize) -> io::Result<()> {
        self.allow(offset, bytes, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Lets whole pages inside be read.
    ///
    /// # Errors
    /// The range does not lie inside, or the host's mprotect failed.
    pub fn open_for_loads(&self, offset: usize, bytes: usize) -> io::Result<()> {
        self.allow(offset, bytes, libc::PROT_READ)
    }

    /// Has whole pages inside be memory of its own, zeroes at first, that [`Reservation::share_with`]
    /// can map a second time.
    ///
    /// # Errors
    /// The range does not lie inside, or the host refuses. Then the range may not be reserved any
    /// more: the reservation must be [leaked](std::mem::forget).
    pub fn open_to_be_shared(&self, offset: usize, bytes: usize) -> io::Result<()> {
        self.check(offset, bytes)?;
        let place = self.base().wrapping_add(offset);
        // SAFETY: takes the place of a part of the reservation, in which nothing lies yet.
        let mapped = unsafe {
            libc::mmap(
                place.cast(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range is the mapping just made.
        unsafe { libc::madvise(mapped, bytes, libc::MADV_NOHUGEPAGE) };
        Ok(())
    }

    /// Has what [`Reservation::open_to_be_shared`] has opened of this reservation lie at the same
    /// offset of another one too.
    ///
    /// # Errors
    /// As of that function, and about the other reservation.
    pub fn share_with(&self, other: &Self, offset: usize, bytes: usize) -> io::Result<()> {
        self.check(offset, bytes)?;
        other.check(offset, bytes)?;
        let from = self.base().wrapping_add(offset);
        let to = other.base().wrapping_add(offset);
        let moves = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // An old size of zero maps shared pages a second time (mremap(2)).
        // SAFETY: takes the place of a part of the other reservation, in which nothing lies yet.
        let mapped = unsafe { libc::mremap(from.cast(), 0, bytes, moves, to) };
        match mapped == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        }
    }

    fn check(&self, offset: usize, bytes: usize) -> io::Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn allow(&self, offset: usize, bytes: usize, protection: i32) -> io::Result<()> {
        self.check(offset, bytes)?;
        // SAFETY: the range lies inside the mapping that this structure owns.
        let failed =
            unsafe { libc::mprotect(self.base.as_ptr().add(offset).cast(), bytes, protection) };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Has all of it read as zero again, and gives its memory back.
    pub fn discard(&mut self) {
        // SAFETY: the range is the private mapping that this structure owns, to whose bytes nothing
        // refers.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, libc::MADV_DONTNEED) };
    }

    fn map(bytes: usize, protection: i32) -> io::Result<Self> {
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let pointer = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if pointer == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Sparse tables want small pages: a huge page would cost 2 MiB for one entry.
        // SAFETY: the range is the mapping just made.
        unsafe { libc::madvise(pointer, bytes, libc::MADV_NOHUGEPAGE) };
        let base = NonNull::new(pointer.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { base, bytes })
    }

    /// First address.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
