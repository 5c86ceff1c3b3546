//! Tests of peers that send without end: each gets its turn, and no other peer waits for them.

use super::guest::{Guest, MAC, PATIENCE, open};
use crate::link::{Adapter, cable};
use crate::options::{HostForward, Transport, UserOptions};
use crate::user::addresses::{Addresses, GATEWAY, GUEST};
use crate::user::turns::{BATCH, TURNS};
use crate::user::{Network, packet};
use smoltcp::wire::{EthernetAddress, EthernetProtocol};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const OWN: EthernetAddress = EthernetAddress(MAC.0);
const ROUTER: EthernetAddress = EthernetAddress([0x52, 0x55, 10, 0, 2, 2]);

fn socket() -> (UdpSocket, u16) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

/// Makes the guest send something from its port `from` to the host's port `to`.
fn greet(adapter: &Adapter, from: u16, to: u16) {
    let (from, to) = ((GUEST, from).into(), (GATEWAY, to).into());
    let packet = packet::udp(from, to, b"hello").unwrap();
    let kind = EthernetProtocol::Ipv4;
    adapter.send(packet::ethernet(OWN, ROUTER, kind, &packet));
}

/// Returns the host's ends: a peer of the guest's, and a forwarded port.
fn peers(forward: SocketAddr, adapter: &Adapter, work: impl FnOnce()) -> [UdpSocket; 2] {
    let (peer, port) = socket();
    greet(adapter, 1000, port);
    work();
    let mut hello = [0; 5];
    let (_, guest) = peer.recv_from(&mut hello).unwrap();
    peer.connect(guest).unwrap();
    let (stranger, _) = socket();
    stranger.connect(forward).unwrap();
    [peer, stranger]
}

fn options() -> UserOptions {
    UserOptions {
        forwards: vec![HostForward {
            transport: Transport::Udp,
            host: (Ipv4Addr::LOCALHOST, 0).into(),
            guest_address: None,
            guest_port: 53,
        }],
        ..open()
    }
}

#[test]
fn a_round_takes_a_batch_of_each_and_the_next_round_goes_on() {
    const SENT: usize = 3 * BATCH;
    let (adapter, wire) = cable().unwrap();
    let mut network = Network::open(&options(), MAC, wire).unwrap();
    network.context.addresses = Addresses::with_resolver(true, &["127.0.0.1:9".parse().unwrap()]);
    let forward = network.forwards()[0];
    let peers = peers(forward, &adapter, || network.work(&[]));
    for _ in 0..SENT {
        for peer in &peers {
            peer.send(b"x").unwrap();
        }
    }
    // Whichever is served first, no peer gets ahead by more than a batch.
    let mut counts = Vec::new();
    while counts.last() != Some(&(2 * SENT)) {
        let limit = network.sleep();
        let events = network.context.poller.wait(limit);
        network.work(&events);
        let count = adapter.look();
        let before = counts.last().copied().unwrap_or(0);
        assert!(count - before <= TURNS * BATCH, "{counts:?} {count}");
        counts.push(count);
        assert!(counts.len() < 1000, "{counts:?}");
    }
    let mut ahead = 0i32;
    let mut first = None;
    while let Ok(Some(frame)) = adapter.take_if(|_| Ok::<_, ()>(true)) {
        // The guest's port follows the headers of Ethernet and IP.
        let port = u16::from_be_bytes([frame.bytes[36], frame.bytes[37]]);
        let is_first = *first.get_or_insert(port) == port;
        ahead += if is_first { 1 } else { -1 };
        assert!((0..=BATCH as i32).contains(&ahead), "{ahead}");
    }
    assert_eq!(ahead, 0);
}

#[test]
fn connections_go_on_while_datagrams_pour_in() {
    let guest = Guest::new(&options());
    let peers = peers(guest.forwards[0], &guest.adapter, || {});
    let is_over = Arc::new(AtomicBool::new(false));
    let floods: Vec<_> = peers
        .into_iter()
        .map(|peer| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = peer.send(&[0; 400]);
                }
            })
        })
        .collect();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let data: Vec<u8> = (0..1_000_000)
        .map(|n: usize| (n * 7 + n / 251) as u8)
        .collect();
    let expected = data.clone();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut received = vec![0; 100_000];
        stream.read_exact(&mut received).unwrap();
        stream.write_all(&data).unwrap();
        received
    });
    // The flood has begun.
    let mut stack = guest.stack();
    stack.until(|stack| stack.device.guest.take().map(drop));
    thread::sleep(Duration::from_millis(100));
    let handle = stack.connected(port);
    stack.send(handle, &expected[..100_000]);
    assert!(stack.receive_all(handle) == expected);
    is_over.store(true, Ordering::Relaxed);
    assert!(server.join().unwrap() == expected[..100_000]);
    for flood in floods {
        flood.join().unwrap();
    }
}
