//! The pages that the monitor and a space process share, and sleeping on their words.
//!
//! The program in the process can write some of these pages at any moment. So they are only reached
//! through atomic accesses, and each value is read once, then judged.

use std::io;
use std::num::NonZero;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Pages of a file, mapped shared, readable and writable.
pub struct SharedPages {
    start: NonNull<u8>,
    size: NonZero<usize>,
}

// SAFETY: the mapping belongs to no thread, and all safe accesses are atomic.
unsafe impl Send for SharedPages {}
// SAFETY: as above.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    /// Maps the first bytes of a file.
    pub fn map(file: BorrowedFd<'_>, size: NonZero<usize>) -> io::Result<Self> {
        // SAFETY: a new mapping, where the kernel finds room.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size.get(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(start.cast()) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED.cast() => Ok(Self { start, size }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The address of bytes.
    ///
    /// # Panics
    /// They are not all in the pages.
    pub fn bytes(&self, offset: u64, length: usize) -> NonNull<u8> {
        let offset = usize::try_from(offset).expect("an offset");
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.size.get()), "outside");
        // SAFETY: the result is in the mapping.
        unsafe { self.start.add(offset) }
    }

    /// A word of 32 bits.
    pub fn word(&self, offset: u64) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: it is in the mapping, aligned, lives as long as this, and any bits are a value.
        unsafe { AtomicU32::from_ptr(self.bytes(offset, 4).as_ptr().cast()) }
    }

    /// A word of 64 bits.
    pub fn quad(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: as for `word`.
        unsafe { AtomicU64::from_ptr(self.bytes(offset, 8).as_ptr().cast()) }
    }

    /// Reads a word of 64 bits.
    pub fn get(&self, offset: u64) -> u64 {
        self.quad(offset).load(Ordering::Relaxed)
    }

    /// Writes a word of 64 bits.
    pub fn set(&self, offset: u64, value: u64) {
        self.quad(offset).store(value, Ordering::Relaxed);
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and no reference to it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.size.get()) };
    }
}

/// Sleeps while the word has this value, until it is woken, a signal arrives, or the time is over.
pub fn sleep_on(word: &AtomicU32, value: u32, time: Duration) {
    let time = libc::timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: FUTEX_WAIT reads the word and the time, which live through the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            &raw const time,
        )
    };
}

/// Wakes the task that sleeps on the word.
pub fn wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE uses only the word's address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}
