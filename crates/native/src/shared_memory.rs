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

    /// Copies bytes out. What the program writes at the same time may be among them, or not.
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        let from = self.bytes(offset, to.len());
        // SAFETY: `from` points to as many bytes of the mapping, which `to`, a Rust value, is no part of.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes in.
    pub fn write(&self, offset: u64, from: &[u8]) {
        let to = self.bytes(offset, from.len());
        // SAFETY: as for `read`.
        unsafe { copy(from.as_ptr(), to.as_ptr(), from.len()) };
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

/// Copies bytes by an instruction: another process may write them at the same time, which the compiler need
/// not know.
///
/// # Safety
/// Both ranges must be there, the second for writing, and not overlap.
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller guarantees that both ranges are there. The direction flag is clear.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rsi") from => _,
            inout("rdi") to => _,
            inout("rcx") length => _,
            options(nostack, preserves_flags),
        );
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

/// What `futex_waitv` waits for (`struct futex_waitv`).
#[repr(C)]
struct Waited {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

impl Waited {
    /// The flag for a word of 32 bits (`FUTEX_32`).
    const IS_32_BITS: u32 = 2;

    fn new(word: &AtomicU32, value: u32) -> Self {
        Self {
            value: value.into(),
            address: word.as_ptr() as u64,
            flags: Self::IS_32_BITS,
            reserved: 0,
        }
    }
}

/// How long a wait lasts at most on a kernel that can wait for one word only.
const SHORT: Duration = Duration::from_micros(500);

/// Sleeps while the word `done` has its value and the word `interrupted` is 0, at most for a time.
/// A signal that sets `interrupted` is never missed, even if it arrives just before the sleep.
pub fn sleep_on_both(done: (&AtomicU32, u32), interrupted: &AtomicU32, time: Duration) {
    let words = [Waited::new(done.0, done.1), Waited::new(interrupted, 0)];
    let mut end = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut end) };
    let nanoseconds = end.tv_nsec + i64::from(time.subsec_nanos());
    end.tv_sec += time.as_secs().cast_signed() + nanoseconds / 1_000_000_000;
    end.tv_nsec = nanoseconds % 1_000_000_000;
    // SAFETY: the kernel reads the list and the time, which live through the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            words.as_ptr(),
            words.len(),
            0,
            &raw const end,
            libc::CLOCK_MONOTONIC,
        )
    };
    // Kernels before 5.16 do not have the call.
    if result == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        sleep_on(done.0, done.1, SHORT);
    }
}

/// Wakes the task that sleeps on the word.
pub fn wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE uses only the word's address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}
