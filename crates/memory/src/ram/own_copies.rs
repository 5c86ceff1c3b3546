//! Makes pages whose contents are in a snapshot's file the machine's own.
//!
//! A store to one byte copies a group of pages: copying one page costs little compared with the
//! system calls and the fault that lead to it, and neighbours are often written next. Few pages in a
//! group keep a machine small that writes little. But each group that is copied can split a
//! mapping of the host in three, of which a process may have some 65,000 (vm.max_map_count), and
//! shadow windows need a part of them. So the groups become larger when many have been copied.
//!
//! ```text
//! groups copied so far    pages in a group
//! up to   4,096             4   (16 KiB)
//! up to   8,192            16   (64 KiB)
//! more                    512    (2 MiB)
//! ```

use super::saved::{PageSpan, SavedPieces, add_span};
use super::{GUARD_BYTES, GuestRam};
use crate::layout::HIGH_RAM_START;
use std::io;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// The number of pages that are copied together, by how many groups have been copied.
const GROUPS: [(u64, u64); 2] = [(4096, 4), (8192, 16)];
/// The number of pages that are copied together after these.
const LARGEST_GROUP: u64 = 512;
/// The most pages that are copied ahead, and that a record has: 16 MiB.
const MOST_AHEAD: u64 = 4096;

impl SavedPieces {
    /// The number of pages that are copied together now, a power of two.
    fn group(&self) -> u64 {
        let remapped = self.remapped();
        let group = GROUPS.iter().find(|(most, _)| remapped < *most);
        group.map_or(LARGEST_GROUP, |&(_, pages)| pages)
    }
}

