//! Forwarded UDP ports: what arrives at the host's goes to the guest's, as from the gateway or
//! the sender, and what the guest sends back goes to the sender.

use super::turns::{BATCH, Left};
use super::{Context, addresses, host_errors, udp};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recvfrom};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Senders that a port remembers; for one more, the one that was heard least recently goes.
const MAX_PEERS: usize = 512;
/// How long it remembers one that nothing passes to or from.
const TIMEOUT: Duration = Duration::from_secs(120);

struct Peer {
    /// Where it is on the host's side.
    outside: SocketAddr,
    used: Instant,
}

/// A port of the host that leads to one of the guest.
pub struct Forward {
    host: OwnedFd,
    guest: SocketAddr,
    /// Senders, by what the guest calls them.
    peers: HashMap<SocketAddr, Peer>,
}

impl Forward {
    /// Leads from a socket that does not block to a port of the guest.
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

    /// The socket may have something: some of what waits goes to the guest.
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
                // An earlier answer did not arrive: the error queue says which.
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

    /// What the guest calls a sender. One that it could not answer, such as one of IPv6, is
    /// a port of the gateway.
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

    /// Sends a datagram of the guest, if it is from this port and to a sender. Says whether it
    /// was.
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
        // What cannot be sent is lost, as datagrams are.
        let _ = udp::send(&self.host, payload, &peer.outside);
        true
    }

    /// Whether it remembers nobody.
    pub fn is_idle(&self) -> bool {
        self.peers.is_empty()
    }

    /// Forgets senders that nothing has passed to or from for long.
    pub fn expire(&mut self, now: Instant) {
        self.peers
            .retain(|_, peer| now.saturating_duration_since(peer.used) < TIMEOUT);
    }
}
