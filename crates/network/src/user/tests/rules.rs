//! Tests of rules about what the guest may reach, from the guest's point of view: a refused packet
//! is answered immediately, and the servers on this host's loopback address see nothing of it.

use super::errors::error;
use super::guest::{Guest, PATIENCE, open};
use super::services::{datagram, send_udp};
use crate::link::Offloads;
use crate::options::UserOptions;
use crate::refusals::Protocol;
use crate::rules::Rules;
use crate::user::addresses::{Addresses, DNS, GATEWAY, GUEST};
use smoltcp::socket::tcp::State;
use smoltcp::wire::Icmpv4DstUnreachable::{self, CommProhibited, HostUnreachable};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

/// A query for the addresses of `a.example`, and its beginning without the number.
const QUERY: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\x07example\0\0\x01\0\x01";
/// One address of 192.0.2.1 for the name of the query, for a second.
const RECORD: &[u8] = b"\xc0\x0c\0\x01\0\x01\0\0\0\x01\0\x04\xc0\0\x02\x01";

fn options(allow: &[&str], deny: &[&str]) -> UserOptions {
    let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    UserOptions {
        rules: Rules {
            allow: parse(allow),
            deny: parse(deny),
        },
        ..UserOptions::default()
    }
}

fn local() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn own() -> SocketAddr {
    (GUEST, 4000).into()
}

/// Sends a datagram to an address that the host does not reach in tests: either a rule refuses it,
/// or the error is that the host is not there.
#[track_caller]
fn outcome(guest: &Guest, to: &str) -> Icmpv4DstUnreachable {
    let to: SocketAddr = to.parse().unwrap();
    send_udp(guest, own(), to, b"question");
    let (_, reason, ends) = error(guest);
    assert_eq!(ends, [own(), to]);
    reason
}

fn last(guest: &Guest) -> (Protocol, String, String) {
    let refused = guest.refusals.list().last.pop().unwrap();
    (refused.protocol, refused.destination, refused.reason)
}

#[test]
fn the_hosts_loopback_and_the_link_are_closed_by_default() {
    let guest = Guest::new(&UserOptions::default());
    let server = local();
    let port = server.local_addr().unwrap().port();
    assert_eq!(outcome(&guest, &format!("10.0.2.2:{port}")), CommProhibited);
    let (protocol, destination, reason) = last(&guest);
    assert_eq!(
        (protocol, destination),
        (Protocol::Udp, format!("10.0.2.2:{port}"))
    );
    assert!(reason.contains("allow=host"), "{reason}");
    assert_eq!(outcome(&guest, "169.254.169.254:80"), CommProhibited);
    assert_eq!(outcome(&guest, "192.0.2.1:80"), HostUnreachable);
    server.set_nonblocking(true).unwrap();
    assert!(server.recv(&mut [0; 100]).is_err());
    assert_eq!(guest.refusals.list().total, 2);
}

#[test]
fn a_connection_to_the_hosts_loopback_is_reset_unless_its_port_is_allowed() {
    let [open, closed] = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let allow = format!("host:{}", port(&open));
    let mut stack = Guest::new(&options(&[&allow], &[])).stack();
    let refused = stack.connect(GATEWAY, port(&closed));
    stack.until(|stack| (stack.socket(refused).state() == State::Closed).then_some(()));
    stack.connected(port(&open));
    open.accept().unwrap();
    closed.set_nonblocking(true).unwrap();
    assert!(closed.accept().is_err());
    let (protocol, destination, _) = last(&stack.device.guest);
    assert_eq!(protocol, Protocol::Tcp);
    assert_eq!(destination, format!("10.0.2.2:{}", port(&closed)));
}

