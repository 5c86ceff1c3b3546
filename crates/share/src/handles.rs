//! The files and directories that the guest has opened, by number.

use crate::inodes::Inode;
use crate::limits::CountedFd;
use crate::listing::Listing;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The handle of a file that was not opened.
pub(crate) const UNOPENED: u64 = 0;

/// An open file.
#[derive(Debug)]
pub struct Handle {
    pub inode: Arc<Inode>,
    /// The descriptor. `None` is a directory in which the guest sees nothing.
    pub fd: Option<CountedFd>,
    /// For a directory, the position of reading.
    pub listing: Mutex<Listing>,
}

impl Handle {
    pub fn new(inode: Arc<Inode>, fd: Option<CountedFd>) -> Self {
        inode.handles.fetch_add(1, Ordering::Relaxed);
        Self {
            inode,
            fd,
            listing: Mutex::default(),
        }
    }

    /// Returns the descriptor.
    ///
    /// # Errors
    /// EBADF: there is none.
    pub fn fd(&self) -> Result<&CountedFd, Errno> {
        self.fd.as_ref().ok_or(Errno::BADF)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inode.handles.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Numbers {
    by_number: HashMap<u64, Arc<Handle>>,
    last: u64,
}

/// The table. Numbers are not used again.
#[derive(Debug, Default)]
pub struct Handles(Mutex<Numbers>);

impl Handles {
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a handle and returns its number.
    pub fn insert(&self, handle: Handle) -> u64 {
        let mut numbers = self.numbers();
        numbers.last += 1;
        let number = numbers.last;
        numbers.by_number.insert(number, Arc::new(handle));
        number
    }

    /// Returns the handle with a number.
    ///
    /// # Errors
    /// EBADF: there is none.
    pub fn get(&self, number: u64) -> Result<Arc<Handle>, Errno> {
        let numbers = self.numbers();
        numbers.by_number.get(&number).cloned().ok_or(Errno::BADF)
    }

    /// Whether the guest has no file open.
    pub fn is_empty(&self) -> bool {
        self.numbers().by_number.is_empty()
    }

    pub fn remove(&self, number: u64) {
        let removed = self.numbers().by_number.remove(&number);
        // The file is closed without the lock.
        drop(removed);
    }

    pub fn remove_all(&self) {
        let removed = std::mem::take(&mut self.numbers().by_number);
        drop(removed);
    }
}
