//! Tests of the adapter as a driver sees it: registers, rings in memory, and frames on the cable.

use super::registers::*;
use super::*;
use crate::bus::testing::Bench;
use std::collections::VecDeque;
use tollgate_network::link::cable;
use tollgate_network::{Frame, Wire};
use tollgate_test_support::Random;
use tollgate_x86::PhysicalAddress;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
/// The rings and the buffers of the driver.
const RECEIVE_DESCRIPTORS: u64 = 0x1_0000;
const TRANSMIT_DESCRIPTORS: u64 = 0x1_1000;
const RECEIVE_BUFFERS: u64 = 0x2_0000;
const TRANSMIT_BUFFERS: u64 = 0x4_0000;
/// The number of descriptors of each ring, and the size of a buffer for a frame.
const COUNT: u32 = 8;
const BUFFER: u64 = 2048;

struct Guest {
    bench: Bench,
    adapter: E1000,
    wire: Wire,
    /// The frames that were taken off the cable.
    taken: VecDeque<Vec<u8>>,
}

impl Guest {
    /// A driver that has set up both rings, without buffers for frames.
    fn new() -> Self {
        let (adapter, wire) = cable().unwrap();
        let mut adapter = E1000::plugged("e1000-0".into(), MacAddress(MAC), adapter);
        let command = Command::MEMORY | Command::IO | Command::BUS_MASTER;
        adapter.config.write(4, &command.bits().to_le_bytes());
        let mut guest = Self {
            bench: Bench::new(),
            adapter,
            wire,
            taken: VecDeque::new(),
        };
        for (ring, base) in [
            (RECEIVE_RING, RECEIVE_DESCRIPTORS),
            (TRANSMIT_RING, TRANSMIT_DESCRIPTORS),
        ] {
            guest.write(ring + RING_BASE_LOW, base as u32);
            guest.write(ring + RING_BYTES, COUNT * DESCRIPTOR_BYTES);
        }
        guest.write(SET_MASK, u32::MAX);
        guest.write(RECEIVE_CONTROL, receiving::ENABLE | receiving::BROADCASTS);
        guest.write(TRANSMIT_CONTROL, sending::ENABLE | sending::PAD);
        guest
    }

    fn write(&mut self, register: u32, value: u32) {
        let context = &mut self.bench.context(0);
        self.adapter
            .bar_write(MEMORY_BAR, register.into(), &value.to_le_bytes(), context);
    }

    fn read(&mut self, register: u32) -> u32 {
        let mut bytes = [0; 4];
        let context = &mut self.bench.context(0);
        self.adapter
            .bar_read(MEMORY_BAR, register.into(), &mut bytes, context);
        u32::from_le_bytes(bytes)
    }

    fn store(&mut self, address: u64, bytes: &[u8]) {
        assert!(
            self.bench
                .board
                .memory
                .write(PhysicalAddress(address), bytes)
        );
    }

    fn load(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        assert!(
            self.bench
                .board
                .memory
                .read(PhysicalAddress(address), &mut data)
        );
        data
    }

    /// Gives the adapter the first `count` buffers for frames.
    fn offer(&mut self, count: u32) {
        for index in 0..u64::from(count) {
            let buffer = RECEIVE_BUFFERS + index * BUFFER;
            let descriptor = [buffer.to_le_bytes(), [0; 8]].concat();
            self.store(RECEIVE_DESCRIPTORS + 16 * index, &descriptor);
        }
        self.write(RECEIVE_RING + RING_TAIL, count);
    }

    /// What the adapter has written to a descriptor of a frame: length, status and tag.
    fn received(&self, index: u64) -> (u16, u8, u16) {
        let descriptor = self.load(RECEIVE_DESCRIPTORS + 16 * index, 16);
        let word = |place: usize| u16::from_le_bytes([descriptor[place], descriptor[place + 1]]);
        (word(8), descriptor[12], word(14))
    }

