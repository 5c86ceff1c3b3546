//! Tests with frames that no driver sends: nothing panics, and the network works afterwards.

use super::guest::{Guest, MAC, open};
use crate::user::addresses::{GATEWAY, GUEST};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use tollgate_test_support::Random;

/// Makes a frame that is nearly correct: headers with some changed bytes.
fn frame(random: &mut Random, port: u16) -> Vec<u8> {
    let mut bytes = vec![0x52, 0x55, 10, 0, 2, 2];
    bytes.extend(MAC.0);
    let kind = random.below(8);
    bytes.extend(match kind {
        0 => [8, 6],
        1 | 2 => [0x86, 0xdd],
        _ => [8, 0],
    });
    let length = random.below(200);
    if kind <= 2 {
        // ARP or IPv6.
        let start: &[u8] = match kind {
            0 => &[0, 1, 8, 0, 6, 4, 0, 1],
            1 => &[0x60, 0, 0, 0, 0, 40, 58, 255, 0xfe, 0x80],
            _ => &[0x60, 0, 0, 0, 0, 40, 6, 64, 0xfe, 0xc0],
        };
        bytes.extend(start);
        bytes.extend((0..length).map(|_| random.byte()));
    } else {
        let protocol = [6, 6, 17, 1][random.below(4)];
        // Some are fragments of a few packets, at offsets close to each other.
        let place: [u8; 2] = match random.one_in(4) {
            true => [(random.below(2) << 5) as u8, random.below(4) as u8],
            false => [0x40, 0],
        };
        let number = random.below(3) as u8;
        let header = [
            0x45, 0, 0, 0, 0, number, place[0], place[1], 64, protocol, 0, 0,
        ];
        let total: u16 = 20 + length as u16;
        let start = bytes.len();
        bytes.extend(header);
        bytes[start + 2..start + 4].copy_from_slice(&total.to_be_bytes());
        bytes.extend(GUEST.octets());
        bytes.extend(GATEWAY.octets());
        let ports = [1000 + random.below(4) as u16, port];
        bytes.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        bytes.extend((4..length.max(4)).map(|_| random.byte()));
        let flags = start + 33;
        if bytes.len() > flags {
            // Often the header has five words and a sensible set of flags.
            if random.below(2) == 0 {
                bytes[flags - 1] = 0x50;
            }
            bytes[flags] = [2, 16, 18, 17, 4, 0x18, 0xff][random.below(7)];
        }
    }
    for _ in 0..random.below(4) {
        let place = random.below(bytes.len());
        bytes[place] = random.byte();
    }
    let kept = bytes.len() - usize::from(random.one_in(8)) * random.below(40) % bytes.len();
    bytes.truncate(kept);
    bytes
}

fn answer(mut stream: TcpStream) {
    let mut question = [0; 8];
    if stream.read_exact(&mut question).is_ok() && &question == b"question" {
        stream.write_all(b"answer").unwrap();
    }
}

#[test]
fn random_frames_do_no_harm() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut stack = Guest::new(&open()).stack();
    let mut random = Random::new(1);
    for round in 0..40_000 {
        let frame = frame(&mut random, port);
        stack.device.guest.adapter.send(frame);
        if round % 64 == 0 {
            while stack.device.guest.take().is_some() {}
        }
        while !stack.device.guest.adapter.has_room() {
            while stack.device.guest.take().is_some() {}
            thread::yield_now();
        }
    }
    // The connections of the random frames come first, and may send nothing.
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(stream));
        }
    });
    let handle = stack.connected(port);
    stack.send(handle, b"question");
    assert_eq!(stack.receive_all(handle), b"answer");
}
