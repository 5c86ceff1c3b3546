//! Reserved address space for sparse tables, which reads as zero until it is written.

use std::io;
use std::ptr::NonNull;

/// An anonymous private mapping, which is released when dropped.
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

    /// Whether an address lies inside the reservation.
    pub fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base.as_ptr() as u64) < self.bytes as u64
    }

    /// Allows whole pages of the reservation to be read and written.
    ///
    /// # Errors
    /// The range does not lie inside, or the host's mprotect failed.
    pub fn open(&self, offset: usize, bytes: usize) -> io::Result<()> {
        self.allow(offset, bytes, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Allows whole pages of the reservation to be read.
    ///
    /// # Errors
    /// The range does not lie inside, or the host's mprotect failed.
    pub fn open_for_loads(&self, offset: usize, bytes: usize) -> io::Result<()> {
        self.allow(offset, bytes, libc::PROT_READ)
    }

    /// Replaces whole pages of the reservation by memory of zeroes that [`Reservation::share_with`]
    /// can map a second time.
    ///
    /// # Errors
    /// The range does not lie inside, or the host refuses. In the second case the range may no
    /// longer be reserved, and the reservation must be [leaked](std::mem::forget).
    pub fn open_to_be_shared(&self, offset: usize, bytes: usize) -> io::Result<()> {
        self.check(offset, bytes)?;
        let place = self.base().wrapping_add(offset);
        // SAFETY: the mapping replaces a part of the reservation that is not used yet.
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

    /// Maps the pages that [`Reservation::open_to_be_shared`] has opened in this reservation a
    /// second time, at the same offset of another reservation.
    ///
    /// # Errors
    /// As for [`Reservation::open_to_be_shared`], concerning the other reservation.
    pub fn share_with(&self, other: &Self, offset: usize, bytes: usize) -> io::Result<()> {
        self.check(offset, bytes)?;
        other.check(offset, bytes)?;
        let from = self.base().wrapping_add(offset);
        let to = other.base().wrapping_add(offset);
        let moves = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // An old size of zero maps shared pages a second time (mremap(2)).
        // SAFETY: the mapping replaces a part of the other reservation that is not used yet.
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

    /// Makes the whole reservation read as zero again, and gives its memory back.
    pub fn discard(&mut self) {
        // SAFETY: the range is the private mapping that this structure owns, and there are no
        // references to its bytes.
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
        // Sparse tables need small pages: a huge page would cost 2 MiB for one entry.
        // SAFETY: the range is the mapping just made.
        unsafe { libc::madvise(pointer, bytes, libc::MADV_NOHUGEPAGE) };
        let base = NonNull::new(pointer.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { base, bytes })
    }

    /// The first address of the reservation.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
