//! A service inside the network: connections of the guest to one address end in this process.
//!
//! ```text
//!   frames of the guest --+-- to the service's address --> smoltcp --> Responder
//!                         |                       answers <--'
//!                         `-- all others ----------------> the network itself
//! ```
//!
//! The service is in front of every kind of network, so that a packet to its address reaches neither
//! the host's sockets nor an interface of the host. It has one TCP port. Nothing is lost between the
//! guest and the service, so it works only when the guest has sent something, or has made room.

mod client;
mod device;

use crate::frame::{ETHERNET_HEADER, Frame};
use client::Client;
use device::{Closed, Device};
use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    HardwareAddress, IpCidr, IpEndpoint, IpListenEndpoint, IpProtocol, Ipv4Packet, TcpPacket,
};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

/// The port of the service.
const PORT: u16 = 80;
/// The maximum number of connections. For one more, the one that was idle for the longest time ends.
const MAX_CONNECTIONS: usize = 32;
/// The number of bytes of each buffer of a connection.
const BUFFER: usize = 16 << 10;
/// The maximum number of the guest's addresses that are remembered.
const MAX_LEARNED: usize = 256;

/// Answers what a client in the guest sends.
pub trait Responder: Send + Sync {
    /// Takes whole requests out of the bytes that a client has sent, and returns the answers to them.
    fn answer(&self, received: &mut Vec<u8>) -> Answer;
}

/// What a client gets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    /// The bytes that are sent. They are empty as long as there is no whole request.
    pub bytes: Vec<u8>,
    /// Whether the connection is closed after these bytes.
    pub is_last: bool,
}

/// A service, with the address at which a guest finds it.
#[derive(Clone)]
pub struct InnerService {
    /// The address in the guest's view.
    pub address: Ipv4Addr,
    /// What answers the requests of clients.
    pub responder: Arc<dyn Responder>,
}

impl PartialEq for InnerService {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address && Arc::ptr_eq(&self.responder, &other.responder)
    }
}

impl Eq for InnerService {}

impl fmt::Debug for InnerService {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "InnerService({})", self.address)
    }
}

/// The way to the guest.
pub(crate) trait Outlet {
    /// Whether data may be sent. If not, the service is asked to work again when it may.
    fn has_room(&self) -> bool;
    /// Sends a frame.
    fn send(&self, frame: Frame);
}

/// A service at work.
pub(crate) struct Inner {
    service: InnerService,
    interface: Interface,
    sockets: SocketSet<'static>,
    clients: Vec<Client>,
    learned: HashMap<Ipv4Addr, EthernetAddress>,
    started: Instant,
    round: u64,
}

impl Inner {
    pub fn new(service: InnerService) -> Self {
        let mut device = Device {
            packet: None,
            outlet: &Closed,
            from: own_mac(service.address),
            learned: &HashMap::new(),
        };
        let config = Config::new(HardwareAddress::Ip);
        let mut interface = Interface::new(config, &mut device, StackInstant::ZERO);
        interface.update_ip_addrs(|addresses| {
            // There is room for two addresses.
            let _ = addresses.push(IpCidr::new(service.address.into(), 32));
        });
        let _ = interface
            .routes_mut()
            .add_default_ipv4_route(service.address);
        Self {
            service,
            interface,
            sockets: SocketSet::new(Vec::new()),
            clients: Vec::new(),
            learned: HashMap::new(),
            started: Instant::now(),
            round: 0,
        }
    }

    /// Takes the frames for the service out of the guest's frames, and answers them.
    pub fn divert(&mut self, frames: VecDeque<Vec<u8>>, outlet: &dyn Outlet) -> VecDeque<Vec<u8>> {
        self.round += 1;
        let mut others = VecDeque::with_capacity(frames.len());
        for bytes in frames {
            match self.is_for_service(&bytes) {
                true => self.frame(&bytes, outlet),
                false => others.push_back(bytes),
            }
        }
        if !self.clients.is_empty() {
            self.serve();
            self.poll(None, outlet);
            self.sweep();
        }
        others
    }

    fn is_for_service(&self, bytes: &[u8]) -> bool {
        let Ok(frame) = EthernetFrame::new_checked(bytes) else {
            return false;
        };
        match frame.ethertype() {
            EthernetProtocol::Arp => {
                let packet = ArpPacket::new_checked(frame.payload());
                packet.is_ok_and(|packet| {
                    packet.protocol_len() == 4
                        && packet.target_protocol_addr() == self.service.address.octets()
                })
            }
            EthernetProtocol::Ipv4 => {
                let packet = Ipv4Packet::new_checked(frame.payload());
                packet.is_ok_and(|packet| packet.dst_addr() == self.service.address)
            }
            _ => false,
        }
    }

