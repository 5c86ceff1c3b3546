//! RAM whose contents are still in the files of a snapshot.
//!
//! A restored machine copies nothing at its start. The pieces of RAM that the snapshot has are
//! mapped from its file, for loads only, so that all machines restored from one file share them in
//! the host's memory. The first store to a page, by the guest or by a device, copies the page and
//! its neighbours to the machine's own file ([`super::own_copies`]):
//!
//! ```text
//!                 before the first store            after it
//! flat mapping    | own |  saved  | own |           | own | saved own saved | own |
//! comes from      RAM's    the       RAM's          the host address is the same
//!                 file     snapshot  file
//! ```
//!
//! RAM that was zero is not in the file; it is the machine's own from the start. A snapshot that holds
//! only what differs from an earlier one consists of several files, each of which has some of the
//! pieces.

use super::{GUARD_BYTES, GuestRam};
use crate::huge_page::HUGE_PAGE;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tollgate_x86::address::PAGE_SIZE;

/// The size in bytes of the pieces in which a snapshot's file has RAM.
pub const PIECE_BYTES: u64 = 64 << 10;

/// Number of pages in a piece.
pub(super) const PIECE_PAGES: u64 = PIECE_BYTES / PAGE_SIZE;
const _: () = assert!(PIECE_PAGES == u16::BITS as u64, "a bit for each page");

/// The maximum number of files that the contents of RAM are mapped from.
pub const MOST_FILES: usize = 1 << Place::FILE_BITS;

/// A range of RAM with consecutive contents in a file of a snapshot. Addresses, sizes and offsets
/// are multiples of [`PIECE_BYTES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SavedRun {
    /// The physical address of the first byte.
    pub address: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// The number of the file.
    pub file: usize,
    /// The offset of the first byte in this file.
    pub file_offset: u64,
}

/// The place of a piece in the files of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place(u32);

impl Place {
    /// In no file: the piece was zero.
    const NONE: Self = Self(0);
    /// The lowest bits hold the number of the file. The others hold the offset in pieces plus one,
    /// so that no such place is [`Place::NONE`].
    const FILE_BITS: u32 = 3;

    /// Returns the place in a file of the snapshot, or `None` if there is no number for it.
    fn in_file(file: usize, offset: u64) -> Option<Self> {
        let piece = u32::try_from(offset / PIECE_BYTES + 1).ok()?;
        let is_small = file < MOST_FILES && piece <= u32::MAX >> Self::FILE_BITS;
        is_small.then_some(Self(piece << Self::FILE_BITS | file as u32))
    }

    /// Returns the file's number and the offset of the piece in it, or `None` if the piece is in no
    /// file.
    fn file(self) -> Option<(usize, u64)> {
        let piece = (self.0 >> Self::FILE_BITS).checked_sub(1)?;
        let file = self.0 as usize % MOST_FILES;
        Some((file, u64::from(piece) * PIECE_BYTES))
    }
}

/// The pages of RAM from `first` up to but not including `end`; addresses divided by 4096.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageSpan {
    /// The first page.
    pub first: u64,
    /// The page after the last one.
    pub end: u64,
}

impl PageSpan {
    /// The number of pages.
    pub(super) const fn pages(self) -> u64 {
        self.end - self.first
    }
}

/// Adds pages to a list, whose last span may be one that they continue.
pub(super) fn add_span(spans: &mut Vec<PageSpan>, span: PageSpan) {
    match spans.last_mut() {
        Some(last) if last.end == span.first => last.end = span.end,
        _ => spans.push(span),
    }
}

/// The file from which pages of RAM are mapped.
#[derive(Debug)]
pub struct PageSource<'a> {
    /// The file: the machine's own, or that of a snapshot, from which pages are mapped for loads
    /// only.
    pub file: BorrowedFd<'a>,
    /// The offset of the first page in the file.
    pub offset: u64,
    /// The number of pages that follow one another there.
    pub pages: u64,
}

