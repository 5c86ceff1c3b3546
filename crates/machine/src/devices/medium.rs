//! A disk image behind a drive: its thread, and the way its completions take to the device on
//! the bus.
//!
//! The device sends operations with tags of its own; the thread does them in order and has
//! the device's `complete` called, which takes the outcomes. The thread touches no guest memory but what
//! an operation brings with it, by the host's system calls. Media may come and go while the machine runs.

use crate::bus::completion::Completer;
use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use tollgate_disk::{
    Buffer, DiskError, DiskThread, DriveOptions, Image, Operation, Outcome, Request,
};

/// The unit of all positions.
pub const SECTOR: u64 = 512;

/// A medium in a drive.
pub struct Medium {
    thread: DiskThread,
    /// Where the thread says that something is done, once the device is on the bus.
    way: Arc<Mutex<Option<Completer>>>,
    bytes: u64,
    is_writable: bool,
    /// Requests from this tag on were sent to this medium: none that an earlier one did.
    next_tag: u64,
}

impl fmt::Debug for Medium {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Medium")
            .field("bytes", &self.bytes)
            .field("is_writable", &self.is_writable)
            .finish_non_exhaustive()
    }
}

impl Medium {
    /// The medium of an open image. `name`: as in lines on standard error about a host that fails.
    ///
    /// # Errors
    /// The host starts no thread.
    pub fn start(name: String, image: Image) -> std::io::Result<Self> {
        let (bytes, is_writable) = (image.size(), image.is_writable());
        let way: Arc<Mutex<Option<Completer>>> = Arc::default();
        let done_way = Arc::clone(&way);
        let done = move || {
            let lock = done_way.lock();
            let completer = lock.unwrap_or_else(PoisonError::into_inner).clone();
            // The machine may have ended; the thread goes on with what it was given.
            let _ = completer.map(|completer| completer.send(0));
        };
        let report = move |line| {
            let _ = writeln!(std::io::stderr(), "tollgate: {name}: {line}");
        };
        Ok(Self {
            thread: DiskThread::start(image, done, report)?,
            way,
            bytes,
            is_writable,
            next_tag: 0,
        })
    }

    /// The medium of an image that is still to be opened.
    ///
    /// # Errors
    /// The image cannot be used.
    pub fn open(name: String, options: &DriveOptions) -> Result<Self, DiskError> {
        Self::open_after(name, options, |_| ())
    }

    /// The same, after `look` has looked at the image.
    ///
    /// # Errors
    /// The image cannot be used.
    pub fn open_after(
        name: String,
        options: &DriveOptions,
        look: impl FnOnce(&Image),
    ) -> Result<Self, DiskError> {
        let image = tollgate_disk::open(options)?;
        look(&image);
        Self::start(name, image).map_err(|error| DiskError {
            path: options.path.clone(),
            why: format!("no thread for it: {error}"),
        })
    }

    /// Outcomes are told of through this from now on.
    pub fn connect(&mut self, completer: Completer) {
        let mut way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        *way = Some(completer);
    }

    /// Bytes of the image.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whole sectors of the image.
    pub const fn sectors(&self) -> u64 {
        self.bytes / SECTOR
    }

    /// Whether the image can be written.
    pub const fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// A buffer of so many bytes, which hold anything, for what is to be written.
    pub fn buffer(&self, bytes: usize) -> Buffer {
        self.thread.buffer(bytes)
    }

    /// Has something done; returns the tag of its outcome, which no other of this medium has.
    pub fn send(&mut self, operation: Operation) -> u64 {
        let tag = self.next_tag;
        self.next_tag = tag.wrapping_add(1);
        self.thread.send(Request { tag, operation });
        tag
    }

    /// Takes what is done, oldest first.
    pub fn take(&self) -> VecDeque<Outcome> {
        self.thread.take()
    }

    /// Waits until all that was sent is done. The outcomes are still to be taken.
    pub fn wait(&self) {
        self.thread.wait();
    }

    /// Whether something was sent whose outcome was not taken.
    pub fn has_pending_work(&self) -> bool {
        self.thread.has_pending_work()
    }
}
