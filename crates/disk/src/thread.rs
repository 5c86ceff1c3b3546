//! The thread of an image, which executes requests one after the other, in order.

use crate::buffers::{Buffer, Buffers};
use crate::image::Image;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tollgate_confine::ThreadKind;

/// Memory of the caller for a request's data, which is accessed without a copy.
pub trait Elsewhere: Send + Debug {
    /// Returns the memory to write to the disk, in order.
    fn slices(&self) -> Vec<IoSlice<'_>>;

    /// Returns the memory to fill from the disk, in order.
    fn slices_to_fill(&mut self) -> Vec<IoSliceMut<'_>>;
}

/// What a request does. Offsets and lengths are in bytes.
#[derive(Debug)]
pub enum Operation {
    /// Read bytes.
    Read {
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        bytes: usize,
    },
    /// Write bytes.
    Write {
        /// The offset of the first byte.
        offset: u64,
        /// The bytes to write.
        data: Buffer,
        /// Whether a flush follows.
        through: bool,
    },
    /// Read bytes to the caller's memory. The outcome contains no data.
    ReadTo {
        /// The offset of the first byte.
        offset: u64,
        /// The memory, which also gives the number of bytes.
        memory: Box<dyn Elsewhere>,
    },
    /// Write bytes from the caller's memory.
    WriteFrom {
        /// The offset of the first byte.
        offset: u64,
        /// The memory, which also gives the number of bytes.
        memory: Box<dyn Elsewhere>,
        /// Whether a flush follows.
        through: bool,
    },
    /// Make all earlier writes reach stable storage.
    Flush,
    /// Discard bytes that are no longer needed.
    Discard {
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// Write zeros.
    WriteZeroes {
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
        /// Whether the host may take the storage back.
        unmap: bool,
    },
    /// Give the disk another size.
    Resize {
        /// The new number of bytes.
        bytes: u64,
        /// Receives the new size, or one line that says why there is none.
        answer: Sender<Result<u64, String>>,
    },
}

impl Operation {
    const fn name(&self) -> &'static str {
        match self {
            Self::Read { .. } | Self::ReadTo { .. } => "reading",
            Self::Write { .. } | Self::WriteFrom { .. } => "writing",
            Self::Flush => "flushing",
            Self::Discard { .. } => "discarding",
            Self::WriteZeroes { .. } => "writing zeros",
            Self::Resize { .. } => "resizing",
        }
    }
}

/// An operation, with the number that identifies its outcome.
#[derive(Debug)]
pub struct Request {
    /// The caller's number.
    pub tag: u64,
    /// What to do.
    pub operation: Operation,
}

/// A finished request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The request's number.
    pub tag: u64,
    /// The bytes that were read. An error has already been reported to the user.
    pub result: Result<Buffer, ()>,
}

/// The data that thread and owner share.
#[derive(Default)]
struct Shared {
    outcomes: Mutex<VecDeque<Outcome>>,
    /// Signalled when there is another outcome and the owner waits.
    done: Condvar,
    /// Whether the owner waits. It changes only while `outcomes` is locked.
    waits: AtomicBool,
    /// The number of requests that were sent and whose outcome was not taken.
    pending: AtomicUsize,
}

/// An image with a thread that executes requests on it. Dropping it waits until all requests are
/// done and the image is closed.
pub struct DiskThread {
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    buffers: Buffers,
}

impl DiskThread {
    /// Starts the thread. It calls `done` when outcomes wait that no earlier call has reported. It
    /// calls `report` with a line for the user when the host fails, once for each kind of
    /// operation. Both are called on the thread.
    ///
    /// # Errors
    /// The host starts no thread.
    pub fn start(
        image: Image,
        done: impl FnMut() + Send + 'static,
        report: impl FnMut(String) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, receiver) = channel();
        let shared = Arc::new(Shared::default());
        let buffers = Buffers::default();
        let mut worker = Worker {
            image,
            buffers: buffers.clone(),
            shared: Arc::clone(&shared),
            done: Box::new(done),
            report: Box::new(report),
            reported: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("disk".into())
            .spawn(move || {
                tollgate_confine::enter(ThreadKind::Disk);
                worker.work(&receiver);
                worker.close();
            })?;
        Ok(Self {
            requests: Some(sender),
            thread: Some(thread),
            shared,
            buffers,
        })
    }

    /// Returns a buffer of this size, with arbitrary contents, for data to write.
    pub fn buffer(&self, bytes: usize) -> Buffer {
        self.buffers.take(bytes)
    }

