//! Forwarded UDP ports: what arrives at the host's goes to the guest's, as from the gateway or
//! the sender, and what the guest sends back goes to the sender.

use super::turns::{BATCH, Left};
use super::{Context, addresses, udp};
use rustix::net::{RecvFlags, SendFlags, recvfrom, sendto};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
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
    host: UdpSocket,
    guest: SocketAddr,
    /// Senders, by what the guest calls them.
    peers: HashMap<SocketAddr, Peer>,
    /// Tells the fragments of one datagram from those of others.
    sent: u16,
}

impl Forward {
    /// Leads from a socket that does not block to a port of the guest.
    pub fn new(host: UdpSocket, guest: SocketAddr) -> Self {
        Self {
            host,
            guest,
            peers: HashMap::new(),
            sent: 0,
        }
    }

    /// The socket may have something: some of what waits goes to the guest.
    pub fn turn(&mut self, buffer: &mut [u8], context: &Context) -> Left {
        for _ in 0..BATCH {
            if !context.wire.has_room_for_datagrams() {
                break;
            }
            let (bytes, peer) = match recvfrom(&self.host, &mut *buffer, RecvFlags::empty()) {
                Ok((bytes, _, peer)) => (bytes, peer),
                Err(rustix::io::Errno::AGAIN) => return Left::Nothing,
                // An earlier datagram met nobody, say.
                Err(_) => continue,
            };
            let Some(outside) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) else {
                continue;
            };
            let inside = self.inside(outside, context);
            self.remember(inside, outside, context.now);
            self.sent = self.sent.wrapping_add(1);
            udp::deliver(inside, self.guest, &buffer[..bytes], self.sent, context);
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
        let _ = sendto(&self.host, payload, SendFlags::NOSIGNAL, &peer.outside);
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
