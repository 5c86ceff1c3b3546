//! A JSON list in a file that is valid whenever the process is killed.
//!
//! If a process is killed in a long write, only a part of it is written, because the kernel checks
//! for the signal between two pages. So no write here goes beyond a page, and after each write the
//! file is complete. All space is reserved at the start, filled with blanks, which JSON ignores:
//!
//!
//! ```text
//! page 0       [ beginning of the list                   spaces ]
//! page 1 ...   [ ,{name} ,{name}                         spaces ]   kept in a ring, too
//! page 17      [ ,{event} ,{event} ,{event}              spaces ]   written again with each batch
//! page 18      [                                         spaces ]   not reached yet
//! last         [ end of the list ]
//! ```
//!
//! An entry never crosses a page. In a ring, the oldest page is overwritten once all are full. At
//! the end the unused pages are cut out, in one step where the file system supports that (ext4,
//! XFS). Elsewhere the list's end is first written earlier, and then the file is made shorter; only
//! between these two steps does text follow the list's end.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};

/// The maximum size of one write: a page of the host.
pub const PAGE: usize = 4096;
/// The size of the list's end in bytes, filled with spaces.
const END: usize = 256;
/// The maximum number of pages for names; there is at least one.
const NAME_PAGES: u64 = 16;
/// The number of spaces that are written in one call at the start, when no reader relies on the
/// file.
const FILL: usize = 1 << 20;

/// The file that pages are written to.
pub trait Store {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Removes the bytes from `from` to `to`, so that the following ones move down.
    ///
    /// # Errors
    ///
    /// The file system does not support this.
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

/// The list in its file.
pub struct Pages<F> {
    store: F,
    /// The pages for names that are not full, and the content of the first of them.
    names: Range<u64>,
    names_text: String,
    /// The first page of entries.
    first: u64,
    /// The page that entries are added to, and its content.
    current: u64,
    text: String,
    is_ring: bool,
    /// Whether all pages are in use.
    is_full: bool,
    /// The page with the list's end.
    last: u64,
}

impl<F: Store> Pages<F> {
    /// Reserves all space, at most `limit` bytes, and writes `beginning` and `end`; the list's
    /// entries go between them.
    ///
    /// # Errors
    ///
    /// The file system has not enough space.
    pub fn new(
        mut store: F,
        limit: u64,
        is_ring: bool,
        beginning: &str,
        end: &str,
    ) -> io::Result<Self> {
        let head = (beginning.len().div_ceil(PAGE) as u64).max(1);
        let pages = limit.saturating_sub(END as u64) / PAGE as u64;
        let first = head + (pages / 8).clamp(1, NAME_PAGES);
        let last = pages.max(first + 1);
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
            names: head..first,
            names_text: String::with_capacity(PAGE),
            first,
            current: first,
            text: String::with_capacity(PAGE),
            is_ring,
            is_full: false,
            last,
        };
        pages.write_end(end)?;
        Ok(pages)
    }

    /// Adds an entry of at most a page; returns false if there is no room for it. The entry is in
    /// the file after [`Self::flush`].
    pub fn push(&mut self, entry: &str) -> io::Result<bool> {
        if self.text.len() + entry.len() > PAGE {
            let is_last = self.current + 1 == self.last;
            if is_last && !self.is_ring || entry.len() > PAGE {
                return Ok(false);
            }
            self.write_current()?;
            self.is_full |= is_last;
            self.current = if is_last {
                self.first
            } else {
                self.current + 1
            };
            self.text.clear();
        }
        self.text.push_str(entry);
        Ok(true)
    }

    /// Adds an entry that no ring overwrites; returns false if there is no room for it.
    pub fn push_name(&mut self, entry: &str) -> io::Result<bool> {
        if self.names_text.len() + entry.len() > PAGE {
            self.names.next();
            self.names_text.clear();
        }
        if self.names.is_empty() || entry.len() > PAGE {
            return Ok(false);
        }
        self.names_text.push_str(entry);
        write_page(&mut self.store, self.names.start, &self.names_text)?;
        Ok(true)
    }

    /// Writes the added entries, then `end` as the list's end.
    pub fn flush(&mut self, end: &str) -> io::Result<()> {
        self.write_current()?;
        self.write_end(end)
    }

