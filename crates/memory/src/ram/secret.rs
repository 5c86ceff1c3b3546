//! Secret RAM: the host's kernel does not map it for itself, so neither another process nor a mistake of
//! the kernel, speculative ones included, reads it.
//!
//! That is also why its file can only be mapped. System calls that take an offset of the file fail
//! (read, write, seek, fallocate), and so do those that keep a mapped page for longer than a copy
//! takes (O_DIRECT, vmsplice, process_vm_readv). Where RAM of another backing is written through its
//! file, here a part of it is mapped a second time for as long as the write takes.

use super::compare::read_exact;
use super::saved::PageSpan;
use super::{GuestRam, MemoryBacking};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use tollgate_x86::address::PAGE_SIZE;

/// A part of the file, mapped for stores; unmapped when dropped.
struct View {
    start: *mut u8,
    bytes: usize,
}

impl View {
    fn new(file: &OwnedFd, offset: u64, bytes: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        match start == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(Self {
                start: start.cast(),
                bytes,
            }),
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the range, which belongs to this value alone.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

impl GuestRam {
    /// Whether the host's kernel cannot reach RAM through its file.
    pub fn is_secret(&self) -> bool {
        self.backing == MemoryBacking::Secret
    }

    /// Copies pages from the snapshot's files to RAM's own, where nothing of them is mapped yet.
    pub(super) fn fill_secret(&self, span: PageSpan) -> io::Result<()> {
        let bytes = (span.pages() * PAGE_SIZE) as usize;
        let view = View::new(&self.file, self.own_offset(span.first * PAGE_SIZE), bytes)?;
        // SAFETY: the view is mapped for as long as it exists. Its pages of the file are mapped nowhere
        // else while the guest still reads them from the snapshot.
        let contents = unsafe { std::slice::from_raw_parts_mut(view.start, view.bytes) };
        let mut page = span.first;
        while page < span.end {
            let source = self.source(page, span.end - page);
            let source = source.ok_or(io::ErrorKind::NotFound)?;
            let place = |page: u64| ((page - span.first) * PAGE_SIZE) as usize;
            let part = &mut contents[place(page)..place(page + source.pages)];
            read_exact(source.file, part, source.offset)?;
            page += source.pages;
        }
        Ok(())
    }

    /// Writes a byte of RAM below 3 GiB, whatever region hides it.
    pub(super) fn write_secret(&self, address: u64, byte: u8) -> io::Result<()> {
        let page = address / PAGE_SIZE * PAGE_SIZE;
        let view = View::new(&self.file, page, PAGE_SIZE as usize)?;
        // SAFETY: the offset in the page lies in the view. No Rust reference to the page exists.
        unsafe { view.start.add((address - page) as usize).write(byte) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::saved::tests::{byte, file};
    use super::super::{MemoryError, PIECE_BYTES, SavedRun};
    use super::*;
    use tollgate_x86::PhysicalAddress;

    /// Secret RAM, small enough for the usual limit of locked memory; `None` where the host has none.
    fn secret() -> Option<GuestRam> {
        match GuestRam::with_backing(2 << 20, MemoryBacking::Secret) {
            Ok(ram) => Some(ram),
            Err(MemoryError::Secret(_) | MemoryError::Lock { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn secret_ram_keeps_what_is_written_and_is_not_in_its_file() {
        let Some(ram) = secret() else { return };
        assert!(ram.write(PhysicalAddress(0x10_0ffe), b"secret"));
        let mut bytes = [0; 6];
        assert!(ram.read(PhysicalAddress(0x10_0ffe), &mut bytes));
        assert_eq!(&bytes, b"secret");
        assert!(read_exact(&ram.file, &mut bytes, 0x10_0ffe).is_err());
        assert!(ram.lend(&[(PhysicalAddress(0x10_0000), 4096)]).is_none());
        assert!(ram.discard(0x10_0000, 4096).is_err());
        assert_eq!(byte(&ram, 0x10_0fff), b'e');
        ram.write_beneath(0x10_0fff, 7).unwrap();
        assert_eq!(byte(&ram, 0x10_0fff), 7);
    }

    #[test]
    fn pages_of_a_snapshot_are_copied_to_secret_ram_when_they_are_written() {
        let Some(mut ram) = secret() else { return };
        let run = |address, file, piece| SavedRun {
            address: address * PIECE_BYTES,
            bytes: PIECE_BYTES,
            file,
            file_offset: piece * PIECE_BYTES,
        };
        let runs = [run(17, 0, 3), run(18, 1, 0)];
        ram.map_saved(vec![file(4), file(2)], &runs).unwrap();
        let seam = 18 * PIECE_BYTES;
        assert!(ram.write(PhysicalAddress(seam - 1), &[8, 9]));
        let bytes = [seam - 2, seam - 1, seam, seam + 1].map(|at| byte(&ram, at));
        assert_eq!(bytes, [4, 8, 9, 1]);
        let span = PageSpan {
            first: 0,
            end: u64::MAX,
        };
        ram.copy_ahead(&[span]).unwrap();
        assert!(ram.saved.spans_left(span).is_empty());
        let bytes =
            [17 * PIECE_BYTES, seam - 1, seam, 19 * PIECE_BYTES - 1].map(|at| byte(&ram, at));
        assert_eq!(bytes, [4, 8, 9, 1]);
    }
}
