//! UDP: a socket of the host for each port that the guest sends from. Datagrams are delivered to
//! the guest from the addresses to which it has sent something, and errors as ICMP.

use super::context::Context;
use super::dns::{self, Failure};
use super::forward::Forward;
use super::gate::QueryVerdict;
use super::host_errors::{self, HostError};
use super::icmp::Unreachable;
use super::queries::{Queries, Query};
use super::turns::{BATCH, Left};
use super::{addresses, packet, token};
use crate::refusals::Protocol;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with,
};
use smoltcp::wire::{Ipv4Packet, UdpPacket};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The maximum number of sockets. For one more, the least recently used is closed.
pub const MAX_SOCKETS: usize = 512;
/// The maximum number of hosts that a socket may receive answers from.
const MAX_PEERS: usize = 256;
/// A socket without traffic is closed after this time.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Identifies what a socket is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// The guest's end.
    guest: SocketAddr,
    /// Whether the host's end is IPv4. For a name server, it may differ from the guest's end.
    is_ipv4: bool,
}

struct Socket {
    number: u64,
    host: OwnedFd,
    /// The addresses to which the guest has sent something.
    peers: HashSet<SocketAddr>,
    /// The name servers that the guest has asked.
    servers: HashSet<SocketAddr>,
    /// The queries to these servers.
    queries: Queries,
    used: Instant,
    /// Whether the host may fragment the packets of this socket.
    may_fragment: bool,
}

impl Socket {
    fn set_may_fragment(&mut self, may_fragment: bool) {
        if self.may_fragment != may_fragment
            && host_errors::set_fragmenting(&self.host, may_fragment).is_ok()
        {
            self.may_fragment = may_fragment;
        }
    }
}

/// All UDP sockets of the network.
#[derive(Default)]
pub struct Sockets {
    sockets: HashMap<Key, Socket>,
    by_number: HashMap<u64, Key>,
    next: u64,
    /// The ports of the host that are forwarded to the guest.
    pub forwards: Vec<Forward>,
}

