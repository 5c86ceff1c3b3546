//! A JSON list in a file that is valid whenever the process may be killed.
//!
//! A process that is killed in a long write leaves a part of it: the kernel looks for the signal
//! between two pages. So no write here goes beyond a page, and after each the file is whole. All
//! room is taken at the start, as spaces, which JSON ignores:
//!
//! ```text
//! page 0       [ beginning of the list                   spaces ]
//! page 1       [ ,{event} ,{event} ,{event}              spaces ]   written again with each batch
//! page 2       [                                         spaces ]   not reached yet
//! last         [ end of the list ]
//! ```
//!
//! An entry never lies in two pages. At the end the pages that were not reached are cut out: in
//! one step where the file system can (ext4, XFS). Elsewhere the list is ended earlier and the
//! file then made shorter; only between these two steps there is text behind the list's end.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};

/// What is written at once at most: a page of the host.
pub const PAGE: usize = 4096;
/// Bytes of the end, filled up with spaces.
const END: usize = 256;
/// Spaces that are written at once while nobody relies on the file.
const FILL: usize = 1 << 20;

/// What pages are written to.
pub trait Store {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Takes the bytes from `from` to `to` out; what follows moves down.
    ///
    /// # Errors
    /// The file system cannot.
    fn cut_out(&mut self, from: u64, to: u64) -> io::Result<()>;
    /// Cuts the file to this length.
    fn cut(&mut self, length: u64) -> io::Result<()>;
}

impl Store for File {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn cut_out(&mut self, from: u64, to: u64) -> io::Result<()> {
        fallocate(&*self, FallocateFlags::COLLAPSE_RANGE, from, to - from)?;
        Ok(())
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

/// The file.
pub struct Pages<F> {
    store: F,
    /// The page in work, and what it holds.
    current: u64,
    text: String,
    /// The page of the list's end.
    last: u64,
}

impl<F: Store> Pages<F> {
    /// Takes all room, of at most `limit` bytes, and writes `beginning` and `end`, between which
    /// the list's entries come.
    ///
    /// # Errors
    /// There is no such room.
    pub fn new(mut store: F, limit: u64, beginning: &str, end: &str) -> io::Result<Self> {
        let head = beginning.len().div_ceil(PAGE).max(1);
        let last = (limit.saturating_sub(END as u64) / PAGE as u64).max(head as u64 + 1);
        let length = last * PAGE as u64;
        let spaces = vec![b' '; FILL];
        let mut filled = 0;
        while filled < length {
            let piece = (length - filled).min(FILL as u64);
            store.write_at(&spaces[..piece as usize], filled)?;
            filled += piece;
        }
        store.write_at(beginning.as_bytes(), 0)?;
        let mut pages = Self {
            store,
            current: head as u64,
            text: String::with_capacity(PAGE),
            last,
        };
        pages.write_end(end)?;
        Ok(pages)
    }

    /// Adds an entry of at most a page; false if there is no room for it. It is in the file after
    /// [`Self::flush`].
    pub fn push(&mut self, entry: &str) -> io::Result<bool> {
        if self.text.len() + entry.len() > PAGE {
            if self.current + 1 == self.last || entry.len() > PAGE {
                return Ok(false);
            }
            self.write_current()?;
            self.current += 1;
            self.text.clear();
        }
        self.text.push_str(entry);
        Ok(true)
    }

    /// Writes what was added, then what the list's end says now.
    pub fn flush(&mut self, end: &str) -> io::Result<()> {
        self.write_current()?;
        self.write_end(end)
    }

    /// Cuts the file to what it holds.
    pub fn finish(&mut self, end: &str) -> io::Result<()> {
        self.flush(end)?;
        let (used, whole) = (self.current + 1, self.last);
        let at = |page: u64| page * PAGE as u64;
        if used < whole && self.store.cut_out(at(used), at(whole)).is_err() {
            self.last = used;
            self.write_end(end)?;
        }
        self.store.cut(at(used) + END as u64)
    }

