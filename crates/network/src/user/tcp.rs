//! TCP: each connection of the guest consists of a smoltcp socket towards the guest and a host
//! socket towards the world. Bytes are copied between the two.
//!
//! ```text
//!   guest: SYN -- kept -- connect -- refused: the SYN meets no socket, which answers RST
//!                                 |- unreachable: an ICMP error says so
//!                                 `- connected: a socket listens just for that SYN
//!   data:  smoltcp's buffers <-> the host's socket, as much as both take
//!   end:   FIN <-> shutdown, RST <-> reset
//! ```
//!
//! Only the two sockets buffer data. If the host's accepts no more, smoltcp's receive buffer fills
//! and its window shrinks. If the guest accepts no more, smoltcp's send buffer fills and the host's
//! socket is not read.

use super::context::Context;
use super::guest_side::GuestSide;
use super::icmp::Unreachable;
use super::{addresses, token};
use crate::poller::Readiness;
use crate::refusals::Protocol;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt,
};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::{Duration as StackDuration, Instant as StackInstant};
use smoltcp::wire::{IpListenEndpoint, TcpPacket};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The maximum number of connections. More are refused.
pub const MAX_CONNECTIONS: usize = 4096;
/// The maximum time that the guest may take to complete a connection.
const ANSWER_TIMEOUT: StackDuration = StackDuration::from_secs(60);
/// How long a properly closed connection is kept in order to answer the guest's last segments.
const LINGER: Duration = Duration::from_secs(2);
/// The first source port of connections into the guest.
const FIRST_PORT: u16 = 49_152;

/// Returns the size in bytes of each of a connection's two buffers, by the number of existing
/// connections: a few connections are fast, and thousands take little memory.
const fn buffer_bytes(connections: usize) -> usize {
    match connections {
        0..16 => 512 << 10,
        16..128 => 128 << 10,
        _ => 16 << 10,
    }
}

/// The two ends of a connection from the guest's point of view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Ends {
    guest: SocketAddr,
    outside: SocketAddr,
}

enum Stage {
    /// The host is connecting while the guest's SYN waits.
    Connecting(Vec<u8>),
    /// Both sockets exist.
    Open(SocketHandle),
}

struct Connection {
    ends: Ends,
    host: OwnedFd,
    stage: Stage,
    /// Whether the host's socket may have something to read.
    readable: bool,
    /// Whether the host's socket may accept data.
    writable: bool,
    /// Whether the host's side has closed its half.
    host_ended: bool,
    /// Whether the guest has closed its half and the host's side has been notified.
    guest_ended: bool,
    /// When the second half was closed.
    ended: Option<Instant>,
}

/// All TCP connections of the network.
pub struct Connections {
    sockets: SocketSet<'static>,
    connections: HashMap<u64, Connection>,
    by_ends: HashMap<Ends, u64>,
    /// The number of the next connection. No number is used twice.
    next: u64,
    next_port: u16,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            sockets: SocketSet::new(Vec::new()),
            connections: HashMap::new(),
            by_ends: HashMap::new(),
            next: 0,
            next_port: FIRST_PORT,
        }
    }
}

fn socket(connections: usize) -> Socket<'static> {
    let buffer = || SocketBuffer::new(vec![0; buffer_bytes(connections)]);
    let mut socket = Socket::new(buffer(), buffer());
    // Delaying segments would gain nothing, because both ends are on this host.
    socket.set_nagle_enabled(false);
    socket.set_ack_delay(None);
    socket
}

/// How a refused connection is reported to the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// The SYN is given to the stack without a socket, which answers it with RST.
    Reset,
    /// An ICMP error gives the reason.
    Unreachable(Unreachable),
    /// The host's attempt timed out, and so will the guest's.
    Silence,
}

impl Refusal {
    fn of_errno(error: Errno) -> Self {
        match (error, Unreachable::of_errno(error)) {
            (Errno::TIMEDOUT, _) => Self::Silence,
            (Errno::CONNREFUSED, _) | (_, None) => Self::Reset,
            (_, Some(reason)) => Self::Unreachable(reason),
        }
    }
}

