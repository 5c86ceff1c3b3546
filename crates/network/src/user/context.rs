//! What the parts of the network share: the wire to the guest, the poller, addresses and the time.

use super::addresses::Addresses;
use super::gate::Gate;
use super::icmp::{self, Unreachable};
use super::neighbours::Neighbours;
use super::packet;
use crate::link::Wire;
use crate::poller::Poller;
use crate::refusals::Protocol;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// The data that the parts of the network share.
pub(super) struct Context {
    pub(super) wire: Wire,
    pub(super) poller: Poller,
    pub(super) addresses: Addresses,
    pub(super) neighbours: Neighbours,
    /// What of the outside the guest can reach.
    pub(super) gate: Gate,
    /// The present time.
    pub(super) now: Instant,
    /// A number that distinguishes the fragments of one packet from those of others.
    pub(super) last_identification: Cell<u32>,
}

impl Context {
    /// Whether the guest may send to a destination now; see [`Gate::admits`].
    pub(super) fn admits(&self, protocol: Protocol, destination: SocketAddr) -> bool {
        self.gate.admits(protocol, destination, self.now)
    }

    /// Sends an IP packet to the guest, in fragments if it is too long.
    pub(super) fn send_packet(&self, packet: &[u8]) {
        let send = |packet: &[u8]| {
            if let Some(frame) = self.neighbours.frame(packet, &self.addresses) {
                self.wire.send(crate::Frame::new(frame));
            }
        };
        if packet.len() <= packet::MTU {
            send(packet);
            return;
        }
        let identification = self.last_identification.get().wrapping_add(1);
        self.last_identification.set(identification);
        for fragment in packet::fragments(packet, identification) {
            send(&fragment);
        }
    }

    /// Reports to the guest why its packet `original` between these addresses did not arrive.
    pub(super) fn report(&self, reason: Unreachable, ends: (IpAddr, IpAddr), original: &[u8]) {
        if let Some(error) = icmp::unreachable(reason, ends, original) {
            self.send_packet(&error);
        }
    }
}