    fn write_current(&mut self) -> io::Result<()> {
        let mut page = [b' '; PAGE];
        page[..self.text.len()].copy_from_slice(self.text.as_bytes());
        self.store.write_at(&page, self.current * PAGE as u64)
    }

    fn write_end(&mut self, end: &str) -> io::Result<()> {
        debug_assert!(end.len() < END);
        let text = format!("{end:<width$}\n", width = END - 1);
        self.store
            .write_at(text.as_bytes(), self.last * PAGE as u64)
    }

    /// What was written to.
    #[cfg(test)]
    pub fn store(&self) -> &F {
        &self.store
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A file that has to hold valid JSON after each write from its beginning on.
    #[derive(Default)]
    pub struct Checked {
        pub content: Vec<u8>,
        pub room: Option<usize>,
        can_cut_out: bool,
        pub writes: usize,
        began: bool,
    }

    impl Checked {
        fn check(&mut self) {
            self.writes += 1;
            let value = serde_json::from_slice::<serde_json::Value>(&self.content);
            self.began |= value.is_ok();
            assert!(!self.began || value.is_ok(), "write {}", self.writes);
        }
    }

    impl Store for Checked {
        fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
            let (start, end) = (offset as usize, offset as usize + bytes.len());
            if self.room.is_some_and(|room| end > room) {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            // A write within a page is done as a whole.
            assert!(!self.began || start / PAGE == (end - 1) / PAGE);
            self.content.resize(self.content.len().max(end), 0);
            self.content[start..end].copy_from_slice(bytes);
            if self.can_cut_out {
                self.check();
            }
            Ok(())
        }

        fn cut_out(&mut self, from: u64, to: u64) -> io::Result<()> {
            if !self.can_cut_out {
                return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
            }
            self.content.drain(from as usize..to as usize);
            self.check();
            Ok(())
        }

        fn cut(&mut self, length: u64) -> io::Result<()> {
            self.content.truncate(length as usize);
            self.check();
            Ok(())
        }
    }

    #[test]
    fn the_file_is_valid_after_each_write() {
        let store = Checked {
            can_cut_out: true,
            ..Checked::default()
        };
        let mut pages = Pages::new(store, 64 << 10, "[0", "]").unwrap();
        assert!(pages.store().began);
        for number in 1..1000 {
            assert!(pages.push(&format!(",\n\"{number:030}\"")).unwrap());
            if number % 7 == 0 {
                pages.flush("]").unwrap();
            }
        }
        pages.finish("]").unwrap();
        let list: Vec<serde_json::Value> = serde_json::from_slice(&pages.store().content).unwrap();
        assert_eq!(list.len(), 1000);
        assert!(pages.store().writes > 150);
    }

    #[test]
    fn what_was_not_reached_is_cut_on_any_file_system() {
        for can_cut_out in [false, true] {
            let store = Checked {
                can_cut_out,
                ..Checked::default()
            };
            let mut pages = Pages::new(store, 1 << 20, "[0", "]").unwrap();
            assert!(pages.push(",1").unwrap());
            pages.finish("]").unwrap();
            let content = &pages.store().content;
            assert_eq!(content.len(), 2 * PAGE + END);
            let list: Vec<u32> = serde_json::from_slice(content).unwrap();
            assert_eq!(list, [0, 1]);
        }
    }

    #[test]
    fn a_file_that_is_full_takes_no_more() {
        let mut pages = Pages::new(Checked::default(), 0, "[0", "]").unwrap();
        let entry = format!(",\"{}\"", "x".repeat(1000));
        let taken = (0..10).filter(|_| pages.push(&entry).unwrap()).count();
        assert_eq!(taken, 4);
        pages.finish("]").unwrap();
        let list: Vec<serde_json::Value> = serde_json::from_slice(&pages.store().content).unwrap();
        assert_eq!(list.len(), 5);
    }
}