/// Refuses the connection requested by the guest's SYN `packet`.
fn refuse(
    refusal: Refusal,
    ends: Ends,
    packet: &[u8],
    sockets: &mut SocketSet<'_>,
    guest_side: &mut GuestSide,
    context: &Context,
) {
    let addresses = (ends.guest.ip(), ends.outside.ip());
    match refusal {
        // No host answers packets to all hosts or to a group.
        Refusal::Reset if addresses::is_of_one(addresses.1) => {
            guest_side.receive(packet, sockets, context);
        }
        Refusal::Unreachable(reason) => context.report(reason, addresses, packet),
        Refusal::Reset | Refusal::Silence => {}
    }
}

/// Begins to connect.
fn connect(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

impl Connections {
    /// Whether there are no connections.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Whether another connection is possible.
    pub fn has_room(&self) -> bool {
        self.connections.len() < MAX_CONNECTIONS
    }

    /// Returns the time until the stack has something to do by itself.
    pub fn next_event(
        &mut self,
        guest_side: &mut GuestSide,
        now: StackInstant,
    ) -> Option<Duration> {
        let delay = guest_side.interface().poll_delay(now, &self.sockets)?;
        Some(Duration::from_micros(delay.total_micros()))
    }

    /// Handles a TCP packet of the guest: `payload` is its TCP part.
    pub fn packet(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        packet: &[u8],
        payload: &[u8],
        guest_side: &mut GuestSide,
        context: &Context,
    ) {
        let Ok(segment) = TcpPacket::new_checked(payload) else {
            return;
        };
        let ends = Ends {
            guest: (source, segment.src_port()).into(),
            outside: (destination, segment.dst_port()).into(),
        };
        let is_opening = segment.syn() && !segment.ack() && !segment.rst();
        if is_opening && !self.is_open(ends) {
            match self.begin(ends, packet, context) {
                Ok(()) => return,
                Err(refusal) => {
                    refuse(
                        refusal,
                        ends,
                        packet,
                        &mut self.sockets,
                        guest_side,
                        context,
                    );
                    return;
                }
            }
        }
        if let Some(number) = self.by_ends.get(&ends)
            && let Some(connection) = self.connections.get(number)
            && matches!(connection.stage, Stage::Connecting(_))
        {
            // The guest repeats its SYN, or has given up.
            if segment.rst() {
                let number = *number;
                self.remove(number);
            }
            return;
        }
        guest_side.receive(packet, &mut self.sockets, context);
    }

    /// Whether a SYN belongs to a connection that is still open. A connection that has ended is
    /// removed.
    fn is_open(&mut self, ends: Ends) -> bool {
        let Some(number) = self.by_ends.get(&ends).copied() else {
            return false;
        };
        let is_over = match self.connections.get(&number).map(|c| &c.stage) {
            Some(Stage::Connecting(_)) => false,
            Some(Stage::Open(handle)) => {
                let socket = self.sockets.get::<Socket<'_>>(*handle);
                matches!(socket.state(), State::TimeWait | State::Closed)
            }
            None => true,
        };
        if is_over {
            self.remove(number);
        }
        !is_over
    }

    /// Begins a connection of the guest.
    fn begin(&mut self, ends: Ends, packet: &[u8], context: &Context) -> Result<(), Refusal> {
        if !self.has_room() || !context.admits(Protocol::Tcp, ends.outside) {
            return Err(Refusal::Reset);
        }
        let address = context.addresses.outside(ends.outside);
        let host = connect(address.ok_or(Refusal::Reset)?).map_err(Refusal::of_errno)?;
        self.insert(
            Connection {
                ends,
                host,
                stage: Stage::Connecting(packet.to_vec()),
                readable: false,
                writable: false,
                host_ended: false,
                guest_ended: false,
                ended: None,
            },
            context,
        )
        .ok_or(Refusal::Reset)
    }

    fn insert(&mut self, connection: Connection, context: &Context) -> Option<()> {
        let number = self.next;
        let watched = context.poller.add(&connection.host, token::TCP | number);
        watched.ok()?;
        self.next += 1;
        self.by_ends.insert(connection.ends, number);
        self.connections.insert(number, connection);
        Some(())
    }

    /// Forwards a connection from outside to the guest.
    pub fn forward(
        &mut self,
        stream: TcpStream,
        guest: SocketAddr,
        guest_side: &mut GuestSide,
        context: &Context,
    ) {
        let set_up = stream
            .set_nonblocking(true)
            .and_then(|()| stream.set_nodelay(true));
        let Some(ends) = self.free_ends(guest).filter(|_| set_up.is_ok()) else {
            return;
        };
        let mut socket = socket(self.connections.len());
        socket.set_timeout(Some(ANSWER_TIMEOUT));
        let interface = guest_side.interface().context();
        if socket.connect(interface, ends.guest, ends.outside).is_err() {
            return;
        }
        let handle = self.sockets.add(socket);
        let added = self.insert(
            Connection {
                ends,
                host: stream.into(),
                stage: Stage::Open(handle),
                readable: true,
                writable: true,
                host_ended: false,
                guest_ended: false,
                ended: None,
            },
            context,
        );
        if added.is_none() {
            self.sockets.remove(handle);
        }
    }

    /// Returns ends from the gateway to a port of the guest that no connection uses.
    fn free_ends(&mut self, guest: SocketAddr) -> Option<Ends> {
        let gateway: IpAddr = match guest {
            SocketAddr::V4(_) => addresses::GATEWAY.into(),
            SocketAddr::V6(_) => addresses::GATEWAY6.into(),
        };
        (0..=u16::MAX - FIRST_PORT).find_map(|_| {
            let outside = (gateway, self.next_port).into();
            self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
            let ends = Ends { guest, outside };
            (!self.by_ends.contains_key(&ends)).then_some(ends)
        })
    }

    /// Handles an event of the host's socket of a connection.
    pub fn event(
        &mut self,
        number: u64,
        event: &Readiness,
        guest_side: &mut GuestSide,
        context: &Context,
    ) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        connection.readable |= event.readable;
        connection.writable |= event.writable;
        let Stage::Connecting(packet) = &mut connection.stage else {
            return;
        };
        if !event.writable {
            return;
        }
        let packet = std::mem::take(packet);
        let ends = connection.ends;
        let connected = sockopt::socket_error(&connection.host);
        if let Err(error) = connected.unwrap_or_else(Err) {
            self.remove(number);
            let refusal = Refusal::of_errno(error);
            refuse(
                refusal,
                ends,
                &packet,
                &mut self.sockets,
                guest_side,
                context,
            );
            return;
        }
        let mut socket = socket(self.connections.len());
        socket.set_timeout(Some(ANSWER_TIMEOUT));
        let endpoint = IpListenEndpoint {
            addr: Some(ends.outside.ip().into()),
            port: ends.outside.port(),
        };
        if socket.listen(endpoint).is_err() {
            self.remove(number);
            return;
        }
        let handle = self.sockets.add(socket);
        guest_side.receive(&packet, &mut self.sockets, context);
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.stage = Stage::Open(handle);
        }
        if self.sockets.get::<Socket<'_>>(handle).is_listening() {
            // The stack did not accept the SYN.
            self.remove(number);
        }
    }

    /// Moves bytes, and closes connections that have ended.
    pub fn work(&mut self, guest_side: &mut GuestSide, context: &Context) {
        self.pump(context.now);
        guest_side.send(&mut self.sockets, context);
        // No acknowledgements arrived in the meantime, because packets are processed one after the
        // other. But the guest may have to be notified of room in a window, and resets have been
        // sent.
        self.sweep(context.now);
    }

    fn pump(&mut self, now: Instant) {
        for connection in self.connections.values_mut() {
            if let Stage::Open(handle) = connection.stage {
                let socket = self.sockets.get_mut::<Socket<'_>>(handle);
                connection.pump(socket, now);
            }
        }
    }

    /// Removes connections that are over.
    fn sweep(&mut self, now: Instant) {
        let over = self.connections.iter().filter(|(_, connection)| {
            let Stage::Open(handle) = connection.stage else {
                return false;
            };
            let socket = self.sockets.get::<Socket<'_>>(handle);
            // A socket that sends a reset keeps its peer until the reset has been sent.
            let is_closed = socket.state() == State::Closed && socket.remote_endpoint().is_none();
            let has_lingered = connection
                .ended
                .is_some_and(|ended| now.duration_since(ended) >= LINGER)
                && socket.state() == State::TimeWait;
            is_closed || has_lingered
        });
        let over: Vec<u64> = over.map(|(number, _)| *number).collect();
        for number in over {
            self.remove(number);
        }
    }

    /// Closes both sockets. The host's is closed by a reset, unless both halves have ended.
    fn remove(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else {
            return;
        };
        self.by_ends.remove(&connection.ends);
        if let Stage::Open(handle) = connection.stage {
            self.sockets.remove(handle);
        }
        if !(connection.host_ended && connection.guest_ended) {
            let _ = sockopt::set_socket_linger(&connection.host, Some(Duration::ZERO));
        }
    }
}

