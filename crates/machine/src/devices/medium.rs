//! The disk image in a drive: its thread, and the path of its completions to the device on the bus.
//!
//! The device sends operations with tags of its own. The thread executes them in order and calls
//! the device's `complete`, which takes the outcomes. The thread touches no guest memory except the
//! buffers of an operation, by the host's system calls. Media may come and go while the machine
//! runs.

use crate::bus::completion::Completer;
use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use tollgate_disk::{
    Buffer, DiskError, DiskThread, DriveOptions, Image, Operation, Outcome, Request,
};

/// The unit of all positions, in bytes.
pub const SECTOR: u64 = 512;

/// A medium in a drive.
pub struct Medium {
    thread: DiskThread,
    /// The thread reports here that an operation is done, once the device is on the bus.
    way: Arc<Mutex<Option<Completer>>>,
    bytes: u64,
    is_writable: bool,
    /// The tag of the next request.
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
    /// Makes the medium of an open image. `name` appears in lines on standard error about failures
    /// of the host.
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
            // The machine may have ended; the thread still finishes the operations that it has.
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

    /// Opens an image and makes its medium.
    ///
    /// # Errors
    /// The image cannot be used.
    pub fn open(name: String, options: &DriveOptions) -> Result<Self, DiskError> {
        Self::open_after(name, options, |_| ())
    }

    /// Like [`Medium::open`], after `look` has inspected the image.
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

    /// Sets the completer that outcomes are reported through from now on.
    pub fn connect(&mut self, completer: Completer) {
        let mut way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        *way = Some(completer);
    }

    /// Returns the size of the image in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of whole sectors of the image.
    pub const fn sectors(&self) -> u64 {
        self.bytes / SECTOR
    }

    /// Whether the image can be written.
    pub const fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Returns a buffer of this size, with arbitrary contents, for data to be written.
    pub fn buffer(&self, bytes: usize) -> Buffer {
        self.thread.buffer(bytes)
    }

    /// Starts an operation and returns the tag of its outcome, which is unique for this medium.
    pub fn send(&mut self, operation: Operation) -> u64 {
        let tag = self.next_tag;
        self.next_tag = tag.wrapping_add(1);
        self.thread.send(Request { tag, operation });
        tag
    }

    /// Writes to the image's file what is kept of it in memory. No operation may be unfinished. An
    /// error is found again at the next flush, which the guest asks for.
    pub fn flush(&self) {
        let tag = self.next_tag;
        let operation = Operation::Flush;
        self.thread.send(Request { tag, operation });
        self.thread.wait();
        drop(self.thread.take());
    }

    /// Gives the image another size in bytes. No operation may be unfinished.
    ///
    /// # Errors
    /// One line: the image cannot have this size.
    pub fn resize(&mut self, bytes: u64) -> Result<(), String> {
        let (answer, result) = channel();
        self.send(Operation::Resize { bytes, answer });
        self.thread.wait();
        drop(self.thread.take());
        let result = result.try_recv();
        self.bytes = result.map_err(|_| "the image's thread has ended")??;
        Ok(())
    }

    /// Takes the finished operations, oldest first.
    pub fn take(&self) -> VecDeque<Outcome> {
        self.thread.take()
    }

    /// Waits until all operations are done. Their outcomes must still be taken.
    pub fn wait(&self) {
        self.thread.wait();
    }

    /// Whether there is an operation whose outcome was not taken.
    pub fn has_pending_work(&self) -> bool {
        self.thread.has_pending_work()
    }
}
