//! Tests of the network adapter: frames in both directions, with all kinds of buffers.

use super::driver::{AVAILABLE, BAR, DATA, Driver, USED, WRITE};
use crate::devices::virtio::feature;
use crate::devices::virtio::net::Net;
use std::num::NonZeroU16;
use tollgate_network::link::cable;
use tollgate_network::{Frame, MacAddress, PartialChecksum, Segmentation, Wire};

/// The rings of the second queue, which the guest uses for sending.
const SEND_DESCRIPTORS: u64 = 0x4_0000;
const SEND_AVAILABLE: u64 = 0x4_2000;
const SEND_USED: u64 = 0x4_3000;
/// The address of the data that the guest sends.
const SEND_DATA: u64 = 0x5_0000;

/// Features (5.1.3).
const GUEST_CHECKSUM: u64 = 1 << 1;
const GUEST_TSO4: u64 = 1 << 7;
const MERGED_BUFFERS: u64 = 1 << 15;

struct Guest {
    driver: Driver,
    wire: Wire,
    sent: u16,
}

impl Guest {
    fn new(features: u64) -> Self {
        let (adapter, wire) = cable().unwrap();
        let mac = MacAddress::of_adapter(0);
        let mut driver = Driver::new(Box::new(Net::plugged("net".into(), mac, adapter, true)));
        driver.start(features | feature::VERSION_1, 16);
        driver.write(BAR + 22, 2, 1);
        driver.write(BAR + 24, 2, 16);
        let rings = [SEND_DESCRIPTORS, SEND_AVAILABLE, SEND_USED];
        for (register, address) in [32, 40, 48].into_iter().zip(rings) {
            driver.write(BAR + register, 8, address);
        }
        driver.write(BAR + 28, 2, 1);
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

    /// Returns the contents of a buffer.
    fn content(&self, index: u16, bytes: usize) -> Vec<u8> {
        self.driver.peek(DATA + 0x1000 * u64::from(index), bytes)
    }

    /// Sends `data`, which consists of header and frame.
    fn send(&mut self, data: &[u8]) {
        let slot = self.sent % 16;
        let address = SEND_DATA + 0x100 * u64::from(slot);
        self.driver.poke(address, data);
        let bytes = data.len() as u32;
        self.driver
            .descriptor_at(SEND_DESCRIPTORS, slot, address, bytes, 0, 0);
        let place = SEND_AVAILABLE + 4 + 2 * u64::from(slot);
        self.driver.poke(place, &slot.to_le_bytes());
        self.sent += 1;
        let index = self.sent.to_le_bytes();
        self.driver.poke(SEND_AVAILABLE + 2, &index);
        self.driver.write(BAR + 0x3004, 4, 1);
    }

    fn sent_back(&self) -> u16 {
        u16::from_le_bytes(self.driver.peek(SEND_USED + 2, 2).try_into().unwrap())
    }

    /// Delivers the network's completions to the device.
    fn complete(&mut self) {
        let bench = &mut self.driver.bench;
        self.driver
            .bus
            .take_completions(&mut bench.board, &bench.clock);
    }

    /// Returns the number and the written bytes of the returned buffer with this index.
    fn used(&self, index: u16) -> (u32, u32) {
        let element = self.driver.peek(USED + 4 + 8 * u64::from(index), 8);
        let field = |at: usize| u32::from_le_bytes(element[at..at + 4].try_into().unwrap());
        (field(0), field(4))
    }
}

fn frame(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| n as u8).collect()
}

#[test]
fn the_configuration_tells_address_and_link() {
    let mut guest = Guest::new(0);
    assert_eq!(guest.driver.config(0, 4), 0x1041_1af4);
    assert_eq!(guest.driver.config(8, 4), 0x0200_0001);
    let address = guest.driver.read(BAR + 0x2000, 6).to_le_bytes();
    assert_eq!(address[..6], [0x52, 0x54, 0, 0x12, 0x34, 0x56]);
    assert_eq!(guest.driver.read(BAR + 0x2006, 2), 1);
}

#[test]
fn frames_of_the_guest_reach_the_network_without_their_headers() {
    let mut guest = Guest::new(0);
    guest.send(&[vec![0; 12], frame(60)].concat());
    guest.send(&[vec![0xff; 12], frame(100)].concat());
    // The frame is too short for an Ethernet header, so it is dropped.
    guest.send(&[0; 25]);
    assert_eq!(guest.wire.receive(), [frame(60), frame(100)]);
    assert_eq!(guest.sent_back(), 3);
    assert!(!guest.driver.needs_reset());
}

#[test]
fn a_frame_lies_in_as_many_buffers_as_it_needs() {
    let mut guest = Guest::new(MERGED_BUFFERS);
    for index in 0..2 {
        guest.buffer(index, 100);
    }
    guest.wire.send(Frame::new(frame(200)));
    guest.complete();
    assert_eq!(guest.driver.used_index(), 0, "two buffers are too few");
    guest.buffer(2, 100);
    guest.complete();
    assert_eq!(guest.driver.used_index(), 3);
    assert_eq!(
        [0, 1, 2].map(|n| guest.used(n)),
        [(0, 100), (1, 100), (2, 12)]
    );
    assert_eq!(guest.content(0, 12), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0]);
    let mut received = guest.content(0, 100)[12..].to_vec();
    received.extend(guest.content(1, 100));
    received.extend(guest.content(2, 12));
    assert_eq!(received, frame(200));
}

