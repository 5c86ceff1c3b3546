//! Tests of destinations that the host cannot reach: the guest is notified immediately.

use super::guest::{Guest, PATIENCE, open};
use super::services::{datagram, payload, send, send_udp};
use crate::link::Offloads;
use crate::options::{HostForward, Transport, UserOptions};
use crate::user::addresses::{Addresses, DNS, GATEWAY, GUEST};
use crate::user::icmp::{self, Unreachable};
use crate::user::packet;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::*;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

/// A query for the address of `a`.
const QUERY: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";
/// The same query, answered with a failure of the server or with a refusal.
const FAILED: &[u8] = b"\x12\x34\x81\x82\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";
const REFUSED: &[u8] = b"\x12\x34\x81\x85\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";

fn local() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Returns a port of the loopback address that no socket has. Only a socket that requests exactly
/// this number could get it.
fn closed() -> SocketAddr {
    local().local_addr().unwrap()
}

/// Receives the next packet, which is an ICMP error. Returns its sender, its reason, and the ends
/// of the datagram that it is about.
pub fn error(guest: &Guest) -> (Ipv4Addr, Icmpv4DstUnreachable, [SocketAddr; 2]) {
    let payload = payload(guest);
    let ip = Ipv4Packet::new_checked(&payload[..]).unwrap();
    assert_eq!(ip.next_header(), IpProtocol::Icmp, "{payload:?}");
    let message = Icmpv4Packet::new_checked(ip.payload()).unwrap();
    let repr = Icmpv4Repr::parse(&message, &ChecksumCapabilities::default());
    let Ok(Icmpv4Repr::DstUnreachable {
        reason,
        header,
        data,
    }) = repr
    else {
        panic!("{repr:?}");
    };
    let port = |at| u16::from_be_bytes([data[at], data[at + 1]]);
    let ends = [
        SocketAddr::new(header.src_addr.into(), port(0)),
        SocketAddr::new(header.dst_addr.into(), port(2)),
    ];
    (ip.src_addr(), reason, ends)
}

#[test]
fn a_closed_port_of_the_host_is_unreachable() {
    let guest = Guest::new(&open());
    let own: SocketAddr = (GUEST, 4000).into();
    let server = local();
    for _ in 0..3 {
        let closed: SocketAddr = (GATEWAY, closed().port()).into();
        send_udp(&guest, own, closed, b"question");
        let expected = Icmpv4DstUnreachable::PortUnreachable;
        assert_eq!(error(&guest), (GATEWAY, expected, [own, closed]));
        // The socket with the error can still send datagrams to other ports.
        let open: SocketAddr = (GATEWAY, server.local_addr().unwrap().port()).into();
        send_udp(&guest, own, closed, b"question");
        send_udp(&guest, own, open, b"question");
        let mut buffer = [0; 100];
        let (bytes, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..bytes], b"question");
        assert_eq!(error(&guest), (GATEWAY, expected, [own, closed]));
        server.send_to(b"answer", from).unwrap();
        assert_eq!(datagram(&guest), (open, own, b"answer".to_vec()));
    }
}

#[test]
fn addresses_that_are_not_there_and_forbidden_ones_are_unreachable() {
    let own: SocketAddr = (GUEST, 4000).into();
    for (restrict, to, reporter, reason) in [
        (
            false,
            "10.0.2.77:9",
            GATEWAY,
            Icmpv4DstUnreachable::HostUnreachable,
        ),
        (
            false,
            "10.0.2.3:9",
            DNS,
            Icmpv4DstUnreachable::PortUnreachable,
        ),
        (
            true,
            "10.0.2.2:9",
            GATEWAY,
            Icmpv4DstUnreachable::CommProhibited,
        ),
        (
            true,
            "192.0.2.1:9",
            GATEWAY,
            Icmpv4DstUnreachable::CommProhibited,
        ),
    ] {
        let guest = Guest::new(&UserOptions { restrict, ..open() });
        let to: SocketAddr = to.parse().unwrap();
        send_udp(&guest, own, to, b"question");
        assert_eq!(error(&guest), (reporter, reason, [own, to]));
    }
}

