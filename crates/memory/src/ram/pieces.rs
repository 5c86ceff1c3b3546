//! The contents of RAM in pieces, as a snapshot takes them.

use super::GuestRam;
use super::saved::{PIECE_BYTES, PIECE_PAGES, PageSpan};
use crate::layout::HIGH_RAM_START;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use tollgate_x86::address::PAGE_SIZE;

impl GuestRam {
    /// The address of the first piece from `address` on that may have contents other than zero;
    /// `None` if there is none.
    pub(crate) fn next_piece(&self, address: u64) -> Option<u64> {
        let low = self.layout.low_bytes();
        let mut at = address / PIECE_BYTES * PIECE_BYTES;
        loop {
            if (low..HIGH_RAM_START).contains(&at) {
                at = HIGH_RAM_START;
            }
            if at >= self.layout.span() {
                return None;
            }
            if self.saved.left_of(at / PIECE_BYTES) != 0 {
                return Some(at);
            }
            let (base, end) = match at >= HIGH_RAM_START {
                true => (HIGH_RAM_START - low, self.layout.span()),
                false => (0, low),
            };
            let data = next_data(&self.file, at - base).map(|offset| offset + base);
            let data = data.filter(|&data| data < end);
            let data = data.map(|data| data / PIECE_BYTES * PIECE_BYTES);
            // Pieces in between may be in a snapshot's file.
            let saved = (at / PIECE_BYTES..data.unwrap_or(end) / PIECE_BYTES)
                .find(|piece| self.saved.left_of(*piece) != 0);
            match saved.map(|piece| piece * PIECE_BYTES).or(data) {
                Some(found) => return Some(found.max(at)),
                None => at = end.next_multiple_of(PIECE_BYTES),
            }
        }
    }

    /// Reads RAM at a multiple of [`PIECE_BYTES`], also where a region hides it: a whole piece, or
    /// less at the end of RAM. The rest of `bytes` is zero afterwards.
    ///
    /// # Errors
    ///
    /// There is no RAM, or the host's error.
    pub(crate) fn read_piece(
        &self,
        address: u64,
        bytes: &mut [u8; PIECE_BYTES as usize],
    ) -> io::Result<()> {
        let end = match address < self.layout.low_bytes() {
            true => self.layout.low_bytes(),
            false => self.layout.span(),
        };
        let length = end.saturating_sub(address).min(PIECE_BYTES);
        let offset = self.file_offset(address, length).filter(|_| length != 0);
        let offset = offset.ok_or(io::ErrorKind::InvalidInput)?;
        let (contents, rest) = bytes.split_at_mut(length as usize);
        rest.fill(0);
        File::from(self.file.try_clone()?).read_exact_at(contents, offset)?;
        // Pages that are still in a snapshot's file have no contents in the machine's own.
        let first = address / PAGE_SIZE;
        let end = first + PIECE_PAGES;
        for span in self.saved.spans_left(PageSpan { first, end }) {
            let Some((file, offset)) = self.saved_page(span.first) else {
                continue;
            };
            let place = |page: u64| ((page - first) * PAGE_SIZE) as usize;
            let part = &mut bytes[place(span.first)..place(span.end)];
            File::from(file.try_clone()?).read_exact_at(part, offset)?;
        }
        Ok(())
    }
}

/// The offset of the first byte from `offset` on that a file of the host's memory holds; `None` if
/// the rest of the file is a hole.
pub(super) fn next_data(file: &OwnedFd, offset: u64) -> Option<u64> {
    // SAFETY: a plain system call on our descriptor, whose position nothing else uses.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset as libc::off_t, libc::SEEK_DATA) };
    u64::try_from(found).ok()
}

#[cfg(test)]
mod tests {
    use super::super::saved::tests::restored;
    use super::*;
    use tollgate_x86::PhysicalAddress;

    const PIECE: usize = PIECE_BYTES as usize;

    #[test]
    fn all_pieces_with_contents_are_found() {
        let ram = restored(2 << 20);
        assert!(ram.write(PhysicalAddress(18 * PIECE_BYTES), &[1]));
        assert!(ram.write(PhysicalAddress(29 * PIECE_BYTES + 70), &[1]));
        let next = |address: &u64| ram.next_piece(address + PIECE_BYTES);
        let found = std::iter::successors(ram.next_piece(0), next);
        let numbers: Vec<u64> = found.map(|address| address / PIECE_BYTES).collect();
        assert_eq!(numbers, [17, 18, 29]);
        let mut bytes = [0; PIECE];
        ram.read_piece(17 * PIECE_BYTES, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 3));
        ram.read_piece(18 * PIECE_BYTES, &mut bytes).unwrap();
        assert_eq!(bytes[0], 1);
        assert!(bytes[1..].iter().all(|&byte| byte == 4));
        ram.read_piece(29 * PIECE_BYTES, &mut bytes).unwrap();
        assert_eq!((bytes[69], bytes[70]), (0, 1));
        assert!(ram.read_piece(32 * PIECE_BYTES, &mut bytes).is_err());
    }

    #[test]
    fn pieces_above_4_gib_and_a_short_last_one_are_found() {
        let ram = GuestRam::new((3 << 30) + PIECE_BYTES + 4096).unwrap();
        assert_eq!(ram.next_piece(0), None);
        let last = HIGH_RAM_START + PIECE_BYTES;
        assert!(ram.write(PhysicalAddress(last + 4095), &[7]));
        assert_eq!(ram.next_piece(last), Some(last));
        assert_eq!(ram.next_piece(last + PIECE_BYTES), None);
        let mut bytes = [9; PIECE];
        ram.read_piece(last, &mut bytes).unwrap();
        assert_eq!((bytes[4094], bytes[4095], bytes[4096]), (0, 7, 0));
    }
}
