//! The listener of the control socket and its clients, which the event loop drives.
//!
//! No client may harm the machine. The length of lines, the unread answers and the number of
//! clients are bounded. No call here waits for a client or for the vCPU thread. A request for the
//! vCPU thread is answered in a later turn of the event loop, when the thread has published
//! something ([`VmHandle::add_listener`]) or its time is over. Until then the client's further
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

/// The maximum number of connected clients.
const MAX_CLIENTS: usize = 32;
/// The maximum number of bytes of a request line, without its line break.
const MAX_LINE: usize = 4096;
/// The number of bytes of answers that a client may leave unread.
const MAX_UNREAD: usize = 512 * 1024;
/// How long the vCPU thread may take for a request. It answers within microseconds, unless
/// it waits for a reader of the guest's output.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long the server accepts no connection after accepting failed because no descriptors were
/// left.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The listening socket and all connections to it. Dropping this removes the socket's file.
pub struct Server {
    listener: UnixListener,
    file: SocketFile,
    clients: Vec<Client>,
    accepts_again: Option<Instant>,
    reporter: Arc<Reporter>,
    machine: Identity,
    /// Whether the guest is kept and takes commands.
    takes_commands: bool,
    /// How long the vCPU thread may take for a request: [`PATIENCE`], except in tests.
    patience: Duration,
}

/// A connection on which a client runs a command in the guest.
pub struct Handed {
    /// The connection, on which nothing waits.
    pub stream: UnixStream,
    /// What was read from it already.
    pub unread: Vec<u8>,
}

impl Server {
    /// Creates the socket, which only this user can access. A file that a dead machine has left is
    /// replaced; a socket on which a process listens is not.
    ///
    /// # Errors
    ///
    /// One line says why the socket cannot be made.
    pub fn bind(path: &Path, reporter: Arc<Reporter>, machine: Identity) -> Result<Self, Failure> {
        let (listener, file) = unix_socket::listen(path, "--control")?;
        Ok(Self {
            listener,
            file,
            clients: Vec::new(),
            accepts_again: None,
            reporter,
            machine,
            takes_commands: false,
            patience: PATIENCE,
        })
    }

    /// From now on clients may run commands in the guest: see [`Self::handed`].
    pub fn take_commands(&mut self) {
        self.takes_commands = true;
    }

    /// The connections of clients that have asked to run a command.
    pub fn handed(&mut self) -> Vec<Handed> {
        let asked = |client: &mut Client| client.handed.is_some() && client.unread.is_empty();
        let clients = self.clients.extract_if(.., asked);
        let hand = |client: Client| Handed {
            stream: client.stream,
            unread: client.handed.unwrap_or_default(),
        };
        clients.map(hand).collect()
    }

    /// Adds the descriptors to wait for: the listener first, then each client.
    pub fn add_interests(&self, fds: &mut Vec<libc::pollfd>) {
        let fd = match self.accepts_again {
            Some(_) => -1,
            None => self.listener.as_raw_fd(),
        };
        fds.push(host::interest(fd, libc::POLLIN));
        fds.extend(self.clients.iter().map(Client::interest));
    }

    /// The time at which [`Server::serve`] must be called even if nothing is ready.
    pub fn deadline(&self) -> Option<Instant> {
        let pending = self.clients.iter().filter_map(Client::deadline);
        pending.chain(self.accepts_again).min()
    }

    /// Serves what is ready: `ready` holds the descriptors that the latest
    /// [`Server::add_interests`] added. Returns whether a client asked for the end of the machine.
    pub fn serve(&mut self, ready: &[libc::pollfd], handle: &VmHandle) -> bool {
        let Some((listener, clients)) = ready.split_first() else {
            return false;
        };
        let reach = Reach {
            handle,
            reporter: &self.reporter,
            machine: &self.machine,
            takes_commands: self.takes_commands,
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

    /// Removes the socket's file, unless another process has replaced it.
    pub fn remove_file(&self) {
        self.file.remove();
    }
}

/// The connection to one client.
struct Client {
    stream: UnixStream,
    /// The beginning of a request line whose end has not arrived.
    line: Vec<u8>,
    /// The request that waits for the vCPU thread, and the bytes that were read after it.
    pending: Option<Pending>,
    backlog: Vec<u8>,
    /// The bytes after a request that hands the connection over.
    handed: Option<Vec<u8>>,
    /// Answers that the client has not read.
    unread: Vec<u8>,
    /// The client sends nothing more; its connection closes when its answers are read.
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
            handed: None,
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
        // A client that has hung up would be ready during all of the time that its request takes.
        let fd = match events {
            0 if self.pending.is_some() => -1,
            _ => self.stream.as_raw_fd(),
        };
        host::interest(fd, events)
    }

    fn reads(&self) -> bool {
        !self.is_finished && self.pending.is_none() && self.handed.is_none()
    }

    /// The time at which the waiting request is answered at the latest.
    fn deadline(&self) -> Option<Instant> {
        self.pending.as_ref().map(Pending::deadline)
    }

    /// Answers the waiting request if possible, and the requests that were read after it. Returns
    /// whether the machine must end.
    fn go_on(&mut self, reach: Reach<'_>) -> bool {
        let Some(answer) = self.pending.as_ref().and_then(|p| p.answer(reach)) else {
            return false;
        };
        self.pending = None;
        self.reply(&answer.line);
        let backlog = std::mem::take(&mut self.backlog);
        let quits = self.take(&backlog, reach) | answer.quits;
        self.settle();
        quits
    }

    /// Reads once and answers complete requests. Returns whether the machine must end.
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

    /// Sends as much as the client takes, and closes the connection of a client that wants nothing
    /// more.
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
                Progress::HandsOver(Answer { line, .. }) => {
                    self.handed = Some(bytes[position + 1..].to_vec());
                    self.reply(&line);
                    break;
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
        takes_commands: false,
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
