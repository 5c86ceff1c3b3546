//! Tests of packets that are longer than a frame, in both directions.

use super::guest::{Guest, PATIENCE, open};
use super::services::{payload, send};
use crate::user::addresses::{GATEWAY, GUEST};
use crate::user::packet;
use crate::user::reassembly::Reassembly;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::*;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Instant;

fn send_long(guest: &Guest, packet: &[u8], number: u32) {
    if packet.len() <= packet::MTU {
        send(guest, EthernetProtocol::Ipv4, packet);
        return;
    }
    for fragment in packet::fragments(packet, number) {
        send(guest, EthernetProtocol::Ipv4, &fragment);
    }
}

/// Receives the next packet, which may consist of several frames.
fn receive_long(guest: &Guest) -> Vec<u8> {
    let mut reassembly = Reassembly::default();
    loop {
        let frame = payload(guest);
        assert!(frame.len() <= packet::MTU);
        let packet = Ipv4Packet::new_checked(&frame[..]).unwrap();
        assert!(packet.verify_checksum());
        if !packet.more_frags() && packet.frag_offset() == 0 {
            return frame;
        }
        if let Some(packet) = reassembly.ipv4(&packet, Instant::now()) {
            return packet;
        }
    }
}

#[test]
fn datagrams_of_all_sizes_go_out_and_come_back() {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let guest = Guest::new(&open());
    let own: SocketAddr = (GUEST, 4000).into();
    let outside: SocketAddr = (GATEWAY, server.local_addr().unwrap().port()).into();
    let mut buffer = vec![0; 70_000];
    for (number, bytes) in [0, 100, 1472, 1473, 1480, 1481, 4000, 8972, 65_507]
        .into_iter()
        .enumerate()
    {
        let data: Vec<u8> = (0..bytes).map(|n| (n / 251 + n) as u8).collect();
        let packet = packet::udp(own, outside, &data).unwrap();
        send_long(&guest, &packet, number as u32);
        let (received, from) = server.recv_from(&mut buffer).unwrap();
        assert!(buffer[..received] == data, "{bytes}");
        server.send_to(&data, from).unwrap();
        let packet = receive_long(&guest);
        let ip = Ipv4Packet::new_checked(&packet[..]).unwrap();
        let udp = UdpPacket::new_checked(ip.payload()).unwrap();
        let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
        assert!(udp.verify_checksum(&from, &to));
        assert!(udp.payload() == data, "{bytes}");
    }
}

#[test]
fn the_gateway_answers_long_echo_requests() {
    let guest = Guest::new(&open());
    for bytes in [1472, 1473, 5000, 65_507] {
        let data = vec![9; bytes];
        let request = Icmpv4Repr::EchoRequest {
            ident: 7,
            seq_no: 9,
            data: &data,
        };
        let fill = |buffer: &mut [u8]| {
            let mut message = Icmpv4Packet::new_unchecked(buffer);
            request.emit(&mut message, &ChecksumCapabilities::default());
        };
        let (from, to) = (GUEST.into(), GATEWAY.into());
        let length = request.buffer_len();
        let packet = packet::ip(from, to, IpProtocol::Icmp, length, 64, fill);
        send_long(&guest, &packet, bytes as u32);
        let packet = receive_long(&guest);
        let ip = Ipv4Packet::new_checked(&packet[..]).unwrap();
        let message = Icmpv4Packet::new_checked(ip.payload()).unwrap();
        let reply = Icmpv4Repr::parse(&message, &ChecksumCapabilities::default()).unwrap();
        let expected = Icmpv4Repr::EchoReply {
            ident: 7,
            seq_no: 9,
            data: &data,
        };
        assert!(reply == expected, "{bytes}");
    }
}

#[test]
fn the_network_works_after_a_flood_of_fragments() {
    let guest = Guest::new(&open());
    let (from, to) = (GUEST.into(), GATEWAY.into());
    for number in 0..5000 {
        let mut flood = packet::ip(from, to, IpProtocol::Udp, 8, 64, |_| {});
        let mut fragment = Ipv4Packet::new_unchecked(&mut flood[..]);
        fragment.set_ident(number);
        fragment.clear_flags();
        fragment.set_more_frags(true);
        fragment.set_frag_offset(number / 8 * 8);
        while !guest.adapter.has_room() {
            std::thread::yield_now();
        }
        send(&guest, EthernetProtocol::Ipv4, &flood);
    }
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let outside: SocketAddr = (GATEWAY, server.local_addr().unwrap().port()).into();
    let data = [5; 3000];
    let packet = packet::udp((GUEST, 4000).into(), outside, &data).unwrap();
    send_long(&guest, &packet, 6000);
    let mut buffer = [0; 4000];
    let (received, _) = server.recv_from(&mut buffer).unwrap();
    assert!(buffer[..received] == data);
}
