//! Tests of connections: data arrives completely, in order, in both directions, and connections end
//! properly.

use super::guest::{Guest, PATIENCE, open};
use crate::link::Offloads;
use crate::options::{HostForward, Transport, UserOptions};
use crate::user::addresses::GATEWAY;
use smoltcp::socket::tcp::State;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n * 7 + n / 251) as u8).collect()
}

/// Reads everything from the stream.
fn read_all(mut stream: &TcpStream) -> Vec<u8> {
    let mut data = Vec::new();
    stream.read_to_end(&mut data).unwrap();
    data
}

#[test]
fn bytes_go_both_ways_and_each_half_ends_by_itself() {
    let (listener, port) = listener();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener);
        let received = read_all(&stream);
        // The guest's half has ended; this one continues.
        stream.write_all(&pattern(300_000)).unwrap();
        received
    });
    let mut stack = Guest::new(&open()).stack();
    let handle = stack.connected(port);
    stack.send(handle, &pattern(200_000));
    stack.socket(handle).close();
    assert!(stack.receive_all(handle) == pattern(300_000));
    assert!(server.join().unwrap() == pattern(200_000));
    stack.until(|stack| {
        let state = stack.socket(handle).state();
        matches!(state, State::TimeWait | State::Closed).then_some(())
    });
}

#[test]
fn the_host_may_end_its_half_first() {
    let (listener, port) = listener();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener);
        stream.write_all(b"hello").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        read_all(&stream)
    });
    let mut stack = Guest::new(&open()).stack();
    let handle = stack.connected(port);
    assert_eq!(stack.receive_all(handle), b"hello");
    stack.send(handle, &pattern(100_000));
    stack.socket(handle).close();
    stack.until(|stack| (stack.socket(handle).state() == State::Closed).then_some(()));
    assert!(server.join().unwrap() == pattern(100_000));
}

#[test]
fn a_refusal_reaches_the_guest() {
    let (listener, port) = listener();
    drop(listener);
    let mut stack = Guest::new(&open()).stack();
    let handle = stack.connect(GATEWAY, port);
    stack.until(|stack| (stack.socket(handle).state() == State::Closed).then_some(()));
    // A connection to an unused address of the network fails too.
    let handle = stack.connect("10.0.2.3".parse().unwrap(), 80);
    stack.until(|stack| (stack.socket(handle).state() == State::Closed).then_some(()));
}

#[test]
fn a_connection_is_not_there_before_the_host_has_connected() {
    // No process accepts, and the backlog is full: the host's connection stays half open.
    let (listener, port) = listener();
    let mut stack = Guest::new(&open()).stack();
    let handle = stack.connected(port);
    drop(listener);
    stack.until(|stack| (stack.socket(handle).state() == State::Closed).then_some(()));
}

#[test]
fn resets_pass_both_ways() {
    let (listener, port) = listener();
    let mut stack = Guest::new(&open()).stack();
    // The guest resets the connection.
    let handle = stack.connected(port);
    let mut stream = accept(&listener);
    stack.socket(handle).abort();
    let reader = thread::spawn(move || stream.read(&mut [0; 10]).unwrap_err().kind());
    stack.until(|_| reader.is_finished().then_some(()));
    assert_eq!(reader.join().unwrap(), ErrorKind::ConnectionReset);
    // The host resets the connection by closing it with unread data.
    let handle = stack.connected(port);
    let stream = accept(&listener);
    stack.send(handle, b"unread");
    while stream.peek(&mut [0; 10]).unwrap() < 6 {
        stack.poll();
    }
    drop(stream);
    stack.until(|stack| (stack.socket(handle).state() == State::Closed).then_some(()));
}

#[test]
fn a_host_that_does_not_read_stops_the_guest_and_nothing_is_lost() {
    let (listener, port) = listener();
    let mut stack = Guest::new(&open()).stack();
    let handle = stack.connected(port);
    let stream = accept(&listener);
    let data = pattern(64 << 20);
    let mut sent = 0;
    let mut rounds_without = 0;
    // This loop ends when no bytes have passed for a long time.
    while rounds_without < 500 {
        stack.poll();
        let more = stack.socket(handle).send_slice(&data[sent..]).unwrap();
        sent += more;
        rounds_without = if more == 0 { rounds_without + 1 } else { 0 };
        thread::sleep(Duration::from_millis(1));
    }
    assert!(sent < data.len(), "every byte is accepted");
    // Other connections are not delayed.
    let other = stack.connected(port);
    let other_stream = accept(&listener);
    stack.send(other, b"through");
    let mut seven = [0; 7];
    (&other_stream).read_exact(&mut seven).unwrap();
    let reader = thread::spawn(move || read_all(&stream));
    stack.send(handle, &data[sent..]);
    stack.socket(handle).close();
    stack.until(|_| reader.is_finished().then_some(()));
    assert!(reader.join().unwrap() == data);
}

#[test]
fn a_guest_that_does_not_read_stops_the_host_and_nothing_is_lost() {
    let (listener, port) = listener();
    let mut stack = Guest::new(&open()).stack();
    let handle = stack.connected(port);
    let mut stream = accept(&listener);
    let data = pattern(32 << 20);
    let expected = data.clone();
    let writer = thread::spawn(move || stream.write_all(&data).unwrap());
    for _ in 0..500 {
        stack.poll();
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!writer.is_finished(), "every byte is accepted");
    assert!(stack.receive_all(handle) == expected);
    writer.join().unwrap();
}

