//! A directory of the host, as the file system device (5.11) with two queues, which carry FUSE
//! requests, or as the 9P transport (device type 9) with one, which carries 9P messages.
//!
//! A request is copied out when the driver makes it available. If its answer is in the host's
//! memory, it is copied in immediately. Otherwise a thread of the share answers it, and the answer
//! is copied in after the thread has reported that it is done. So only the vCPU's thread touches
//! guest memory. Answers come in any order. There is no memory window that both sides share (DAX).

use super::chain::Chain;
use super::device::{Queues, VirtioDevice};
use super::device_type;
use super::queue::QueueError;
use crate::bus::completion::Completer;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tollgate_share::{
    NineServer, Request, RequestCounts, RequestSizes, SavedSession, Server, Service, ShareError,
    ShareOptions, ShareProtocol, ShareThreads,
};

/// The number of descriptors of the queue of urgent requests, by which the guest reports the inodes
/// that it forgets, and of the queue of all others. The driver's largest request is a little
/// smaller than the latter.
const QUEUE_SIZES: [u16; 2] = [128, 512];
/// If unfinished requests and answers have this many bytes, no more are taken for now.
const BUSY_BYTES: usize = 64 << 20;
/// The number of descriptors of the only queue of the 9P transport. Linux limits its messages to 125
/// pages, whatever the size of the queue is.
const NINE_P_QUEUE_SIZES: [u16; 1] = [128];
/// The feature of the 9P transport that its configuration has the tag (`VIRTIO_9P_MOUNT_TAG`).
const MOUNT_TAG: u64 = 1;
/// The maximum number of requests, of those that the driver has made available together, that are
/// answered immediately. A driver with many requests must not occupy the vCPU's thread for long.
const MOST_AT_ONCE: usize = 16;

/// An unfinished request.
struct Pending {
    queue: usize,
    chain: Chain,
    /// The number of bytes that the request takes on the host.
    bytes: usize,
}

/// A shared directory.
pub struct Share {
    name: String,
    protocol: ShareProtocol,
    sizes: RequestSizes,
    config: Vec<u8>,
    threads: ShareThreads,
    counts: Arc<RequestCounts>,
    /// The threads report here that a request is done, once the device is on the bus.
    completer: Arc<Mutex<Option<Completer>>>,
    pending: HashMap<u64, Pending>,
    /// The tag of the next request. Tags are unique, even across resets.
    next_tag: u64,
    pending_bytes: usize,
}

/// Returns the configuration of a file system device: the tag, and the number of request queues.
fn file_system_config(tag: &str) -> Vec<u8> {
    let mut config = tag.as_bytes().to_vec();
    config.resize(ShareOptions::MAX_TAG_BYTES, 0);
    config.extend(1u32.to_le_bytes());
    config
}

/// Returns the configuration of a 9P transport: the length of the tag, and the tag.
fn nine_p_config(tag: &str) -> Vec<u8> {
    let length = tag.len() as u16;
    [&length.to_le_bytes(), tag.as_bytes()].concat()
}

/// Opens the directory for the protocol of its options.
fn server(options: &ShareOptions) -> Result<Arc<dyn Service>, ShareError> {
    Ok(match options.protocol {
        ShareProtocol::VirtioFs => Arc::new(Server::open(options)?),
        ShareProtocol::NineP => Arc::new(NineServer::open(options)?),
    })
}

impl Share {
    /// Opens a directory and makes the device by which the guest mounts it.
    ///
    /// # Errors
    /// The directory cannot be shared, or the host starts no thread.
    pub fn open(options: &ShareOptions) -> Result<Self, ShareError> {
        let (tag, server) = (&options.tag, server(options)?);
        let completer: Arc<Mutex<Option<Completer>>> = Arc::default();
        let way = Arc::clone(&completer);
        let done = move || {
            let completer = way.lock().unwrap_or_else(PoisonError::into_inner).clone();
            // The machine may have ended; the threads still finish the requests that they have.
            let _ = completer.map(|completer| completer.send(0));
        };
        let (word, config, sizes) = match options.protocol {
            ShareProtocol::VirtioFs => ("virtio-fs", file_system_config(tag), RequestSizes::FUSE),
            ShareProtocol::NineP => ("virtio-9p", nine_p_config(tag), RequestSizes::NINE_P),
        };
        let threads = ShareThreads::start(server, done).map_err(|error| ShareError {
            path: options.path.clone(),
            why: format!("no threads for it: {error}"),
        })?;
        Ok(Self {
            name: format!("{word} ({tag})"),
            protocol: options.protocol,
            sizes,
            config,
            threads,
            counts: Arc::default(),
            completer,
            pending: HashMap::new(),
            next_tag: 0,
            pending_bytes: 0,
        })
    }