fn open(is_ipv4: bool) -> rustix::io::Result<OwnedFd> {
    let (family, any): (_, IpAddr) = match is_ipv4 {
        true => (AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into()),
        false => (AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    bind(&socket, &SocketAddr::new(any, 0))?;
    host_errors::enable(&socket, is_ipv4)?;
    Ok(socket)
}

/// Sends a datagram. The host reports an error of an earlier datagram once, in place of the result
/// of this one, and also keeps it in the error queue.
pub fn send(socket: &OwnedFd, data: &[u8], to: &SocketAddr) -> rustix::io::Result<()> {
    let first = sendto(socket, data, SendFlags::NOSIGNAL, to);
    match first.or_else(|_| sendto(socket, data, SendFlags::NOSIGNAL, to)) {
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

impl Sockets {
    /// Whether there is nothing that could time out.
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty() && self.forwards.iter().all(Forward::is_idle)
    }

    /// Handles a datagram of the guest: `payload` is the UDP part of `packet`.
    pub fn packet(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        packet: &[u8],
        payload: &[u8],
        context: &Context,
    ) {
        let Ok(datagram) = UdpPacket::new_checked(payload) else {
            return;
        };
        let guest = SocketAddr::new(source, datagram.src_port());
        let inside = SocketAddr::new(destination, datagram.dst_port());
        for forward in &mut self.forwards {
            if forward.answer(guest, inside, datagram.payload(), context.now) {
                return;
            }
        }
        if inside.port() == 0 {
            return;
        }
        if addresses::is_dns(destination) && inside.port() == addresses::DNS_PORT {
            if let Some(query) = self.query_of(guest, inside, datagram.payload(), context) {
                self.ask(guest, query, context);
            }
            return;
        }
        let report = |reason| context.report(reason, (source, destination), packet);
        if !context.admits(Protocol::Udp, inside) {
            report(Unreachable::Prohibited);
            return;
        }
        let Some(outside) = context.addresses.outside(inside) else {
            report(match addresses::is_dns(destination) {
                true => Unreachable::Port,
                false => Unreachable::Host,
            });
            return;
        };
        let key = Key {
            guest,
            is_ipv4: outside.is_ipv4(),
        };
        let Some(socket) = self.socket(key, context) else {
            return;
        };
        socket.used = context.now;
        if socket.peers.len() < MAX_PEERS {
            socket.peers.insert(outside);
        }
        if key.is_ipv4 {
            let may_fragment = !Ipv4Packet::new_unchecked(packet).dont_frag();
            socket.set_may_fragment(may_fragment);
        }
        // A datagram that cannot be sent for other reasons is lost, as datagrams are.
        let sent = send(&socket.host, datagram.payload(), &outside);
        if let Some(reason) = sent.err().and_then(Unreachable::of_errno) {
            report(reason);
        }
    }

    /// Handles a message of the guest that its port is closed. The host then reports the
    /// corresponding port as closed, because no socket has it any more.
    pub fn close(&mut self, guest: SocketAddr) {
        for is_ipv4 in [true, false] {
            self.remove(Key { guest, is_ipv4 });
        }
    }

    /// Returns the query for the guest's message, which may be a repeated one. Returns `None` if the
    /// guest may not ask that, and answers it.
    fn query_of(
        &mut self,
        guest: SocketAddr,
        inside: SocketAddr,
        data: &[u8],
        context: &Context,
    ) -> Option<Query> {
        let repeated = [true, false].into_iter().find_map(|is_ipv4| {
            let socket = self.sockets.get_mut(&Key { guest, is_ipv4 })?;
            socket.queries.take_repeated(inside, data)
        });
        if repeated.is_some() {
            return repeated;
        }
        let mut query = Query {
            inside,
            data: data.to_vec(),
            screened: None,
            asked: 0,
        };
        match context.gate.query(data) {
            QueryVerdict::AsItIs => {}
            QueryVerdict::Ours(screened) => query.screened = Some(screened),
            QueryVerdict::Refused => {
                fail(guest, &query, Failure::Refused, context);
                return None;
            }
        }
        Some(query)
    }

    /// Asks the next of the host's name servers. If none can be asked, the guest gets an answer
    /// that reports that.
    fn ask(&mut self, guest: SocketAddr, mut query: Query, context: &Context) {
        let servers = context.addresses.name_servers();
        while let Some(server) = servers.get(query.asked).copied() {
            query.asked += 1;
            let key = Key {
                guest,
                is_ipv4: server.is_ipv4(),
            };
            let Some(socket) = self.socket(key, context) else {
                continue;
            };
            socket.used = context.now;
            if socket.servers.len() < MAX_PEERS {
                socket.servers.insert(server);
            }
            socket.set_may_fragment(true);
            if send(&socket.host, &query.message(), &server).is_ok() {
                // A query that the guest repeats after the last server begins with the first one
                // again.
                query.asked %= servers.len();
                socket.queries.push(server, query);
                return;
            }
        }
        fail(guest, &query, Failure::Server, context);
    }

    fn socket(&mut self, key: Key, context: &Context) -> Option<&mut Socket> {
        if !self.sockets.contains_key(&key) {
            if self.sockets.len() >= MAX_SOCKETS {
                let oldest = self.sockets.iter().min_by_key(|(_, socket)| socket.used);
                let oldest = oldest.map(|(key, _)| *key)?;
                self.remove(oldest);
            }
            let host = open(key.is_ipv4).ok()?;
            let number = self.next;
            context.poller.add(&host, token::UDP | number).ok()?;
            self.next += 1;
            self.by_number.insert(number, key);
            let socket = Socket {
                number,
                host,
                peers: HashSet::new(),
                servers: HashSet::new(),
                queries: Queries::default(),
                used: context.now,
                may_fragment: true,
            };
            self.sockets.insert(key, socket);
        }
        self.sockets.get_mut(&key)
    }

    fn remove(&mut self, key: Key) {
        if let Some(socket) = self.sockets.remove(&key) {
            self.by_number.remove(&socket.number);
        }
    }

    /// Delivers some of the datagrams at a socket to the guest.
    pub fn turn(&mut self, number: u64, buffer: &mut [u8], context: &Context) -> Left {
        let Some(key) = self.by_number.get(&number).copied() else {
            return Left::Nothing;
        };
        let guest = key.guest;
        let Some(socket) = self.sockets.get_mut(&key) else {
            return Left::Nothing;
        };
        let mut left = Left::Something;
        for _ in 0..BATCH {
            if !context.wire.has_room_for_datagrams() {
                return left;
            }
            let (bytes, peer) = match recvfrom(&socket.host, &mut *buffer, RecvFlags::empty()) {
                Ok((bytes, _, peer)) => (bytes, peer),
                Err(Errno::AGAIN) => {
                    left = Left::Nothing;
                    break;
                }
                // An earlier datagram did not arrive; the error queue contains which one.
                Err(_) => break,
            };
            let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
            let Some(peer) = peer.map(plain) else {
                continue;
            };
            let is_server = socket.servers.contains(&peer);
            if !is_server && !socket.peers.contains(&peer) {
                continue;
            }
            socket.used = context.now;
            let mut message = Cow::Borrowed(&buffer[..bytes]);
            if is_server {
                let query = socket.queries.answered(peer, &message);
                let Some(answer) = answer_of(query, message, context) else {
                    continue;
                };
                message = answer;
            }
            let name_server = is_server.then_some(name_server(guest));
            let inside = context.addresses.inside(peer, name_server);
            deliver(inside, guest, &message, context);
        }
        for _ in 0..BATCH {
            let socket = self.sockets.get(&key);
            let Some(error) = socket.and_then(|socket| host_errors::take(&socket.host, buffer))
            else {
                return left;
            };
            self.failed(key, &error, &buffer[..error.quoted], context);
        }
        Left::Something
    }

    /// Handles a datagram of the guest that did not arrive.
    fn failed(&mut self, key: Key, error: &HostError, quoted: &[u8], context: &Context) {
        let Some(socket) = self.sockets.get_mut(&key) else {
            return;
        };
        let destination = plain(error.destination);
        let queries = socket.queries.take_failed(destination);
        let is_too_long = matches!(error.reason, Unreachable::TooLong { .. });
        // The host fragments the next one by itself.
        let is_mended = is_too_long && socket.may_fragment;
        if queries.is_empty() && socket.peers.contains(&destination) && !is_mended {
            let inside = context.addresses.inside(destination, None);
            report_datagram(error.reason, key.guest, inside, quoted, context);
        }
        let count = context.addresses.name_servers().len();
        for mut query in queries {
            // After the last server there is no other one.
            if query.asked == 0 {
                query.asked = count;
            }
            self.ask(key.guest, query, context);
        }
    }

    /// Closes sockets that had no traffic for a long time.
    pub fn expire(&mut self, now: Instant) {
        let is_old = |socket: &Socket| now.saturating_duration_since(socket.used) >= TIMEOUT;
        let old = self.sockets.iter().filter(|(_, socket)| is_old(socket));
        let old: Vec<_> = old.map(|(key, _)| *key).collect();
        for key in old {
            self.remove(key);
        }
        self.forwards
            .iter_mut()
            .for_each(|forward| forward.expire(now));
    }
}

/// Returns the address without its scope.
fn plain(address: SocketAddr) -> SocketAddr {
    (address.ip(), address.port()).into()
}

/// Returns the address by which the guest knows the name server.
fn name_server(guest: SocketAddr) -> IpAddr {
    match guest {
        SocketAddr::V4(_) => addresses::DNS.into(),
        SocketAddr::V6(_) => addresses::DNS6.into(),
    }
}

/// Sends the guest a datagram.
pub fn deliver(from: SocketAddr, guest: SocketAddr, payload: &[u8], context: &Context) {
    if let Some(packet) = packet::udp(from, guest, payload) {
        context.send_packet(&packet);
    }
}

/// Reports to the guest that a datagram with these data did not arrive.
pub fn report_datagram(
    reason: Unreachable,
    guest: SocketAddr,
    inside: SocketAddr,
    data: &[u8],
    context: &Context,
) {
    if let Some(original) = packet::udp(guest, inside, data) {
        context.report(reason, (guest.ip(), inside.ip()), &original);
    }
}

/// Returns the answer for the guest to a message of a name server, if it gets one.
fn answer_of<'a>(
    query: Option<Query>,
    message: Cow<'a, [u8]>,
    context: &Context,
) -> Option<Cow<'a, [u8]>> {
    if !context.gate.reads_queries() {
        return Some(message);
    }
    let query = query?;
    let screened = query.screened?;
    let answer = context
        .gate
        .answer(&query.data, &screened, &message, context.now);
    answer.map(Cow::Owned)
}

/// Answers a query in place of a name server.
fn fail(guest: SocketAddr, query: &Query, failure: Failure, context: &Context) {
    match dns::failure(&query.data, failure) {
        Some(response) => deliver(query.inside, guest, &response, context),
        None => report_datagram(Unreachable::Port, guest, query.inside, &query.data, context),
    }
}
