//! The control socket's listener and its clients, driven by the event loop.
//!
//! Nothing a client does may harm the machine: lines and unread answers are bounded, the
//! number of clients is, and no call here waits for a client, nor for the vCPU thread: a
//! request for it is answered in a later turn, when the vCPU thread has published something
//! ([`VmHandle::set_listener`]) or its time is over. Until then the client's further
//! requests stay unread.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_machine::vm_handle::VmHandle;

use super::identity::Identity;
use super::protocol::{self, Answer, Pending, Progress, Reach};
use crate::failure::Failure;
use crate::host;
use crate::statistics::Reporter;
use crate::unix_socket::{self, SocketFile};

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
    file: SocketFile,
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
        let (listener, file) = unix_socket::listen(path, "--control")?;
        Ok(Self {
            listener,
            file,
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
        self.file.remove();
    }
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
