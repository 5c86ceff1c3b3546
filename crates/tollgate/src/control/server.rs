//! The control socket's listener and its clients, driven by the event loop.
//!
//! Nothing a client does may harm the machine: lines and unread answers are bounded, the
//! number of clients is, and no call here waits for a client, nor for the vCPU thread: a
//! request for it is answered in a later turn, when the vCPU thread has published something
//! ([`VmHandle::set_listener`]) or its time is over. Until then the client's further
//! requests stay unread.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_machine::vm_handle::VmHandle;

use super::identity::Identity;
use super::protocol::{self, Answer, Pending, Progress, Reach};
use crate::failure::Failure;
use crate::host;
use crate::statistics::Reporter;

/// Clients connected at the same time at most.
const MAX_CLIENTS: usize = 32;
/// Bytes of a request line at most, without its line break.
const MAX_LINE: usize = 4096;
/// Bytes of answers that a client may leave unread.
const MAX_UNREAD: usize = 512 * 1024;
/// How long the vCPU thread may take for a request. It answers within microseconds, unless
/// it waits for a reader of the guest's output.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long no connection is accepted after accepting failed (no descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The listening socket and all that is connected to it; the socket's file is removed
/// when this is dropped.
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket's file, to remove only our own.
    identity: (u64, u64),
    clients: Vec<Client>,
    accepts_again: Option<Instant>,
    reporter: Arc<Reporter>,
    machine: Identity,
    /// [`PATIENCE`], but in tests.
    patience: Duration,
}

impl Server {
    /// Creates the socket, accessible to this user only. A file left over by a machine
    /// that is gone is replaced; one on which somebody listens is not.
    ///
    /// # Errors
    /// One line: what is in the way.
    pub fn bind(path: &Path, reporter: Arc<Reporter>, machine: Identity) -> Result<Self, Failure> {
        let refuse = |why: String| {
            Failure::usage(format!(
                "--control: cannot create '{}': {why}",
                path.display()
            ))
        };
        remove_stale(path).map_err(&refuse)?;
        let listener = listen(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => refuse("its folder does not exist".into()),
            ErrorKind::PermissionDenied => refuse("you may not write there".into()),
            _ => refuse(error.to_string()),
        })?;
        let metadata = fs::symlink_metadata(path).map_err(|error| refuse(error.to_string()))?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            identity: (metadata.dev(), metadata.ino()),
            clients: Vec::new(),
            accepts_again: None,
            reporter,
            machine,
            patience: PATIENCE,
        })
    }

    /// Adds what to wait for: the listener first, then each client.
    pub fn add_interests(&self, fds: &mut Vec<libc::pollfd>) {
        let fd = match self.accepts_again {
            Some(_) => -1,
            None => self.listener.as_raw_fd(),
        };
        fds.push(host::interest(fd, libc::POLLIN));
        fds.extend(self.clients.iter().map(Client::interest));
    }

    /// When [`Server::serve`] must be called even if nothing is ready.
    pub fn deadline(&self) -> Option<Instant> {
        let pending = self.clients.iter().filter_map(Client::deadline);
        pending.chain(self.accepts_again).min()
    }

    /// Serves what is ready: `ready` are the descriptors that the latest
    /// [`Server::add_interests`] added. Returns whether a client asked for the end.
    pub fn serve(&mut self, ready: &[libc::pollfd], handle: &VmHandle) -> bool {
        let Some((listener, clients)) = ready.split_first() else {
            return false;
        };
        let reach = Reach {
            handle,
            reporter: &self.reporter,
            machine: &self.machine,
            patience: self.patience,
        };
        let mut quits = false;
        for (client, ready) in self.clients.iter_mut().zip(clients) {
            quits |= client.go_on(reach);
            if ready.revents != 0 {
                quits |= client.serve(reach);
            }
        }
        self.clients.retain(|client| !client.is_gone);
        if self.accepts_again.is_some_and(|at| at <= Instant::now()) {
            self.accepts_again = None;
        }
        if listener.revents != 0 {
            self.accept();
        }
        quits
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok((stream, _)) => {
                if let Ok(client) = Client::new(stream) {
                    if self.clients.len() < MAX_CLIENTS {
                        self.clients.push(client);
                    } else {
                        client.turn_away();
                    }
                }
            }
            Err(error) => {
                let is_passing = matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                );
                if !is_passing {
                    self.accepts_again = Instant::now().checked_add(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Removes the socket's file, unless somebody put another one in its place.
    pub fn remove_file(&self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.remove_file();
    }
}

/// Removes a socket file on which nobody listens.
fn remove_stale(path: &Path) -> Result<(), String> {
    match fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => return Err("the file exists and is no socket; name another path".into()),
    }
    match UnixStream::connect(path) {
        Ok(_) => Err("another virtual machine listens there; name another path".into()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| format!("a stale socket is there: {error}"))
        }
        Err(error) => Err(format!("a socket is there already: {error}")),
    }
}

