//! Frames of the guest: descriptors of the ring become frames on the cable (manual 317453, sections 3.3
//! and 3.4).

use super::offload::{Checksum, Context, Wanted, finish};
use super::registers::{
    ALL_SENT, CONTROL, DESCRIPTOR_BYTES, GOOD_BYTES_SENT, GOOD_SENT, RING_HEAD, Registers,
    TRANSMIT_CONTROL, TRANSMIT_RING, VLAN_TYPE, cause, control, sending,
};
use serde::{Deserialize, Serialize};
use tollgate_memory::GuestMemory;
use tollgate_network::Adapter;
use tollgate_network::frame::{ETHERNET_HEADER, MAX_FRAME};
use tollgate_x86::PhysicalAddress;

/// Commands of a descriptor.
mod command {
    pub const END_OF_PACKET: u8 = 1;
    /// In the older form: a checksum is put in.
    pub const CHECKSUM: u8 = 1 << 2;
    /// In the newer form: the frame is split.
    pub const SEGMENTS: u8 = 1 << 2;
    /// The driver wants to know that the descriptor is done.
    pub const REPORT: u8 = 1 << 3;
    /// The descriptor has the newer form.
    pub const EXTENDED: u8 = 1 << 5;
    pub const VLAN: u8 = 1 << 6;
}

/// Commands of a context.
mod context_command {
    pub const TCP: u8 = 1;
    pub const IPV4: u8 = 1 << 1;
}

/// The place of the status in a descriptor, and the bit that says that it is done.
const STATUS_AT: usize = 12;
const DONE: u8 = 1;
/// The smallest frame without its check sequence.
const MIN_FRAME: usize = 60;
/// The largest tag of a VLAN that may come in addition.
const TAG_BYTES: usize = 4;

/// A descriptor's bytes.
type Descriptor = [u8; DESCRIPTOR_BYTES as usize];

/// The 16-bit field at this place of a descriptor.
fn word(descriptor: &Descriptor, place: usize) -> u16 {
    u16::from_le_bytes([descriptor[place], descriptor[place + 1]])
}

/// A frame of which not all descriptors have been seen, and what the last context said.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Transmitter {
    frame: Vec<u8>,
    wanted: Wanted,
    /// The frame has become too long, or its memory could not be read. Nothing of it is sent.
    is_broken: bool,
    context: Context,
}

impl Transmitter {
    /// Sends what the ring has as long as the cable has room. Returns the causes of an interrupt.
    pub fn run(
        &mut self,
        registers: &mut Registers,
        memory: &mut GuestMemory,
        adapter: &Adapter,
    ) -> u32 {
        if registers.get(TRANSMIT_CONTROL) & sending::ENABLE == 0 {
            return 0;
        }
        let mut ring = registers.ring(TRANSMIT_RING);
        let mut causes = 0;
        // The guest cannot make more available during the call.
        for _ in 0..ring.available() {
            if !adapter.has_room() {
                break;
            }
            let address = PhysicalAddress(ring.address());
            let mut descriptor = [0; DESCRIPTOR_BYTES as usize];
            if memory.read(address, &mut descriptor) {
                let is_reported = self.take(descriptor, registers, memory, adapter);
                if is_reported {
                    let place = PhysicalAddress(address.0.wrapping_add(STATUS_AT as u64));
                    memory.write(place, &[descriptor[STATUS_AT] | DONE]);
                    causes |= cause::SENT;
                }
            }
            ring.advance();
            if ring.available() == 0 {
                causes |= cause::NOTHING_TO_SEND;
            }
        }
        registers.set(TRANSMIT_RING + RING_HEAD, ring.head);
        causes
    }

    /// Takes one descriptor. Returns whether the driver wants to know that it is done.
    fn take(
        &mut self,
        descriptor: Descriptor,
        registers: &mut Registers,
        memory: &GuestMemory,
        adapter: &Adapter,
    ) -> bool {
        let command = descriptor[11];
        let is_extended = command & command::EXTENDED != 0;
        let is_data = descriptor[10] >> 4 == 1;
        let is_reported = command & command::REPORT != 0;
        if is_extended && !is_data {
            self.context = context(&descriptor);
            return is_reported;
        }
        let [a, b, c, d, e, f, g, h, ..] = descriptor;
        let buffer = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let length = match is_extended {
            true => usize::from(word(&descriptor, 8)) | usize::from(descriptor[10] & 0xf) << 16,
            false => word(&descriptor, 8).into(),
        };
        if self.frame.is_empty() && is_extended {
            // The options are in the first descriptor of a frame.
            self.wanted = Wanted {
                network_checksum: descriptor[13] & 1 != 0,
                transport_checksum: descriptor[13] & 2 != 0,
                segments: command & command::SEGMENTS != 0,
                vlan: None,
            };
        }
        self.gather(buffer, length, memory);
        if command & command::END_OF_PACKET == 0 {
            return is_reported;
        }
        if command & command::VLAN != 0 && registers.get(CONTROL) & control::VLAN != 0 {
            self.wanted.vlan = Some(word(&descriptor, 14));
        }
        let mut frame = std::mem::take(&mut self.frame);
        let wanted = std::mem::take(&mut self.wanted);
        if std::mem::take(&mut self.is_broken) {
            return is_reported;
        }
        if !is_extended && command & command::CHECKSUM != 0 {
            let checksum = Checksum {
                start: descriptor[13],
                field: descriptor[10],
                end: 0,
            };
            checksum.complete(&mut frame);
        }
        let vlan_type = registers.get(VLAN_TYPE) as u16;
        for frame in finish(frame, &self.context, wanted, vlan_type) {
            send(frame, registers, adapter);
        }
        is_reported
    }

    /// Adds the bytes of a buffer to the frame.
    fn gather(&mut self, buffer: u64, length: usize, memory: &GuestMemory) {
        let before = self.frame.len();
        if self.is_broken || before + length > MAX_FRAME {
            self.is_broken = true;
            self.frame.clear();
            return;
        }
        self.frame.resize(before + length, 0);
        if !memory.read(PhysicalAddress(buffer), &mut self.frame[before..]) {
            self.is_broken = true;
            self.frame.clear();
        }
    }
}

/// Puts a frame on the cable.
fn send(mut frame: Vec<u8>, registers: &mut Registers, adapter: &Adapter) {
    let pads = registers.get(TRANSMIT_CONTROL) & sending::PAD != 0;
    if pads && frame.len() < MIN_FRAME {
        frame.resize(MIN_FRAME, 0);
    }
    registers.count(ALL_SENT);
    if (ETHERNET_HEADER..=MAX_FRAME + TAG_BYTES).contains(&frame.len()) {
        registers.count(GOOD_SENT);
        registers.add(GOOD_BYTES_SENT, frame.len() as u64 + 4);
        adapter.send(frame);
    }
}

/// Reads a context descriptor.
fn context(descriptor: &Descriptor) -> Context {
    let checksum = |place: usize| Checksum {
        start: descriptor[place],
        field: descriptor[place + 1],
        end: word(descriptor, place + 2),
    };
    Context {
        network: checksum(0),
        transport: checksum(4),
        is_tcp: descriptor[11] & context_command::TCP != 0,
        is_ipv4: descriptor[11] & context_command::IPV4 != 0,
        header_bytes: descriptor[13],
        segment_bytes: word(descriptor, 14),
    }
}