    /// Takes requests as long as there is room for their data.
    fn take_requests(&mut self, queue: usize, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        let mut at_once = MOST_AT_ONCE;
        while self.pending_bytes < BUSY_BYTES {
            let Some(chain) = queues.pop(queue)? else {
                return Ok(());
            };
            let is_done = self.begin(queue, chain, at_once > 0, queues)?;
            at_once -= usize::from(is_done);
        }
        Ok(())
    }

    /// Starts a request. Returns whether it was answered immediately.
    fn begin(
        &mut self,
        queue: usize,
        chain: Chain,
        may_answer: bool,
        queues: &mut Queues<'_>,
    ) -> Result<bool, QueueError> {
        let length = usize::try_from(chain.readable_bytes()).unwrap_or(usize::MAX);
        if !(self.sizes.least..=self.sizes.most).contains(&length) {
            return Err(QueueError::Request);
        }
        let mut bytes = vec![0; length];
        if !chain.copy_out(queues.memory(), 0, &mut bytes) {
            return Err(QueueError::NoMemory);
        }
        self.counts.count(self.threads.counted_as(&bytes));
        let room = usize::try_from(chain.writable_bytes()).unwrap_or(usize::MAX);
        let capacity = room.min(self.sizes.most);
        let reply = match may_answer {
            true => self.threads.answer_at_once(&bytes, capacity),
            false => None,
        };
        if let Some(reply) = reply {
            self.counts.count_at_once();
            finish(queue, &chain, &reply, queues)?;
            return Ok(true);
        }
        let tag = self.next_tag;
        self.next_tag = tag.wrapping_add(1);
        let pending = Pending {
            queue,
            chain,
            bytes: length + capacity,
        };
        self.pending_bytes += pending.bytes;
        self.pending.insert(tag, pending);
        self.threads.send(Request {
            tag,
            bytes,
            capacity,
        });
        Ok(false)
    }

    fn end(&mut self, tag: u64, reply: &[u8], queues: &mut Queues<'_>) -> Result<(), QueueError> {
        // A request from before a reset has been forgotten.
        let Some(pending) = self.pending.remove(&tag) else {
            return Ok(());
        };
        self.pending_bytes -= pending.bytes;
        finish(pending.queue, &pending.chain, reply, queues)
    }
}

/// Returns a request to the driver with its answer.
fn finish(
    queue: usize,
    chain: &Chain,
    reply: &[u8],
    queues: &mut Queues<'_>,
) -> Result<(), QueueError> {
    if !chain.copy_in(queues.memory(), 0, reply) {
        return Err(QueueError::NoMemory);
    }
    queues.push(queue, chain, reply.len() as u32)
}

impl VirtioDevice for Share {
    fn name(&self) -> &str {
        &self.name
    }

    fn device_type(&self) -> u16 {
        match self.protocol {
            ShareProtocol::VirtioFs => device_type::FILE_SYSTEM,
            ShareProtocol::NineP => device_type::NINE_P,
        }
    }

    fn features(&self) -> u64 {
        match self.protocol {
            ShareProtocol::VirtioFs => 0,
            ShareProtocol::NineP => MOUNT_TAG,
        }
    }

    fn queue_sizes(&self) -> &[u16] {
        match self.protocol {
            ShareProtocol::VirtioFs => &QUEUE_SIZES,
            ShareProtocol::NineP => &NINE_P_QUEUE_SIZES,
        }
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn notify(&mut self, queue: usize, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        self.take_requests(queue, queues)
    }

    fn connect(&mut self, completer: Completer) {
        let mut way = self
            .completer
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *way = Some(completer);
    }

    fn complete(&mut self, _token: u64, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        let was_busy = self.pending_bytes >= BUSY_BYTES;
        let mut result = Ok(());
        for outcome in self.threads.take() {
            result = result.and(self.end(outcome.tag, &outcome.reply, queues));
        }
        result?;
        // The driver sends notifications for requests that it has added since.
        if was_busy {
            for queue in 0..self.queue_sizes().len() {
                self.take_requests(queue, queues)?;
            }
        }
        Ok(())
    }

    fn has_pending_work(&self) -> bool {
        self.threads.has_pending_work()
    }

    fn share_requests(&self) -> Option<Arc<RequestCounts>> {
        Some(Arc::clone(&self.counts))
    }

    /// The files that the guest has open are descriptors of this process.
    fn cannot_be_saved(&self) -> Option<String> {
        (self.threads.is_mounted() && self.threads.saved_session().is_none())
            .then(|| format!("has mounted '{}' and must unmount it first", self.name))
    }

    fn save(&self) -> Value {
        let session = self
            .threads
            .is_mounted()
            .then(|| self.threads.saved_session());
        serde_json::to_value(session.flatten()).unwrap_or_default()
    }

    fn restore(&mut self, saved: &Value) -> bool {
        match Option::<SavedSession>::deserialize(saved) {
            Ok(None) => true,
            Ok(Some(session)) => self.threads.resume(&session),
            Err(_) => false,
        }
    }

    fn reset(&mut self) {
        self.pending.clear();
        self.pending_bytes = 0;
        self.threads.reset();
    }
}
