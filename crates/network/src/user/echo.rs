//! Answers the guest's echo requests (ping), or sends them to other hosts.
//!
//! Requests to the gateway and to the name server are answered here. Requests to other hosts are
//! sent through a ping socket, if the host permits its users to have one
//! (net.ipv4.ping_group_range).

use super::context::Context;
use super::icmp::Unreachable;
use super::turns::{BATCH, Left};
use super::{addresses, packet, token};
use crate::refusals::Protocol;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recvfrom, sendto,
    socket_with,
};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Address};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The maximum number of sockets. Further requests are dropped.
const MAX_SOCKETS: usize = 64;
/// A socket without traffic is closed after this time.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The size of an echo's header in bytes.
const HEADER: usize = 8;
/// The maximum size in bytes of an echo in an IPv4 packet.
const MAX_BYTES: usize = 65_535 - 20;

/// The sender of the requests that a socket is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Asker {
    guest: IpAddr,
    ident: u16,
}

struct Socket {
    number: u64,
    host: OwnedFd,
    used: Instant,
}

/// All ping sockets of the network.
#[derive(Default)]
pub struct Sockets {
    sockets: HashMap<Asker, Socket>,
    by_number: HashMap<u64, Asker>,
    next: u64,
}

/// A request or an answer.
struct Echo {
    ident: u16,
    sequence: u16,
    data: Vec<u8>,
}

