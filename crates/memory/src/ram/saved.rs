//! RAM whose contents are still in the file of a snapshot.
//!
//! A restored machine copies nothing at its start. The pieces of RAM that the snapshot has are
//! mapped from its file, for loads only, so that all machines restored from one file share them in
//! the host's memory. The first store to a piece, by the guest or by a device, copies the piece to
//! the machine's own file:
//!
//! ```text
//!                 before the first store            after it
//! flat mapping    | own |  saved  | own |           | own |  own  | own |
//! comes from      RAM's    the       RAM's          RAM's file everywhere;
//!                 file     snapshot  file           the host address is the same
//! ```
//!
//! A piece has 64 KiB: small enough that few bytes are copied in vain, and large enough that the
//! host's limit on the number of mappings of a process is not reached. RAM that was zero is not in
//! the file; it is the machine's own from the start.

use super::{GUARD_BYTES, GuestRam};
use crate::huge_page::HUGE_PAGE;
use crate::layout::HIGH_RAM_START;
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// The size in bytes of the pieces in which RAM is taken from a snapshot.
pub const PIECE_BYTES: u64 = 64 << 10;

/// Number of pages in a piece.
pub(super) const PIECE_PAGES: u64 = PIECE_BYTES / PAGE_SIZE;

/// A range of RAM with consecutive contents in a snapshot's file. All numbers are multiples of
/// [`PIECE_BYTES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SavedRun {
    /// The physical address of the first byte.
    pub address: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// The offset of the first byte in the snapshot's file.
    pub file_offset: u64,
}

/// Which pieces of RAM are still in a snapshot's file, and where.
#[derive(Debug, Default)]
pub(super) struct SavedPieces {
    file: Option<OwnedFd>,
    /// By number of the piece: its place in the file in pieces plus one; 0 for RAM of the
    /// machine's own. Empty in a machine that was not restored.
    places: Box<[Cell<u32>]>,
    /// The places at the moment when the machine was restored.
    first_places: Box<[u32]>,
}

impl SavedPieces {
    /// Whether a physical page is still in the snapshot's file.
    #[inline]
    pub(super) fn has(&self, physical_page: u64) -> bool {
        let place = self.places.get((physical_page / PIECE_PAGES) as usize);
        place.is_some_and(|place| place.get() != 0)
    }

    /// Whether any part of a huge page is still in the snapshot's file.
    pub(super) fn is_in_huge_page(&self, address: u64) -> bool {
        self.is_in_use() && {
            let first = address / HUGE_PAGE * (HUGE_PAGE / PAGE_SIZE);
            let mut pages = (first..first + HUGE_PAGE / PAGE_SIZE).step_by(PIECE_PAGES as usize);
            pages.any(|page| self.has(page))
        }
    }

    /// Whether any piece may still be in a snapshot's file.
    #[inline]
    pub(super) fn is_in_use(&self) -> bool {
        !self.places.is_empty()
    }
}

impl GuestRam {
    /// Maps ranges of RAM from a snapshot's file. No region may lie over them, and nothing may have
    /// been written there or derived from there.
    ///
    /// # Errors
    ///
    /// A range is not RAM, is not in the file, or is no multiple of [`PIECE_BYTES`]; or the host
    /// refuses to map it. The contents of RAM are then undefined.
    pub(crate) fn map_saved(&mut self, file: OwnedFd, runs: &[SavedRun]) -> io::Result<()> {
        let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        let file = File::from(file);
        let file_bytes = file.metadata()?.len();
        let file = OwnedFd::from(file);
        let pieces = self.layout.span().div_ceil(PIECE_BYTES);
        let mut places = vec![0_u32; pieces as usize];
        for run in runs {
            let numbers = [run.address, run.bytes, run.file_offset];
            if run.bytes == 0
                || numbers
                    .iter()
                    .any(|number| !number.is_multiple_of(PIECE_BYTES))
            {
                return refused("a range of memory is not made of whole pieces");
            }
            let end = run.file_offset.checked_add(run.bytes);
            if end.is_none_or(|end| end > file_bytes) {
                return refused("the file ends before its last range of memory");
            }
            let first = run.address / PIECE_BYTES;
            let is_ram = self.file_offset(run.address, run.bytes).is_some()
                && (run.address / PAGE_SIZE..(run.address + run.bytes) / PAGE_SIZE)
                    .all(|page| self.is_own_page(page));
            if !is_ram {
                return refused("a range of memory is not RAM of this machine");
            }
            for number in 0..run.bytes / PIECE_BYTES {
                let Ok(place) = u32::try_from(run.file_offset / PIECE_BYTES + number + 1) else {
                    return refused("a range of memory lies too far back in the file");
                };
                let piece = &mut places[(first + number) as usize];
                if std::mem::replace(piece, place) != 0 {
                    return refused("two ranges of memory overlap");
                }
            }
            self.reservation.map_for_loads(
                (GUARD_BYTES + run.address) as usize,
                run.bytes as usize,
                &file,
                run.file_offset,
            )?;
        }
        self.saved = SavedPieces {
            file: Some(file),
            places: places.iter().copied().map(Cell::new).collect(),
            first_places: places.into_boxed_slice(),
        };
        Ok(())
    }

