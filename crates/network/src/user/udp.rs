//! UDP: a socket of the host for each port that the guest sends from. Answers come through
//! from those whom the guest has sent something.

use super::forward::Forward;
use super::turns::{BATCH, Left};
use super::{Context, addresses, packet, token};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with,
};
use smoltcp::wire::UdpPacket;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Sockets at a time; for one more, the one that was used least recently goes.
pub const MAX_SOCKETS: usize = 512;
/// Hosts that a socket may have answers from.
const MAX_PEERS: usize = 256;
/// How long a socket lives that nothing passes through.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What a socket is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// The guest's end.
    guest: SocketAddr,
    /// The host's end is of IPv4; the name server's may be another than the guest's.
    is_ipv4: bool,
}

struct Socket {
    number: u64,
    host: OwnedFd,
    /// Whom the guest has sent something.
    peers: HashSet<SocketAddr>,
    /// Whom it has asked for names.
    servers: HashSet<SocketAddr>,
    used: Instant,
    /// Tells the fragments of one datagram from those of others.
    sent: u16,
}

/// All sockets.
#[derive(Default)]
pub struct Sockets {
    sockets: HashMap<Key, Socket>,
    by_number: HashMap<u64, Key>,
    next: u64,
    /// Ports of the host that lead to the guest.
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
    Ok(socket)
}

impl Sockets {
    /// Whether there is nothing that time could end.
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty() && self.forwards.iter().all(Forward::is_idle)
    }

    /// A datagram of the guest: `payload` is its UDP part.
    pub fn packet(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
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
        if context.restrict || inside.port() == 0 {
            return;
        }
        let Some(outside) = context.addresses.outside(inside) else {
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
        let peers = match addresses::is_dns(destination) {
            true => &mut socket.servers,
            false => &mut socket.peers,
        };
        if peers.len() < MAX_PEERS {
            peers.insert(outside);
        }
        // What cannot be sent is lost, as datagrams are.
        let _ = sendto(
            &socket.host,
            datagram.payload(),
            SendFlags::NOSIGNAL,
            &outside,
        );
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
                used: context.now,
                sent: 0,
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

    /// A socket may have something: some of what waits goes to the guest.
    pub fn turn(&mut self, number: u64, buffer: &mut [u8], context: &Context) -> Left {
        let Some(key) = self.by_number.get(&number).copied() else {
            return Left::Nothing;
        };
        let guest = key.guest;
        let Some(socket) = self.sockets.get_mut(&key) else {
            return Left::Nothing;
        };
        for _ in 0..BATCH {
            if !context.wire.has_room_for_datagrams() {
                break;
            }
            let (bytes, peer) = match recvfrom(&socket.host, &mut *buffer, RecvFlags::empty()) {
                Ok((bytes, _, peer)) => (bytes, peer),
                Err(rustix::io::Errno::AGAIN) => return Left::Nothing,
                // An earlier datagram met nobody, say.
                Err(_) => continue,
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
            let name_server: IpAddr = match guest {
                SocketAddr::V4(_) => addresses::DNS.into(),
                SocketAddr::V6(_) => addresses::DNS6.into(),
            };
            let name_server = is_server.then_some(name_server);
            let inside = context.addresses.inside(peer, name_server);
            socket.sent = socket.sent.wrapping_add(1);
            deliver(inside, guest, &buffer[..bytes], socket.sent, context);
        }
        Left::Something
    }

    /// Closes sockets that nothing has passed through for long.
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

/// The same address without scope.
fn plain(address: SocketAddr) -> SocketAddr {
    (address.ip(), address.port()).into()
}

/// Sends the guest a datagram, in fragments if it is too long. Over IPv6 it is lost then.
pub fn deliver(
    from: SocketAddr,
    guest: SocketAddr,
    payload: &[u8],
    number: u16,
    context: &Context,
) {
    let Some(packet) = packet::udp(from, guest, payload) else {
        return;
    };
    if packet.len() <= packet::MTU {
        context.send_packet(&packet);
    } else if packet[0] >> 4 == 4 {
        for fragment in packet::fragments(&packet, number) {
            context.send_packet(&fragment);
        }
    }
}
