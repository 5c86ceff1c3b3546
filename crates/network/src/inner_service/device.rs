//! The cable as a device of smoltcp's: packets of the guest, and frames to it.

use super::{Outlet, set_header};
use crate::frame::{ETHERNET_HEADER, Frame};
use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{EthernetAddress, EthernetProtocol, Ipv4Packet};
use std::collections::HashMap;
use std::net::Ipv4Addr;

/// The largest IP packet to the guest.
const MTU: usize = 1500;

/// An outlet through which nothing passes.
pub struct Closed;

impl Outlet for Closed {
    fn has_room(&self) -> bool {
        false
    }

    fn send(&self, _frame: Frame) {}
}

/// The guest's end of the cable.
pub struct Device<'a> {
    /// A packet that the stack has not taken.
    pub packet: Option<&'a [u8]>,
    /// The way to the guest.
    pub outlet: &'a dyn Outlet,
    /// The Ethernet address of the service.
    pub from: EthernetAddress,
    /// The Ethernet addresses of the guest, by its IP addresses.
    pub learned: &'a HashMap<Ipv4Addr, EthernetAddress>,
}

impl<'a> Device<'a> {
    const fn sender(&self) -> Sender<'a> {
        Sender {
            outlet: self.outlet,
            from: self.from,
            learned: self.learned,
        }
    }
}

impl phy::Device for Device<'_> {
    type RxToken<'b>
        = Received<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = Sender<'b>
    where
        Self: 'b;

    fn receive(&mut self, _now: StackInstant) -> Option<(Received<'_>, Sender<'_>)> {
        let packet = self.packet.take()?;
        Some((Received(packet), self.sender()))
    }

    fn transmit(&mut self, _now: StackInstant) -> Option<Sender<'_>> {
        self.outlet.has_room().then(|| self.sender())
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        // The guest's driver may leave checksums to its adapter, so they are not verified.
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
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
    outlet: &'a dyn Outlet,
    from: EthernetAddress,
    learned: &'a HashMap<Ipv4Addr, EthernetAddress>,
}

impl phy::TxToken for Sender<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, bytes: usize, f: F) -> R {
        let mut frame = vec![0; ETHERNET_HEADER + bytes];
        let result = f(&mut frame[ETHERNET_HEADER..]);
        let packet = Ipv4Packet::new_checked(&frame[ETHERNET_HEADER..]);
        let to = packet.ok().map(|packet| packet.dst_addr());
        if let Some(mac) = to.and_then(|to| self.learned.get(&to)) {
            set_header(&mut frame, self.from, *mac, EthernetProtocol::Ipv4);
            self.outlet.send(Frame::new(frame));
        }
        result
    }
}