impl GuestRam {
    /// Makes the pages `first..end`, and all of the groups that they lie in, the machine's own, with
    /// the contents that the snapshot has. Host addresses stay as they are; what else was mapped
    /// from the snapshot's file must be mapped again ([`GuestRam::take_moved`]).
    ///
    /// # Errors
    ///
    /// The host has no memory, or cannot read the file. Pages that could not be copied stay as they
    /// are.
    pub(crate) fn take_own(&self, first: u64, end: u64) -> io::Result<()> {
        if !self.saved.is_in_use() {
            return Ok(());
        }
        let group = self.saved.group();
        // Of groups without one of the named pages in the file nothing is copied.
        for named in self.saved.spans_left(PageSpan { first, end }) {
            let around = PageSpan {
                first: named.first / group * group,
                end: named.end.next_multiple_of(group),
            };
            for span in self.saved.spans_left(around) {
                self.copy_saved(span)?;
                self.record(span);
            }
        }
        Ok(())
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

    /// Copies pages that are expected to be written soon, at most [`MOST_AHEAD`]. Pages that are not
    /// in the snapshot's file are left alone, so that any list will do.
    ///
    /// # Errors
    ///
    /// See [`GuestRam::take_own`].
    pub(crate) fn copy_ahead(&self, spans: &[PageSpan]) -> io::Result<()> {
        let mut room = MOST_AHEAD;
        for &named in spans {
            for span in self.saved.spans_left(named) {
                let end = span.end.min(span.first + room);
                let span = PageSpan { end, ..span };
                if span.pages() == 0 {
                    return Ok(());
                }
                room -= span.pages();
                self.copy_saved(span)?;
            }
        }
        Ok(())
    }

    /// Starts to record which pages are copied from now on.
    pub(crate) fn record_copies(&self) {
        *self.saved.first_copied.borrow_mut() = Some(Vec::new());
    }

    /// The pages that were copied first since [`GuestRam::record_copies`], in ascending order.
    pub(crate) fn take_record(&self) -> Vec<PageSpan> {
        let mut spans = self.saved.first_copied.take().unwrap_or_default();
        spans.sort_unstable_by_key(|span| span.first);
        let mut joined = Vec::new();
        spans
            .into_iter()
            .for_each(|span| add_span(&mut joined, span));
        joined
    }

    fn record(&self, span: PageSpan) {
        let mut first_copied = self.saved.first_copied.borrow_mut();
        let Some(spans) = first_copied.as_mut() else {
            return;
        };
        let recorded: u64 = spans.iter().map(|span| span.pages()).sum();
        if recorded + span.pages() <= MOST_AHEAD {
            spans.push(span);
        }
    }

    /// Copies pages, all of which are in the snapshot's file, to RAM's own file, and maps them from
    /// there.
    fn copy_saved(&self, span: PageSpan) -> io::Result<()> {
        if self.is_secret() {
            self.fill_secret(span)?;
            return self.map_own(span);
        }
        let address = span.first * PAGE_SIZE;
        let bytes = (span.pages() * PAGE_SIZE) as usize;
        // SAFETY: the pages are mapped for loads from the snapshot's file, and stay so until this
        // function maps others. Only the kernel reads the slice; if the file has become shorter,
        // it reports an error.
        let contents =
            unsafe { std::slice::from_raw_parts(self.base.add(address as usize), bytes) };
        let offset = self.own_offset(address);
        let mut written = 0;
        while written < bytes {
            match rustix::io::pwrite(&self.file, &contents[written..], offset + written as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.map_own(span)
    }

    /// Maps pages from RAM's own file in place of the snapshot's.
    fn map_own(&self, span: PageSpan) -> io::Result<()> {
        let address = span.first * PAGE_SIZE;
        self.reservation.map(
            (GUARD_BYTES + address) as usize,
            (span.pages() * PAGE_SIZE) as usize,
            &self.file,
            self.own_offset(address),
        )?;
        self.saved.note_own(span);
        Ok(())
    }

    /// Forgets what is in the snapshot's file in the pages `first..end`, which become the machine's
    /// own, as if nothing had ever been written there. Groups of pages that lie in them only in part
    /// keep their contents.
    ///
    /// # Errors
    ///
    /// See [`GuestRam::take_own`].
    pub(super) fn forget_saved(&self, first: u64, end: u64) -> io::Result<()> {
        if !self.saved.is_in_use() {
            return Ok(());
        }
        let group = self.saved.group();
        let inner = PageSpan {
            first: first.next_multiple_of(group),
            end: end / group * group,
        };
        if inner.first >= inner.end {
            return self.take_own(first, end);
        }
        self.take_own(first, inner.first)?;
        self.take_own(inner.end, end)?;
        for span in self.saved.spans_left(inner) {
            self.map_own(span)?;
        }
        Ok(())
    }

    /// The offset of an address of RAM in the machine's own file.
    pub(super) fn own_offset(&self, address: u64) -> u64 {
        match address.checked_sub(HIGH_RAM_START) {
            Some(high) => high + self.layout.low_bytes(),
            None => address,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PIECE_BYTES;
    use super::super::saved::tests::{byte, restored};
    use super::*;

    /// The first page of [`restored`] RAM that is in the snapshot.
    const FIRST: u64 = 17 * PIECE_BYTES / PAGE_SIZE;

    fn span(first: u64, end: u64) -> PageSpan {
        PageSpan { first, end }
    }

    #[test]
    fn groups_grow_before_the_host_runs_out_of_mappings() {
        let ram = restored(2 << 20);
        let piece = FIRST..FIRST + 16;
        let left = |page| {
            ram.own(PhysicalAddress(page * PAGE_SIZE), 1);
            piece.clone().filter(|page| ram.saved.has(*page)).count()
        };
        assert_eq!(left(FIRST + 1), 12);
        for _ in 0..GROUPS[0].0 {
            ram.saved.note_own(span(0, 1));
        }
        assert_eq!(left(FIRST + 9), 0);
    }

    #[test]
    fn any_list_of_pages_can_be_copied_ahead() {
        let ram = restored(2 << 20);
        let list = [
            span(0, 7),
            span(u64::MAX - 3, u64::MAX),
            span(9, 3),
            span(FIRST + 2, FIRST + 5),
            span(FIRST + 3, FIRST + 4),
            span(FIRST + 30, u64::MAX),
        ];
        ram.copy_ahead(&list).unwrap();
        let left = ram.saved.spans_left(span(0, u64::MAX));
        assert_eq!(left, [span(FIRST, FIRST + 2), span(FIRST + 5, FIRST + 30)]);
        let bytes = [2, 4, 29, 30].map(|at| byte(&ram, (FIRST + at) * PAGE_SIZE));
        assert_eq!(bytes, [3, 3, 4, 4]);
        assert!(ram.write(PhysicalAddress((FIRST + 30) * PAGE_SIZE), &[9]));
        assert_eq!(byte(&ram, (FIRST + 30) * PAGE_SIZE), 9);
    }

    #[test]
    fn a_record_has_what_was_copied_and_no_more_than_will_be_copied_ahead() {
        let ram = restored(2 << 20);
        ram.own(PhysicalAddress(FIRST * PAGE_SIZE), 1);
        ram.record_copies();
        for page in [FIRST + 9, FIRST + 4, FIRST + 22] {
            ram.own(PhysicalAddress(page * PAGE_SIZE), 1);
        }
        let expected = [span(FIRST + 4, FIRST + 12), span(FIRST + 20, FIRST + 24)];
        assert_eq!(ram.take_record(), expected);
        assert_eq!(ram.take_record(), []);
        ram.record_copies();
        ram.record(span(0, MOST_AHEAD));
        ram.record(span(9000, 9001));
        assert_eq!(ram.take_record(), [span(0, MOST_AHEAD)]);
    }

    #[test]
    fn pages_that_moved_are_reported_once() {
        let ram = restored(2 << 20);
        assert!(!ram.has_moved());
        ram.own(PhysicalAddress((FIRST + 5) * PAGE_SIZE), 1);
        ram.own(PhysicalAddress((FIRST + 6) * PAGE_SIZE), 1);
        assert!(ram.has_moved());
        assert_eq!(ram.take_moved(), [span(FIRST + 4, FIRST + 8)]);
        assert!(!ram.has_moved());
        ram.discard(FIRST * PAGE_SIZE, PIECE_BYTES).unwrap();
        let rest = [span(FIRST, FIRST + 4), span(FIRST + 8, FIRST + 16)];
        assert_eq!(ram.take_moved(), rest);
    }

    #[test]
    fn a_page_names_the_file_that_has_it() {
        let ram = restored(2 << 20);
        ram.own(PhysicalAddress((FIRST + 4) * PAGE_SIZE), 1);
        let source = |first, count| {
            let source = ram.source(first, count).unwrap();
            (source.offset / PAGE_SIZE, source.pages)
        };
        // Piece 17 of RAM is piece 2 of the file.
        assert_eq!(source(FIRST, 32), (32, 4));
        assert_eq!(source(FIRST + 4, 28), (FIRST + 4, 4));
        assert_eq!(source(FIRST + 8, 100), (40, 24));
        assert_eq!(source(FIRST - 3, 9), (FIRST - 3, 3));
        assert!(ram.source(1 << 30, 1).is_none());
    }
}
