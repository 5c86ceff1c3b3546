//! User networking: a network in this process, with QEMU's addresses. The guest's connections are
//! sockets of this process, so the network needs no privilege.
//!
//! ```text
//!   frames of the guest
//!     |-- ARP, neighbours ------ answered here (neighbours)
//!     |-- DHCP, TFTP ----------- answered here (dhcp, tftp)
//!     |-- fragments ------------ kept until their packet is whole (reassembly)
//!     |-- echo requests -------- answered here, or a ping socket (echo)
//!     |-- UDP ------------------ a socket for each of the guest's ports (udp)
//!     `-- TCP ------------------ smoltcp <-> a socket for each connection (tcp)
//! ```
//!
//! Which of the guest's packets and queries pass at all is decided in one place (gate). If the host
//! cannot reach a destination, the answer is an ICMP error (icmp), or for a query for a
//! name a failure (dns).
//!
//! | address | what it is |
//! |---|---|
//! | 10.0.2.15, or the guest's choice | the guest; DHCP assigns the first |
//! | 10.0.2.2 | the gateway, and the host's own loopback address if a rule opens it |
//! | 10.0.2.3 | the host's name server |
//! | fec0::2, fec0::3 | gateway and name server over IPv6, if the host has it |
//!
//! Everything runs on one thread, which waits only for the [`Poller`].

pub(crate) mod addresses;
mod closed;
mod context;
mod dhcp;
mod dns;
mod echo;
mod forward;
mod gate;
mod guest_side;
mod host_errors;
mod icmp;
mod lookup;
mod names;
mod neighbours;
mod packet;
mod pins;
mod queries;
mod reassembly;
mod resolver;
mod tcp;
mod tftp;
mod tftp_files;
mod token;
mod turns;
mod udp;

#[cfg(test)]
mod tests;

use crate::descriptor_limit::raise_descriptor_limit;
use crate::error::NetworkError;
use crate::link::Wire;
use crate::options::{HostForward, MacAddress, NetworkBoot, Transport, UserOptions};
use crate::poller::{Poller, Readiness};
use crate::refusals::Refusals;
use addresses::Addresses;
use context::Context;
use gate::{Gate, Report};
use guest_side::GuestSide;
use neighbours::Neighbours;
use reassembly::Reassembly;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, UdpPacket,
};
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};
use turns::{Left, TURNS, Turns};

/// The longest sleep while something may time out.
const TICK: Duration = Duration::from_secs(1);
/// A size in bytes that is larger than the longest datagram.
const DATAGRAM_BYTES: usize = 65_536;

/// A port of the host that is forwarded to the guest.
struct Listener {
    socket: TcpListener,
    guest: SocketAddr,
    /// Whether connections may be waiting.
    is_ready: bool,
}

/// The network with all its connections.
pub struct Network {
    context: Context,
    guest_side: GuestSide,
    listeners: Vec<Listener>,
    /// The addresses at which the host listens, in the order of the options.
    forwards: Vec<SocketAddr>,
    tcp: tcp::Connections,
    udp: udp::Sockets,
    /// What firmware finds to load, and the server that it loads from.
    boot: NetworkBoot,
    tftp: Option<tftp::Server>,
    echo: echo::Sockets,
    reassembly: Reassembly,
    /// The datagram sockets that may have something to read.
    turns: Turns,
    /// The buffer that datagrams are read into.
    buffer: Vec<u8>,
    started: Instant,
}

impl Network {
    /// Opens the forwarded ports.
    ///
    /// # Errors
    /// A port cannot be opened, or the host has no descriptors left.
    pub fn open(options: &UserOptions, mac: MacAddress, wire: Wire) -> Result<Self, NetworkError> {
        Self::open_at(options, mac, wire, Addresses::of_host())
    }