#[test]
fn with_permissions_everything_else_is_refused_and_denials_come_first() {
    let allow = ["192.0.2.0/24:53", "198.51.100.0/24", "169.254.169.254:80"];
    let guest = Guest::new(&options(&allow, &["198.51.100.7", "192.0.2.9:53"]));
    for (to, expected) in [
        ("192.0.2.1:53", HostUnreachable),
        ("192.0.2.1:54", CommProhibited),
        ("192.0.2.9:53", CommProhibited),
        ("198.51.100.6:1", HostUnreachable),
        ("198.51.100.7:1", CommProhibited),
        ("203.0.113.1:1", CommProhibited),
        ("169.254.169.254:80", HostUnreachable),
        ("169.254.169.254:81", CommProhibited),
        ("169.254.169.253:80", CommProhibited),
        ("10.0.2.2:53", CommProhibited),
    ] {
        assert_eq!(outcome(&guest, to), expected, "{to}");
    }
}

#[test]
fn permissions_for_everything_do_not_open_what_is_closed_by_default() {
    let guest = Guest::new(&options(
        &["any", "0.0.0.0/0", "169.0.0.0/8"],
        &["203.0.113.0/24"],
    ));
    for (to, expected) in [
        ("192.0.2.1:53", HostUnreachable),
        ("203.0.113.1:1", CommProhibited),
        ("169.254.169.254:80", CommProhibited),
        ("10.0.2.2:80", CommProhibited),
    ] {
        assert_eq!(outcome(&guest, to), expected, "{to}");
    }
    let guest = Guest::new(&open());
    assert_eq!(outcome(&guest, "169.254.169.254:80"), CommProhibited);
    assert_eq!(outcome(&guest, "192.0.2.1:80"), HostUnreachable);
}

/// A guest with a name server.
fn asking(options: &UserOptions) -> (Guest, UdpSocket) {
    let server = local();
    let address = server.local_addr().unwrap();
    let addresses = Addresses::with_resolver(true, &[address]);
    (Guest::at(options, Offloads::default(), addresses), server)
}

/// Receives a query, which must be our own in place of the guest's, and answers it.
fn answer(server: &UdpSocket, flags: [u8; 2], records: &[&[u8]]) {
    let mut buffer = [0; 512];
    let (bytes, from) = server.recv_from(&mut buffer).unwrap();
    let mut answer = buffer[..bytes].to_vec();
    assert_eq!(answer[2..], QUERY[2..]);
    answer[2..4].copy_from_slice(&flags);
    answer[7] = records.len() as u8;
    answer.extend(records.concat());
    server.send_to(&answer, from).unwrap();
}

fn ask(guest: &Guest, query: &[u8]) -> [u8; 2] {
    send_udp(guest, own(), (DNS, 53).into(), query);
    let (from, to, data) = datagram(guest);
    assert_eq!((from, to), ((DNS, 53).into(), own()));
    assert_eq!(data[..2], query[..2]);
    [data[2], data[3]]
}

/// An answer of the server arrives with its code; the guest's query has an option, which is not
/// passed on.
fn ask_with_answer(guest: &Guest, server: &UdpSocket, records: &[&[u8]]) -> [u8; 2] {
    let mut query = QUERY.to_vec();
    query[11] = 1;
    query.extend(b"\0\0\x29\x04\xd0\0\0\0\0\0\x04dddd");
    std::thread::scope(|scope| {
        scope.spawn(|| answer(server, [0x83, 0x80], records));
        ask(guest, &query)
    })
}

const REFUSED: [u8; 2] = [0x81, 0x85];
const ANSWERED: [u8; 2] = [0x81, 0x80];

#[test]
fn the_addresses_of_an_allowed_name_are_open_once_they_are_known() {
    let (guest, server) = asking(&options(&["a.example:443"], &[]));
    assert_eq!(outcome(&guest, "192.0.2.1:443"), CommProhibited);
    let far = b"\xc0\x0c\0\x01\0\x01\0\0\0\x01\0\x04\xa9\xfe\xa9\xfe";
    assert_eq!(ask_with_answer(&guest, &server, &[RECORD, far]), ANSWERED);
    assert_eq!(outcome(&guest, "192.0.2.1:443"), HostUnreachable);
    assert_eq!(outcome(&guest, "192.0.2.1:80"), CommProhibited);
    assert_eq!(outcome(&guest, "192.0.2.2:443"), CommProhibited);
    // The owner of a name cannot open the link with it.
    assert_eq!(outcome(&guest, "169.254.169.254:443"), CommProhibited);
}

