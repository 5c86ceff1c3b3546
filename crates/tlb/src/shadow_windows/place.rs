//! Where a window lies, and the host's calls that change what is mapped there.

use super::area::Region;
use super::native::{Rights, SharedNativeSpace, locked, page_of};
use super::part::PART_PAGES;
use super::runs::Run;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use tollgate_x86::address::PAGE_SIZE;

/// Runs of at most this many pages are entered into the host's page tables when they are mapped.
/// One of the pages is about to be accessed, so this is cheaper than a fault of the host on the
/// page.
const MOST_POPULATED: u64 = 2;

/// Where a window lies.
#[derive(Debug)]
pub(super) enum Place {
    /// In this process.
    Here(Region),
    /// In the process that runs the space's programs.
    Native(SharedNativeSpace),
}

impl Place {
    /// The host's address of a page, in the address space where the window lies.
    pub(super) fn host(&self, page: u64) -> u64 {
        match self {
            Self::Here(region) => region.base() + (page % PART_PAGES) * PAGE_SIZE,
            Self::Native(_) => page_of(page).unwrap_or(0) * PAGE_SIZE,
        }
    }

    /// Maps a run, where nothing of this window is mapped, from `offset` on in a file.
    ///
    /// # Errors
    /// The host refused it.
    pub(super) fn map(&self, run: &Run, file: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        let (host, bytes) = (self.host(run.page), run.count * PAGE_SIZE);
        if let Self::Native(space) = self {
            locked(space).map(host, bytes, (file, offset), Rights::of(run));
            return Ok(());
        }
        let protection = match run.writable {
            true => libc::PROT_READ | libc::PROT_WRITE,
            false => libc::PROT_READ,
        };
        let populate = match run.count <= MOST_POPULATED {
            true => libc::MAP_POPULATE,
            false => 0,
        };
        // SAFETY: the range lies in the window's own region, and nothing of this window is mapped
        // there; with MAP_FIXED_NOREPLACE nothing else is replaced either.
        let address = unsafe {
            libc::mmap(
                host as *mut _,
                bytes as usize,
                protection,
                libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE | populate,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        match address == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        }
    }

    /// Unmaps the pages from `first` up to but not including `end`.
    pub(super) fn unmap(&self, first: u64, end: u64) {
        let (host, bytes) = (self.host(first), (end - first) * PAGE_SIZE);
        match self {
            Self::Native(space) => locked(space).unmap(host, bytes),
            // SAFETY: the range lies in the region, which belongs to this window, and nothing but
            // translated code on this thread accesses what is mapped there.
            Self::Here(_) => unsafe {
                libc::munmap(host as *mut _, bytes as usize);
            },
        }
    }

    /// Makes a mapped page of a run refuse stores.
    ///
    /// # Errors
    /// The host refused it.
    pub(super) fn protect(&self, page: u64, run: &Run) -> io::Result<()> {
        let host = self.host(page);
        if let Self::Native(space) = self {
            let rights = Rights {
                writable: false,
                ..Rights::of(run)
            };
            locked(space).protect(host, PAGE_SIZE, rights);
            return Ok(());
        }
        // SAFETY: as for `unmap`.
        let failed = unsafe { libc::mprotect(host as *mut _, PAGE_SIZE as usize, libc::PROT_READ) };
        match failed {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
