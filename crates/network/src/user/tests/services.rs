//! Tests of the answers of the network itself, and of datagrams.

use super::guest::{Guest, MAC, open};
use crate::link::Offloads;
use crate::options::{HostForward, Transport, UserOptions};
use crate::user::addresses::{DNS, GATEWAY, GATEWAY6, GUEST};
use crate::user::packet;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::*;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::thread;

const OWN: EthernetAddress = EthernetAddress(MAC.0);
const ROUTER: EthernetAddress = EthernetAddress([0x52, 0x55, 10, 0, 2, 2]);

pub fn send(guest: &Guest, kind: EthernetProtocol, payload: &[u8]) {
    guest
        .adapter
        .send(packet::ethernet(OWN, ROUTER, kind, payload));
}

pub fn send_udp(guest: &Guest, from: SocketAddr, to: SocketAddr, data: &[u8]) {
    let packet = packet::udp(from, to, data).unwrap();
    send(guest, EthernetProtocol::Ipv4, &packet);
}

/// Returns the payload of the next frame, which must be for this guest.
pub fn payload(guest: &Guest) -> Vec<u8> {
    let mut frame = guest.wait();
    frame.complete_checksum();
    let frame = EthernetFrame::new_checked(&frame.bytes[..]).unwrap();
    assert_eq!(frame.dst_addr(), OWN);
    frame.payload().to_vec()
}

/// Receives the next datagram: source, destination and data.
pub fn datagram(guest: &Guest) -> (SocketAddr, SocketAddr, Vec<u8>) {
    let payload = payload(guest);
    let ip = Ipv4Packet::new_checked(&payload[..]).unwrap();
    assert!(ip.verify_checksum());
    let udp = UdpPacket::new_checked(ip.payload()).unwrap();
    let (from, to): (IpAddr, IpAddr) = (ip.src_addr().into(), ip.dst_addr().into());
    assert!(udp.verify_checksum(&from.into(), &to.into()));
    let (source, destination) = (udp.src_port(), udp.dst_port());
    (
        (from, source).into(),
        (to, destination).into(),
        udp.payload().to_vec(),
    )
}

fn dhcp(kind: DhcpMessageType, requested: Option<Ipv4Addr>) -> Vec<u8> {
    let message = DhcpRepr {
        message_type: kind,
        transaction_id: 0x1234_5678,
        secs: 0,
        client_hardware_address: OWN,
        client_ip: Ipv4Addr::UNSPECIFIED,
        your_ip: Ipv4Addr::UNSPECIFIED,
        server_ip: Ipv4Addr::UNSPECIFIED,
        router: None,
        subnet_mask: None,
        relay_agent_ip: Ipv4Addr::UNSPECIFIED,
        broadcast: false,
        requested_ip: requested,
        client_identifier: Some(OWN),
        server_identifier: None,
        parameter_request_list: Some(&[1, 3, 6]),
        dns_servers: None,
        max_size: Some(1500),
        lease_duration: None,
        renew_duration: None,
        rebind_duration: None,
        additional_options: &[],
    };
    let mut bytes = vec![0; message.buffer_len()];
    message
        .emit(&mut DhcpPacket::new_unchecked(&mut bytes[..]))
        .unwrap();
    bytes
}

#[test]
fn dhcp_gives_the_guest_its_address() {
    for restrict in [false, true] {
        let guest = Guest::new(&UserOptions { restrict, ..open() });
        for (kind, requested, expected) in [
            (DhcpMessageType::Discover, None, DhcpMessageType::Offer),
            (DhcpMessageType::Request, Some(GUEST), DhcpMessageType::Ack),
            (
                DhcpMessageType::Request,
                Some(Ipv4Addr::new(192, 0, 2, 1)),
                DhcpMessageType::Nak,
            ),
        ] {
            let message = dhcp(kind, requested);
            let from = (Ipv4Addr::UNSPECIFIED, 68).into();
            send_udp(&guest, from, (Ipv4Addr::BROADCAST, 67).into(), &message);
            let (from, to, data) = datagram(&guest);
            assert_eq!(from, (GATEWAY, 67).into());
            assert_eq!(to, (Ipv4Addr::BROADCAST, 68).into());
            let reply = DhcpPacket::new_checked(&data[..]).unwrap();
            let reply = DhcpRepr::parse(&reply).unwrap();
            assert_eq!(reply.message_type, expected);
            assert_eq!(reply.transaction_id, 0x1234_5678);
            if expected != DhcpMessageType::Nak {
                assert_eq!(reply.your_ip, GUEST);
                assert_eq!(reply.router, Some(GATEWAY));
                assert_eq!(reply.subnet_mask, Some(Ipv4Addr::new(255, 255, 255, 0)));
                assert_eq!(reply.dns_servers.unwrap()[..], [DNS]);
            }
        }
    }
}

