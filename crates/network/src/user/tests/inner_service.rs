//! Tests of a service inside the network: the guest reaches it at its address, and the network
//! nothing of that.

use super::guest::{Guest, Stack};
use crate::inner_service::{Answer, InnerService, Responder};
use crate::options::UserOptions;
use smoltcp::socket::tcp::State;
use std::net::Ipv4Addr;
use std::sync::Arc;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// Answers a number in a line with as many bytes, and closes after any other line.
struct Lines;

impl Responder for Lines {
    fn answer(&self, received: &mut Vec<u8>) -> Answer {
        let Some(end) = received.iter().position(|byte| *byte == b'\n') else {
            return Answer::default();
        };
        let line: Vec<u8> = received.drain(..=end).collect();
        match String::from_utf8_lossy(&line).trim().parse() {
            Ok(count) => Answer {
                bytes: vec![b'x'; count],
                is_last: false,
            },
            Err(_) => Answer {
                bytes: b"end".to_vec(),
                is_last: true,
            },
        }
    }
}

fn stack() -> Stack {
    let service = InnerService {
        address: ADDRESS,
        responder: Arc::new(Lines),
    };
    Guest::with_service(&UserOptions::default(), service).stack()
}

#[test]
fn a_guest_is_answered_in_pieces_and_until_the_end() {
    let mut guest = stack();
    let connection = guest.connect(ADDRESS, 80);
    guest.until(|guest| guest.socket(connection).may_send().then_some(()));
    guest.send(connection, b"300000\n12");
    guest.send(connection, b"3\nend\n");
    assert_eq!(guest.receive_all(connection).len(), 300_123 + 3);
    guest.socket(connection).close();
    guest.until(|guest| {
        let state = guest.socket(connection).state();
        matches!(state, State::TimeWait | State::Closed).then_some(())
    });
    assert_eq!(guest.device.guest.refusals.list().last.len(), 0);
}

#[test]
fn other_ports_and_other_addresses_of_the_link_are_closed() {
    let mut guest = stack();
    for (address, port) in [(ADDRESS, 81), (Ipv4Addr::new(169, 254, 169, 253), 80)] {
        let connection = guest.connect(address, port);
        guest.until(|guest| (guest.socket(connection).state() == State::Closed).then_some(()));
    }
    let refused = guest.device.guest.refusals.list().last;
    let refused: Vec<_> = refused.iter().map(|it| &*it.destination).collect();
    assert_eq!(refused, ["169.254.169.253:80"]);
}

#[test]
fn idle_connections_make_room_for_others() {
    let mut guest = stack();
    let connect = |guest: &mut Stack| {
        let connection = guest.connect(ADDRESS, 80);
        guest.until(|guest| guest.socket(connection).may_send().then_some(()));
        connection
    };
    let first = connect(&mut guest);
    for _ in 0..40 {
        connect(&mut guest);
    }
    let last = connect(&mut guest);
    guest.send(last, b"1\nend\n");
    assert_eq!(guest.receive_all(last), b"xend");
    guest.send(first, b"1\n");
    guest.until(|guest| (guest.socket(first).state() == State::Closed).then_some(()));
}

#[test]
fn broken_frames_to_the_service_are_dropped() {
    let mut guest = stack();
    let mut frame = vec![0x52; 14 + 40];
    frame[0] = 0x52;
    frame[6] = 0x52;
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&40u16.to_be_bytes());
    frame[23] = 6;
    frame[30..34].copy_from_slice(&ADDRESS.octets());
    for (index, value) in [
        (14, 0x4f),
        (14, 0x40),
        (23, 17),
        (46, 0xff),
        (26, 0xff),
        (6, 0xff),
    ] {
        let mut broken = frame.clone();
        broken[index] = value;
        guest.device.guest.adapter.send(broken);
    }
    for length in 0..frame.len() {
        guest.device.guest.adapter.send(frame[..length].to_vec());
    }
    let connection = guest.connect(ADDRESS, 80);
    guest.until(|guest| guest.socket(connection).may_send().then_some(()));
    guest.send(connection, b"2\nend\n");
    assert_eq!(guest.receive_all(connection), b"xxend");
}
