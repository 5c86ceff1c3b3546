//! Sockets between guest and host (virtio 1.2, 5.10) in this process, with the protocol of
//! Firecracker's Unix sockets.
//!
//! ```text
//!   host's program            here                        guest
//!   connects to PATH
//!   "CONNECT 22\n"     -->    REQUEST 1073741824 -> 22 -->  a program listens on port 22
//!   "OK 1073741824\n"  <--    RESPONSE                 <--
//!
//!   listens at PATH_80 <--    REQUEST 1024 -> 80       <--  connects to port 80 of host (2)
//! ```
//!
//! Packets of the guest come through a cable, as the frames of an adapter do ([`crate::link`]). An
//! empty packet reports that the device was reset. Everything runs on one thread, which waits only
//! for the [`Poller`]: data that cannot be sent stays where it is ([`connection`]).

mod connection;
mod handshake;
pub mod packet;

#[cfg(test)]
mod tests;

use crate::descriptor_limit::raise_descriptor_limit;
use crate::error::NetworkError;
use crate::frame::Frame;
use crate::link::{Adapter, Stopper, Wire, cable};
use crate::poller::Poller;
use connection::{Connection, Stage, Verdict};
use handshake::{Asked, Client};
use packet::{HEADER, HOST_CID, Header, operation};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tollgate_confine::ThreadKind;

/// The maximum number of connections. More are refused.
pub const MAX_CONNECTIONS: usize = 1024;
/// The maximum number of clients that have not sent their destination. For one more, the oldest is
/// dropped.
const MAX_CLIENTS: usize = 64;
/// The maximum time that a guest may take to answer a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// The first source port of the host's connections, as in Firecracker.
const FIRST_PORT: u32 = 1 << 30;
/// The maximum size of a packet of the guest in bytes. No receiver has room for more.
pub const MAX_PACKET: usize = HEADER + connection::BUFFER as usize;

const WIRE: u64 = 0;
const LISTENER: u64 = 1;
/// The number of the first connection or client.
const FIRST: u64 = 2;

/// A device for sockets between guest and host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VsockOptions {
    /// The guest's context identifier: 3 to 2^32 - 2.
    pub cid: u64,
    /// The socket to which the host's programs connect. A program of the host listens for the
    /// host's port P at this path followed by `_P`.
    pub path: PathBuf,
}

impl VsockOptions {
    /// Whether this is a valid context identifier of a guest (5.10.4).
    pub const fn is_cid(cid: u64) -> bool {
        cid > HOST_CID && cid < 0xffff_ffff
    }
}