/// Which pages of RAM are still in a snapshot's files, and where.
#[derive(Debug, Default)]
pub(super) struct SavedPieces {
    files: Vec<OwnedFd>,
    /// By number of the piece: its place when the machine was restored. Empty in a machine that was
    /// not.
    places: Box<[Place]>,
    /// By number of the piece: a bit for each page that is still in the file.
    left: Box<[Cell<u16>]>,
    /// How often pages were mapped from the machine's own file since the machine was restored.
    remapped: Cell<u64>,
    /// Pages that are no longer in the file, and for which [`GuestRam::take_moved`] has not been
    /// called yet.
    moved: RefCell<Vec<PageSpan>>,
    /// Whether `moved` is not empty.
    has_moved: Cell<bool>,
    /// The pages that were copied first, if they are recorded.
    pub(super) first_copied: RefCell<Option<Vec<PageSpan>>>,
}

impl SavedPieces {
    /// Whether a physical page is still in the snapshot's file.
    #[inline]
    pub(super) fn has(&self, physical_page: u64) -> bool {
        self.left_of(physical_page / PIECE_PAGES) & 1 << (physical_page % PIECE_PAGES) != 0
    }

    /// The pages of a piece that are still in the snapshot's file: a bit for each.
    #[inline]
    pub(super) fn left_of(&self, piece: u64) -> u16 {
        self.left.get(piece as usize).map_or(0, Cell::get)
    }

    /// The file, and the offset in it, that has the contents that a piece had when the machine was
    /// restored; `None` if it was zero.
    pub(super) fn place_of(&self, piece: u64) -> Option<(&OwnedFd, u64)> {
        let (file, offset) = self.places.get(piece as usize)?.file()?;
        self.files.get(file).map(|file| (file, offset))
    }

    /// The number of pieces that RAM has room for; 0 in a machine that was not restored.
    pub(super) fn pieces(&self) -> u64 {
        self.places.len() as u64
    }

    /// Whether any part of a huge page is still in the snapshot's file.
    pub(super) fn is_in_huge_page(&self, address: u64) -> bool {
        self.is_in_use() && {
            let first = address / HUGE_PAGE * (HUGE_PAGE / PIECE_BYTES);
            (first..first + HUGE_PAGE / PIECE_BYTES).any(|piece| self.left_of(piece) != 0)
        }
    }

    /// Whether any piece may still be in a snapshot's file.
    #[inline]
    pub(super) fn is_in_use(&self) -> bool {
        !self.places.is_empty()
    }

    /// The pages of a span that are still in the snapshot's file.
    pub(super) fn spans_left(&self, span: PageSpan) -> Vec<PageSpan> {
        let mut spans = Vec::new();
        let end = span.end.min(self.pieces() * PIECE_PAGES);
        let mut page = span.first;
        while page < end {
            if self.left_of(page / PIECE_PAGES) == 0 {
                page = (page / PIECE_PAGES + 1) * PIECE_PAGES;
                continue;
            }
            if self.has(page) {
                let next = page + 1;
                let (first, end) = (page, next);
                add_span(&mut spans, PageSpan { first, end });
            }
            page += 1;
        }
        spans
    }

    /// How often pages were mapped from the machine's own file since the machine was restored.
    pub(super) fn remapped(&self) -> u64 {
        self.remapped.get()
    }

    /// Notes that pages are mapped from the machine's own file now.
    pub(super) fn note_own(&self, span: PageSpan) {
        for page in span.first..span.end {
            if let Some(left) = self.left.get((page / PIECE_PAGES) as usize) {
                left.set(left.get() & !(1 << (page % PIECE_PAGES)));
            }
        }
        self.remapped.set(self.remapped.get() + 1);
        add_span(&mut self.moved.borrow_mut(), span);
        self.has_moved.set(true);
    }
}

