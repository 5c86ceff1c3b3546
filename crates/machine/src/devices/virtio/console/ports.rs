//! The host's ends of the ports of a console device: descriptors, and the thread that moves bytes
//! between them and buffers.

use crate::bus::completion::Completer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tollgate_confine::ThreadKind;
use tollgate_host_facts::file_words::{cause, writing};

/// If a buffer has this number of bytes, no more are read into it.
pub const BUFFER_BYTES: usize = 64 << 10;
/// The number of bytes that are moved together. A writable pipe accepts this many without waiting.
const PIECE: usize = 4096;

/// How many seconds the end of the machine waits for a reader that reads nothing.
const LAST_WAIT: i64 = 60;

/// The host's end of a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PortTarget {
    /// The process's standard input and output.
    Stdio,
    /// The process's standard input. The guest's output is dropped.
    Stdin,
    /// The process's standard output. The guest has no input.
    Stdout,
    /// The process's standard error output. The guest has no input.
    Stderr,
    /// A file whose contents the guest's output replaces. The guest has no input.
    File(PathBuf),
    /// A Unix socket that is created at this path, for one client at a time.
    Socket(PathBuf),
    /// A descriptor of this process for both directions, such as a socket.
    Descriptor(RawFd),
}

/// The description of a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortOptions {
    /// The name by which the guest finds the port, see [`PortOptions::is_name`].
    pub name: String,
    /// The host's end of the port.
    pub target: PortTarget,
    /// Whether the guest uses the port as a console (Linux: hvc0, hvc1 ...).
    #[serde(default)]
    pub is_console: bool,
    /// Is called when bytes of the guest are lost because the host did not take them.
    #[serde(skip)]
    pub on_loss: OnLoss,
}

/// The function that is called when bytes of the guest could not be written, usually because a disk
/// is full. By default there is none. It is called on the thread of the ports, for each loss, with
/// the reason.
#[derive(Clone, Default)]
pub struct OnLoss(Option<Arc<LossFunction>>);

type LossFunction = dyn Fn(&io::Error) + Send + Sync;

impl OnLoss {
    /// Makes a value that calls this function.
    pub fn call(function: impl Fn(&io::Error) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(function)))
    }

    fn tell(&self, error: &io::Error) {
        if let Some(function) = &self.0 {
            function(error);
        }
    }
}

impl fmt::Debug for OnLoss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_heard = self.0.is_some();
        formatter.debug_tuple("OnLoss").field(&is_heard).finish()
    }
}

/// Two ports that differ only in the function that is called for losses are equal.
impl PartialEq for OnLoss {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for OnLoss {}

impl PortOptions {
    /// The maximum number of ports of a machine.
    pub const MAX_PORTS: usize = 15;

    /// Whether a text is a valid name: 1 to 64 letters, digits, and the characters `.`, `_`, `-`.
    pub fn is_name(text: &str) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=64).contains(&text.len()) && text.bytes().all(is_plain)
    }
}

/// Why a port cannot be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortError {
    /// The port's name.
    pub name: String,
    /// The reason in one line.
    pub why: String,
}

impl fmt::Display for PortError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "--port {}: {}", self.name, self.why)
    }
}

impl std::error::Error for PortError {}

/// The buffers between a port's queues and its descriptors.
#[derive(Default)]
pub struct Channel {
    /// Bytes that were read on the host.
    pub to_guest: VecDeque<u8>,
    /// Bytes that the guest has written.
    pub from_guest: VecDeque<u8>,
    /// Whether a peer is connected on the host.
    pub is_connected: bool,
}

struct Shared {
    channels: Mutex<Vec<Channel>>,
    completer: Mutex<Option<Completer>>,
    /// Whether a completion was sent and not taken yet.
    has_told: AtomicBool,
    has_ended: AtomicBool,
}

/// The thread. Dropping it ends the thread after it has written the guest's output, as long as a
/// reader takes it; see [`LAST_WAIT`].
pub struct PortThread {
    shared: Arc<Shared>,
    bell: UnixStream,
    thread: Option<JoinHandle<()>>,
    sockets: Vec<PathBuf>,
}

