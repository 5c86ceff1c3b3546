//! Passes the commands of clients to a guest that is kept, and their streams back.
//!
//! ```text
//!   client's connection -> its reader -> input port of the guest
//!                       <- its writer <- queue <- one thread <- output port of the guest
//! ```
//!
//! A client that does not read holds up no other: of each stream only a window is on its way
//! (`tollgate_agent::protocol::kept`), and a guest that sends more is ended.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::rand::GetRandomFlags;
use tollgate_agent::credit::Credit;
use tollgate_agent::protocol::kept::{
    ALL, CREDIT, ERRORS, GONE, INPUT, MOST, OUTPUT, WINDOW, channel_frame, credit, decode_credit,
    split_channel,
};
use tollgate_agent::protocol::{
    ENTROPY, Frames, HEADER_BYTES, MAX_FRAME, TASK, TIME, ToGuest, ToHost, code, frame,
};
use tollgate_confine::ThreadKind;

use crate::host;

/// The most clients at one time.
const MOST_CLIENTS: usize = 256;
/// The most bytes that wait for one client: a window of both outputs, and messages.
const MOST_QUEUED: usize = 2 * WINDOW + 4 * MAX_FRAME;

/// The clients of one guest.
pub struct Broker(Arc<Shared>);

struct Shared {
    to_guest: Mutex<UnixStream>,
    channels: Mutex<HashMap<u32, Channel>>,
    last: AtomicU32,
    /// Whether the guest does not keep to the protocol.
    has_failed: AtomicBool,
    /// Raised when that changes.
    event: Arc<OwnedFd>,
}

/// The way to one client.
struct Channel {
    queue: Sender<Vec<u8>>,
    queued: Arc<AtomicUsize>,
    input: Arc<Credit>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread of the machine's process.
fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let entry = tollgate_confine::entry_of_child(ThreadKind::Main);
    thread::Builder::new().name(name.into()).spawn(move || {
        entry.enter();
        run();
    })?;
    Ok(())
}

impl Broker {
    /// Begins to listen to the guest. `event` is raised if it does not keep to the protocol.
    ///
    /// # Errors
    /// The host starts no thread.
    pub fn start(
        to_guest: UnixStream,
        from_guest: UnixStream,
        event: Arc<OwnedFd>,
    ) -> io::Result<Self> {
        // A guest that continues from a snapshot has used numbers before.
        let mut number = [0; 4];
        rustix::rand::getrandom(&mut number, GetRandomFlags::empty())?;
        let shared = Arc::new(Shared {
            to_guest: Mutex::new(to_guest),
            channels: Mutex::default(),
            last: AtomicU32::new(u32::from_le_bytes(number)),
            has_failed: AtomicBool::new(false),
            event,
        });
        let listener = Arc::clone(&shared);
        start("guest", move || listener.listen(from_guest))?;
        Ok(Self(shared))
    }

    /// Tells a guest that continues from a snapshot that its clients have gone, what time it is, and random
    /// bytes.
    pub fn begin_anew(&self, time_ns: u64, entropy: &[u8]) {
        self.0.tell(ALL, GONE, &[]);
        self.0.tell(ALL, TIME, &time_ns.to_le_bytes());
        self.0.tell(ALL, ENTROPY, entropy);
    }

    fn next_number(&self) -> u32 {
        loop {
            let number = self.0.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if number != ALL {
                return number;
            }
        }
    }

    /// Whether the guest does not keep to the protocol.
    pub fn has_failed(&self) -> bool {
        self.0.has_failed.load(Ordering::Acquire)
    }

    /// Serves a client, of which some bytes were read already.
    pub fn serve(&self, stream: UnixStream, unread: Vec<u8>) {
        // Without threads or descriptors the client finds its connection closed.
        let _ = self.try_serve(stream, unread);
    }

    fn try_serve(&self, mut stream: UnixStream, unread: Vec<u8>) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let number = self.next_number();
        let (queue, frames) = channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let input = Arc::new(Credit::default());
        {
            let mut channels = lock(&self.0.channels);
            if channels.len() >= MOST_CLIENTS {
                let why = format!("the machine runs {MOST_CLIENTS} commands already");
                let refusal = ToHost::Failed {
                    code: code::FAILED,
                    why,
                };
                return stream.write_all(&refusal.encode());
            }
            let channel = Channel {
                queue,
                queued: Arc::clone(&queued),
                input: Arc::clone(&input),
            };
            channels.insert(number, channel);
        }
        let door = stream.try_clone()?;
        let shared = Arc::clone(&self.0);
        start("client", move || {
            shared.write_to(number, door, &frames, &queued)
        })?;
        let shared = Arc::clone(&self.0);
        start("client", move || {
            shared.read_from(number, stream, &unread, &input);
        })
    }
}