/// Returns the echo request in an ICMP message.
fn request(source: IpAddr, destination: IpAddr, message: &[u8]) -> Option<Echo> {
    // The adapter may still have to complete checksums.
    let ignored = ChecksumCapabilities::ignored();
    let (ident, sequence, data) = match (source, destination) {
        (IpAddr::V4(_), IpAddr::V4(_)) => {
            let message = Icmpv4Packet::new_checked(message).ok()?;
            match Icmpv4Repr::parse(&message, &ignored).ok()? {
                Icmpv4Repr::EchoRequest {
                    ident,
                    seq_no,
                    data,
                } => (ident, seq_no, data.to_vec()),
                _ => return None,
            }
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let message = Icmpv6Packet::new_checked(message).ok()?;
            match Icmpv6Repr::parse(&source, &destination, &message, &ignored).ok()? {
                Icmpv6Repr::EchoRequest {
                    ident,
                    seq_no,
                    data,
                } => (ident, seq_no, data.to_vec()),
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(Echo {
        ident,
        sequence,
        data,
    })
}

/// Returns the packet of an answer.
fn answer(source: IpAddr, destination: IpAddr, echo: &Echo) -> Option<Vec<u8>> {
    const HOP_LIMIT: u8 = 64;
    let bytes = HEADER + echo.data.len();
    if bytes > MAX_BYTES {
        return None;
    }
    let fill = |buffer: &mut [u8]| match (source, destination) {
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            fill6(source, destination, echo, buffer);
        }
        _ => fill4(echo, buffer),
    };
    let protocol = match destination {
        IpAddr::V4(_) => IpProtocol::Icmp,
        IpAddr::V6(_) => IpProtocol::Icmpv6,
    };
    Some(packet::ip(
        source,
        destination,
        protocol,
        bytes,
        HOP_LIMIT,
        fill,
    ))
}

fn fill4(echo: &Echo, buffer: &mut [u8]) {
    let repr = Icmpv4Repr::EchoReply {
        ident: echo.ident,
        seq_no: echo.sequence,
        data: &echo.data,
    };
    let mut message = Icmpv4Packet::new_unchecked(buffer);
    repr.emit(&mut message, &ChecksumCapabilities::default());
}

fn fill6(source: Ipv6Address, destination: Ipv6Address, echo: &Echo, buffer: &mut [u8]) {
    let repr = Icmpv6Repr::EchoReply {
        ident: echo.ident,
        seq_no: echo.sequence,
        data: &echo.data,
    };
    let mut message = Icmpv6Packet::new_unchecked(buffer);
    repr.emit(
        &source,
        &destination,
        &mut message,
        &ChecksumCapabilities::default(),
    );
}

fn open(guest: IpAddr) -> rustix::io::Result<OwnedFd> {
    let (family, protocol) = match guest {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, SocketType::DGRAM, flags, Some(protocol))
}

impl Sockets {
    /// Whether there are no sockets.
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    /// Handles an ICMP message of the guest: the payload of `packet`.
    pub fn packet(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        packet: &[u8],
        message: &[u8],
        context: &Context,
    ) {
        let Some(echo) = request(source, destination, message) else {
            return;
        };
        if addresses::is_gateway(destination) || addresses::is_dns(destination) {
            if let Some(packet) = answer(destination, source, &echo) {
                context.send_packet(&packet);
            }
            return;
        }
        let report = |reason| context.report(reason, (source, destination), packet);
        if !context.admits(Protocol::Ping, (destination, 0).into()) {
            report(Unreachable::Prohibited);
            return;
        }
        let Some(outside) = context.addresses.outside((destination, 0).into()) else {
            report(Unreachable::Host);
            return;
        };
        let asker = Asker {
            guest: source,
            ident: echo.ident,
        };
        match self.socket(asker, context) {
            Ok(socket) => {
                socket.used = context.now;
                // The host fills in checksum and identifier.
                let kind = if source.is_ipv4() { 8 } else { 128 };
                let mut request = vec![kind, 0, 0, 0, 0, 0];
                request.extend(echo.sequence.to_be_bytes());
                request.extend(echo.data);
                let sent = sendto(&socket.host, &request, SendFlags::NOSIGNAL, &outside);
                if let Some(reason) = sent.err().and_then(Unreachable::of_errno) {
                    report(reason);
                }
            }
            // The host does not permit its users to send echo requests.
            Err(Errno::ACCESS | Errno::PERM) => report(Unreachable::Prohibited),
            Err(_) => {}
        }
    }

    fn socket(&mut self, asker: Asker, context: &Context) -> rustix::io::Result<&mut Socket> {
        if !self.sockets.contains_key(&asker) {
            if self.sockets.len() >= MAX_SOCKETS {
                return Err(Errno::NOBUFS);
            }
            let host = open(asker.guest)?;
            let number = self.next;
            context.poller.add(&host, token::ECHO | number)?;
            self.next += 1;
            self.by_number.insert(number, asker);
            let used = context.now;
            self.sockets.insert(asker, Socket { number, host, used });
        }
        self.sockets.get_mut(&asker).ok_or(Errno::NOBUFS)
    }

    /// Delivers some of the answers at a socket to the guest.
    pub fn turn(&mut self, number: u64, buffer: &mut [u8], context: &Context) -> Left {
        let Some(asker) = self.by_number.get(&number).copied() else {
            return Left::Nothing;
        };
        let Some(socket) = self.sockets.get_mut(&asker) else {
            return Left::Nothing;
        };
        for _ in 0..BATCH {
            if !context.wire.has_room_for_datagrams() {
                break;
            }
            let (bytes, peer) = match recvfrom(&socket.host, &mut *buffer, RecvFlags::empty()) {
                Ok((bytes, _, peer)) => (bytes, peer),
                Err(Errno::AGAIN) => return Left::Nothing,
                // This error belongs to an earlier request, for example because its target is
                // unreachable.
                Err(_) => continue,
            };
            let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
            let is_answer = matches!(buffer[0], 0 | 129) && bytes >= HEADER;
            let Some(peer) = peer.filter(|_| is_answer) else {
                continue;
            };
            socket.used = context.now;
            let echo = Echo {
                ident: asker.ident,
                sequence: u16::from_be_bytes([buffer[6], buffer[7]]),
                data: buffer[HEADER..bytes].to_vec(),
            };
            let source = context.addresses.inside(peer, None).ip();
            if source.is_ipv4() == asker.guest.is_ipv4()
                && let Some(packet) = answer(source, asker.guest, &echo)
            {
                context.send_packet(&packet);
            }
        }
        Left::Something
    }

    /// Closes sockets that had no traffic for a long time.
    pub fn expire(&mut self, now: Instant) {
        let by_number = &mut self.by_number;
        self.sockets.retain(|_, socket| {
            let is_old = now.saturating_duration_since(socket.used) >= TIMEOUT;
            if is_old {
                by_number.remove(&socket.number);
            }
            !is_old
        });
    }
}