    /// Cuts the file to its used length.
    pub fn finish(&mut self, end: &str) -> io::Result<()> {
        self.flush(end)?;
        if self.is_full {
            return Ok(());
        }
        let (used, whole) = (self.current + 1, self.last);
        let at = |page: u64| page * PAGE as u64;
        if used < whole && self.store.cut_out(at(used), at(whole)).is_err() {
            self.last = used;
            self.write_end(end)?;
        }
        self.store.cut(at(used) + END as u64)
    }

    fn write_current(&mut self) -> io::Result<()> {
        write_page(&mut self.store, self.current, &self.text)
    }

    fn write_end(&mut self, end: &str) -> io::Result<()> {
        debug_assert!(end.len() < END);
        let text = format!("{end:<width$}\n", width = END - 1);
        self.store
            .write_at(text.as_bytes(), self.last * PAGE as u64)
    }

    /// The file that was written.
    #[cfg(test)]
    pub fn store(&self) -> &F {
        &self.store
    }
}

/// Writes a page, filled with spaces.
fn write_page(store: &mut impl Store, number: u64, text: &str) -> io::Result<()> {
    let mut page = [b' '; PAGE];
    page[..text.len()].copy_from_slice(text.as_bytes());
    store.write_at(&page, number * PAGE as u64)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A file that checks that it holds valid JSON after each write, from its beginning on.
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
            // A write within a page is either done or not done.
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
        let mut pages = Pages::new(store, 64 << 10, false, "[0", "]").unwrap();
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
            let mut pages = Pages::new(store, 1 << 20, false, "[0", "]").unwrap();
            assert!(pages.push(",1").unwrap());
            pages.finish("]").unwrap();
            let content = &pages.store().content;
            assert_eq!(content.len(), 18 * PAGE + END);
            let list: Vec<u32> = serde_json::from_slice(content).unwrap();
            assert_eq!(list, [0, 1]);
        }
    }

    #[test]
    fn a_ring_keeps_what_came_last_and_all_names() {
        let store = Checked {
            can_cut_out: true,
            ..Checked::default()
        };
        let mut pages = Pages::new(store, 64 << 10, true, "[0", "]").unwrap();
        for number in 1..=4000 {
            if number % 1000 == 0 {
                assert!(pages.push_name(&format!(",\"name {number}\"")).unwrap());
            }
            assert!(pages.push(&format!(",\n{number:>30}")).unwrap());
        }
        pages.finish("]").unwrap();
        let list: Vec<serde_json::Value> = serde_json::from_slice(&pages.store().content).unwrap();
        let numbers: Vec<u64> = list.iter().filter_map(|it| it.as_u64()).collect();
        assert_eq!(list.len() - numbers.len(), 4, "names");
        let mut events = numbers[1..].to_vec();
        events.sort_unstable();
        assert_eq!(events.last(), Some(&4000));
        let count = events.len() as u64;
        assert!((1000..2000).contains(&count), "{count}");
        // The last events are there without a gap.
        assert!(events.windows(2).all(|pair| pair[1] == pair[0] + 1));
    }

    #[test]
    fn names_beyond_their_pages_are_left_out() {
        let mut pages = Pages::new(Checked::default(), 64 << 10, false, "[0", "]").unwrap();
        let name = format!(",\"{}\"", "n".repeat(1000));
        let taken = (0..20).filter(|_| pages.push_name(&name).unwrap()).count();
        assert_eq!(taken, 4);
        pages.finish("]").unwrap();
        let list: Vec<serde_json::Value> = serde_json::from_slice(&pages.store().content).unwrap();
        assert_eq!(list.len(), 5);
    }

    #[test]
    fn a_file_that_is_full_takes_no_more() {
        let mut pages = Pages::new(Checked::default(), 0, false, "[0", "]").unwrap();
        let entry = format!(",\"{}\"", "x".repeat(1000));
        let taken = (0..10).filter(|_| pages.push(&entry).unwrap()).count();
        assert_eq!(taken, 4);
        pages.finish("]").unwrap();
        let list: Vec<serde_json::Value> = serde_json::from_slice(&pages.store().content).unwrap();
        assert_eq!(list.len(), 5);
    }
}