    /// Sends descriptors that the driver has written.
    fn send(&mut self, descriptors: &[[u8; 16]]) {
        let mut tail = self.read(TRANSMIT_RING + RING_TAIL);
        for descriptor in descriptors {
            self.store(TRANSMIT_DESCRIPTORS + u64::from(16 * tail), descriptor);
            tail = (tail + 1) % COUNT;
        }
        self.write(TRANSMIT_RING + RING_TAIL, tail);
    }

    /// The next frame on the cable.
    fn on_the_cable(&mut self) -> Option<Vec<u8>> {
        self.taken.append(&mut self.wire.receive());
        self.taken.pop_front()
    }

    /// A frame arrives, and the adapter is told.
    fn arrives(&mut self, frame: Vec<u8>) {
        self.wire.send(Frame::new(frame));
        let context = &mut self.bench.context(0);
        self.adapter.complete(0, context);
    }
}

/// A descriptor of the older form.
fn legacy(buffer: u64, length: u16, command: u8) -> [u8; 16] {
    let mut descriptor = [0; 16];
    descriptor[..8].copy_from_slice(&buffer.to_le_bytes());
    descriptor[8..10].copy_from_slice(&length.to_le_bytes());
    descriptor[11] = command;
    descriptor
}

/// A frame with this target and length.
fn frame(target: [u8; 6], length: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..length).map(|index| index as u8).collect();
    frame[..6].copy_from_slice(&target);
    frame
}

#[test]
fn a_frame_in_two_buffers_reaches_the_cable_and_is_reported() {
    let mut guest = Guest::new();
    let sent = frame([0xff; 6], 100);
    guest.store(TRANSMIT_BUFFERS, &sent);
    // The end of the packet, with a report.
    let descriptors = [
        legacy(TRANSMIT_BUFFERS, 40, 0),
        legacy(TRANSMIT_BUFFERS + 40, 60, 9),
    ];
    guest.send(&descriptors);
    assert_eq!(guest.on_the_cable(), Some(sent));
    assert_eq!(guest.load(TRANSMIT_DESCRIPTORS + 12, 1), [0]);
    assert_eq!(guest.load(TRANSMIT_DESCRIPTORS + 16 + 12, 1), [1]);
    assert_eq!(guest.read(TRANSMIT_RING + RING_HEAD), 2);
    assert!(guest.adapter.wants_interrupt());
    let causes = guest.read(CAUSES);
    assert_eq!(causes & (cause::SENT | cause::NOTHING_TO_SEND), 3);
    assert!(
        !guest.adapter.wants_interrupt(),
        "reading clears the causes"
    );
    // A short frame is filled up.
    guest.send(&[legacy(TRANSMIT_BUFFERS, 20, 1)]);
    assert_eq!(guest.on_the_cable().map(|frame| frame.len()), Some(60));
    assert_eq!(guest.read(GOOD_SENT), 2);
    assert_eq!(guest.read(GOOD_SENT), 0, "reading clears counters");
}

#[test]
fn a_frame_that_cannot_be_read_or_is_too_long_is_not_sent() {
    let mut guest = Guest::new();
    guest.send(&[legacy(u64::MAX - 5, 100, 9)]);
    assert_eq!(guest.on_the_cable(), None);
    assert_eq!(
        guest.load(TRANSMIT_DESCRIPTORS + 12, 1),
        [1],
        "it is done nevertheless"
    );
    for _ in 0..40 {
        guest.send(&[legacy(TRANSMIT_BUFFERS, 0xffff, 0)]);
    }
    guest.send(&[legacy(TRANSMIT_BUFFERS, 100, 1)]);
    assert_eq!(guest.on_the_cable(), None);
    guest.send(&[legacy(TRANSMIT_BUFFERS, 100, 1)]);
    assert_eq!(guest.on_the_cable().map(|frame| frame.len()), Some(100));
}

