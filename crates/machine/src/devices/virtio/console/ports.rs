//! What is behind the ports of a console device: descriptors of the host, and the thread that
//! moves bytes between them and buffers.

use crate::bus::completion::Completer;
use crate::file_words::{cause, writing};
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

/// Bytes of a buffer from which on no more are read into it.
pub const BUFFER_BYTES: usize = 64 << 10;
/// Bytes that are moved at once: as many as a pipe that is writable takes without waiting.
const PIECE: usize = 4096;

/// Seconds for which the end of the machine waits for a reader that takes nothing.
const LAST_WAIT: i64 = 60;

/// What is behind a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PortTarget {
    /// The process's standard input and output.
    Stdio,
    /// Its standard input; what the guest writes is dropped.
    Stdin,
    /// Its standard output; nothing to read.
    Stdout,
    /// Its standard error output; nothing to read.
    Stderr,
    /// A file that what the guest writes replaces; nothing to read.
    File(PathBuf),
    /// A Unix socket that is made at this path, for one client at a time.
    Socket(PathBuf),
    /// A descriptor of this process, for both ways: a socket or the like.
    Descriptor(RawFd),
}

/// A port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortOptions {
    /// What the guest finds it by, see [`PortOptions::is_name`].
    pub name: String,
    /// What is behind it.
    pub target: PortTarget,
    /// The guest takes it for a console (Linux: hvc0, hvc1 ...).
    #[serde(default)]
    pub is_console: bool,
    /// Hears of what the guest wrote and the host did not take.
    #[serde(skip)]
    pub on_loss: OnLoss,
}

/// What is done when bytes of the guest could not be written, on a full disk above all. By default
/// nothing. It is called on the thread of the ports, each time anew, with the reason.
#[derive(Clone, Default)]
pub struct OnLoss(Option<Arc<LossFunction>>);

type LossFunction = dyn Fn(&io::Error) + Send + Sync;

impl OnLoss {
    /// Calls this.
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

/// Who hears of losses is no part of what a port is.
impl PartialEq for OnLoss {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for OnLoss {}

impl PortOptions {
    /// Ports of a machine at most.
    pub const MAX_PORTS: usize = 15;

    /// Whether this can be a name: 1 to 64 letters, digits, and the signs `.`, `_`, `-`.
    pub fn is_name(text: &str) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=64).contains(&text.len()) && text.bytes().all(is_plain)
    }
}

/// Why a port cannot be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortError {
    /// Its name.
    pub name: String,
    /// The reason.
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
    /// Read on the host.
    pub to_guest: VecDeque<u8>,
    /// Written by the guest.
    pub from_guest: VecDeque<u8>,
    /// Somebody is there on the host.
    pub is_connected: bool,
}

struct Shared {
    channels: Mutex<Vec<Channel>>,
    completer: Mutex<Option<Completer>>,
    /// A completion was sent and not taken.
    has_told: AtomicBool,
    has_ended: AtomicBool,
}

/// The thread. Dropping it ends it; what the guest has written is written first, as long as
/// somebody takes it: [`LAST_WAIT`].
pub struct PortThread {
    shared: Arc<Shared>,
    bell: UnixStream,
    thread: Option<JoinHandle<()>>,
    sockets: Vec<PathBuf>,
}

impl PortThread {
    /// Opens what is behind the ports and starts the thread.
    ///
    /// # Errors
    /// Something cannot be opened.
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
        };
        let thread = std::thread::Builder::new().name("ports".into());
        let thread = thread.spawn(move || mover.run()).map_err(failed)?;
        Ok(Self {
            shared,
            bell,
            thread: Some(thread),
            sockets,
        })
    }

    /// The buffers, in the order of the ports.
    pub fn channels(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.shared.channels()
    }

    /// Says that buffers have changed.
    pub fn wake(&self) {
        // A full socket wakes it as well.
        let _ = (&self.bell).write(&[1]);
    }

    /// Where the thread says that buffers have changed.
    pub fn set_completer(&self, completer: Completer) {
        let mut slot = self.shared.completer();
        *slot = Some(completer);
        drop(slot);
        self.wake();
    }

    /// The next change is to be told again.
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

    /// Has the device look at the buffers.
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
    /// Input and output are a client's of the listener.
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
                // One that an earlier run left behind, as nobody answers at it.
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

/// What a descriptor is waited for, by the end that it belongs to.
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

    /// Waits until something can be done, and says what. At the end only for outputs that have
    /// something left; nothing then means that there is no hope for the rest.
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

    /// The machine has ended, and what is left finds no reader: it is lost.
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
            // What was written for one who has gone.
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
            // The end of the stream.
            _ => {
                if end.is_client {
                    end.hang_up();
                } else {
                    end.input = None;
                }
                // A stream that goes both ways stays, for the way out.
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
                // This piece is dropped. If nobody reads any more, so is what comes.
                if end.is_client {
                    end.hang_up();
                    self.shared.channels()[index].is_connected = false;
                } else if is_reader_gone(&error, output) {
                    end.output = File::create("/dev/null").ok();
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

/// A descriptor of one's own for what a number stands for in this process.
fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl with this command takes and returns integers only.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned this descriptor just now, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Whether it was the other side that went away: nothing is lost then.
fn is_reader_gone(error: &io::Error, output: &File) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected) || output.is_terminal()
}

/// Whether to try again later.
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

    /// How often the loss of something was told.
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
        // What is left is written before it ends.
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