#[test]
fn arp_is_answered_for_the_networks_own_addresses_only() {
    let guest = Guest::new(&open());
    let ask = |target: Ipv4Addr| {
        let request = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: OWN,
            source_protocol_addr: GUEST,
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: target,
        };
        let mut bytes = vec![0; request.buffer_len()];
        request.emit(&mut ArpPacket::new_unchecked(&mut bytes[..]));
        send(&guest, EthernetProtocol::Arp, &bytes);
    };
    // The guest's own address and an unused one get no answer before that of the gateway arrives.
    for target in [GUEST, Ipv4Addr::new(10, 0, 2, 99), GATEWAY, DNS] {
        ask(target);
    }
    for expected in [GATEWAY, DNS] {
        let payload = payload(&guest);
        let reply = ArpRepr::parse(&ArpPacket::new_checked(&payload[..]).unwrap()).unwrap();
        let ArpRepr::EthernetIpv4 {
            operation,
            source_protocol_addr,
            ..
        } = reply
        else {
            panic!("{reply:?}");
        };
        assert_eq!(operation, ArpOperation::Reply);
        assert_eq!(source_protocol_addr, expected);
    }
}

#[test]
fn datagrams_go_out_and_answers_come_back() {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let guest = Guest::new(&open());
    let own: SocketAddr = (GUEST, 4000).into();
    let outside: SocketAddr = (GATEWAY, port).into();
    let mut buffer = [0; 4096];
    for round in 0..3 {
        send_udp(&guest, own, outside, b"question");
        let (bytes, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..bytes], b"question");
        // A sender that the guest has not written to is not heard.
        stranger.send_to(b"forged", from).unwrap();
        let answer = vec![round; 1000];
        server.send_to(&answer, from).unwrap();
        assert_eq!(datagram(&guest), (outside, own, answer));
    }
    // A long answer comes in fragments.
    send_udp(&guest, own, outside, b"question");
    let (_, from) = server.recv_from(&mut buffer).unwrap();
    server.send_to(&[7; 3000], from).unwrap();
    let mut bytes = 0;
    for last in [false, false, true] {
        let payload = payload(&guest);
        let fragment = Ipv4Packet::new_checked(&payload[..]).unwrap();
        assert_eq!(fragment.more_frags(), !last);
        bytes += fragment.payload().len();
    }
    assert_eq!(bytes, 3008);
}

#[test]
fn forwarded_datagrams_are_answered_to_their_senders() {
    let forward = HostForward {
        transport: Transport::Udp,
        host: (Ipv4Addr::LOCALHOST, 0).into(),
        guest_address: None,
        guest_port: 53,
    };
    let guest = Guest::new(&UserOptions {
        forwards: vec![forward],
        restrict: true,
        ..open()
    });
    let port: SocketAddr = (GUEST, 53).into();
    let clients = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let mut buffer = [0; 4096];
    for round in 0..3 {
        for client in &clients {
            client.send_to(&[round; 700], guest.forwards[0]).unwrap();
            let own = client.local_addr().unwrap().port();
            let sender = (GATEWAY, own).into();
            assert_eq!(datagram(&guest), (sender, port, vec![round; 700]));
            send_udp(&guest, port, sender, &[round, 9]);
            let (bytes, from) = client.recv_from(&mut buffer).unwrap();
            assert_eq!(
                (&buffer[..bytes], from),
                (&[round, 9][..], guest.forwards[0])
            );
        }
    }
    // The guest can answer only the port's senders, and only from that port.
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let number = stranger.local_addr().unwrap().port();
    send_udp(&guest, port, (GATEWAY, number).into(), b"unasked");
    let own = clients[0].local_addr().unwrap().port();
    send_udp(
        &guest,
        (GUEST, 54).into(),
        (GATEWAY, own).into(),
        b"other port",
    );
    send_udp(&guest, port, (GATEWAY, own).into(), b"last");
    let (bytes, _) = clients[0].recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], b"last");
    stranger.set_nonblocking(true).unwrap();
    assert!(stranger.recv_from(&mut buffer).is_err());
}

