//! The position in an open directory, and the entries that were read from the host ahead of it.

use crate::answer::Answer;
use crate::limits::CountedFd;
use rustix::fs::{FileType, RawDir, SeekFrom};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::CString;

/// The size in bytes of an entry before its name.
const ENTRY_BYTES: usize = 24;

/// The number of bytes of entries that are read from the host together.
const CHUNK: usize = 16 << 10;

/// The maximum number of entries of a short directory.
const SHORT: usize = 128;

/// An entry as the host returns it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    /// The position of the next entry.
    pub(crate) next: u64,
    pub(crate) kind: u32,
    pub(crate) name: CString,
}

impl Entry {
    pub(crate) fn is_dot(&self) -> bool {
        matches!(self.name.as_bytes(), b"." | b"..")
    }

    pub(crate) fn bytes(&self) -> usize {
        (ENTRY_BYTES + self.name.as_bytes().len()).next_multiple_of(8)
    }
}

/// The position in an open directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// Entries that were read from the host but not sent to the guest.
    pub(crate) waiting: VecDeque<Entry>,
    /// The position of the first of these entries, or if there is none, the position where reading
    /// continues.
    pub(crate) position: u64,
    /// Whether the host had no more entries after these.
    pub(crate) has_ended: bool,
}

impl Listing {
    /// Moves to a position in the directory.
    pub(crate) fn seek(&mut self, fd: &CountedFd, offset: u64) -> Answer {
        // From the start, the directory is read again.
        if offset == self.position && offset != 0 {
            return Ok(());
        }
        self.waiting.clear();
        self.has_ended = false;
        i64::try_from(offset).map_err(|_| Errno::INVAL)?;
        rustix::fs::seek(fd, SeekFrom::Start(offset))?;
        self.position = offset;
        Ok(())
    }

    /// Reads more entries if none is waiting.
    pub(crate) fn fill(&mut self, fd: &CountedFd) -> Answer {
        if !self.waiting.is_empty() {
            return Ok(());
        }
        let mut buffer = Vec::with_capacity(CHUNK);
        let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
        loop {
            let Some(entry) = entries.next() else {
                self.has_ended = true;
                return Ok(());
            };
            let entry = entry?;
            self.waiting.push_back(Entry {
                number: entry.ino(),
                next: entry.next_entry_cookie(),
                kind: directory_type(entry.file_type()),
                name: entry.file_name().to_owned(),
            });
            // A short directory is read to its end, so that the end is known.
            if entries.is_buffer_empty() && self.waiting.len() >= SHORT {
                return Ok(());
            }
        }
    }

    pub(crate) fn take(&mut self) -> Option<Entry> {
        let entry = self.waiting.pop_front()?;
        self.position = entry.next;
        Some(entry)
    }
}

/// Returns the type of a file in an entry: the upper bits of its mode.
fn directory_type(kind: FileType) -> u32 {
    kind.as_raw_mode() >> 12
}
