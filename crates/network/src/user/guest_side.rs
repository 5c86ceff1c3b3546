//! smoltcp's interface to the cable: TCP packets over IP in both directions.
//!
//! Packets are handed to the stack one at a time. Packets from the stack become frames with a
//! partial checksum, and with segments that are not split if the guest's driver accepts such.

use super::context::Context;
use super::neighbours::GATEWAY_MAC;
use super::packet::MTU;
use crate::frame::{ETHERNET_HEADER, Frame, MAX_FRAME, PartialChecksum, Segmentation, add, fold};
use crate::link::Offloads;
use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};
use std::num::NonZeroUsize;

/// The maximum size in bytes of an IP packet that the stack does not split itself.
const LONG_PACKET: usize = MAX_FRAME - ETHERNET_HEADER;
/// The protocol number of TCP.
const TCP: u8 = 6;

/// The stack's interface.
pub struct GuestSide {
    interface: Interface,
    now: Instant,
    offloads: Offloads,
}

impl GuestSide {
    pub fn new() -> Self {
        let now = Instant::ZERO;
        Self {
            interface: interface(Offloads::default(), now),
            now,
            offloads: Offloads::default(),
        }
    }

    /// Converts to the stack's time.
    pub fn time(&self, since_start: std::time::Duration) -> Instant {
        Instant::from_micros(i64::try_from(since_start.as_micros()).unwrap_or(i64::MAX))
    }

    /// Begins a round of work.
    pub fn begin(&mut self, since_start: std::time::Duration, offloads: Offloads) {
        self.now = self.time(since_start);
        if offloads != self.offloads {
            // The interface has no state except the capabilities of the device.
            self.interface = interface(offloads, self.now);
            self.offloads = offloads;
        }
    }

    /// Returns the interface, for sockets that connect.
    pub fn interface(&mut self) -> &mut Interface {
        &mut self.interface
    }

    /// Hands a packet of the guest to the stack.
    pub fn receive(&mut self, packet: &[u8], sockets: &mut SocketSet<'_>, context: &Context) {
        let mut device = Device {
            packet: Some(packet),
            context,
            offloads: self.offloads,
        };
        self.interface
            .poll_ingress_single(self.now, &mut device, sockets);
    }

    /// Sends the stack's packets as long as there is room.
    pub fn send(&mut self, sockets: &mut SocketSet<'_>, context: &Context) {
        let mut device = Device {
            packet: None,
            context,
            offloads: self.offloads,
        };
        // Each round sends at most one packet of each socket.
        while self.interface.poll_egress(self.now, &mut device, sockets)
            == PollResult::SocketStateChanged
        {}
    }
}

/// Makes an interface that accepts packets to any address.
fn interface(offloads: Offloads, now: Instant) -> Interface {
    let mut capabilities = Capabilities { offloads };
    let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut capabilities, now);
    let (gateway, gateway6) = (super::addresses::GATEWAY, super::addresses::GATEWAY6);
    interface.update_ip_addrs(|addresses| {
        // There is room for two addresses.
        let _ = addresses.push(IpCidr::new(gateway.into(), super::addresses::PREFIX));
        let _ = addresses.push(IpCidr::new(gateway6.into(), 64));
    });
    interface.set_any_ip(true);
    let _ = interface.routes_mut().add_default_ipv4_route(gateway);
    let _ = interface.routes_mut().add_default_ipv6_route(gateway6);
    interface
}

fn capabilities(offloads: Offloads) -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = MTU;
    // Packets are neither lost nor damaged between guest and stack, and the checksums of packets
    // are partial if the guest's driver leaves them to its adapter.
    capabilities.checksum = ChecksumCapabilities::ignored();
    capabilities.checksum.ipv4 = phy::Checksum::Tx;
    let long = NonZeroUsize::new(LONG_PACKET);
    capabilities.segmentation.tcpv4 = long.filter(|_| offloads.tcp4);
    capabilities.segmentation.tcpv6 = long.filter(|_| offloads.tcp6);
    capabilities
}

/// A device that only describes the capabilities of the cable.
struct Capabilities {
    offloads: Offloads,
}

impl phy::Device for Capabilities {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Sender<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Received<'_>, Sender<'_>)> {
        None
    }

    fn transmit(&mut self, _now: Instant) -> Option<Sender<'_>> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities(self.offloads)
    }
}

struct Device<'a> {
    packet: Option<&'a [u8]>,
    context: &'a Context,
    offloads: Offloads,
}

impl phy::Device for Device<'_> {
    type RxToken<'a>
        = Received<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Sender<'a>
    where
        Self: 'a;

    fn receive(&mut self, _now: Instant) -> Option<(Received<'_>, Sender<'_>)> {
        let packet = self.packet.take()?;
        Some((Received(packet), self.sender()))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Sender<'_>> {
        self.context.wire.has_room().then(|| self.sender())
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities(self.offloads)
    }
}

impl Device<'_> {
    fn sender(&self) -> Sender<'_> {
        Sender {
            context: self.context,
            meta: PacketMeta::default(),
        }
    }
}

/// A packet for the stack.
pub struct Received<'a>(&'a [u8]);

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

/// Sends one packet to the guest.
pub struct Sender<'a> {
    context: &'a Context,
    meta: PacketMeta,
}

impl phy::TxToken for Sender<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, bytes: usize, f: F) -> R {
        let mut frame = vec![0; ETHERNET_HEADER + bytes];
        let result = f(&mut frame[ETHERNET_HEADER..]);
        if let Some(frame) = finish(frame, self.meta, self.context) {
            self.context.wire.send(frame);
        }
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.meta = meta;
    }
}

/// Adds the Ethernet header, and records what is left to do on the frame.
fn finish(mut bytes: Vec<u8>, meta: PacketMeta, context: &Context) -> Option<Frame> {
    let packet = &bytes[ETHERNET_HEADER..];
    let is_ipv6 = packet.first()? >> 4 == 6;
    let (kind, addresses, header) = if is_ipv6 {
        ([0x86, 0xdd], 8..40, 40)
    } else {
        ([0x08, 0x00], 12..20, 20)
    };
    let payload = packet.get(header..)?;
    let to = packet.get(addresses.end - addresses.len() / 2..addresses.end)?;
    let to = match <[u8; 4]>::try_from(to) {
        Ok(v4) => v4.into(),
        Err(_) => <[u8; 16]>::try_from(to).ok()?.into(),
    };
    // The pseudo header: addresses, protocol, length (RFC 9293, 3.1).
    let sum = add(
        payload.len() as u64 + u64::from(TCP),
        packet.get(addresses)?,
    );
    let header_bytes = header + usize::from(payload.get(12)? >> 4) * 4;
    let start = ETHERNET_HEADER + header;
    bytes[start + 16..start + 18].copy_from_slice(&fold(sum).to_be_bytes());
    bytes[..6].copy_from_slice(&context.neighbours.mac(to).0);
    bytes[6..12].copy_from_slice(&GATEWAY_MAC.0);
    bytes[12..14].copy_from_slice(&kind);
    Some(Frame {
        bytes,
        checksum: Some(PartialChecksum {
            start: start as u16,
            offset: 16,
        }),
        segmentation: meta.segmentation_offload_size.map(|size| Segmentation {
            size,
            header_bytes: (ETHERNET_HEADER + header_bytes) as u16,
            is_ipv6,
        }),
    })
}