    /// Opens the network of a host with these addresses.
    fn open_at(
        options: &UserOptions,
        mac: MacAddress,
        wire: Wire,
        addresses: Addresses,
    ) -> Result<Self, NetworkError> {
        raise_descriptor_limit();
        let resolve = |name: &_| lookup::addresses(name, &addresses.name_servers());
        let gate = Gate::new(options, resolve).map_err(|why| NetworkError::new("deny=", why))?;
        let failed = |error| NetworkError::new("descriptors", error);
        let poller = Poller::new().map_err(|error| failed(error.into()))?;
        let watched = poller.add(wire.wake_descriptor(), token::WIRE);
        watched.map_err(|error| failed(std::io::Error::from(error)))?;
        let (mut listeners, mut udp) = (Vec::new(), udp::Sockets::default());
        let mut forwards = Vec::new();
        for forward in &options.forwards {
            let opened = match forward.transport {
                Transport::Tcp => listen(forward, &poller, &mut listeners),
                Transport::Udp => receive(forward, &poller, &mut udp.forwards),
            };
            let address = opened.map_err(|error| {
                NetworkError::new(format!("hostfwd: cannot listen on {}", forward.host), error)
            })?;
            forwards.push(address);
        }
        let tftp = options.boot.tftp.as_deref();
        let tftp = tftp.map(|folder| {
            let refused = |error| NetworkError::new(format!("tftp={}", folder.display()), error);
            tftp::Server::open(folder).map_err(refused)
        });
        let tftp = tftp.transpose()?;
        let started = Instant::now();
        Ok(Self {
            context: Context {
                wire,
                poller,
                addresses,
                neighbours: Neighbours::new(mac),
                gate,
                now: started,
                last_identification: Cell::new(0),
            },
            guest_side: GuestSide::new(),
            listeners,
            forwards,
            tcp: tcp::Connections::default(),
            udp,
            boot: options.boot.clone(),
            tftp,
            echo: echo::Sockets::default(),
            reassembly: Reassembly::default(),
            turns: Turns::default(),
            buffer: vec![0; DATAGRAM_BYTES],
            started,
        })
    }

    /// Returns the addresses at which the host listens.
    pub fn forwards(&self) -> Vec<SocketAddr> {
        self.forwards.clone()
    }

    /// Returns the record of what the guest could not reach.
    pub fn refusals(&self) -> Refusals {
        self.context.gate.refusals()
    }

    /// Shows what is refused as lines.
    pub fn report_refusals(&self, report: Report) {
        self.context.gate.report_to(report);
    }

    /// Works until the adapter is gone.
    pub fn run(mut self) {
        while !self.context.wire.is_stopped() {
            let limit = self.sleep();
            let events = self.context.poller.wait(limit);
            self.work(&events);
        }
    }

    /// Returns how long the thread may sleep without an event.
    fn sleep(&mut self) -> Option<Duration> {
        if !self.turns.is_empty() && self.context.wire.has_room_for_datagrams() {
            return Some(Duration::ZERO);
        }
        let now = self.guest_side.time(self.started.elapsed());
        let tcp = self.tcp.next_event(&mut self.guest_side, now);
        // The cable wakes the thread when it has room again.
        let tcp = tcp.map(
            |wait| match wait.is_zero() && !self.context.wire.has_room() {
                true => TICK,
                false => wait,
            },
        );
        let has_timeouts = !(self.tcp.is_empty()
            && self.udp.is_empty()
            && self.echo.is_empty()
            && self.reassembly.is_empty());
        match (tcp, has_timeouts) {
            (Some(tcp), _) => Some(tcp.min(TICK)),
            (None, true) => Some(TICK),
            (None, false) => None,
        }
    }