#[test]
fn connections_share_the_cable() {
    // There is always more data than the cable has room for.
    const CONNECTIONS: usize = 40;
    const TOTAL: usize = 64 << 20;
    let (listener, port) = listener();
    let mut stack = Guest::new(&open()).stack();
    let mut handles = Vec::new();
    let mut servers = Vec::new();
    for _ in 0..CONNECTIONS {
        handles.push(stack.connected(port));
        let mut stream = accept(&listener);
        servers.push(thread::spawn(move || {
            while stream.write_all(&[0; 64 << 10]).is_ok() {}
        }));
    }
    let mut received = [0; CONNECTIONS];
    while received.iter().sum::<usize>() < TOTAL {
        // The guest is slow, and the network fills the cable again.
        thread::sleep(Duration::from_millis(2));
        stack.poll();
        for (handle, received) in handles.iter().zip(&mut received) {
            let socket = stack.socket(*handle);
            while socket.can_recv() {
                *received += socket.recv(|data| (data.len(), data.len())).unwrap();
            }
        }
    }
    let least = received.iter().min().unwrap();
    assert!(*least > TOTAL / CONNECTIONS / 8, "{received:?}");
    drop(stack);
    for server in servers {
        server.join().unwrap();
    }
}

#[test]
fn long_segments_for_a_guest_that_takes_them() {
    let (listener, port) = listener();
    let offloads = Offloads {
        checksum: true,
        tcp4: true,
        tcp6: true,
    };
    let resolver = "127.0.0.1:9".parse().unwrap();
    let guest = Guest::with(&open(), offloads, resolver);
    let mut stack = guest.stack();
    let handle = stack.connected(port);
    let mut stream = accept(&listener);
    let data = pattern(8 << 20);
    let expected = data.clone();
    let writer = thread::spawn(move || stream.write_all(&data).unwrap());
    assert!(stack.receive_all(handle) == expected);
    writer.join().unwrap();
}

#[test]
fn a_thousand_connections_at_once() {
    const COUNT: usize = 1000;
    let (listener, port) = listener();
    let server = thread::spawn(move || {
        let streams: Vec<_> = (0..COUNT).map(|_| accept(&listener)).collect();
        for mut stream in &streams {
            let mut number = [0; 4];
            stream.read_exact(&mut number).unwrap();
            stream.write_all(&number).unwrap();
        }
    });
    let mut stack = Guest::new(&open()).stack();
    let handles: Vec<_> = (0..COUNT)
        .map(|_| {
            let mut socket = super::guest::socket(2048);
            stack.poll();
            let port_of_guest = 10_000 + stack.sockets.iter().count() as u16;
            let context = stack.interface.context();
            socket
                .connect(context, (GATEWAY, port), port_of_guest)
                .unwrap();
            stack.sockets.add(socket)
        })
        .collect();
    for (number, handle) in (0u32..).zip(&handles) {
        stack.until(|stack| stack.socket(*handle).may_send().then_some(()));
        stack.send(*handle, &number.to_be_bytes());
    }
    for (number, handle) in (0u32..).zip(&handles) {
        assert_eq!(stack.receive_all(*handle), number.to_be_bytes());
    }
    server.join().unwrap();
}

#[test]
fn forwarded_ports_lead_into_the_guest() {
    let forward = HostForward {
        transport: Transport::Tcp,
        host: (Ipv4Addr::LOCALHOST, 0).into(),
        guest_address: None,
        guest_port: 22,
    };
    let options = UserOptions {
        forwards: vec![forward],
        restrict: true,
        ..open()
    };
    let guest = Guest::new(&options);
    let outside = guest.forwards[0];
    let mut stack = guest.stack();
    let handle = stack.listen(22);
    let client = thread::spawn(move || {
        let mut stream = TcpStream::connect(outside).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"question").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        read_all(&stream)
    });
    assert_eq!(stack.receive_all(handle), b"question");
    let peer = stack.socket(handle).remote_endpoint().unwrap();
    assert_eq!(IpAddr::from(peer.addr), IpAddr::from(GATEWAY));
    stack.send(handle, b"answer");
    stack.socket(handle).close();
    stack.until(|_| client.is_finished().then_some(()));
    assert_eq!(client.join().unwrap(), b"answer");
    // If the guest does not listen, the connection is reset.
    let client = thread::spawn(move || {
        let mut stream = TcpStream::connect(outside).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read(&mut [0; 1]).unwrap_err().kind()
    });
    stack.until(|_| client.is_finished().then_some(()));
    assert_eq!(client.join().unwrap(), ErrorKind::ConnectionReset);
}

#[test]
fn a_port_in_use_is_refused_with_its_address() {
    let (listener, port) = listener();
    let forward = HostForward {
        transport: Transport::Tcp,
        host: (Ipv4Addr::LOCALHOST, port).into(),
        guest_address: None,
        guest_port: 22,
    };
    let kind = crate::NetworkKind::User(UserOptions {
        forwards: vec![forward],
        restrict: false,
        ..open()
    });
    let options = crate::NetworkOptions::new(kind);
    let refusal = crate::Backend::start(&options, super::guest::MAC, |_| {}).err();
    let line = refusal.unwrap().to_string();
    assert!(
        line.contains(&format!("cannot listen on 127.0.0.1:{port}")),
        "{line}"
    );
    assert!(line.contains("in use"), "{line}");
    drop(listener);
}

#[test]
fn a_restricted_guest_reaches_nothing() {
    let (listener, port) = listener();
    listener.set_nonblocking(true).unwrap();
    let options = UserOptions {
        restrict: true,
        ..open()
    };
    let mut stack = Guest::new(&options).stack();
    let handle = stack.connect(GATEWAY, port);
    stack.until(|stack| (stack.socket(handle).state() == State::Closed).then_some(()));
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}