/// A listening socket whose file has mode 0600 from its first moment: Linux creates the
/// file with the mode that the unbound socket has.
fn listen(path: &Path) -> io::Result<UnixListener> {
    // SAFETY: sockaddr_un consists of integers, for which zero is valid.
    let mut address = unsafe { std::mem::zeroed::<libc::sockaddr_un>() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    // One byte stays zero as the end.
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::other(format!(
            "the path has {} bytes, a socket's may have {}",
            bytes.len(),
            address.sun_path.len() - 1
        )));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes and returns integers only.
    let socket: OwnedFd = host::owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    let fd: RawFd = socket.as_raw_fd();
    // SAFETY: fchmod takes integers only.
    host::check(unsafe { libc::fchmod(fd, 0o600) })?;
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` is a valid address of `length` bytes.
    host::check(unsafe { libc::bind(fd, (&raw const address).cast(), length) })?;
    // SAFETY: listen takes integers only.
    host::check(unsafe { libc::listen(fd, 16) })?;
    Ok(UnixListener::from(socket))
}

/// One connection.
struct Client {
    stream: UnixStream,
    /// The beginning of a request line.
    line: Vec<u8>,
    /// The request that waits for the vCPU thread, and what was read behind it.
    pending: Option<Pending>,
    backlog: Vec<u8>,
    /// Answers not yet taken.
    unread: Vec<u8>,
    /// The client sends no more; it goes when its answers are read.
    is_finished: bool,
    is_gone: bool,
}

impl Client {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            line: Vec::new(),
            pending: None,
            backlog: Vec::new(),
            unread: Vec::new(),
            is_finished: false,
            is_gone: false,
        })
    }

    fn turn_away(mut self) {
        self.reply(&protocol::refusal("too many clients").line);
    }

    fn interest(&self) -> libc::pollfd {
        let mut events = 0;
        if self.reads() {
            events |= libc::POLLIN;
        }
        if !self.unread.is_empty() {
            events |= libc::POLLOUT;
        }
        // A client that has gone would be ready all the time that its request takes.
        let fd = match events {
            0 if self.pending.is_some() => -1,
            _ => self.stream.as_raw_fd(),
        };
        host::interest(fd, events)
    }

    fn reads(&self) -> bool {
        !self.is_finished && self.pending.is_none()
    }

    /// When the request that waits is answered at the latest.
    fn deadline(&self) -> Option<Instant> {
        self.pending.as_ref().map(Pending::deadline)
    }

    /// Answers the request that waits, if that can be, and what was read behind it.
    /// Returns whether the machine shall end.
    fn go_on(&mut self, reach: Reach<'_>) -> bool {
        let Some(answer) = self.pending.as_ref().and_then(|p| p.answer(reach)) else {
            return false;
        };
        self.pending = None;
        self.reply(&answer.line);
        let backlog = std::mem::take(&mut self.backlog);
        let quits = self.take(&backlog, reach);
        self.settle();
        quits
    }

    /// Reads once, answers what is complete. Returns whether the machine shall end.
    fn serve(&mut self, reach: Reach<'_>) -> bool {
        let mut quits = false;
        let mut bytes = [0; 4096];
        if self.reads() {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.is_finished = true,
                Ok(count) => quits = self.take(&bytes[..count], reach),
                Err(error) if is_passing(&error) => {}
                Err(_) => self.is_gone = true,
            }
        }
        self.settle();
        quits
    }

    /// Sends what can be sent; a client that wants nothing more is gone.
    fn settle(&mut self) {
        self.send();
        self.is_gone |= self.is_finished && self.unread.is_empty() && self.pending.is_none();
    }

    fn take(&mut self, bytes: &[u8], reach: Reach<'_>) -> bool {
        let mut quits = false;
        for (position, &byte) in bytes.iter().enumerate() {
            if byte != b'\n' {
                if self.line.len() == MAX_LINE {
                    let error = format!("a request has at most {MAX_LINE} bytes");
                    self.reply(&protocol::refusal(&error).line);
                    self.is_finished = true;
                    break;
                }
                self.line.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if line.trim_ascii().is_empty() {
                continue;
            }
            match protocol::begin(&line, reach) {
                Progress::Answered(Answer { line, quits: ends }) => {
                    quits |= ends;
                    self.reply(&line);
                }
                Progress::Waits(pending) => {
                    self.pending = Some(pending);
                    self.backlog = bytes[position + 1..].to_vec();
                    break;
                }
            }
            if self.is_gone {
                break;
            }
        }
        quits
    }

    fn reply(&mut self, line: &str) {
        self.unread.extend_from_slice(line.as_bytes());
        self.unread.push(b'\n');
        self.send();
        if self.unread.len() > MAX_UNREAD {
            self.is_gone = true;
        }
    }

    fn send(&mut self) {
        while !self.unread.is_empty() && !self.is_gone {
            match self.stream.write(&self.unread) {
                Ok(0) => self.is_gone = true,
                Ok(count) => {
                    self.unread.drain(..count);
                }
                Err(error) if is_passing(&error) => break,
                Err(_) => self.is_gone = true,
            }
        }
    }
}

/// Serves one connection until the client has gone or has nothing more to send; the vCPU
/// thread has no time to answer. Returns whether a request asked for the end of the machine.
pub fn serve_connection(stream: UnixStream, handle: &VmHandle) -> io::Result<bool> {
    let mut client = Client::new(stream)?;
    let reach = Reach {
        handle,
        reporter: &Reporter::PLAIN,
        machine: &Identity::default(),
        patience: Duration::ZERO,
    };
    let mut quits = false;
    let mut is_idle = false;
    while !client.is_gone && !is_idle {
        let mut fds = [client.interest()];
        host::poll(&mut fds, Some(Duration::ZERO))?;
        is_idle = fds[0].revents == 0;
        if !is_idle {
            quits |= client.serve(reach);
        }
    }
    Ok(quits)
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