#[test]
fn names_that_are_not_allowed_are_not_asked() {
    let (guest, server) = asking(&options(&["*.example"], &["b.example"]));
    let other = QUERY.to_vec();
    for (at, byte, shown) in [(13, b'b', "b.example"), (15, b'f', "a.fxample")] {
        let mut other = other.clone();
        other[at] = byte;
        assert_eq!(ask(&guest, &other), REFUSED);
        assert_eq!(last(&guest).1, shown);
    }
    let mut status = other.clone();
    status[2] = 0x11;
    send_udp(&guest, own(), (DNS, 53).into(), &status);
    datagram(&guest);
    // A name that stands for a denied one is refused too.
    let alias = b"\xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x04\x01b\xc0\x0e";
    assert_eq!(ask_with_answer(&guest, &server, &[alias]), REFUSED);
    assert_eq!(ask_with_answer(&guest, &server, &[RECORD]), ANSWERED);
    server.set_nonblocking(true).unwrap();
    assert!(server.recv(&mut [0; 512]).is_err());
}

#[test]
fn an_answer_to_no_query_is_not_passed_on() {
    let (guest, server) = asking(&options(&["a.example"], &[]));
    send_udp(&guest, own(), (DNS, 53).into(), QUERY);
    let mut buffer = [0; 512];
    let (bytes, from) = server.recv_from(&mut buffer).unwrap();
    let answer = |number: u8, name: u8| {
        let mut answer = buffer[..bytes].to_vec();
        answer[0] ^= number;
        answer[2..4].copy_from_slice(&[0x81, 0x80]);
        answer[7] = 1;
        answer[13] = name;
        answer.extend(RECORD);
        server.send_to(&answer, from).unwrap();
    };
    answer(1, b'a');
    answer(0, b'b');
    assert_eq!(outcome(&guest, "192.0.2.1:443"), CommProhibited);
}

#[test]
fn the_name_server_is_closed_where_only_addresses_are_allowed_unless_a_rule_opens_it() {
    let (guest, _server) = asking(&options(&["192.0.2.0/24"], &[]));
    assert_eq!(ask(&guest, QUERY), REFUSED);
    let (guest, server) = asking(&options(&["203.0.113.0/24", "dns"], &[]));
    std::thread::scope(|scope| {
        scope.spawn(|| answer(&server, ANSWERED, &[RECORD]));
        assert_eq!(ask(&guest, QUERY), ANSWERED);
    });
    // To ask for a name opens nothing.
    assert_eq!(outcome(&guest, "192.0.2.1:443"), CommProhibited);
}

#[test]
fn the_addresses_of_a_denied_name_are_denied_from_the_start() {
    let server = local();
    let address = server.local_addr().unwrap();
    let guest = std::thread::scope(|scope| {
        scope.spawn(|| {
            answer(&server, ANSWERED, &[RECORD]);
            let mut buffer = [0; 512];
            let (bytes, from) = server.recv_from(&mut buffer).unwrap();
            buffer[2] |= 0x80;
            server.send_to(&buffer[..bytes], from).unwrap();
        });
        let addresses = Addresses::with_resolver(true, &[address]);
        Guest::at(
            &options(&[], &["a.example"]),
            Offloads::default(),
            addresses,
        )
    });
    assert_eq!(outcome(&guest, "192.0.2.1:443"), CommProhibited);
    assert_eq!(outcome(&guest, "192.0.2.2:443"), HostUnreachable);
    assert_eq!(ask(&guest, QUERY), REFUSED);
}