#[test]
fn an_answer_through_a_forwarded_port_to_a_closed_one_is_an_error() {
    let forward = HostForward {
        transport: Transport::Udp,
        host: (Ipv4Addr::LOCALHOST, 0).into(),
        guest_address: None,
        guest_port: 53,
    };
    let guest = Guest::new(&UserOptions {
        forwards: vec![forward],
        restrict: false,
        ..open()
    });
    let client = local();
    client.send_to(b"question", guest.forwards[0]).unwrap();
    let (sender, own, _) = datagram(&guest);
    drop(client);
    send_udp(&guest, own, sender, b"answer");
    let expected = Icmpv4DstUnreachable::PortUnreachable;
    assert_eq!(error(&guest), (GATEWAY, expected, [own, sender]));
}

#[test]
fn a_closed_port_of_the_guest_closes_the_hosts() {
    let guest = Guest::new(&open());
    let server = local();
    let own: SocketAddr = (GUEST, 4000).into();
    let outside: SocketAddr = (GATEWAY, server.local_addr().unwrap().port()).into();
    send_udp(&guest, own, outside, b"question");
    let (_, from) = server.recv_from(&mut [0; 100]).unwrap();
    server.connect(from).unwrap();
    server.send(b"answer").unwrap();
    assert_eq!(datagram(&guest).2, b"answer");
    let answer = packet::udp(outside, own, b"answer").unwrap();
    let ends: (IpAddr, IpAddr) = (outside.ip(), own.ip());
    let message = icmp::unreachable(Unreachable::Port, ends, &answer).unwrap();
    let message = &message[20..];
    let packet = packet::ip(
        GUEST.into(),
        GATEWAY.into(),
        IpProtocol::Icmp,
        message.len(),
        64,
        |payload| payload.copy_from_slice(message),
    );
    send(&guest, EthernetProtocol::Ipv4, &packet);
    // When the network has answered a later message, it has also processed the earlier one.
    send_udp(&guest, own, (DNS, 9).into(), b"");
    error(&guest);
    server.send(b"another answer").unwrap();
    let refused = server.recv(&mut [0; 100]).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

fn asking(servers: &[SocketAddr], restrict: bool) -> Guest {
    let options = UserOptions { restrict, ..open() };
    Guest::at(
        &options,
        Offloads::default(),
        Addresses::with_resolver(true, servers),
    )
}

#[test]
fn queries_fail_at_once_where_no_server_can_be_reached() {
    let own: SocketAddr = (GUEST, 4000).into();
    let dns: SocketAddr = (DNS, 53).into();
    for (servers, restrict, expected) in [
        (vec![closed()], false, FAILED),
        (vec![closed(), closed(), closed()], false, FAILED),
        (vec![closed()], true, REFUSED),
    ] {
        let guest = asking(&servers, restrict);
        // The guest requests several records through one socket, and repeats the requests.
        for number in 0..6 {
            let mut query = QUERY.to_vec();
            query[1] = number / 2;
            send_udp(&guest, own, dns, &query);
            let mut expected = expected.to_vec();
            expected[1] = number / 2;
            assert_eq!(datagram(&guest), (dns, own, expected));
        }
        // A message that is no query is a datagram to a closed port.
        if !restrict {
            send_udp(&guest, own, dns, b"name?");
            assert_eq!(error(&guest).1, Icmpv4DstUnreachable::PortUnreachable);
        }
    }
}

#[test]
fn the_next_server_is_asked_if_one_is_unreachable_or_silent() {
    let own: SocketAddr = (GUEST, 4000).into();
    let dns: SocketAddr = (DNS, 53).into();
    let [silent, server] = [(); 2].map(|()| local());
    let address = |socket: &UdpSocket| socket.local_addr().unwrap();
    let servers = [closed(), address(&silent), address(&server)];
    let guest = asking(&servers, false);
    let mut buffer = [0; 100];
    send_udp(&guest, own, dns, QUERY);
    let (bytes, _) = silent.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], QUERY);
    // The guest waits for a while, and repeats its query.
    send_udp(&guest, own, dns, QUERY);
    let (bytes, from) = server.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], QUERY);
    server.send_to(b"\x12\x34answer", from).unwrap();
    assert_eq!(datagram(&guest), (dns, own, b"\x12\x34answer".to_vec()));
}