    /// Calls `differs` for each page of RAM whose contents are not those that it had when the
    /// machine was restored, with these contents. Returns false if the machine was not restored.
    ///
    /// # Errors
    ///
    /// The host's error, for a file that cannot be read.
    pub(crate) fn compare_with_saved(
        &self,
        mut differs: impl FnMut(PhysicalAddress, &[u8; PAGE_SIZE as usize]),
    ) -> io::Result<bool> {
        let Some(file) = &self.saved.file else {
            return Ok(false);
        };
        let file = File::from(file.try_clone()?);
        let mut before = Box::new([0; PIECE_BYTES as usize]);
        for (number, &place) in self.saved.first_places.iter().enumerate() {
            let first = number as u64 * PIECE_PAGES;
            if self.saved.has(first) || !self.may_be_written(first * PAGE_SIZE)? {
                continue;
            }
            match place {
                0 => before.fill(0),
                place => {
                    file.read_exact_at(&mut *before, u64::from(place - 1) * PIECE_BYTES)?;
                }
            }
            for (page, before) in (first..).zip(before.as_chunks().0) {
                let address = PhysicalAddress(page * PAGE_SIZE);
                let mut now = [0; PAGE_SIZE as usize];
                if self.is_own_page(page) && self.read(address, &mut now) && now != *before {
                    differs(address, before);
                }
            }
        }
        Ok(true)
    }

    /// Whether the machine's own file has contents for a piece of RAM.
    fn may_be_written(&self, address: u64) -> io::Result<bool> {
        use rustix::fs::{SeekFrom, seek};
        let offset = self.own_offset(address);
        match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) => Ok(data < offset + PIECE_BYTES),
            // All of the rest was never written.
            Err(rustix::io::Errno::NXIO) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The offset of an address of RAM in the machine's own file.
    fn own_offset(&self, address: u64) -> u64 {
        match address.checked_sub(HIGH_RAM_START) {
            Some(high) => high + self.layout.low_bytes(),
            None => address,
        }
    }

    /// The part of a snapshot's file from which a physical page is still mapped, with the offset of
    /// the page in it.
    pub fn saved_page(&self, physical_page: u64) -> Option<(&OwnedFd, u64)> {
        if !self.saved.has(physical_page) {
            return None;
        }
        let place = self.saved.places[(physical_page / PIECE_PAGES) as usize].get();
        let piece = u64::from(place - 1) * PIECE_BYTES;
        let offset = piece + physical_page % PIECE_PAGES * PAGE_SIZE;
        self.saved.file.as_ref().map(|file| (file, offset))
    }

    /// Makes the pages `first..end` the machine's own, with the contents that the snapshot has.
    /// Host addresses stay as they are; what else was mapped from the snapshot's file must be
    /// mapped again. Returns the pieces that were copied, as ranges of pages.
    ///
    /// # Errors
    ///
    /// The host has no memory, or cannot read the file. Pieces that could not be copied stay as
    /// they are.
    pub(crate) fn take_own(&self, first: u64, end: u64) -> io::Result<Vec<(u64, u64)>> {
        let mut copied: Vec<(u64, u64)> = Vec::new();
        if !self.saved.is_in_use() {
            return Ok(copied);
        }
        for piece in first / PIECE_PAGES..end.div_ceil(PIECE_PAGES) {
            let page = piece * PIECE_PAGES;
            let Some((file, offset)) = self.saved_page(page) else {
                continue;
            };
            self.copy_piece(page * PAGE_SIZE, file, offset)?;
            self.saved.places[piece as usize].set(0);
            match copied.last_mut() {
                Some(last) if last.1 == page => last.1 += PIECE_PAGES,
                _ => copied.push((page, page + PIECE_PAGES)),
            }
        }
        Ok(copied)
    }

