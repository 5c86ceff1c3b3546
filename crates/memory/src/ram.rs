//! Guest RAM: one file (by default a memfd), mapped once and flat.
//!
//! The host address of a guest physical address is always `base + address`. Four GiB on both sides,
//! and the devices' range between 3 and 4 GiB, are reserved and inaccessible except for regions
//! with memory of their own ([`crate::map`]). So a 32-bit displacement added to any checked address
//! still cannot reach the monitor's memory.

mod backing;
mod compare;
mod error;
mod huge_pages;
mod lent;
mod own_copies;
mod pieces;
mod regions;
mod saved;
mod secret;

pub use self::backing::{MemoryBacking, secret_memory_is_offered};
pub use self::error::{MAX_RAM_BYTES, MemoryError};
pub use self::lent::LentRam;
pub use self::saved::{MOST_FILES, PIECE_BYTES, PageSource, PageSpan, SavedRun};

use self::huge_pages::HugePages;
use self::saved::SavedPieces;
use crate::huge_page::{self, HUGE_PAGE};
use crate::layout::{HIGH_RAM_START, MemoryRegion, PhysicalLayout};
use crate::map::{MemoryMap, PageUse, REGIONS_END};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// Inaccessible bytes before and after the mapping.
pub const GUARD_BYTES: u64 = 4 << 30;

/// An address range with inaccessible guards around guest RAM, which starts at a multiple of
/// [`HUGE_PAGE`]; unmapped when dropped.
#[derive(Debug)]
struct GuardedRange {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the range is only an address, never read or written through; it is changed and unmapped
// by system calls, which any thread may make.
unsafe impl Send for GuardedRange {}
// SAFETY: the same reason as for Send.
unsafe impl Sync for GuardedRange {}

impl GuardedRange {
    fn new(bytes: usize) -> io::Result<Self> {
        let start = huge_page::reserve(bytes)?;
        Ok(Self { start, bytes })
    }