#[test]
fn a_frame_arrives_when_there_are_buffers_for_all_of_it() {
    let mut guest = Guest::new();
    guest.arrives(frame(MAC, 64));
    assert_eq!(guest.received(0), (0, 0, 0));
    guest.offer(4);
    // The check sequence is part of the length.
    assert_eq!(guest.received(0), (68, 7, 0));
    assert_eq!(guest.load(RECEIVE_BUFFERS, 64), frame(MAC, 64));
    assert_ne!(guest.read(CAUSES) & cause::RECEIVED, 0);
    guest.write(
        RECEIVE_CONTROL,
        receiving::ENABLE | receiving::LONG_FRAMES | receiving::STRIP_CHECK,
    );
    guest.arrives(frame(MAC, 5000));
    assert_eq!(guest.received(1), (2048, 5, 0));
    assert_eq!(guest.received(2), (2048, 5, 0));
    assert_eq!(guest.received(3), (904, 7, 0));
    let all = guest.load(RECEIVE_BUFFERS + BUFFER, 3 * BUFFER as usize);
    assert_eq!(all[..5000], frame(MAC, 5000));
    assert_eq!(guest.read(RECEIVE_RING + RING_HEAD), 4);
}

#[test]
fn the_filter_lets_pass_what_the_driver_wants() {
    let group = [0x33, 0x33, 0, 0, 0x12, 0x34];
    let other = [0x52, 0x54, 0, 1, 2, 3];
    let hash = u32::from(u16::from_le_bytes([0x12, 0x34])) >> 4 & 0xfff;
    for (control, table, target, passes) in [
        (0, false, MAC, true),
        (0, false, other, false),
        (receiving::ALL_UNICASTS, false, other, true),
        (0, false, [0xff; 6], false),
        (receiving::BROADCASTS, false, [0xff; 6], true),
        (0, false, group, false),
        (receiving::ALL_MULTICASTS, false, group, true),
        (0, true, group, true),
        (0, true, [0x33, 0x33, 0, 0, 0x12, 0x35], false),
    ] {
        let mut guest = Guest::new();
        guest.write(RECEIVE_CONTROL, receiving::ENABLE | control);
        if table {
            guest.write(GROUP_HASHES + 4 * (hash >> 5), 1 << (hash & 31));
        }
        guest.offer(1);
        guest.arrives(frame(target, 60));
        let (length, status, _) = guest.received(0);
        assert_eq!(length != 0, passes, "{control:x} {target:x?}");
        assert_eq!(status & 0x80 != 0, table && passes);
    }
}

#[test]
fn tags_are_taken_out_and_put_in() {
    let mut guest = Guest::new();
    guest.write(CONTROL, control::VLAN);
    guest.write(VLAN_TYPE, 0x8100);
    guest.offer(2);
    let mut tagged = frame(MAC, 80);
    tagged[12..16].copy_from_slice(&[0x81, 0, 0x20, 7]);
    guest.arrives(tagged.clone());
    assert_eq!(guest.received(0), (80, 0xf, 0x2007));
    guest.store(TRANSMIT_BUFFERS, &frame(MAC, 76));
    let mut descriptor = legacy(TRANSMIT_BUFFERS, 76, 0x41);
    descriptor[14..].copy_from_slice(&[7, 0x20]);
    guest.send(&[descriptor]);
    let sent = guest.on_the_cable().unwrap();
    assert_eq!(sent[12..16], tagged[12..16]);
    assert_eq!(sent.len(), 80);
}

#[test]
fn segments_and_checksums_are_made_of_descriptors() {
    let mut guest = Guest::new();
    // IPv4 and TCP without options, 2,000 bytes of data, segments of 1,000.
    let mut packet = vec![0; 54 + 2000];
    packet[12] = 8;
    packet[14] = 0x45;
    packet[23] = 6;
    packet[46] = 0x50;
    guest.store(TRANSMIT_BUFFERS, &packet);
    let mut context = [0; 16];
    context[..4].copy_from_slice(&[14, 24, 33, 0]);
    context[4..8].copy_from_slice(&[34, 50, 0, 0]);
    // Extended, with TCP, IPv4 and segments.
    context[11] = 0x27;
    context[13] = 54;
    context[14..].copy_from_slice(&1000_u16.to_le_bytes());
    let mut data = legacy(TRANSMIT_BUFFERS, packet.len() as u16, 0x2d);
    data[10] = 0x10;
    data[13] = 3;
    guest.send(&[context, data]);
    let frames: Vec<Vec<u8>> = std::iter::from_fn(|| guest.on_the_cable()).collect();
    assert_eq!(
        frames.iter().map(Vec::len).collect::<Vec<_>>(),
        [1054, 1054]
    );
    assert_eq!(frames[1][38..42], 1000_u32.to_be_bytes());
    let sum = tollgate_network::frame::add(0, &frames[1][14..34]);
    assert_eq!(tollgate_network::frame::fold(sum), 0xffff);
}

