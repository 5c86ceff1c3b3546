//! Files of a read-only share that are read without being opened.
//!
//! A program that starts opens some hundred files that were opened before, and whose contents are
//! in the guest's page cache. OPEN and RELEASE of each are two requests that the guest waits for,
//! and nothing else would be requested of the host. A kernel that gets ENOSYS for OPEN sends
//! neither any more, and its READ identifies the file by its number, with no handle.
//!
//! Such a file is opened here when it is first read; the last few stay open. The same is done for
//! directories, which the kernel then reads from a page cache of their own: OPENDIR and RELEASEDIR.

use crate::handles::Handle;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of files that stay open.
const MOST: usize = 16;

/// The files that were read last, the latest first.
#[derive(Debug, Default)]
pub struct Unopened(Mutex<VecDeque<Arc<Handle>>>);

impl Unopened {
    fn files(&self) -> MutexGuard<'_, VecDeque<Arc<Handle>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the file with this number if it is open, and otherwise opens it by `open`.
    ///
    /// # Errors
    /// The error of `open`.
    pub fn get(
        &self,
        number: u64,
        open: impl FnOnce() -> Result<Handle, Errno>,
    ) -> Result<Arc<Handle>, Errno> {
        let mut files = self.files();
        if let Some(file) = take(&mut files, number) {
            files.push_front(Arc::clone(&file));
            return Ok(file);
        }
        drop(files);
        let file = Arc::new(open()?);
        let mut files = self.files();
        files.push_front(Arc::clone(&file));
        let closed = (files.len() > MOST).then(|| files.pop_back());
        // The file is closed without the lock.
        drop(files);
        drop(closed);
        Ok(file)
    }

    /// Returns the file with this number, if it is open here.
    pub fn find(&self, number: u64) -> Option<Arc<Handle>> {
        let files = self.files();
        files
            .iter()
            .find(|file| file.inode.number == number)
            .cloned()
    }

    /// Closes the file with this number, if it is open here.
    pub fn close(&self, number: u64) {
        let mut files = self.files();
        let closed = take(&mut files, number);
        drop(files);
        drop(closed);
    }

    /// Closes all files that are open here.
    pub fn close_all(&self) {
        let closed = std::mem::take(&mut *self.files());
        drop(closed);
    }
}

/// Removes the file with this number from the list and returns it, if it is there.
fn take(files: &mut VecDeque<Arc<Handle>>, number: u64) -> Option<Arc<Handle>> {
    let place = files.iter().position(|file| file.inode.number == number)?;
    files.remove(place)
}