#[test]
fn names_are_asked_of_the_hosts_server_by_udp_and_tcp() {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = server.local_addr().unwrap();
    let listener = TcpListener::bind(address).unwrap();
    let guest = Guest::with(&open(), Offloads::default(), address);
    let own: SocketAddr = (GUEST, 4000).into();
    send_udp(&guest, own, (DNS, 53).into(), b"name?");
    let mut buffer = [0; 100];
    let (bytes, from) = server.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], b"name?");
    server.send_to(b"address", from).unwrap();
    let (from, to, data) = datagram(&guest);
    assert_eq!((from.ip(), to), (DNS.into(), own));
    assert_eq!(data, b"address");
    assert_eq!(from.port(), 53);
    let mut stack = guest.stack();
    let handle = stack.connect(DNS, 53);
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut question = [0; 5];
        stream.read_exact(&mut question).unwrap();
        stream.write_all(b"address").unwrap();
        question
    });
    stack.until(|stack| stack.socket(handle).may_send().then_some(()));
    stack.send(handle, b"name?");
    assert_eq!(stack.receive_all(handle), b"address");
    assert_eq!(&server.join().unwrap(), b"name?");
}

#[test]
fn the_gateway_answers_echo_requests() {
    let guest = Guest::new(&UserOptions {
        restrict: true,
        ..open()
    });
    let request = Icmpv4Repr::EchoRequest {
        ident: 7,
        seq_no: 9,
        data: b"ping",
    };
    let fill = |buffer: &mut [u8]| {
        let mut message = Icmpv4Packet::new_unchecked(buffer);
        request.emit(&mut message, &ChecksumCapabilities::default());
    };
    let bytes = request.buffer_len();
    let (from, to) = (GUEST.into(), GATEWAY.into());
    let packet = packet::ip(from, to, IpProtocol::Icmp, bytes, 64, fill);
    send(&guest, EthernetProtocol::Ipv4, &packet);
    let payload = payload(&guest);
    let ip = Ipv4Packet::new_checked(&payload[..]).unwrap();
    assert_eq!((ip.src_addr(), ip.dst_addr()), (GATEWAY, GUEST));
    let message = Icmpv4Packet::new_checked(ip.payload()).unwrap();
    let reply = Icmpv4Repr::parse(&message, &ChecksumCapabilities::default()).unwrap();
    let expected = Icmpv4Repr::EchoReply {
        ident: 7,
        seq_no: 9,
        data: b"ping",
    };
    assert_eq!(reply, expected);
}

#[test]
fn routers_and_neighbours_are_found_over_ipv6() {
    let guest = Guest::new(&open());
    let own = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x15);
    let ask = |to: Ipv6Addr, message: NdiscRepr<'_>| {
        let message = Icmpv6Repr::Ndisc(message);
        let fill = |buffer: &mut [u8]| {
            let mut packet = Icmpv6Packet::new_unchecked(buffer);
            message.emit(&own, &to, &mut packet, &ChecksumCapabilities::default());
        };
        let bytes = message.buffer_len();
        let packet = packet::ip(own.into(), to.into(), IpProtocol::Icmpv6, bytes, 255, fill);
        send(&guest, EthernetProtocol::Ipv6, &packet);
    };
    let answer = || {
        let payload = payload(&guest);
        let ip = Ipv6Packet::new_checked(&payload[..]).unwrap();
        assert_eq!((ip.dst_addr(), ip.hop_limit()), (own, 255));
        let message = Icmpv6Packet::new_checked(ip.payload()).unwrap();
        let checks = ChecksumCapabilities::default();
        let repr = Icmpv6Repr::parse(&ip.src_addr(), &own, &message, &checks).unwrap();
        match repr {
            Icmpv6Repr::Ndisc(NdiscRepr::RouterAdvert { prefix_info, .. }) => {
                prefix_info.unwrap().prefix
            }
            Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { target_addr, .. }) => target_addr,
            other => panic!("{other:?}"),
        }
    };
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    ask(routers, NdiscRepr::RouterSolicit { lladdr: None });
    assert_eq!(answer(), Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0));
    ask(
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 2),
        NdiscRepr::NeighborSolicit {
            target_addr: GATEWAY6,
            lladdr: Some(OWN.into()),
        },
    );
    assert_eq!(answer(), GATEWAY6);
}