#[test]
fn ports_lead_to_the_same_registers() {
    let mut guest = Guest::new();
    let context = &mut guest.bench.context(0);
    let adapter = &mut guest.adapter;
    adapter.bar_write(PORTS_BAR, PORT_OFFSET, &(ADDRESSES).to_le_bytes(), context);
    let mut bytes = [0; 4];
    adapter.bar_read(PORTS_BAR, PORT_VALUE, &mut bytes, context);
    assert_eq!(bytes, MAC[..4]);
    // A reset keeps the address and forgets the rings.
    adapter.bar_write(PORTS_BAR, PORT_OFFSET, &CONTROL.to_le_bytes(), context);
    adapter.bar_write(
        PORTS_BAR,
        PORT_VALUE,
        &control::RESET.to_le_bytes(),
        context,
    );
    assert_eq!(guest.read(RECEIVE_RING + RING_BYTES), 0);
    assert_eq!(guest.read(ADDRESSES).to_le_bytes(), MAC[..4]);
    assert_eq!(guest.read(SET_MASK), 0);
}

#[test]
fn a_restored_adapter_goes_on_in_the_middle_of_a_frame() {
    let mut guest = Guest::new();
    let sent = frame([0xff; 6], 100);
    guest.store(TRANSMIT_BUFFERS, &sent);
    guest.send(&[legacy(TRANSMIT_BUFFERS, 40, 0)]);
    let saved = guest.adapter.save();
    let mut other = Guest::new();
    other.adapter.restore(&saved).unwrap();
    other.store(TRANSMIT_BUFFERS, &sent);
    other.send(&[legacy(TRANSMIT_BUFFERS + 40, 60, 1)]);
    assert_eq!(other.on_the_cable(), Some(sent));
}

#[test]
fn nothing_that_a_driver_writes_breaks_the_adapter() {
    let mut random = Random::new(7);
    for _ in 0..200 {
        let mut guest = Guest::new();
        for _ in 0..200 {
            let known = [
                RECEIVE_CONTROL,
                TRANSMIT_CONTROL,
                CONTROL,
                EEPROM_CONTROL,
                EEPROM_READ,
                MDI_CONTROL,
                RECEIVE_RING,
                RECEIVE_RING + RING_BYTES,
                RECEIVE_RING + RING_HEAD,
                RECEIVE_RING + RING_TAIL,
                TRANSMIT_RING,
                TRANSMIT_RING + RING_BYTES,
                TRANSMIT_RING + RING_HEAD,
                TRANSMIT_RING + RING_TAIL,
                RECEIVE_RING + RING_BASE_HIGH,
            ];
            let register = match random.below(4) {
                0 => random.below(0x8000) as u32 * 4,
                _ => random.pick(&known),
            };
            let value = random.next_u64() as u32 >> random.below(32);
            match random.below(6) {
                0 => {
                    guest.read(register);
                }
                1 => guest.arrives(frame([0xff; 6], 14 + random.below(3000))),
                2 => {
                    let address = random.below(0x8_0000) as u64;
                    let bytes: [u8; 16] = std::array::from_fn(|_| random.next_u64() as u8);
                    guest.store(address, &bytes);
                }
                _ => guest.write(register, value),
            }
            while guest.on_the_cable().is_some() {}
        }
    }
}
