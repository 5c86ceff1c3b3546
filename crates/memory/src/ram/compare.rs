//! Finds the pages of a restored machine whose contents are not those of the snapshot any more.

use super::GuestRam;
use super::pieces::next_data;
use super::saved::{PIECE_BYTES, PIECE_PAGES};
use crate::layout::HIGH_RAM_START;
use std::io;
use std::os::fd::AsFd;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// The contents of a page.
type Page = [u8; PAGE_SIZE as usize];

/// A page of RAM that was never written.
static ZERO: Page = [0; PAGE_SIZE as usize];

impl GuestRam {
    /// Calls `differs` for each page of RAM whose contents are not those that it had when the
    /// machine was restored, with these contents. Returns false if the machine was not restored.
    ///
    /// # Errors
    ///
    /// The host's error, for a file that cannot be read.
    pub(crate) fn compare_with_saved(
        &self,
        mut differs: impl FnMut(PhysicalAddress, &Page),
    ) -> io::Result<bool> {
        if !self.saved.is_in_use() {
            return Ok(false);
        }
        let mut before = Box::new([0; PIECE_BYTES as usize]);
        for piece in 0..self.saved.pieces() {
            let left = self.saved.left_of(piece);
            let place = self.saved.place_of(piece);
            let Some((file, offset)) = place.filter(|_| left != u16::MAX) else {
                continue;
            };
            // Pages that are still in the file cannot differ: only those between the first and the
            // last of the others are read.
            let own = (
                left.trailing_ones() as usize,
                16 - left.leading_ones() as usize,
            );
            let pages = &mut before.as_chunks_mut::<{ PAGE_SIZE as usize }>().0[own.0..own.1];
            let start = offset + own.0 as u64 * PAGE_SIZE;
            read_exact(file, pages.as_flattened_mut(), start)?;
            let first = piece * PIECE_PAGES + own.0 as u64;
            for (page, before) in (first..).zip(pages) {
                if !self.saved.has(page) && self.has_other_contents(page, before) {
                    differs(PhysicalAddress(page * PAGE_SIZE), before);
                }
            }
        }
        self.find_written_zeroes(differs)?;
        Ok(true)
    }

    /// Calls `differs` for each page that was zero, and that has other contents now.
    fn find_written_zeroes(
        &self,
        mut differs: impl FnMut(PhysicalAddress, &Page),
    ) -> io::Result<()> {
        let low = self.layout.low_bytes();
        let mut next = 0;
        while let Some(data) = next_data(&self.file, next) {
            let hole = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Hole(data))?;
            next = hole.max(data + 1);
            for offset in (data / PAGE_SIZE * PAGE_SIZE..hole).step_by(PAGE_SIZE as usize) {
                let address = match offset < low {
                    true => offset,
                    false => offset - low + HIGH_RAM_START,
                };
                let was_zero = self.saved.place_of(address / PIECE_BYTES).is_none();
                if was_zero && self.has_other_contents(address / PAGE_SIZE, &ZERO) {
                    differs(PhysicalAddress(address), &ZERO);
                }
            }
        }
        Ok(())
    }

    /// Whether a page is RAM that no region hides, with contents other than these.
    fn has_other_contents(&self, page: u64, contents: &Page) -> bool {
        if !self.is_own_page(page) {
            return false;
        }
        let length = contents.len();
        // SAFETY: a page of RAM lies inside the mapping. The comparison reads it without a
        // reference to it.
        unsafe {
            let now = self.base.add((page * PAGE_SIZE) as usize);
            libc::memcmp(now.cast(), contents.as_ptr().cast(), length) != 0
        }
    }
}

/// Fills `bytes` from a file.
pub(super) fn read_exact(file: impl AsFd, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    let mut read = 0;
    while read < bytes.len() {
        match rustix::io::pread(&file, &mut bytes[read..], offset + read as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => read += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::SavedRun;
    use super::super::saved::tests::{byte, file, restored};
    use super::*;

    #[test]
    fn pages_that_were_written_since_are_found_with_what_they_contained() {
        let ram = restored(2 << 20);
        let differences = |ram: &GuestRam| {
            let mut found = Vec::new();
            let differs =
                |address: PhysicalAddress, before: &Page| found.push((address.0, before[9]));
            assert!(ram.compare_with_saved(differs).unwrap());
            found
        };
        assert_eq!(differences(&ram), []);
        let saved = 17 * PIECE_BYTES + 4096;
        let zero = 25 * PIECE_BYTES;
        // The contents of the other pages of the group, which is copied, stay the same.
        assert!(ram.write(PhysicalAddress(saved + 1), &[1]));
        assert!(ram.write(PhysicalAddress(zero), &[1]));
        assert_eq!(differences(&ram), [(saved, 3), (zero, 0)]);
        assert!(ram.write(PhysicalAddress(saved + 1), &[3]));
        assert_eq!(differences(&ram), [(zero, 0)]);
        let mut never = |_: PhysicalAddress, _: &Page| panic!("it was not restored");
        let other = GuestRam::new(2 << 20).unwrap();
        assert!(!other.compare_with_saved(&mut never).unwrap());
    }

    #[test]
    fn pieces_come_from_several_files_and_are_compared_with_them() {
        let mut ram = GuestRam::new(2 << 20).unwrap();
        let run = |address, file, piece| SavedRun {
            address: address * PIECE_BYTES,
            bytes: PIECE_BYTES,
            file,
            file_offset: piece * PIECE_BYTES,
        };
        let runs = [run(17, 0, 3), run(18, 1, 0), run(19, 0, 0)];
        ram.map_saved(vec![file(4), file(2)], &runs).unwrap();
        let first = |ram: &GuestRam| [17, 18, 19].map(|piece| byte(ram, piece * PIECE_BYTES));
        assert_eq!(first(&ram), [4, 1, 1]);
        for piece in [17, 18, 19] {
            assert!(ram.write(PhysicalAddress(piece * PIECE_BYTES), &[9]));
        }
        assert_eq!(first(&ram), [9, 9, 9]);
        assert_eq!(byte(&ram, 18 * PIECE_BYTES + 1), 1);
        let mut found = Vec::new();
        let differs = |address: PhysicalAddress, before: &Page| {
            found.push((address.0 / PIECE_BYTES, before[0]));
        };
        assert!(ram.compare_with_saved(differs).unwrap());
        assert_eq!(found, [(17, 4), (18, 1), (19, 1)]);
    }

    #[test]
    fn written_pages_above_4_gib_and_at_both_ends_of_a_piece_are_found() {
        let ram = restored((3 << 30) + (1 << 20));
        let written = [
            17 * PIECE_BYTES,
            18 * PIECE_BYTES - 1,
            19 * PIECE_BYTES - 1,
            HIGH_RAM_START + 4096,
        ];
        for address in written {
            assert!(ram.write(PhysicalAddress(address), &[7]));
        }
        let mut found = Vec::new();
        let differs = |address: PhysicalAddress, _: &Page| found.push(address.0);
        assert!(ram.compare_with_saved(differs).unwrap());
        let pages = written.map(|address| address / PAGE_SIZE * PAGE_SIZE);
        assert_eq!(found, pages);
    }
}