impl Connection {
    fn pump(&mut self, socket: &mut Socket<'_>, now: Instant) {
        // From now on a guest may be arbitrarily slow, because its machine may be paused.
        let is_complete = !matches!(socket.state(), State::SynSent | State::SynReceived);
        if is_complete && socket.timeout().is_some() {
            socket.set_timeout(None);
        }
        self.drain_guest(socket);
        self.drain_host(socket);
        if self.host_ended && self.guest_ended && self.ended.is_none() {
            self.ended = Some(now);
        }
    }

    fn drain_guest(&mut self, socket: &mut Socket<'_>) {
        while self.writable && socket.can_recv() {
            let host = &self.host;
            let sent =
                socket.recv(
                    |data| match rustix::net::send(host, data, SendFlags::NOSIGNAL) {
                        Ok(bytes) => (bytes, Ok(())),
                        Err(error) => (0, Err(error)),
                    },
                );
            match sent {
                Ok(Ok(())) | Ok(Err(Errno::INTR)) => {}
                Ok(Err(Errno::AGAIN)) => self.writable = false,
                Ok(Err(_)) => return socket.abort(),
                Err(_) => return,
            }
        }
        let has_ended = matches!(
            socket.state(),
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait
        );
        if has_ended && !self.guest_ended && !socket.can_recv() {
            self.guest_ended = true;
            let _ = rustix::net::shutdown(&self.host, Shutdown::Write);
        }
    }