/// A driver with the event index notifies only if its index passes the one that the device has
/// stored.
#[test]
fn a_driver_whose_buffers_are_too_few_is_asked_for_more() {
    let mut guest = Guest::new(MERGED_BUFFERS | feature::EVENT_INDEX);
    let asked_at = |guest: &Guest| {
        let event = guest.driver.peek(USED + 4 + 8 * 16, 2);
        u16::from_le_bytes(event.try_into().unwrap())
    };
    for index in 0..2 {
        guest.buffer(index, 100);
    }
    guest.wire.send(Frame::new(frame(300)));
    guest.complete();
    assert_eq!(asked_at(&guest), 2, "after the two present ones");
    // The driver does not notify of these buffers yet, and sends a frame in the meantime.
    guest.driver.poke(AVAILABLE + 2, &3u16.to_le_bytes());
    guest.send(&[0; 100]);
    assert_eq!(asked_at(&guest), 2);
    guest.driver.poke(AVAILABLE + 2, &2u16.to_le_bytes());
    for index in 2..5 {
        guest.buffer(index, 100);
        guest.complete();
    }
    assert_eq!(guest.driver.used_index(), 4);
    assert_eq!(asked_at(&guest), 4, "no frame waits for the fifth");
}

#[test]
fn a_frame_that_no_buffers_can_hold_is_lost_and_the_next_comes() {
    let mut guest = Guest::new(0);
    guest.buffer(0, 100);
    guest.wire.send(Frame::new(frame(200)));
    guest.wire.send(Frame::new(frame(60)));
    guest.complete();
    assert_eq!((guest.driver.used_index(), guest.used(0)), (1, (0, 72)));
    assert_eq!(guest.content(0, 72)[12..], frame(60));
    // These are all buffers that the queue can hold.
    let mut guest = Guest::new(MERGED_BUFFERS);
    for index in 0..16 {
        guest.buffer(index, 20);
    }
    guest.wire.send(Frame::new(frame(400)));
    guest.wire.send(Frame::new(frame(20)));
    guest.complete();
    assert_eq!(guest.driver.used_index(), 2);
    assert!(!guest.driver.needs_reset());
}

#[test]
fn checksums_are_left_to_drivers_that_take_them() {
    let unfinished = || Frame {
        bytes: frame(40),
        checksum: Some(PartialChecksum {
            start: 14,
            offset: 6,
        }),
        segmentation: None,
    };
    let mut guest = Guest::new(GUEST_CHECKSUM);
    guest.buffer(0, 100);
    guest.wire.send(unfinished());
    guest.complete();
    assert_eq!(guest.content(0, 12), [1, 0, 0, 0, 0, 0, 14, 0, 6, 0, 1, 0]);
    assert_eq!(guest.content(0, 52)[12..], frame(40));
    assert!(guest.wire.offloads().checksum);
    let mut guest = Guest::new(0);
    guest.buffer(0, 100);
    guest.wire.send(unfinished());
    guest.complete();
    assert_eq!(guest.content(0, 10), [0; 10]);
    let mut finished = unfinished();
    finished.complete_checksum();
    assert_ne!(finished.bytes, frame(40));
    assert_eq!(guest.content(0, 52)[12..], finished.bytes);
}

#[test]
fn segments_that_are_not_cut_are_for_drivers_that_take_them() {
    let long = || Frame {
        bytes: frame(80),
        checksum: None,
        segmentation: Some(Segmentation {
            size: NonZeroU16::new(16).unwrap(),
            header_bytes: 54,
            is_ipv6: false,
        }),
    };
    let mut guest = Guest::new(GUEST_CHECKSUM | GUEST_TSO4);
    guest.buffer(0, 100);
    guest.wire.send(long());
    guest.complete();
    assert_eq!(guest.content(0, 12), [0, 1, 54, 0, 16, 0, 0, 0, 0, 0, 1, 0]);
    let mut guest = Guest::new(GUEST_CHECKSUM);
    guest.buffer(0, 100);
    guest.wire.send(long());
    guest.wire.send(Frame::new(frame(60)));
    guest.complete();
    assert_eq!(guest.used(0), (0, 72), "only the second frame came");
}

#[test]
fn frames_wait_with_the_guest_while_the_cable_is_full() {
    let mut guest = Guest::new(0);
    let long = [vec![0; 12], frame(60)].concat();
    // Sends until a buffer is not returned.
    while guest.sent == guest.sent_back() {
        guest.send(&long);
    }
    let all = usize::from(guest.sent);
    let mut received = guest.wire.receive().len();
    assert_eq!(received, all - 1);
    guest.complete();
    received += guest.wire.receive().len();
    assert_eq!((received, guest.sent_back()), (all, guest.sent));
}

#[test]
fn buffers_without_room_for_a_header_are_errors() {
    let mut guest = Guest::new(0);
    guest.send(&[0; 11]);
    assert!(guest.driver.needs_reset());
    let mut guest = Guest::new(0);
    guest.buffer(0, 11);
    guest.wire.send(Frame::new(frame(60)));
    guest.complete();
    assert!(guest.driver.needs_reset());
}

#[test]
fn buffers_outside_of_memory_are_errors() {
    let mut guest = Guest::new(0);
    guest.driver.descriptor(0, 0xe000_0000, 100, WRITE, 0);
    guest.driver.offer(0);
    guest.wire.send(Frame::new(frame(60)));
    guest.complete();
    assert!(guest.driver.needs_reset());
    // A frame that waited for the old driver does not reach the new one.
    guest.driver.poke(AVAILABLE, &[0; 4]);
    guest.wire.send(Frame::new(frame(60)));
    guest.driver.start(feature::VERSION_1, 16);
    guest.buffer(0, 100);
    guest.complete();
    assert_eq!(guest.driver.used_index(), 0);
}
