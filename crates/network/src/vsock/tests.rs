//! Tests of the host's side with a guest that consists of packets.

use super::connection::BUFFER;
use super::packet::{HEADER, HOST_CID, Header, STREAM, operation, shutdown};
use super::{MAX_CONNECTIONS, Vsock, VsockOptions};
use crate::link::Adapter;
use std::convert::Infallible;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const CID: u64 = 5;
/// The size of the guest's buffers in bytes.
const GUEST_BUFFER: u32 = 1000;

struct Guest {
    adapter: Adapter,
    told: Receiver<()>,
    folder: PathBuf,
    // It is dropped before the folder is removed.
    vsock: Option<Vsock>,
}

impl Guest {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = format!("tollgate-vsock-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("v");
        let (adapter, vsock) = Vsock::start(&VsockOptions { cid: CID, path }).unwrap();
        let (tell, told) = channel();
        adapter.connect(move || {
            let _ = tell.send(());
        });
        Self {
            adapter,
            told,
            folder,
            vsock: Some(vsock),
        }
    }

    fn send(&self, header: Header, data: &[u8]) {
        let header = Header {
            from_cid: CID,
            to_cid: HOST_CID,
            kind: STREAM,
            bytes: data.len() as u32,
            buffer: GUEST_BUFFER,
            ..header
        };
        self.adapter.send([&header.to_bytes(), data].concat());
    }

    /// Takes the next packet, if there is one.
    fn take(&self) -> Option<(Header, Vec<u8>)> {
        self.adapter.look();
        let taken: Result<_, Infallible> = self.adapter.take_if(|_| Ok(true));
        let packet = taken.unwrap()?.bytes;
        let header = Header::read(&packet).unwrap();
        assert_eq!((header.from_cid, header.to_cid), (HOST_CID, CID));
        assert_eq!(header.kind, STREAM);
        let data = packet[HEADER..].to_vec();
        assert_eq!(data.len(), header.bytes as usize);
        Some((header, data))
    }

    /// Waits for the next packet, which must have this operation.
    #[track_caller]
    fn wait(&self, operation: u16) -> (Header, Vec<u8>) {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(packet) = self.take() {
                assert_eq!(packet.0.operation, operation, "{packet:?}");
                return packet;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no packet");
            let _ = self.told.recv_timeout(left.min(Duration::from_millis(50)));
        }
    }