    fn work(&mut self, events: &[Readiness]) {
        self.context.now = Instant::now();
        self.guest_side.begin(
            self.context.now.duration_since(self.started),
            self.context.wire.offloads(),
        );
        for event in events {
            let number = event.token & !token::KIND;
            match event.token & token::KIND {
                token::LISTENER => {
                    if let Some(listener) = self.listeners.get_mut(number as usize) {
                        listener.is_ready = true;
                    }
                }
                token::TCP => self
                    .tcp
                    .event(number, event, &mut self.guest_side, &self.context),
                token::UDP | token::FORWARD | token::ECHO => self.turns.push(event.token),
                _ => {}
            }
        }
        for frame in self.context.wire.receive() {
            self.frame(&frame);
        }
        for listener in &mut self.listeners {
            while listener.is_ready && self.tcp.has_room() {
                let Ok((socket, _)) = listener.socket.accept() else {
                    listener.is_ready = false;
                    break;
                };
                let guest = listener.guest;
                self.tcp
                    .forward(socket, guest, &mut self.guest_side, &self.context);
            }
        }
        self.tcp.work(&mut self.guest_side, &self.context);
        self.datagrams();
        self.udp.expire(self.context.now);
        self.echo.expire(self.context.now);
        self.reassembly.expire(self.context.now);
    }

    /// Gives datagram sockets their turns as long as there is room. Without room, datagrams stay
    /// with the host, which drops further ones.
    fn datagrams(&mut self) {
        for _ in 0..TURNS {
            if !self.context.wire.has_room_for_datagrams() {
                return;
            }
            let Some(token) = self.turns.pop() else {
                return;
            };
            let (number, context) = (token & !token::KIND, &self.context);
            let left = match token & token::KIND {
                token::UDP => self.udp.turn(number, &mut self.buffer, context),
                token::ECHO => self.echo.turn(number, &mut self.buffer, context),
                _ => match self.udp.forwards.get_mut(number as usize) {
                    Some(forward) => forward.turn(&mut self.buffer, context),
                    None => Left::Nothing,
                },
            };
            if left == Left::Something {
                self.turns.push(token);
            }
        }
    }

    /// Handles a frame of the guest.
    fn frame(&mut self, bytes: &[u8]) {
        let Ok(frame) = EthernetFrame::new_checked(bytes) else {
            return;
        };
        let source = frame.src_addr();
        if !source.is_unicast() {
            return;
        }
        match frame.ethertype() {
            EthernetProtocol::Arp => {
                if let Some(reply) = self.context.neighbours.arp(frame.payload()) {
                    self.context.wire.send(crate::Frame::new(reply));
                }
            }
            EthernetProtocol::Ipv4 => self.ipv4(source, frame.payload()),
            EthernetProtocol::Ipv6 if self.context.addresses.has_ipv6 => {
                self.ipv6(source, frame.payload());
            }
            _ => {}
        }
    }

    fn ipv4(&mut self, mac: EthernetAddress, bytes: &[u8]) {
        let Ok(packet) = Ipv4Packet::new_checked(bytes) else {
            return;
        };
        if packet.version() != 4 || packet.header_len() < 20 {
            return;
        }
        let is_whole = !packet.more_frags() && packet.frag_offset() == 0;
        let source = packet.src_addr();
        let context = &mut self.context;
        if is_whole
            && packet.next_header() == IpProtocol::Udp
            && let Some(reply) = dhcp::answer(mac, packet.payload(), packet.dst_addr(), &self.boot)
        {
            context.wire.send(crate::Frame::new(reply));
            return;
        }
        if !addresses::is_of_one(source.into()) || source == addresses::GATEWAY {
            return;
        }
        context.neighbours.learn(source.into(), mac);
        if is_whole {
            self.packet4(&bytes[..usize::from(packet.total_len())]);
        } else if let Some(whole) = self.reassembly.ipv4(&packet, context.now) {
            self.packet4(&whole);
        }
    }

    /// Handles a whole IPv4 packet, which ends where its header says.
    fn packet4(&mut self, bytes: &[u8]) {
        let Ok(packet) = Ipv4Packet::new_checked(bytes) else {
            return;
        };
        let ends = (packet.src_addr().into(), packet.dst_addr().into());
        self.payload(packet.next_header(), ends, bytes, packet.payload());
    }