impl PortThread {
    /// Opens the host's ends of the ports and starts the thread.
    ///
    /// # Errors
    /// An end cannot be opened, or the host starts no thread.
    pub fn start(options: &[PortOptions]) -> Result<Self, PortError> {
        let mut ends = Vec::new();
        let mut sockets = Vec::new();
        for port in options {
            let failed = |error: io::Error| PortError {
                name: port.name.clone(),
                why: match &port.target {
                    PortTarget::File(path) | PortTarget::Socket(path) => {
                        format!("cannot open '{}': {}", path.display(), writing(&error))
                    }
                    _ => writing(&error),
                },
            };
            let mut end = End::open(&port.target).map_err(failed)?;
            end.on_loss = port.on_loss.clone();
            ends.push(end);
            if let PortTarget::Socket(path) = &port.target {
                sockets.push(path.clone());
            }
        }
        let failed = |error: io::Error| PortError {
            name: options.first().map_or("", |port| &port.name).to_owned(),
            why: format!("no thread for it: {}", cause(&error)),
        };
        let (bell, ear) = UnixStream::pair().map_err(failed)?;
        for end in [&bell, &ear] {
            end.set_nonblocking(true).map_err(failed)?;
        }
        let channels = ends.iter().map(|end| Channel {
            is_connected: end.is_connected(),
            ..Channel::default()
        });
        let shared = Arc::new(Shared {
            channels: Mutex::new(channels.collect()),
            completer: Mutex::default(),
            has_told: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        });
        let mover = Mover {
            shared: Arc::clone(&shared),
            ends,
            ear,
            // The thread may open nothing itself.
            null: File::create("/dev/null").ok(),
        };
        let thread = std::thread::Builder::new().name("ports".into());
        let thread = thread.spawn(move || {
            tollgate_confine::enter(ThreadKind::Ports);
            mover.run();
        });
        let thread = thread.map_err(failed)?;
        Ok(Self {
            shared,
            bell,
            thread: Some(thread),
            sockets,
        })
    }

    /// Returns the buffers in the order of the ports.
    pub fn channels(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.shared.channels()
    }

    /// Notifies the thread that buffers have changed.
    pub fn wake(&self) {
        // If the socket is full, the thread wakes as well.
        let _ = (&self.bell).write(&[1]);
    }

    /// Sets the completer by which the thread reports that buffers have changed.
    pub fn set_completer(&self, completer: Completer) {
        let mut slot = self.shared.completer();
        *slot = Some(completer);
        drop(slot);
        self.wake();
    }

    /// Reports to the device that buffers may have changed, as the thread does.
    pub fn report(&self) {
        if let Some(completer) = &*self.shared.completer() {
            self.shared.has_told.store(true, Ordering::Release);
            let _ = completer.send(0);
        }
    }

    /// Records that the completion was taken, so that the next change is reported again.
    pub fn completion_taken(&self) {
        self.shared.has_told.store(false, Ordering::Release);
    }
}

impl Drop for PortThread {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for path in &self.sockets {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Shared {
    fn channels(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn completer(&self) -> MutexGuard<'_, Option<Completer>> {
        self.completer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the device check the buffers.
    fn tell(&self) {
        let completer = self.completer().clone();
        if let Some(completer) = completer
            && !self.has_told.swap(true, Ordering::AcqRel)
        {
            // The machine may have ended.
            let _ = completer.send(0);
        }
    }
}

/// The host's end of a port.
#[derive(Default)]
struct End {
    listener: Option<UnixListener>,
    input: Option<File>,
    output: Option<File>,
    /// Whether input and output are those of a client of the listener.
    is_client: bool,
    on_loss: OnLoss,
}

impl End {
    fn open(target: &PortTarget) -> io::Result<Self> {
        let file = |fd: OwnedFd| Some(File::from(fd));
        let stdin = || io::stdin().as_fd().try_clone_to_owned();
        let stdout = || io::stdout().as_fd().try_clone_to_owned();
        let mut end = Self::default();
        match target {
            PortTarget::Stdio => (end.input, end.output) = (file(stdin()?), file(stdout()?)),
            PortTarget::Stdin => end.input = file(stdin()?),
            PortTarget::Stdout => end.output = file(stdout()?),
            PortTarget::Stderr => end.output = file(io::stderr().as_fd().try_clone_to_owned()?),
            PortTarget::File(path) => end.output = Some(File::create(path)?),
            PortTarget::Descriptor(number) => {
                let own = duplicate(*number)?;
                (end.input, end.output) = (file(own.try_clone()?), file(own));
            }
            PortTarget::Socket(path) => {
                // This socket is from an earlier run, because no process answers at it.
                let is_socket = path
                    .metadata()
                    .is_ok_and(|data| data.file_type().is_socket());
                if is_socket && UnixStream::connect(path).is_err() {
                    std::fs::remove_file(path)?;
                }
                let listener = UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                end.listener = Some(listener);
            }
        }
        Ok(end)
    }