    /// Sends a request to the thread. Never waits.
    pub fn send(&self, request: Request) {
        self.shared.pending.fetch_add(1, Ordering::Relaxed);
        if let Some(requests) = &self.requests
            && let Err(refused) = requests.send(request)
        {
            // The thread has ended, which can only happen by a panic.
            let tag = refused.0.tag;
            let outcome = Outcome {
                tag,
                result: Err(()),
            };
            self.shared.queue().push_back(outcome);
        }
    }

    /// Takes the finished requests, oldest first.
    pub fn take(&self) -> VecDeque<Outcome> {
        let taken = std::mem::take(&mut *self.shared.queue());
        self.shared
            .pending
            .fetch_sub(taken.len(), Ordering::Relaxed);
        taken
    }

    /// Waits until all requests are done. Their outcomes must still be taken.
    pub fn wait(&self) {
        /// How often the loop checks whether the thread still runs.
        const PATIENCE: Duration = Duration::from_millis(100);
        let mut outcomes = self.shared.queue();
        self.shared.waits.store(true, Ordering::Relaxed);
        while outcomes.len() < self.shared.pending.load(Ordering::Relaxed)
            && !self.thread.as_ref().is_none_or(JoinHandle::is_finished)
        {
            let waited = self.shared.done.wait_timeout(outcomes, PATIENCE);
            outcomes = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.shared.waits.store(false, Ordering::Relaxed);
    }

    /// Whether requests were sent whose outcomes were not taken.
    pub fn has_pending_work(&self) -> bool {
        self.shared.pending.load(Ordering::Relaxed) != 0
    }
}

impl Shared {
    fn queue(&self) -> std::sync::MutexGuard<'_, VecDeque<Outcome>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DiskThread {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    image: Image,
    buffers: Buffers,
    shared: Arc<Shared>,
    done: Box<dyn FnMut() + Send>,
    report: Box<dyn FnMut(String) + Send>,
    /// The operations whose failure was reported.
    reported: Vec<&'static str>,
}

impl Worker {
    fn work(&mut self, requests: &Receiver<Request>) {
        while let Ok(request) = requests.recv() {
            let name = request.operation.name();
            let result = self.perform(request.operation);
            let result = result.map_err(|error| self.complain(name, &error));
            let outcome = Outcome {
                tag: request.tag,
                result,
            };
            let mut outcomes = self.shared.queue();
            let is_first = outcomes.is_empty();
            outcomes.push_back(outcome);
            // A notification is a system call even if no thread waits.
            if self.shared.waits.load(Ordering::Relaxed) {
                self.shared.done.notify_one();
            }
            drop(outcomes);
            if is_first {
                (self.done)();
            }
        }
    }

    fn perform(&mut self, operation: Operation) -> io::Result<Buffer> {
        let image = &mut self.image;
        match operation {
            Operation::Read { offset, bytes } => {
                let mut data = self.buffers.take(bytes);
                image.read(offset, &mut data)?;
                return Ok(data);
            }
            Operation::Write {
                offset,
                data,
                through,
            } => {
                image.write(offset, &data)?;
                if through {
                    image.flush()?;
                }
            }
            Operation::ReadTo { offset, mut memory } => {
                image.read_into(offset, memory.slices_to_fill())?;
            }
            Operation::WriteFrom {
                offset,
                memory,
                through,
            } => {
                image.write_from(offset, memory.slices())?;
                if through {
                    image.flush()?;
                }
            }
            Operation::Flush => image.flush()?,
            Operation::Discard { offset, bytes } => image.discard(offset, bytes)?,
            Operation::WriteZeroes {
                offset,
                bytes,
                unmap,
            } => image.write_zeroes(offset, bytes, unmap)?,
            Operation::Resize { bytes, answer } => {
                let resized = image.resize(bytes).map_err(|error| error.to_string());
                // The sender of the request waits for it.
                let _ = answer.send(resized);
            }
        }
        Ok(Vec::new().into())
    }

    fn complain(&mut self, name: &'static str, error: &io::Error) {
        if !self.reported.contains(&name) {
            self.reported.push(name);
            (self.report)(format!(
                "{name} fails: {error}; the guest gets an I/O error (reported once)"
            ));
        }
    }

    fn close(self) {
        let Self {
            image, mut report, ..
        } = self;
        if let Err(error) = image.close() {
            report(format!("closing fails: {error}; the image may lack writes"));
        }
    }
}