    fn drain_host(&mut self, socket: &mut Socket<'_>) {
        while self.readable && !self.host_ended && socket.can_send() {
            let host = &self.host;
            let received =
                socket.send(
                    |room| match rustix::net::recv(host, &mut *room, RecvFlags::empty()) {
                        Ok((bytes, _)) => (bytes, Ok(bytes)),
                        Err(error) => (0, Err(error)),
                    },
                );
            match received {
                Ok(Ok(0)) => {
                    self.host_ended = true;
                    socket.close();
                }
                Ok(Ok(_) | Err(Errno::INTR)) => {}
                Ok(Err(Errno::AGAIN)) => self.readable = false,
                Ok(Err(_)) => return socket.abort(),
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_errors_decide_how_a_connection_is_refused() {
        for (error, expected) in [
            (Errno::CONNREFUSED, Refusal::Reset),
            (Errno::MFILE, Refusal::Reset),
            (
                Errno::NETUNREACH,
                Refusal::Unreachable(Unreachable::Network),
            ),
            (Errno::HOSTUNREACH, Refusal::Unreachable(Unreachable::Host)),
            (Errno::ACCESS, Refusal::Unreachable(Unreachable::Prohibited)),
            (Errno::TIMEDOUT, Refusal::Silence),
        ] {
            assert_eq!(Refusal::of_errno(error), expected, "{error}");
        }
    }
}