    /// Makes `bytes` bytes at `offset` inaccessible.
    fn unmap(&self, offset: usize, bytes: usize) -> io::Result<()> {
        assert!(offset + bytes <= self.bytes, "inside the reservation");
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: MAP_FIXED replaces only pages of our own reservation (asserted above), to which
        // no Rust reference exists.
        let address = unsafe {
            libc::mmap(
                self.start.add(offset).cast(),
                bytes,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Maps `bytes` of the file at `file_offset` to `offset` in the reservation.
    fn map(&self, offset: usize, bytes: usize, file: &OwnedFd, file_offset: u64) -> io::Result<()> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        self.map_with((offset, bytes), file, file_offset, access)
    }

    /// Maps `bytes` of the file at `file_offset` to `offset` in the reservation, so that they can
    /// be read only.
    fn map_for_loads(
        &self,
        offset: usize,
        bytes: usize,
        file: &OwnedFd,
        file_offset: u64,
    ) -> io::Result<()> {
        self.map_with((offset, bytes), file, file_offset, libc::PROT_READ)
    }

    fn map_with(
        &self,
        (offset, bytes): (usize, usize),
        file: &OwnedFd,
        file_offset: u64,
        access: i32,
    ) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        assert!(offset + bytes <= self.bytes, "inside the reservation");
        // SAFETY: MAP_FIXED replaces only pages of our own reservation (asserted above), to which
        // nothing else holds a reference.
        let address = unsafe {
            libc::mmap(
                self.start.add(offset).cast(),
                bytes,
                access,
                libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED,
                file.as_raw_fd(),
                file_offset as libc::off_t,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for GuardedRange {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and belongs to this value alone.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// The RAM of the guest, with its address range in the host.
#[derive(Debug)]
pub struct GuestRam {
    reservation: Arc<GuardedRange>,
    base: *mut u8,
    layout: PhysicalLayout,
    size: u64,
    file: OwnedFd,
    backing: MemoryBacking,
    map: MemoryMap,
    huge_pages: HugePages,
    saved: SavedPieces,
}

// SAFETY: the mapping belongs to this value and to the RAM that it has lent, is valid in every
// thread and is freed once; the type is not Sync, so one thread at a time uses it.
unsafe impl Send for GuestRam {}

impl GuestRam {
    /// Makes `bytes` of zeroed RAM. The host commits pages as they are touched.
    ///
    /// # Errors
    /// [`MemoryError`] if the size is impossible or the host refuses.
    pub fn new(bytes: u64) -> Result<Self, MemoryError> {
        Self::with_backing(bytes, MemoryBacking::Anonymous)
    }

    /// Makes `bytes` of zeroed RAM that `backing` holds.
    ///
    /// # Errors
    ///
    /// The same as those of [`GuestRam::new`].
    pub fn with_backing(bytes: u64, backing: MemoryBacking) -> Result<Self, MemoryError> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_SIZE) || bytes > MAX_RAM_BYTES {
            return Err(MemoryError::InvalidSize(bytes));
        }
        let layout = PhysicalLayout::new(bytes);
        let file = backing.create(bytes)?;
        let guard = GUARD_BYTES as usize;
        let reservation =
            GuardedRange::new(guard + layout.span().max(REGIONS_END) as usize + guard)
                .map_err(MemoryError::Map)?;
        reservation
            .map(guard, layout.low_bytes() as usize, &file, 0)
            .and_then(|()| {
                reservation.map(
                    guard + HIGH_RAM_START as usize,
                    layout.high_bytes() as usize,
                    &file,
                    layout.low_bytes(),
                )
            })
            .map_err(|error| backing.map_error(bytes, error))?;
        // SAFETY: the reservation is larger than the guard.
        let base = unsafe { reservation.start.add(guard) };
        backing.lock(base, layout.low_bytes())?;
        backing.lock(
            base.wrapping_add(HIGH_RAM_START as usize),
            layout.high_bytes(),
        )?;
        Ok(Self {
            reservation: Arc::new(reservation),
            base,
            size: bytes,
            file,
            backing,
            map: MemoryMap::new(),
            huge_pages: HugePages::new(layout.span()),
            saved: SavedPieces::default(),
            layout,
        })
    }

    /// Host address of guest physical address zero.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// The file that holds RAM. The file offset is the physical address below 3 GiB; RAM from 4 GiB
    /// on follows at file offset 3 GiB.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The offset in the [file](Self::fd) of `bytes` bytes of RAM at a physical address; `None`
    /// unless they are contiguous there.
    pub fn file_offset(&self, address: u64, bytes: u64) -> Option<u64> {
        let end = address.checked_add(bytes)?;
        if end <= self.layout.low_bytes() {
            return Some(address);
        }
        let is_high = address >= HIGH_RAM_START && end <= self.layout.span();
        is_high.then(|| address - HIGH_RAM_START + self.layout.low_bytes())
    }

    /// Bytes of RAM. This includes the 128 KiB under the display adapter's window, although the
    /// guest cannot reach them.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// First physical address after the last byte of RAM.
    pub fn span(&self) -> u64 {
        self.layout.span()
    }

    /// The memory layout, which says which addresses are RAM.
    pub fn layout(&self) -> &PhysicalLayout {
        &self.layout
    }

    /// The ranges of RAM, in ascending order.
    pub fn regions(&self) -> Vec<MemoryRegion> {
        self.layout.regions()
    }

    /// The host address of a physical page (address divided by 4096), if loads from it reach
    /// memory. [`GuestRam::page_use`] says whether stores do.
    #[inline]
    pub fn host_page(&self, physical_page: u64) -> Option<*mut u8> {
        if self.page_use(physical_page) != PageUse::Device {
            self.ask_for(physical_page * PAGE_SIZE, 1);
            // SAFETY: a page of memory lies inside the mapping.
            Some(unsafe { self.base.add((physical_page * PAGE_SIZE) as usize) })
        } else {
            None
        }
    }

    /// The host address of `length` bytes at `address`, if loads of all of them reach memory.
    #[inline]
    pub fn host_range(&self, address: PhysicalAddress, length: u64) -> Option<*mut u8> {
        if self.is_readable(address, length) {
            self.ask_for(address.0, length);
            // SAFETY: the range is memory, which is contiguous inside the mapping.
            Some(unsafe { self.base.add(address.0 as usize) })
        } else {
            None
        }
    }

    /// Asks the host for the huge pages of the `length` bytes (at least one) for which it has not
    /// been asked yet.
    #[inline]
    fn ask_for(&self, address: u64, length: u64) {
        let last = address + (length - 1);
        let mut at = address;
        while at / HUGE_PAGE <= last / HUGE_PAGE {
            if self.huge_pages.is_due(at)
                && self.huge_pages.is_used(at)
                && !self.saved.is_in_huge_page(at)
            {
                self.huge_pages.ask(self.base, at);
            }
            at += HUGE_PAGE;
        }
    }

    /// Makes every byte zero again and returns the pages to the host.
    ///
    /// # Errors
    ///
    /// The host's error, or RAM is secret; the contents are then undefined.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.forget_saved(0, self.layout.span() / PAGE_SIZE)?;
        self.backing.clear(&self.file, 0, self.size)?;
        self.huge_pages.forget();
        Ok(())
    }

    /// Returns `bytes` bytes at a physical address to the host: whole pages for which
    /// [`GuestRam::is_own_page`] is true. They are zero afterwards.
    ///
    /// # Errors
    ///
    /// The host's error, or RAM is secret; the contents are then unchanged.
    pub(crate) fn discard(&self, address: u64, bytes: u64) -> io::Result<()> {
        if self.is_secret() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut offset = address;
        if address >= HIGH_RAM_START {
            offset = address - HIGH_RAM_START + self.layout.low_bytes();
        }
        self.forget_saved(address / PAGE_SIZE, (address + bytes) / PAGE_SIZE)?;
        self.backing.clear(&self.file, offset, bytes)?;
        self.huge_pages.forget_within(address, bytes);
        Ok(())
    }

    /// Copies memory to `data`. Returns false, and copies nothing, unless loads of every byte reach
    /// memory.
    #[inline]
    pub fn read(&self, address: PhysicalAddress, data: &mut [u8]) -> bool {
        if data.is_empty() {
            return true;
        }
        let Some(source) = self.host_range(address, data.len() as u64) else {
            return false;
        };
        // SAFETY: `source` has `data.len()` bytes; `data` is not guest RAM, of which
        // no Rust reference exists.
        unsafe { ptr::copy_nonoverlapping(source, data.as_mut_ptr(), data.len()) };
        true
    }

    /// Copies `data` to memory. Returns false, and copies nothing, unless stores to every byte
    /// reach it.
    ///
    /// Only [`crate::GuestMemory`] calls this, since it also records writes to code.
    #[inline]
    pub(crate) fn write(&self, address: PhysicalAddress, data: &[u8]) -> bool {
        let length = data.len() as u64;
        if data.is_empty() {
            return true;
        }
        if !self.is_writable(address, length) {
            return false;
        }
        self.own(address, length);
        if self.map.is_in_use() {
            let last = address.0 + (length - 1);
            (address.page()..=last / PAGE_SIZE).for_each(|page| self.map.mark_dirty(page));
        }
        let Some(target) = self.host_range(address, length) else {
            return false;
        };
        // SAFETY: `target` has `data.len()` bytes; `data` is not guest RAM, of which
        // no Rust reference exists.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), target, data.len()) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_are_not_whole_pages_are_refused() {
        for bytes in [0, 4095, 4097, MAX_RAM_BYTES + 4096] {
            assert!(matches!(
                GuestRam::new(bytes),
                Err(MemoryError::InvalidSize(size)) if size == bytes
            ));
        }
    }

    #[test]
    fn ram_is_flat_and_zeroed_and_keeps_what_is_written() {
        let ram = GuestRam::new(2 << 20).unwrap();
        let mut bytes = [1; 8];
        assert!(ram.read(PhysicalAddress(0xf_fffc), &mut bytes));
        assert_eq!(bytes, [0; 8]);
        assert!(ram.write(PhysicalAddress(0xf_fffc), &[1, 2, 3, 4, 5, 6, 7, 8]));
        let page = ram.host_page(0x100).unwrap();
        // SAFETY: the page is mapped.
        assert_eq!(unsafe { page.read() }, 5);
        assert_eq!(page as usize - ram.base() as usize, 0x10_0000);
    }

    #[test]
    fn accesses_outside_ram_do_nothing() {
        let ram = GuestRam::new(2 << 20).unwrap();
        let mut bytes = [7; 4];
        for address in [0xa_0000, 0x9_fffe, 0x1f_fffd, 0xfee0_0000, u64::MAX - 1] {
            assert!(!ram.read(PhysicalAddress(address), &mut bytes));
            assert!(!ram.write(PhysicalAddress(address), &bytes));
        }
        assert_eq!(bytes, [7; 4]);
    }

    #[test]
    fn memory_above_4_gib_follows_low_memory_in_the_file() {
        let ram = GuestRam::new((3 << 30) + (1 << 20)).unwrap();
        assert!(ram.write(PhysicalAddress(HIGH_RAM_START), b"high"));
        let mut bytes = [0u8; 4];
        // SAFETY: reads 4 bytes of the file into 4 bytes.
        let count =
            unsafe { libc::pread(ram.fd().as_raw_fd(), bytes.as_mut_ptr().cast(), 4, 3 << 30) };
        assert_eq!((count, &bytes), (4, b"high"));
        assert!(ram.host_page(0xc_0000).is_none());
    }
}