impl Shared {
    fn tell(&self, number: u32, kind: u8, rest: &[u8]) {
        // If the guest has ended, so will this process.
        let _ = lock(&self.to_guest).write_all(&channel_frame(number, kind, rest));
    }

    /// Passes what the guest sends to the clients' queues, until the machine ends.
    fn listen(&self, mut from_guest: UnixStream) {
        let mut frames = Frames::default();
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from_guest.read(&mut buffer) {
            frames.extend(&buffer[..count]);
            loop {
                let is_right = match frames.take() {
                    Ok(None) => break,
                    Ok(Some((kind, rest))) => match split_channel(&rest) {
                        Some((number, rest)) => self.pass_on(number, kind, rest),
                        None => false,
                    },
                    Err(_) => false,
                };
                if !is_right {
                    self.has_failed.store(true, Ordering::Release);
                    host::raise(self.event.as_fd());
                    return;
                }
            }
        }
        // No client gets anything more.
        lock(&self.channels).clear();
    }

    /// Passes one frame to its client. Returns whether the guest keeps to the protocol.
    fn pass_on(&self, number: u32, kind: u8, rest: &[u8]) -> bool {
        let mut channels = lock(&self.channels);
        let Some(channel) = channels.get(&number) else {
            // The command's input may be taken after its end.
            return true;
        };
        let is_end = match kind {
            OUTPUT | ERRORS => false,
            CREDIT => match decode_credit(rest) {
                Some((INPUT, count)) => {
                    channel.input.add(count);
                    false
                }
                _ => return false,
            },
            _ => match ToHost::decode(kind, rest) {
                Some(ToHost::Started) => false,
                Some(ToHost::Failed { .. } | ToHost::Exited { .. }) => true,
                _ => return false,
            },
        };
        let frame = frame(kind, rest);
        let queued = channel.queued.fetch_add(frame.len(), Ordering::AcqRel);
        // The writer stays until the queue's sender is dropped.
        let _ = channel.queue.send(frame);
        if is_end {
            channels.remove(&number);
        }
        queued <= MOST_QUEUED
    }

    /// Writes the queued frames to the client.
    fn write_to(
        &self,
        number: u32,
        mut stream: UnixStream,
        frames: &Receiver<Vec<u8>>,
        queued: &AtomicUsize,
    ) {
        while let Ok(frame) = frames.recv() {
            // If the client has gone, its reader notices that.
            let _ = stream.write_all(&frame);
            queued.fetch_sub(frame.len(), Ordering::AcqRel);
            if let kind @ (OUTPUT | ERRORS) = frame[0] {
                // Output of a client that has gone is dropped, until the command has ended.
                self.tell(number, CREDIT, &credit(kind, frame.len() - HEADER_BYTES));
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
    }

    /// Passes what the client sends to the guest, until the client has gone.
    fn read_from(&self, number: u32, mut stream: UnixStream, unread: &[u8], input: &Credit) {
        let mut frames = Frames::default();
        frames.extend(unread);
        let mut buffer = vec![0; 64 << 10];
        'client: loop {
            loop {
                match frames.take() {
                    Ok(None) => break,
                    Ok(Some((kind, rest))) if self.pass_in(number, kind, &rest, input) => {}
                    _ => break 'client,
                }
            }
            match stream.read(&mut buffer) {
                Ok(count @ 1..) => frames.extend(&buffer[..count]),
                _ => break,
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
        self.tell(number, GONE, &[]);
    }

    /// Passes one frame to the guest. Returns whether the client keeps to the protocol.
    fn pass_in(&self, number: u32, kind: u8, rest: &[u8], input: &Credit) -> bool {
        match kind {
            _ if rest.len() > MOST => return false,
            INPUT if !input.try_take(rest.len()) => return false,
            INPUT | TASK => {}
            _ if ToGuest::decode(kind, rest).is_none() => return false,
            _ => {}
        }
        self.tell(number, kind, rest);
        true
    }
}