    fn client(&self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.join("v")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Makes a connection from the host to port 22 of the guest, which accepts. Returns the host's
    /// end, and the fields of the guest's packets.
    fn connected(&self) -> (UnixStream, Header) {
        let mut client = self.client();
        client.write_all(b"CONNECT 22\n").unwrap();
        let (request, _) = self.wait(operation::REQUEST);
        assert_eq!(request.to_port, 22);
        let own = Header {
            from_port: 22,
            to_port: request.from_port,
            ..Header::default()
        };
        self.send(of(own, operation::RESPONSE), &[]);
        assert_eq!(line(&client), format!("OK {}\n", request.from_port));
        (client, own)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        drop(self.vsock.take());
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn of(header: Header, operation: u16) -> Header {
    Header {
        operation,
        ..header
    }
}

fn line(mut stream: &UnixStream) -> String {
    let mut line = String::new();
    while !line.ends_with('\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0].into());
    }
    line
}

#[test]
fn the_host_connects_to_a_port_of_the_guest() {
    let guest = Guest::new();
    let (mut client, own) = guest.connected();
    guest.send(of(own, operation::DATA), b"from the guest");
    let mut received = [0; 14];
    client.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"from the guest");
    client.write_all(b"from the host").unwrap();
    let (header, data) = guest.wait(operation::DATA);
    assert_eq!(
        (header.to_port, data.as_slice()),
        (22, &b"from the host"[..])
    );
    assert_eq!((header.buffer, header.forwarded), (BUFFER, 14));
    // Each half ends by itself. Then the guest closes its socket, and a reset reports that nothing
    // is left.
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let (header, _) = guest.wait(operation::SHUTDOWN);
    assert_eq!(header.flags, shutdown::SEND);
    let mut last = of(own, operation::DATA);
    guest.send(last, b"last");
    last.operation = operation::SHUTDOWN;
    last.flags = shutdown::BOTH;
    guest.send(last, &[]);
    let mut rest = String::new();
    client.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "last");
    guest.wait(operation::RESET);
}

#[test]
fn what_follows_the_line_is_for_the_guest() {
    let guest = Guest::new();
    let mut client = guest.client();
    // The line arrives in pieces, the last of which has more bytes after the line.
    for piece in ["CONN", "ECT 7", "\nhello"] {
        client.write_all(piece.as_bytes()).unwrap();
    }
    let (request, _) = guest.wait(operation::REQUEST);
    let own = Header {
        from_port: 7,
        to_port: request.from_port,
        ..Header::default()
    };
    guest.send(of(own, operation::RESPONSE), &[]);
    assert_eq!(guest.wait(operation::DATA).1, b"hello");
}

#[test]
fn the_guest_connects_to_a_socket_of_the_host() {
    let guest = Guest::new();
    let own = Header {
        from_port: 1024,
        to_port: 80,
        ..Header::default()
    };
    // No process listens.
    guest.send(of(own, operation::REQUEST), &[]);
    let (reset, _) = guest.wait(operation::RESET);
    assert_eq!((reset.from_port, reset.to_port), (80, 1024));
    let listener = UnixListener::bind(guest.folder.join("v_80")).unwrap();
    guest.send(of(own, operation::REQUEST), &[]);
    guest.wait(operation::RESPONSE);
    let (mut server, _) = listener.accept().unwrap();
    guest.send(of(own, operation::DATA), b"question");
    let mut question = [0; 8];
    server.read_exact(&mut question).unwrap();
    server.write_all(b"answer").unwrap();
    assert_eq!(guest.wait(operation::DATA).1, b"answer");
    // The server closes the connection, so the guest's later data has no receiver.
    drop(server);
    guest.wait(operation::SHUTDOWN);
    guest.send(of(own, operation::DATA), b"late");
    guest.wait(operation::RESET);
}

#[test]
fn a_refusal_of_the_guest_closes_the_client() {
    let guest = Guest::new();
    let mut client = guest.client();
    client.write_all(b"CONNECT 22\n").unwrap();
    let (request, _) = guest.wait(operation::REQUEST);
    let own = Header {
        from_port: 22,
        to_port: request.from_port,
        ..Header::default()
    };
    guest.send(of(own, operation::RESET), &[]);
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    // An invalid line of the client also ends the connection.
    let mut client = guest.client();
    client.write_all(b"GET / HTTP/1.0\n").unwrap();
    let end = client.read(&mut [0; 1]);
    let is_over = matches!(&end, Ok(0));
    let is_reset = matches!(&end, Err(error) if error.kind() == ErrorKind::ConnectionReset);
    assert!(is_over || is_reset, "{end:?}");
}

#[test]
fn the_host_sends_no_more_than_the_guest_has_room_for() {
    let guest = Guest::new();
    let (mut client, own) = guest.connected();
    let all: Vec<u8> = (0..5 * GUEST_BUFFER).map(|n| n as u8).collect();
    client.write_all(&all).unwrap();
    let mut received = Vec::new();
    let mut update = of(own, operation::CREDIT_UPDATE);
    while received.len() < all.len() {
        let before = received.len() + GUEST_BUFFER as usize;
        while received.len() < before {
            let (_, data) = guest.wait(operation::DATA);
            received.extend(data);
            assert!(received.len() <= before);
        }
        // The host asks for room, and continues when the guest reports some.
        if received.len() < all.len() {
            guest.wait(operation::CREDIT_REQUEST);
            assert_eq!(guest.take(), None);
        }
        update.forwarded = received.len() as u32;
        guest.send(update, &[]);
    }
    assert!(received == all);
}

#[test]
fn a_host_that_does_not_read_holds_up_its_own_guest_alone() {
    let guest = Guest::new();
    let (mut stalled, own) = guest.connected();
    let (mut other, other_own) = guest.connected();
    let piece = vec![7; 4096];
    // The guest sends as much as this side has room for, which reports how much has left its
    // buffer.
    let (mut sent, mut forwarded) = (0u32, 0u32);
    let mut idle = 0;
    while idle < 20 {
        while let Some((header, _)) = guest.take() {
            assert_eq!(header.operation, operation::CREDIT_UPDATE);
            forwarded = header.forwarded;
            idle = 0;
        }
        if sent - forwarded + piece.len() as u32 <= BUFFER {
            guest.send(of(own, operation::DATA), &piece);
            sent += piece.len() as u32;
            idle = 0;
        } else {
            idle += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    guest.send(of(other_own, operation::DATA), b"through");
    let mut received = [0; 7];
    other.read_exact(&mut received).unwrap();
    // A guest that sends more is reset, with what it has sent so far.
    for _ in 0..=BUFFER as usize / piece.len() {
        guest.send(of(own, operation::DATA), &piece);
    }
    guest.wait(operation::RESET);
    let mut rest = Vec::new();
    stalled.read_to_end(&mut rest).unwrap();
    assert!(rest.len() < sent as usize + 2 * BUFFER as usize);
}

#[test]
fn packets_that_nobody_sends_are_answered_by_resets_or_not_at_all() {
    let guest = Guest::new();
    let own = Header {
        from_port: 1,
        to_port: 2,
        ..Header::default()
    };
    for operation in [
        operation::RESPONSE,
        operation::SHUTDOWN,
        operation::DATA,
        0,
        99,
    ] {
        guest.send(of(own, operation), b"x");
        let (reset, _) = guest.wait(operation::RESET);
        assert_eq!((reset.from_port, reset.to_port), (2, 1));
    }
    guest.send(of(own, operation::RESET), &[]);
    guest.adapter.send(vec![0; HEADER - 1]);
    let mut header = of(own, operation::REQUEST);
    // Packets from another sender, to another receiver, of another type, and with a length beyond
    // the end.
    (header.from_cid, header.to_cid, header.kind) = (CID + 1, HOST_CID, STREAM);
    guest.adapter.send(header.to_bytes().to_vec());
    for (to_cid, kind, bytes) in [(9, STREAM, 0), (HOST_CID, 7, 0), (HOST_CID, STREAM, 1)] {
        (header.from_cid, header.to_cid, header.kind) = (CID, to_cid, kind);
        header.bytes = bytes;
        guest.adapter.send(header.to_bytes().to_vec());
        let end = Instant::now() + PATIENCE;
        while { guest.adapter.look() } == 0 {
            assert!(Instant::now() < end, "no packet");
            let _ = guest.told.recv_timeout(Duration::from_millis(5));
        }
        let frame = guest
            .adapter
            .take_if(|_| Ok::<_, Infallible>(true))
            .unwrap();
        let reset = Header::read(&frame.unwrap().bytes).unwrap();
        assert_eq!((reset.operation, reset.kind), (operation::RESET, kind));
    }
    // A second request for ports that are connected ends the connection.
    let (client, own) = guest.connected();
    guest.send(of(own, operation::REQUEST), &[]);
    guest.wait(operation::RESET);
    assert_eq!((&client).read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_reset_of_the_device_ends_all_connections() {
    let guest = Guest::new();
    let (mut client, own) = guest.connected();
    guest.adapter.reset();
    guest.adapter.send(Vec::new());
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    guest.send(of(own, operation::DATA), b"x");
    guest.wait(operation::RESET);
    guest.connected();
}

#[test]
fn connections_are_as_many_as_there_is_room_for() {
    let guest = Guest::new();
    let listener = UnixListener::bind(guest.folder.join("v_80")).unwrap();
    let mut accepted = Vec::new();
    let request = |from_port| Header {
        from_port,
        to_port: 80,
        operation: operation::REQUEST,
        ..Header::default()
    };
    for port in 0..MAX_CONNECTIONS as u32 {
        guest.send(request(port), &[]);
        guest.wait(operation::RESPONSE);
        accepted.push(listener.accept().unwrap());
    }
    guest.send(request(MAX_CONNECTIONS as u32), &[]);
    guest.wait(operation::RESET);
    guest.send(of(request(0), operation::RESET), &[]);
    guest.send(request(0), &[]);
    guest.wait(operation::RESPONSE);
}

#[test]
fn a_path_that_cannot_be_used_is_refused() {
    let guest = Guest::new();
    let options = |path| VsockOptions { cid: CID, path };
    // Another process listens there.
    let line = Vsock::start(&options(guest.folder.join("v")))
        .err()
        .unwrap();
    assert!(line.to_string().contains("in use"), "{line}");
    let line = Vsock::start(&options(guest.folder.join("no/v")))
        .err()
        .unwrap();
    assert!(
        line.to_string().contains("vsock: cannot listen at"),
        "{line}"
    );
    // A socket of an earlier run is removed.
    let stale = guest.folder.join("stale");
    drop(UnixListener::bind(&stale).unwrap());
    drop(Vsock::start(&options(stale.clone())).unwrap());
    assert!(!stale.exists());
}