    fn ipv6(&mut self, mac: EthernetAddress, bytes: &[u8]) {
        let Ok(packet) = Ipv6Packet::new_checked(bytes) else {
            return;
        };
        if packet.version() != 6 {
            return;
        }
        let source = packet.src_addr();
        let context = &mut self.context;
        if packet.next_header() == IpProtocol::Icmpv6
            && let Some(reply) = context.neighbours.solicited(mac, &packet)
        {
            context.wire.send(crate::Frame::new(reply));
            return;
        }
        if !addresses::is_of_one(source.into()) || source == addresses::GATEWAY6 {
            return;
        }
        context.neighbours.learn(source.into(), mac);
        if packet.next_header() != IpProtocol::Ipv6Frag {
            self.packet6(&bytes[..packet.total_len()]);
        } else if let Some(whole) = self.reassembly.ipv6(&packet, context.now) {
            self.packet6(&whole);
        }
    }

    /// Handles a whole IPv6 packet, which ends where its header says.
    fn packet6(&mut self, bytes: &[u8]) {
        let Ok(packet) = Ipv6Packet::new_checked(bytes) else {
            return;
        };
        let ends = (packet.src_addr().into(), packet.dst_addr().into());
        self.payload(packet.next_header(), ends, bytes, packet.payload());
    }

    /// Handles the payload of an IP packet of the guest.
    fn payload(
        &mut self,
        protocol: IpProtocol,
        (source, destination): (IpAddr, IpAddr),
        packet: &[u8],
        payload: &[u8],
    ) {
        let context = &self.context;
        match protocol {
            IpProtocol::Tcp => {
                self.tcp.packet(
                    source,
                    destination,
                    packet,
                    payload,
                    &mut self.guest_side,
                    context,
                );
            }
            IpProtocol::Udp
                if serve_tftp(&mut self.tftp, (source, destination), payload, context) => {}
            IpProtocol::Udp => {
                self.udp
                    .packet(source, destination, packet, payload, context);
            }
            IpProtocol::Icmp | IpProtocol::Icmpv6 => match icmp::closed_port(source, payload) {
                Some(port) => self.udp.close(port),
                None => self
                    .echo
                    .packet(source, destination, packet, payload, context),
            },
            _ => {}
        }
    }
}

/// Answers a datagram of the guest for the TFTP server. Returns false if it is another one.
fn serve_tftp(
    server: &mut Option<tftp::Server>,
    (source, destination): (IpAddr, IpAddr),
    payload: &[u8],
    context: &Context,
) -> bool {
    let (Some(server), Ok(datagram)) = (server, UdpPacket::new_checked(payload)) else {
        return false;
    };
    let own = SocketAddr::new(addresses::GATEWAY.into(), tftp::PORT);
    let guest = SocketAddr::new(source, datagram.src_port());
    if SocketAddr::new(destination, datagram.dst_port()) != own {
        return false;
    }
    let answer = server.answer(guest, datagram.payload(), context.now);
    if let Some(packet) = answer.and_then(|answer| packet::udp(own, guest, &answer)) {
        context.send_packet(&packet);
    }
    true
}

/// Returns the guest's end of a forwarded port.
fn guest_end(forward: &HostForward) -> SocketAddr {
    let guest = forward.guest_address.unwrap_or(addresses::GUEST);
    (guest, forward.guest_port).into()
}

/// Opens a forwarded TCP port and returns its address.
fn listen(
    forward: &HostForward,
    poller: &Poller,
    listeners: &mut Vec<Listener>,
) -> std::io::Result<SocketAddr> {
    let socket = TcpListener::bind(forward.host)?;
    socket.set_nonblocking(true)?;
    poller.add(&socket, token::LISTENER | listeners.len() as u64)?;
    let address = socket.local_addr()?;
    listeners.push(Listener {
        socket,
        guest: guest_end(forward),
        is_ready: true,
    });
    Ok(address)
}

/// Opens a forwarded UDP port and returns its address.
fn receive(
    forward: &HostForward,
    poller: &Poller,
    forwards: &mut Vec<forward::Forward>,
) -> std::io::Result<SocketAddr> {
    let socket = UdpSocket::bind(forward.host)?;
    socket.set_nonblocking(true)?;
    poller.add(&socket, token::FORWARD | forwards.len() as u64)?;
    let address = socket.local_addr()?;
    forwards.push(forward::Forward::new(socket, guest_end(forward))?);
    Ok(address)
}