    fn frame(&mut self, bytes: &[u8], outlet: &dyn Outlet) {
        let frame = EthernetFrame::new_unchecked(bytes);
        let mac = frame.src_addr();
        if !mac.is_unicast() {
            return;
        }
        if frame.ethertype() == EthernetProtocol::Arp {
            if let Some(reply) = self.arp(mac, frame.payload()) {
                outlet.send(Frame::new(reply));
            }
            return;
        }
        let packet = Ipv4Packet::new_unchecked(frame.payload());
        if packet.next_header() != IpProtocol::Tcp {
            return;
        }
        let source = packet.src_addr();
        if self.learned.len() < MAX_LEARNED || self.learned.contains_key(&source) {
            self.learned.insert(source, mac);
        }
        if let Ok(segment) = TcpPacket::new_checked(packet.payload())
            && segment.syn()
            && !segment.ack()
            && segment.dst_port() == PORT
        {
            self.expect(IpEndpoint::new(source.into(), segment.src_port()));
        }
        self.poll(Some(frame.payload()), outlet);
        // A listening socket exists only for the connection that the packet has asked for.
        let sockets = &mut self.sockets;
        self.clients.retain(|client| {
            let is_kept = !sockets.get::<Socket<'_>>(client.handle).is_listening();
            if !is_kept {
                sockets.remove(client.handle);
            }
            is_kept
        });
    }

    /// Answers a request for the service's Ethernet address.
    fn arp(&self, mac: EthernetAddress, payload: &[u8]) -> Option<Vec<u8>> {
        let request = ArpRepr::parse(&ArpPacket::new_checked(payload).ok()?).ok()?;
        let ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_protocol_addr,
            ..
        } = request
        else {
            return None;
        };
        let own = own_mac(self.service.address);
        let reply = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: own,
            source_protocol_addr: self.service.address,
            target_hardware_addr: mac,
            target_protocol_addr: source_protocol_addr,
        };
        let mut bytes = vec![0; ETHERNET_HEADER + reply.buffer_len()];
        let payload = &mut bytes[ETHERNET_HEADER..];
        reply.emit(&mut ArpPacket::new_unchecked(payload));
        set_header(&mut bytes, own, mac, EthernetProtocol::Arp);
        Some(bytes)
    }

    /// Adds a socket for a connection that a client begins.
    fn expect(&mut self, peer: IpEndpoint) {
        let known = self.clients.iter().position(|client| {
            let socket = self.sockets.get::<Socket<'_>>(client.handle);
            socket.remote_endpoint() == Some(peer)
        });
        if let Some(index) = known {
            let handle = self.clients[index].handle;
            let socket = self.sockets.get::<Socket<'_>>(handle);
            if socket.state() == State::SynReceived {
                // The client repeats its SYN.
                return;
            }
            self.remove(index);
        }
        if self.clients.len() >= MAX_CONNECTIONS {
            let idle = self.clients.iter().enumerate();
            if let Some((index, _)) = idle.min_by_key(|(_, client)| client.last_round) {
                self.remove(index);
            }
        }
        let buffer = || SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        let endpoint = IpListenEndpoint {
            addr: Some(self.service.address.into()),
            port: PORT,
        };
        if socket.listen(endpoint).is_ok() {
            let handle = self.sockets.add(socket);
            self.clients.push(Client::new(handle, self.round));
        }
    }

    fn remove(&mut self, index: usize) {
        let client = self.clients.swap_remove(index);
        self.sockets.remove(client.handle);
    }

    /// Moves bytes between the sockets and the responder.
    fn serve(&mut self) {
        for client in &mut self.clients {
            let socket = self.sockets.get_mut::<Socket<'_>>(client.handle);
            client.serve(socket, &*self.service.responder, self.round);
        }
    }

    /// Gives the stack a packet of the guest, if there is one, and sends what the stack has to send.
    fn poll(&mut self, packet: Option<&[u8]>, outlet: &dyn Outlet) {
        let micros = self.started.elapsed().as_micros();
        let now = StackInstant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX));
        let has_packet = packet.is_some();
        let mut device = Device {
            packet,
            outlet,
            from: own_mac(self.service.address),
            learned: &self.learned,
        };
        if has_packet {
            self.interface
                .poll_ingress_single(now, &mut device, &mut self.sockets);
        }
        while self
            .interface
            .poll_egress(now, &mut device, &mut self.sockets)
            == PollResult::SocketStateChanged
        {}
    }

    /// Removes connections that are over.
    fn sweep(&mut self) {
        let sockets = &mut self.sockets;
        self.clients.retain(|client| {
            let socket = sockets.get::<Socket<'_>>(client.handle);
            let is_over = match socket.state() {
                State::TimeWait => true,
                // A socket that sends a reset keeps its peer until the reset has been sent.
                State::Closed => socket.remote_endpoint().is_none(),
                _ => false,
            };
            if is_over {
                sockets.remove(client.handle);
            }
            !is_over
        });
    }
}

/// The Ethernet address of the service.
const fn own_mac(address: Ipv4Addr) -> EthernetAddress {
    let [a, b, c, d] = address.octets();
    EthernetAddress([0x52, 0x55, a, b, c, d])
}

fn set_header(
    bytes: &mut [u8],
    from: EthernetAddress,
    to: EthernetAddress,
    kind: EthernetProtocol,
) {
    let mut frame = EthernetFrame::new_unchecked(bytes);
    frame.set_src_addr(from);
    frame.set_dst_addr(to);
    frame.set_ethertype(kind);
}