    const fn is_connected(&self) -> bool {
        self.input.is_some() || self.output.is_some()
    }

    fn accept(&mut self) {
        let Some(Ok((client, _))) = self.listener.as_ref().map(UnixListener::accept) else {
            return;
        };
        let is_ready = client.set_nonblocking(true);
        let (Ok(()), Ok(second)) = (is_ready, client.try_clone()) else {
            return;
        };
        self.input = Some(OwnedFd::from(client).into());
        self.output = Some(OwnedFd::from(second).into());
        self.is_client = true;
    }

    fn hang_up(&mut self) {
        (self.input, self.output, self.is_client) = (None, None, false);
    }
}

/// What is awaited at a descriptor, with the end that it belongs to.
#[derive(Clone, Copy)]
enum Wait {
    Bell,
    Client(usize),
    Input(usize),
    Output(usize),
}

struct Mover {
    shared: Arc<Shared>,
    ends: Vec<End>,
    ear: UnixStream,
    /// Takes the output of a port whose reader has gone.
    null: Option<File>,
}

impl Mover {
    fn run(mut self) {
        loop {
            let has_ended = self.shared.has_ended.load(Ordering::Acquire);
            let ready = self.wait(has_ended);
            if has_ended && ready.is_empty() {
                return self.give_up();
            }
            let mut changed = false;
            for wait in ready {
                changed |= match wait {
                    Wait::Bell => {
                        let _ = (&self.ear).read(&mut [0; 64]);
                        false
                    }
                    Wait::Client(index) => self.connect(index),
                    Wait::Input(index) => self.read(index),
                    Wait::Output(index) => self.write(index),
                };
            }
            if changed {
                self.shared.tell();
            }
        }
    }

    /// Waits until something can be done, and returns what. After the end of the machine it waits
    /// only for outputs with unwritten bytes; an empty result then means that they cannot be
    /// written.
    fn wait(&self, has_ended: bool) -> Vec<Wait> {
        let mut waits = Vec::new();
        let mut fds = Vec::new();
        let channels = self.shared.channels();
        for (index, (end, channel)) in self.ends.iter().zip(&*channels).enumerate() {
            if let Some(output) = &end.output
                && !channel.from_guest.is_empty()
            {
                waits.push(Wait::Output(index));
                fds.push(PollFd::new(output, PollFlags::OUT));
            }
            if has_ended {
                continue;
            }
            if let Some(listener) = end.listener.as_ref().filter(|_| !end.is_client) {
                waits.push(Wait::Client(index));
                fds.push(PollFd::new(listener, PollFlags::IN));
            }
            if let Some(input) = &end.input
                && channel.to_guest.len() < BUFFER_BYTES
            {
                waits.push(Wait::Input(index));
                fds.push(PollFd::new(input, PollFlags::IN));
            }
        }
        drop(channels);
        if !has_ended {
            waits.push(Wait::Bell);
            fds.push(PollFd::new(&self.ear, PollFlags::IN));
        } else if fds.is_empty() {
            return waits;
        }
        let limit = Timespec {
            tv_sec: LAST_WAIT,
            tv_nsec: 0,
        };
        while poll(&mut fds, has_ended.then_some(&limit)) == Err(Errno::INTR) {}
        let ready = waits.into_iter().zip(&fds);
        let ready = ready.filter(|(_, fd)| !fd.revents().is_empty());
        ready.map(|(wait, _)| wait).collect()
    }