/// The host's side with its thread. Dropping it closes all connections, waits for the thread and
/// removes the socket.
pub struct Vsock {
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

impl Vsock {
    /// Creates the socket, starts the thread, and returns the device's end of the cable.
    ///
    /// # Errors
    /// The socket cannot be created, or the host has no descriptors or threads left.
    pub fn start(options: &VsockOptions) -> Result<(Adapter, Self), NetworkError> {
        let (adapter, wire) = cable().map_err(|error| NetworkError::new("cable", error))?;
        let stopper = wire.stopper();
        let host = Host::open(options, wire).map_err(|error| {
            let what = format!("vsock: cannot listen at '{}'", options.path.display());
            NetworkError::new(what, error)
        })?;
        let mut vsock = Self {
            stopper,
            thread: None,
            path: options.path.clone(),
        };
        let thread = std::thread::Builder::new().name("vsock".into());
        let thread = thread.spawn(move || {
            tollgate_confine::enter(ThreadKind::Vsock);
            host.run();
        });
        vsock.thread = Some(thread.map_err(|error| NetworkError::new("no thread for it", error))?);
        Ok((adapter, vsock))
    }
}

impl Drop for Vsock {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Listens at a path. A socket of an earlier run, at which no process answers, is removed.
fn listen(path: &Path) -> std::io::Result<UnixListener> {
    let is_socket = path
        .symlink_metadata()
        .is_ok_and(|data| data.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connects to a Unix socket without waiting. A socket that cannot accept the connection now
/// refuses it.
fn connect(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// The host's side: its socket, clients and connections.
struct Host {
    cid: u64,
    path: PathBuf,
    wire: Wire,
    poller: Poller,
    listener: UnixListener,
    /// Whether clients may be waiting.
    is_ready: bool,
    /// Clients by number, oldest first.
    clients: BTreeMap<u64, Client>,
    connections: HashMap<u64, Connection>,
    /// Connections by the guest's port and the host's.
    by_ports: HashMap<(u32, u32), u64>,
    /// The number of the next connection or client. No number is used twice.
    next: u64,
    next_port: u32,
    /// The buffer that data is read into.
    buffer: Vec<u8>,
}

impl Host {
    fn open(options: &VsockOptions, wire: Wire) -> std::io::Result<Self> {
        raise_descriptor_limit();
        let poller = Poller::new()?;
        poller.add(wire.wake_descriptor(), WIRE)?;
        let listener = listen(&options.path)?;
        poller.add(&listener, LISTENER)?;
        Ok(Self {
            cid: options.cid,
            path: options.path.clone(),
            wire,
            poller,
            listener,
            is_ready: true,
            clients: BTreeMap::new(),
            connections: HashMap::new(),
            by_ports: HashMap::new(),
            next: FIRST,
            next_port: FIRST_PORT,
            buffer: vec![0; connection::BUFFER as usize],
        })
    }

    fn run(mut self) {
        while !self.wire.is_stopped() {
            let limit = self.sleep();
            for event in self.poller.wait(limit) {
                if event.token == LISTENER {
                    self.is_ready = true;
                } else if let Some(connection) = self.connections.get_mut(&event.token) {
                    connection.readable |= event.readable;
                    connection.writable |= event.writable;
                } else if let Some(client) = self.clients.get_mut(&event.token) {
                    client.readable |= event.readable;
                }
            }
            for packet in self.wire.receive() {
                self.packet(&packet);
            }
            self.accept();
            self.shake_hands();
            self.work();
        }
    }

    /// Returns how long the thread may sleep without an event.
    fn sleep(&self) -> Option<Duration> {
        let mut connections = self.connections.values();
        if connections.any(Connection::has_more) && self.wire.has_room() {
            return Some(Duration::ZERO);
        }
        let mut connections = self.connections.values();
        let waits = connections.any(|one| matches!(one.stage, Stage::Requested(_)));
        waits.then_some(Duration::from_secs(1))
    }

    /// Sends the guest a packet.
    fn send(wire: &Wire, cid: u64, header: Header, data: &[u8]) {
        let header = Header {
            from_cid: HOST_CID,
            to_cid: cid,
            bytes: data.len() as u32,
            ..header
        };
        wire.send(Frame::new([&header.to_bytes(), data].concat()));
    }

    /// Answers a packet that belongs to no connection, or is not allowed.
    fn refuse(&self, header: &Header) {
        if header.operation != operation::RESET {
            let reset = Header {
                from_port: header.to_port,
                to_port: header.from_port,
                operation: operation::RESET,
                kind: header.kind,
                ..Header::default()
            };
            Self::send(&self.wire, self.cid, reset, &[]);
        }
    }

    /// Handles a packet of the guest.
    fn packet(&mut self, packet: &[u8]) {
        if packet.is_empty() {
            // A new driver starts, and knows nothing of earlier connections.
            self.connections.clear();
            self.by_ports.clear();
            return;
        }
        let Some(header) = Header::read(packet) else {
            return;
        };
        if header.from_cid != self.cid {
            return;
        }
        let data = &packet[HEADER..];
        let is_whole = data.len() == header.bytes as usize;
        if header.to_cid != HOST_CID || header.kind != packet::STREAM || !is_whole {
            return self.refuse(&header);
        }
        let ports = (header.from_port, header.to_port);
        let Some(number) = self.by_ports.get(&ports).copied() else {
            match header.operation {
                operation::REQUEST => self.requested(&header),
                _ => self.refuse(&header),
            }
            return;
        };
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        connection.credit(&header);
        let (wire, cid) = (&self.wire, self.cid);
        let verdict = match (header.operation, connection.stage) {
            (operation::RESET, _) => return self.forget(number),
            (operation::RESPONSE, Stage::Requested(_)) => {
                connection.stage = Stage::Open;
                match connection.tell(&format!("OK {}\n", connection.host_port)) {
                    true => Verdict::Goes,
                    false => Verdict::Ends,
                }
            }
            (operation::DATA, _) => connection.data(data),
            (operation::SHUTDOWN, _) => {
                connection.shut_down(header.flags);
                Verdict::Goes
            }
            (operation::CREDIT_UPDATE, _) => Verdict::Goes,
            (operation::CREDIT_REQUEST, Stage::Open) => {
                let update = connection.header(operation::CREDIT_UPDATE);
                Self::send(wire, cid, update, &[]);
                Verdict::Goes
            }
            _ => Verdict::Ends,
        };
        if verdict == Verdict::Ends {
            self.end(number);
        }
    }

    /// Handles the guest's request to connect to a port of the host.
    fn requested(&mut self, header: &Header) {
        let mut path = OsString::from(&self.path);
        path.push(format!("_{}", header.to_port));
        let connected = (self.connections.len() < MAX_CONNECTIONS)
            .then(|| connect(Path::new(&path)).ok())
            .flatten();
        let Some(number) = connected
            .and_then(|host| self.insert(header.from_port, header.to_port, host, Stage::Open))
        else {
            return self.refuse(header);
        };
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.credit(header);
            let response = connection.header(operation::RESPONSE);
            Self::send(&self.wire, self.cid, response, &[]);
        }
    }

    fn insert(&mut self, guest: u32, host: u32, socket: OwnedFd, stage: Stage) -> Option<u64> {
        let number = self.next;
        self.poller.add(&socket, number).ok()?;
        self.next += 1;
        self.by_ports.insert((guest, host), number);
        let connection = Connection::new(guest, host, socket, stage);
        self.connections.insert(number, connection);
        Some(number)
    }

    fn forget(&mut self, number: u64) {
        if let Some(connection) = self.connections.remove(&number) {
            let ports = (connection.guest_port, connection.host_port);
            self.by_ports.remove(&ports);
        }
    }

    /// Closes a connection and notifies the guest.
    fn end(&mut self, number: u64) {
        if let Some(connection) = self.connections.get_mut(&number) {
            let reset = connection.header(operation::RESET);
            Self::send(&self.wire, self.cid, reset, &[]);
            self.forget(number);
        }
    }

    /// Accepts clients at the socket.
    fn accept(&mut self) {
        for _ in 0..MAX_CLIENTS {
            if !self.is_ready {
                return;
            }
            let Ok((socket, _)) = self.listener.accept() else {
                self.is_ready = false;
                return;
            };
            let watched = socket
                .set_nonblocking(true)
                .and_then(|()| Ok(self.poller.add(&socket, self.next)?));
            if watched.is_err() {
                continue;
            }
            if self.clients.len() >= MAX_CLIENTS {
                self.clients.pop_first();
            }
            self.clients.insert(self.next, Client::new(socket.into()));
            self.next += 1;
        }
    }

    /// Reads the destinations of clients.
    fn shake_hands(&mut self) {
        let numbers: Vec<u64> = self.clients.keys().copied().collect();
        for number in numbers {
            let asked = self.clients.get_mut(&number).map(Client::hear);
            match asked {
                None | Some(Asked::Waits) => {}
                Some(Asked::Nonsense) => drop(self.clients.remove(&number)),
                Some(Asked::Connect(port)) => {
                    if let Some(client) = self.clients.remove(&number) {
                        self.request(number, port, client);
                    }
                }
            }
        }
    }

    /// Requests a connection to one of the guest's ports.
    fn request(&mut self, number: u64, guest_port: u32, client: Client) {
        if self.connections.len() >= MAX_CONNECTIONS {
            return;
        }
        // There are more ports than connections, so this loop ends.
        while self.by_ports.contains_key(&(guest_port, self.next_port)) {
            self.next_port = self.following_port();
        }
        let host_port = self.next_port;
        self.next_port = self.following_port();
        let stage = Stage::Requested(Instant::now());
        let mut connection = Connection::new(guest_port, host_port, client.into_socket(), stage);
        let request = connection.header(operation::REQUEST);
        Self::send(&self.wire, self.cid, request, &[]);
        // The descriptor is already watched under this number.
        self.by_ports.insert((guest_port, host_port), number);
        self.connections.insert(number, connection);
    }

    fn following_port(&self) -> u32 {
        match self.next_port {
            // The highest number is no port (5.10.6).
            0xffff_fffe.. => FIRST_PORT,
            port => port + 1,
        }
    }

    /// Lets all connections move their bytes, and closes those that are over.
    fn work(&mut self) {
        let now = Instant::now();
        let mut over = Vec::new();
        let (wire, cid, buffer) = (&self.wire, self.cid, &mut self.buffer);
        for (number, connection) in &mut self.connections {
            let is_late = matches!(connection.stage, Stage::Requested(since)
                if now.saturating_duration_since(since) >= PATIENCE);
            let verdict = connection.work(
                || wire.has_room(),
                |header, data| Self::send(wire, cid, header, data),
                buffer,
            );
            if is_late || verdict == Verdict::Ends {
                over.push(*number);
            }
        }
        for number in over {
            self.end(number);
        }
    }
}
