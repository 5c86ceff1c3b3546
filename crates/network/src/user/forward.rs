//! Forwarded UDP ports: a datagram to the host's port goes to the guest's port, with the gateway or
//! the sender as its source, and the guest's answer goes to the sender.

use super::context::Context;
use super::turns::{BATCH, Left};
use super::{addresses, host_errors, udp};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recvfrom};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The maximum number of senders that a port remembers. For one more, the least recent one is
/// dropped.
const MAX_PEERS: usize = 512;
/// A sender without traffic is forgotten after this time.
const TIMEOUT: Duration = Duration::from_secs(120);

struct Peer {
    /// The sender's address on the host's side.
    outside: SocketAddr,
    used: Instant,
}

/// A port of the host that is forwarded to the guest.
pub struct Forward {
    host: OwnedFd,
    guest: SocketAddr,
    /// The senders, by their addresses on the guest's side.
    peers: HashMap<SocketAddr, Peer>,
}

impl Forward {
    /// Forwards a non-blocking socket to a port of the guest.
    ///
    /// # Errors
    /// The host does not queue the socket's errors.
    pub fn new(host: UdpSocket, guest: SocketAddr) -> std::io::Result<Self> {
        let is_ipv4 = host.local_addr()?.is_ipv4();
        host_errors::enable(&host, is_ipv4)?;
        Ok(Self {
            host: host.into(),
            guest,
            peers: HashMap::new(),
        })
    }

    /// Delivers some of the datagrams at the socket to the guest.
    pub fn turn(&mut self, buffer: &mut [u8], context: &Context) -> Left {
        let mut left = Left::Something;
        for _ in 0..BATCH {
            if !context.wire.has_room_for_datagrams() {
                return left;
            }
            let (bytes, peer) = match recvfrom(&self.host, &mut *buffer, RecvFlags::empty()) {
                Ok((bytes, _, peer)) => (bytes, peer),
                Err(Errno::AGAIN) => {
                    left = Left::Nothing;
                    break;
                }
                // An earlier answer did not arrive; the error queue contains which one.
                Err(_) => break,
            };
            let Some(outside) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) else {
                continue;
            };
            let inside = self.inside(outside, context);
            self.remember(inside, outside, context.now);
            udp::deliver(inside, self.guest, &buffer[..bytes], context);
        }
        for _ in 0..BATCH {
            let Some(error) = host_errors::take(&self.host, buffer) else {
                return left;
            };
            let inside = self.inside(error.destination, context);
            let quoted = &buffer[..error.quoted];
            udp::report_datagram(error.reason, self.guest, inside, quoted, context);
        }
        Left::Something
    }

    /// Returns the address of a sender on the guest's side. A sender that the guest could not
    /// answer, such as one with IPv6, becomes a port of the gateway.
    fn inside(&self, outside: SocketAddr, context: &Context) -> SocketAddr {
        let inside = context.addresses.inside(outside, None);
        let is_own = match inside.ip() {
            IpAddr::V4(ip) => ip.octets()[..3] == addresses::GATEWAY.octets()[..3],
            IpAddr::V6(_) => true,
        };
        if is_own || !addresses::is_of_one(inside.ip()) {
            (addresses::GATEWAY, outside.port()).into()
        } else {
            inside
        }
    }

    fn remember(&mut self, inside: SocketAddr, outside: SocketAddr, now: Instant) {
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&inside) {
            let oldest = self.peers.iter().min_by_key(|(_, peer)| peer.used);
            if let Some(oldest) = oldest.map(|(inside, _)| *inside) {
                self.peers.remove(&oldest);
            }
        }
        self.peers.insert(inside, Peer { outside, used: now });
    }

    /// Sends a datagram of the guest if it is from this port and to a known sender. Returns whether
    /// it was.
    pub fn answer(
        &mut self,
        guest: SocketAddr,
        inside: SocketAddr,
        payload: &[u8],
        now: Instant,
    ) -> bool {
        if guest != self.guest {
            return false;
        }
        let Some(peer) = self.peers.get_mut(&inside) else {
            return false;
        };
        peer.used = now;
        // A datagram that cannot be sent is lost, as datagrams are.
        let _ = udp::send(&self.host, payload, &peer.outside);
        true
    }

    /// Whether the port remembers no sender.
    pub fn is_idle(&self) -> bool {
        self.peers.is_empty()
    }

    /// Forgets senders that had no traffic for a long time.
    pub fn expire(&mut self, now: Instant) {
        self.peers
            .retain(|_, peer| now.saturating_duration_since(peer.used) < TIMEOUT);
    }
}