    /// Gives up after the end of the machine: the remaining bytes have no reader and are lost.
    fn give_up(&self) {
        let channels = self.shared.channels();
        for (end, channel) in self.ends.iter().zip(&*channels) {
            if end.output.is_some() && !channel.from_guest.is_empty() {
                let count = channel.from_guest.len();
                end.on_loss.tell(&io::Error::other(format!(
                    "the last {count} bytes were not read for {LAST_WAIT} s"
                )));
            }
        }
    }

    fn connect(&mut self, index: usize) -> bool {
        let end = &mut self.ends[index];
        end.accept();
        if end.is_client {
            let channel = &mut self.shared.channels()[index];
            channel.is_connected = true;
            // These bytes were written for a client that has gone.
            channel.from_guest.clear();
        }
        end.is_client
    }

    fn read(&mut self, index: usize) -> bool {
        let end = &mut self.ends[index];
        let mut piece = [0; PIECE];
        let Some(input) = &mut end.input else {
            return false;
        };
        match input.read(&mut piece) {
            Err(error) if is_passing(&error) => false,
            Ok(count @ 1..) => {
                let channel = &mut self.shared.channels()[index];
                channel.to_guest.extend(&piece[..count]);
                true
            }
            // The stream has ended.
            _ => {
                if end.is_client {
                    end.hang_up();
                } else {
                    end.input = None;
                }
                // A bidirectional stream stays open for the output.
                let is_connected = end.output.is_some();
                self.shared.channels()[index].is_connected = is_connected;
                true
            }
        }
    }

    fn write(&mut self, index: usize) -> bool {
        let end = &mut self.ends[index];
        let Some(output) = &mut end.output else {
            return false;
        };
        let piece: Vec<u8> = {
            let channel = &self.shared.channels()[index];
            channel.from_guest.iter().take(PIECE).copied().collect()
        };
        let count = match output.write(&piece) {
            Err(error) if is_passing(&error) => return false,
            Ok(count) => count,
            Err(error) => {
                // This piece is dropped. If the reader has gone, later pieces are dropped too.
                if end.is_client {
                    end.hang_up();
                    self.shared.channels()[index].is_connected = false;
                } else if is_reader_gone(&error, output) {
                    end.output = self.null.as_ref().and_then(|null| null.try_clone().ok());
                } else {
                    end.on_loss.tell(&error);
                }
                piece.len()
            }
        };
        let channel = &mut self.shared.channels()[index];
        let count = count.min(channel.from_guest.len());
        channel.from_guest.drain(..count);
        true
    }
}

/// Returns a new descriptor for the file that a number refers to in this process.
fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl with this command takes and returns integers only.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just returned this descriptor, so no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Whether the other side has closed the stream. Nothing is lost then.
fn is_reader_gone(error: &io::Error, output: &File) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected) || output.is_terminal()
}

/// Whether the operation should be tried again later.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Returns how often a loss was reported.
    fn losses_at(path: &str, pieces: usize) -> usize {
        let losses = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&losses);
        let port = PortOptions {
            name: "log".to_owned(),
            target: PortTarget::File(path.into()),
            is_console: false,
            on_loss: OnLoss::call(move |_| {
                counter.fetch_add(1, Ordering::Relaxed);
            }),
        };
        let thread = PortThread::start(&[port]).unwrap();
        thread.channels()[0]
            .from_guest
            .extend(vec![0; pieces * PIECE]);
        thread.wake();
        // Remaining bytes are written before the thread ends.
        drop(thread);
        losses.load(Ordering::Relaxed)
    }

    #[test]
    fn what_a_full_disk_does_not_take_is_told() {
        assert_eq!(losses_at("/dev/full", 3), 3);
        assert_eq!(losses_at("/dev/null", 3), 0);
    }

    #[test]
    fn a_reader_that_is_gone_is_no_loss() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut writer = File::from(OwnedFd::from(writer));
        let error = writer.write(b"text").unwrap_err();
        assert!(is_reader_gone(&error, &writer));
        let mut full = File::create("/dev/full").unwrap();
        let error = full.write(b"text").unwrap_err();
        assert!(!is_reader_gone(&error, &full));
    }
}