    /// Makes `length` bytes of RAM (at least one) the machine's own before a store.
    ///
    /// # Panics
    ///
    /// The host has no memory for the copy. The store could neither be made nor be refused then,
    /// so the machine ends.
    #[inline]
    pub(crate) fn own(&self, address: PhysicalAddress, length: u64) {
        if self.saved.is_in_use() {
            let end = (address.0 + (length - 1)) / PAGE_SIZE + 1;
            let result = self.take_own(address.page(), end);
            result.expect("the host has no memory for a page of the snapshot");
        }
    }

    /// Copies a piece from the snapshot's file to RAM's own file, and maps it from there.
    fn copy_piece(&self, address: u64, file: &OwnedFd, offset: u64) -> io::Result<()> {
        let mut bytes = [0; PIECE_BYTES as usize];
        File::from(file.try_clone()?).read_exact_at(&mut bytes, offset)?;
        let own_offset = self.own_offset(address);
        File::from(self.file.try_clone()?).write_all_at(&bytes, own_offset)?;
        self.reservation.map(
            (GUARD_BYTES + address) as usize,
            PIECE_BYTES as usize,
            &self.file,
            own_offset,
        )
    }

    /// Forgets what is in the snapshot's file in the pages `first..end`, which become the machine's
    /// own, as if nothing had ever been written there. Pieces that lie in them only in part keep
    /// their contents.
    ///
    /// # Errors
    ///
    /// See [`GuestRam::take_own`].
    pub(super) fn forget_saved(&self, first: u64, end: u64) -> io::Result<()> {
        if !self.saved.is_in_use() {
            return Ok(());
        }
        for piece in first / PIECE_PAGES..end.div_ceil(PIECE_PAGES) {
            let page = piece * PIECE_PAGES;
            if !self.saved.has(page) {
                continue;
            }
            if page < first || page + PIECE_PAGES > end {
                self.take_own(page, page + 1)?;
                continue;
            }
            let address = page * PAGE_SIZE;
            let own_offset = self
                .file_offset(address, PIECE_BYTES)
                .ok_or(io::ErrorKind::InvalidInput)?;
            self.reservation.map(
                (GUARD_BYTES + address) as usize,
                PIECE_BYTES as usize,
                &self.file,
                own_offset,
            )?;
            self.saved.places[piece as usize].set(0);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::MemoryBacking;
    use super::*;
    use crate::map::PageUse;
    use std::io::Write;

    const PIECE: usize = PIECE_BYTES as usize;

    /// A file whose piece `n` consists of the byte `n + 1`, and RAM whose pieces 17 and 18 are
    /// pieces 2 and 3 of that file.
    pub(in crate::ram) fn restored(bytes: u64) -> GuestRam {
        let mut ram = GuestRam::new(bytes).unwrap();
        let run = SavedRun {
            address: 17 * PIECE_BYTES,
            bytes: 2 * PIECE_BYTES,
            file_offset: 2 * PIECE_BYTES,
        };
        ram.map_saved(file(4), &[run]).unwrap();
        ram
    }

    fn file(pieces: u8) -> OwnedFd {
        let mut file = File::from(MemoryBacking::Anonymous.create(0).unwrap());
        for piece in 0..pieces {
            file.write_all(&[piece + 1; PIECE]).unwrap();
        }
        file.into()
    }

    fn byte(ram: &GuestRam, address: u64) -> u8 {
        let mut byte = [0];
        assert!(ram.read(PhysicalAddress(address), &mut byte));
        byte[0]
    }

    #[test]
    fn a_store_copies_its_piece_and_no_other() {
        let ram = restored(2 << 20);
        let (first, second) = (17 * PIECE_BYTES, 18 * PIECE_BYTES);
        assert_eq!((byte(&ram, first), byte(&ram, second)), (3, 4));
        assert_eq!(byte(&ram, first - 1), 0);
        assert_eq!(ram.page_use(first >> 12), PageUse::Saved);
        let host = ram.host_page(first >> 12);
        assert!(ram.write(PhysicalAddress(first + 5), &[9]));
        assert_eq!(ram.page_use(first >> 12), PageUse::Ram);
        assert_eq!(ram.page_use(second >> 12), PageUse::Saved);
        assert_eq!(ram.host_page(first >> 12), host);
        let near: Vec<u8> = (4..7).map(|offset| byte(&ram, first + offset)).collect();
        assert_eq!(near, [3, 9, 3]);
        assert_eq!(byte(&ram, second - 1), 3);
    }

    #[test]
    fn a_store_across_pieces_copies_both() {
        let ram = restored(2 << 20);
        let seam = 18 * PIECE_BYTES;
        assert!(ram.write(PhysicalAddress(seam - 1), &[7, 8]));
        let bytes: Vec<u8> = (seam - 2..seam + 2).map(|at| byte(&ram, at)).collect();
        assert_eq!(bytes, [3, 7, 8, 4]);
        assert!(ram.saved_page(seam >> 12).is_none());
    }

    #[test]
    fn memory_that_is_given_back_is_zero_and_the_rest_of_its_piece_is_not() {
        let ram = restored(2 << 20);
        let start = 17 * PIECE_BYTES;
        ram.discard(start + 4096, PIECE_BYTES).unwrap();
        let bytes = [
            start,
            start + 4096,
            start + PIECE_BYTES,
            start + PIECE_BYTES + 4096,
        ];
        assert_eq!(bytes.map(|at| byte(&ram, at)), [3, 0, 0, 4]);
        ram.clear().unwrap();
        assert_eq!(bytes.map(|at| byte(&ram, at)), [0; 4]);
    }

    #[test]
    fn pages_that_were_written_since_are_found_with_what_they_contained() {
        let ram = restored(2 << 20);
        let differences = |ram: &GuestRam| {
            let mut found = Vec::new();
            let differs =
                |address: PhysicalAddress, before: &[u8; 4096]| found.push((address.0, before[9]));
            assert!(ram.compare_with_saved(differs).unwrap());
            found
        };
        assert_eq!(differences(&ram), []);
        let saved = 17 * PIECE_BYTES + 4096;
        let zero = 25 * PIECE_BYTES;
        // The contents of the other pages of the piece, which is copied, stay the same.
        assert!(ram.write(PhysicalAddress(saved + 1), &[1]));
        assert!(ram.write(PhysicalAddress(zero), &[1]));
        assert_eq!(differences(&ram), [(saved, 3), (zero, 0)]);
        assert!(ram.write(PhysicalAddress(saved + 1), &[3]));
        assert_eq!(differences(&ram), [(zero, 0)]);
        let mut never = |_: PhysicalAddress, _: &[u8; 4096]| panic!("it was not restored");
        let other = GuestRam::new(2 << 20).unwrap();
        assert!(!other.compare_with_saved(&mut never).unwrap());
    }

    #[test]
    fn memory_above_4_gib_is_copied_to_its_own_place() {
        let mut ram = GuestRam::new((3 << 30) + (1 << 20)).unwrap();
        let run = SavedRun {
            address: HIGH_RAM_START + PIECE_BYTES,
            bytes: PIECE_BYTES,
            file_offset: 0,
        };
        ram.map_saved(file(1), &[run]).unwrap();
        let address = HIGH_RAM_START + PIECE_BYTES;
        assert_eq!(byte(&ram, address), 1);
        assert!(ram.write(PhysicalAddress(address), &[5]));
        assert_eq!((byte(&ram, address), byte(&ram, address + 1)), (5, 1));
    }

    #[test]
    fn ranges_that_are_no_ram_or_not_in_the_file_are_refused() {
        let good = SavedRun {
            address: 16 * PIECE_BYTES,
            bytes: PIECE_BYTES,
            file_offset: 0,
        };
        let bad = [
            SavedRun { bytes: 0, ..good },
            SavedRun {
                bytes: 4096,
                ..good
            },
            SavedRun {
                address: 16 * PIECE_BYTES + 4096,
                ..good
            },
            SavedRun {
                address: 32 * PIECE_BYTES,
                ..good
            },
            // The display adapter's window.
            SavedRun {
                address: 10 * PIECE_BYTES,
                ..good
            },
            SavedRun {
                file_offset: PIECE_BYTES,
                ..good
            },
            SavedRun {
                file_offset: u64::MAX - PIECE_BYTES + 1,
                ..good
            },
            SavedRun {
                bytes: u64::MAX - PIECE_BYTES + 1,
                ..good
            },
        ];
        for run in bad {
            let mut ram = GuestRam::new(2 << 20).unwrap();
            assert!(ram.map_saved(file(1), &[run]).is_err(), "{run:?}");
        }
        let mut ram = GuestRam::new(2 << 20).unwrap();
        assert!(ram.map_saved(file(1), &[good, good]).is_err());
    }
}
