//! Tests of the socket device: packets in both directions, with all kinds of buffers.

use super::driver::{BAR, DATA, Driver, USED, WRITE};
use crate::devices::virtio::feature;
use crate::devices::virtio::vsock::Vsock;
use tollgate_network::link::cable;
use tollgate_network::vsock::packet::{HEADER, Header, STREAM, operation};
use tollgate_network::{Frame, Wire};

/// The rings of the second queue, which the guest uses for sending.
const SEND_DESCRIPTORS: u64 = 0x4_0000;
const SEND_AVAILABLE: u64 = 0x4_2000;
const SEND_USED: u64 = 0x4_3000;
/// The address of the data that the guest sends.
const SEND_DATA: u64 = 0x5_0000;

struct Guest {
    driver: Driver,
    wire: Wire,
    sent: u16,
}

impl Guest {
    fn new() -> Self {
        let (adapter, wire) = cable().unwrap();
        let mut driver = Driver::new(Box::new(Vsock::plugged(0x1_0203, adapter)));
        driver.start(feature::VERSION_1, 16);
        driver.write(BAR + 22, 2, 1);
        driver.write(BAR + 24, 2, 16);
        let rings = [SEND_DESCRIPTORS, SEND_AVAILABLE, SEND_USED];
        for (register, address) in [32, 40, 48].into_iter().zip(rings) {
            driver.write(BAR + register, 8, address);
        }
        driver.write(BAR + 28, 2, 1);
        // A driver begins with a reset.
        assert_eq!(wire.receive(), [Vec::<u8>::new()]);
        Self {
            driver,
            wire,
            sent: 0,
        }
    }

    /// Gives the device the buffer with number `index`, of this many bytes.
    fn buffer(&mut self, index: u16, bytes: u32) {
        let address = DATA + 0x1000 * u64::from(index);
        self.driver.descriptor(index, address, bytes, WRITE, 0);
        self.driver.offer(index);
    }

    /// Returns the contents of the returned buffer with this index.
    fn received(&self, index: u16) -> (Header, Vec<u8>) {
        let element = self.driver.peek(USED + 4 + 8 * u64::from(index), 8);
        let bytes = u32::from_le_bytes(element[4..].try_into().unwrap());
        let address = DATA + 0x1000 * u64::from(index);
        let packet = self.driver.peek(address, bytes as usize);
        (Header::read(&packet).unwrap(), packet[HEADER..].to_vec())
    }

    fn send(&mut self, bytes: u32) {
        let slot = self.sent % 16;
        self.driver
            .descriptor_at(SEND_DESCRIPTORS, slot, SEND_DATA, bytes, 0, 0);
        let place = SEND_AVAILABLE + 4 + 2 * u64::from(slot);
        self.driver.poke(place, &slot.to_le_bytes());
        self.sent += 1;
        let index = self.sent.to_le_bytes();
        self.driver.poke(SEND_AVAILABLE + 2, &index);
        self.driver.write(BAR + 0x3004, 4, 1);
    }

    /// Delivers the completions of the host's side to the device.
    fn complete(&mut self) {
        let bench = &mut self.driver.bench;
        self.driver
            .bus
            .take_completions(&mut bench.board, &bench.clock);
    }

    fn used(&self) -> u16 {
        u16::from_le_bytes(self.driver.peek(USED + 2, 2).try_into().unwrap())
    }
}

fn data(bytes: usize) -> Vec<u8> {
    let header = Header {
        bytes: bytes as u32,
        kind: STREAM,
        operation: operation::DATA,
        ..Header::default()
    };
    let data = (0..bytes).map(|n| n as u8);
    header.to_bytes().into_iter().chain(data).collect()
}

#[test]
fn the_configuration_tells_the_identifier() {
    let mut guest = Guest::new();
    assert_eq!(guest.driver.config(0, 4), 0x1053_1af4);
    assert_eq!(guest.driver.read(BAR + 0x2000, 8), 0x1_0203);
}

#[test]
fn packets_of_the_guest_reach_the_host_whole() {
    let mut guest = Guest::new();
    let packet = data(20);
    guest.driver.poke(SEND_DATA, &packet);
    guest.send(packet.len() as u32);
    assert_eq!(guest.wire.receive(), [packet]);
}

#[test]
fn packets_without_a_header_or_longer_than_any_break_the_device() {
    for bytes in [HEADER as u32 - 1, 1 << 20] {
        let mut guest = Guest::new();
        guest.send(bytes);
        assert!(guest.driver.needs_reset(), "{bytes}");
        assert!(guest.wire.receive().is_empty());
    }
}

#[test]
fn data_is_cut_to_the_buffers_of_the_guest() {
    let mut guest = Guest::new();
    guest.wire.send(Frame::new(data(100)));
    guest.wire.send(Frame::new(data(1)));
    guest.complete();
    assert_eq!(guest.used(), 0);
    // The packet waits for its second buffer, and the next packet waits too.
    guest.buffer(0, HEADER as u32 + 60);
    assert_eq!(guest.used(), 1);
    guest.buffer(1, HEADER as u32 + 60);
    guest.buffer(2, HEADER as u32 + 60);
    assert_eq!(guest.used(), 3);
    let all: Vec<u8> = (0..100).collect();
    for (index, expected) in [&all[..60], &all[60..], &[0]].into_iter().enumerate() {
        let (header, bytes) = guest.received(index as u16);
        assert_eq!(bytes, expected);
        assert_eq!(header.bytes as usize, expected.len());
    }
}

#[test]
fn a_buffer_without_room_for_a_header_and_data_breaks_the_device() {
    let mut guest = Guest::new();
    guest.wire.send(Frame::new(data(100)));
    guest.buffer(0, HEADER as u32);
    assert!(guest.driver.needs_reset());
}

#[test]
fn a_reset_forgets_what_was_under_way_and_is_told_once() {
    let mut guest = Guest::new();
    guest.wire.send(Frame::new(data(100)));
    guest.buffer(0, HEADER as u32 + 60);
    for _ in 0..1000 {
        guest.driver.write(BAR + 20, 1, 0);
    }
    assert_eq!(guest.wire.receive(), [Vec::<u8>::new()]);
    guest.driver.start(feature::VERSION_1, 16);
    guest.wire.send(Frame::new(data(3)));
    guest.buffer(0, 200);
    assert_eq!(guest.received(0).1, [0, 1, 2]);
}