impl GuestRam {
    /// Maps ranges of RAM from the files of a snapshot. No region may lie over them, and nothing may
    /// have been written there or derived from there.
    ///
    /// # Errors
    ///
    /// A range is not RAM, is not in its file, or is no multiple of [`PIECE_BYTES`]; or the host
    /// refuses to map it. The contents of RAM are then undefined.
    pub(crate) fn map_saved(&mut self, files: Vec<File>, runs: &[SavedRun]) -> io::Result<()> {
        let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        let sizes = files.iter().map(|file| Ok(file.metadata()?.len()));
        let sizes = sizes.collect::<io::Result<Vec<u64>>>()?;
        let files: Vec<OwnedFd> = files.into_iter().map(OwnedFd::from).collect();
        let pieces = self.layout.span().div_ceil(PIECE_BYTES);
        let mut places = vec![Place::NONE; pieces as usize];
        for run in runs {
            let numbers = [run.address, run.bytes, run.file_offset];
            if run.bytes == 0
                || numbers
                    .iter()
                    .any(|number| !number.is_multiple_of(PIECE_BYTES))
            {
                return refused("a range of memory is not made of whole pieces");
            }
            let (Some(file), Some(&file_bytes)) = (files.get(run.file), sizes.get(run.file)) else {
                return refused("a range of memory is in a file that the snapshot does not have");
            };
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
                let offset = run.file_offset + number * PIECE_BYTES;
                let Some(place) = Place::in_file(run.file, offset) else {
                    return refused("a range of memory lies too far back in its file");
                };
                let piece = &mut places[(first + number) as usize];
                if std::mem::replace(piece, place) != Place::NONE {
                    return refused("two ranges of memory overlap");
                }
            }
            self.reservation.map_for_loads(
                (GUARD_BYTES + run.address) as usize,
                run.bytes as usize,
                file,
                run.file_offset,
            )?;
        }
        let left = places.iter().map(|&place| match place {
            Place::NONE => Cell::new(0),
            _ => Cell::new(u16::MAX),
        });
        self.saved = SavedPieces {
            files,
            left: left.collect(),
            places: places.into_boxed_slice(),
            ..SavedPieces::default()
        };
        self.huge_pages.wait_for_use(self.layout.span());
        Ok(())
    }

    /// The file of a snapshot from which a physical page is still mapped, with the offset of the
    /// page in it.
    pub(super) fn saved_page(&self, physical_page: u64) -> Option<(&OwnedFd, u64)> {
        if !self.saved.has(physical_page) {
            return None;
        }
        let (file, piece) = self.saved.place_of(physical_page / PIECE_PAGES)?;
        let offset = piece + physical_page % PIECE_PAGES * PAGE_SIZE;
        Some((file, offset))
    }

    /// The file of a snapshot, and the offset in it, from which all of the piece at a physical
    /// address is still mapped.
    pub fn saved_piece(&self, address: u64) -> Option<(&OwnedFd, u64)> {
        let piece = address / PIECE_BYTES;
        let is_whole = self.saved.left_of(piece) == u16::MAX;
        self.saved.place_of(piece).filter(|_| is_whole)
    }

    /// The file from which `count` pages from `first` on are mapped, or from which the first ones
    /// of them are. All of them must be RAM that no region hides. `None` if the first one is not.
    pub fn source(&self, first: u64, count: u64) -> Option<PageSource<'_>> {
        if let Some((file, offset)) = self.saved_page(first) {
            let follows = |number: &u64| {
                let here = self.saved_page(first + number);
                here.is_some_and(|(other, at)| {
                    std::ptr::eq(other, file) && at == offset + number * PAGE_SIZE
                })
            };
            return Some(PageSource {
                file: file.as_fd(),
                offset,
                pages: 1 + (1..count).take_while(follows).count() as u64,
            });
        }
        let is_own = |number: &u64| !self.saved.has(first + number);
        let pages = match self.saved.is_in_use() {
            true => (0..count).take_while(is_own).count() as u64,
            false => count,
        };
        Some(PageSource {
            file: self.fd(),
            offset: self.file_offset(first * PAGE_SIZE, pages * PAGE_SIZE)?,
            pages,
        })
    }

    /// Whether pages have moved from a snapshot's file to the machine's own since the last
    /// [`GuestRam::take_moved`].
    #[inline]
    pub(crate) fn has_moved(&self) -> bool {
        self.saved.has_moved.get()
    }

    /// Takes the list of the pages that have moved from a snapshot's file to the machine's own.
    pub(crate) fn take_moved(&self) -> Vec<PageSpan> {
        self.saved.has_moved.set(false);
        self.saved.moved.take()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::MemoryBacking;
    use super::*;
    use crate::layout::HIGH_RAM_START;
    use crate::map::PageUse;
    use std::io::Write;
    use tollgate_x86::PhysicalAddress;

    const PIECE: usize = PIECE_BYTES as usize;

    /// A file whose piece `n` consists of the byte `n + 1`, and RAM whose pieces 17 and 18 are
    /// pieces 2 and 3 of that file.
    pub(in crate::ram) fn restored(bytes: u64) -> GuestRam {
        let mut ram = GuestRam::new(bytes).unwrap();
        let run = SavedRun {
            address: 17 * PIECE_BYTES,
            bytes: 2 * PIECE_BYTES,
            file: 0,
            file_offset: 2 * PIECE_BYTES,
        };
        ram.map_saved(vec![file(4)], &[run]).unwrap();
        ram
    }

    pub(in crate::ram) fn file(pieces: u8) -> File {
        let mut file = File::from(MemoryBacking::Anonymous.create(0).unwrap());
        for piece in 0..pieces {
            file.write_all(&[piece + 1; PIECE]).unwrap();
        }
        file
    }

    pub(in crate::ram) fn byte(ram: &GuestRam, address: u64) -> u8 {
        let mut byte = [0];
        assert!(ram.read(PhysicalAddress(address), &mut byte));
        byte[0]
    }

    #[test]
    fn a_store_copies_its_group_and_no_other() {
        let ram = restored(2 << 20);
        let (first, second) = (17 * PIECE_BYTES, 18 * PIECE_BYTES);
        let near = first + 4 * PAGE_SIZE;
        assert_eq!((byte(&ram, first), byte(&ram, second)), (3, 4));
        assert_eq!(byte(&ram, first - 1), 0);
        assert_eq!(ram.page_use(first >> 12), PageUse::Saved);
        let host = ram.host_page(first >> 12);
        assert!(ram.write(PhysicalAddress(first + 5), &[9]));
        assert_eq!(ram.page_use(first >> 12), PageUse::Ram);
        assert_eq!(ram.page_use(near >> 12), PageUse::Saved);
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
        assert!(ram.saved_page((seam >> 12) - 1).is_none());
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
    fn every_place_has_a_number_of_its_own_and_none_is_that_of_a_zero_piece() {
        assert_eq!(Place::NONE.file(), None);
        let far = (u64::from(u32::MAX >> Place::FILE_BITS) - 1) * PIECE_BYTES;
        for place in [(0, 0), (7, 0), (0, PIECE_BYTES), (7, far)] {
            let number = Place::in_file(place.0, place.1).unwrap();
            assert_eq!(number.file(), Some(place));
        }
        assert_eq!(Place::in_file(MOST_FILES, 0), None);
        assert_eq!(Place::in_file(0, far + PIECE_BYTES), None);
    }

    #[test]
    fn a_piece_is_in_its_file_until_any_of_its_pages_is_written() {
        let ram = restored(2 << 20);
        let offset = |ram: &GuestRam, piece| Some(ram.saved_piece(piece * PIECE_BYTES)?.1);
        assert_eq!(offset(&ram, 18), Some(3 * PIECE_BYTES));
        assert!(ram.write(PhysicalAddress(19 * PIECE_BYTES - 1), &[1]));
        assert_eq!(
            [17, 18, 19].map(|it| offset(&ram, it).is_some()),
            [true, false, false]
        );
    }

    #[test]
    fn memory_above_4_gib_is_copied_to_its_own_place() {
        let mut ram = GuestRam::new((3 << 30) + (1 << 20)).unwrap();
        let run = SavedRun {
            address: HIGH_RAM_START + PIECE_BYTES,
            bytes: PIECE_BYTES,
            file: 0,
            file_offset: 0,
        };
        ram.map_saved(vec![file(1)], &[run]).unwrap();
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
            file: 0,
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
            SavedRun { file: 1, ..good },
            SavedRun {
                file: usize::MAX,
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
            assert!(ram.map_saved(vec![file(1)], &[run]).is_err(), "{run:?}");
        }
        let mut ram = GuestRam::new(2 << 20).unwrap();
        assert!(ram.map_saved(vec![file(1)], &[good, good]).is_err());
    }
}
