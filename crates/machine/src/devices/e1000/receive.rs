//! Frames for the guest: what passes the filter is written to the buffers of the ring (manual 317453,
//! section 3.2).

use super::registers::{
    ADDRESS_COUNT, ADDRESS_VALID, ADDRESSES, ALL_RECEIVED, BROADCASTS_RECEIVED, CONTROL,
    DESCRIPTOR_BYTES, GOOD_BYTES_RECEIVED, GOOD_RECEIVED, GROUP_HASHES, MULTICASTS_RECEIVED,
    RECEIVE_CONTROL, RECEIVE_RING, RING_HEAD, Registers, VLAN_TYPE, cause, control, receiving,
};
use std::convert::Infallible;
use tollgate_memory::GuestMemory;
use tollgate_network::frame::ETHERNET_HEADER;
use tollgate_network::{Adapter, Frame};
use tollgate_x86::PhysicalAddress;

/// The status of a descriptor.
mod status {
    pub const DONE: u8 = 1;
    pub const END_OF_PACKET: u8 = 1 << 1;
    /// The adapter has checked no checksum.
    pub const NOT_CHECKED: u8 = 1 << 2;
    /// The tag of a VLAN was taken out.
    pub const VLAN: u8 = 1 << 3;
    /// Only the filter's hash fits the address.
    pub const INEXACT: u8 = 1 << 7;
}

/// The smallest frame without its check sequence, to which shorter ones are filled up.
const MIN_FRAME: usize = 60;
/// The size of the check sequence, which no network of this process has: it is zeros.
const CHECK_BYTES: usize = 4;
/// The largest frame with its check sequence, unless longer ones are allowed.
const MOST_BYTES: usize = 1522;

/// Delivers the present frames to the guest as long as it has buffers. Returns the causes of an
/// interrupt. Frames that arrive during the call cause another completion.
pub fn run(registers: &mut Registers, memory: &mut GuestMemory, adapter: &Adapter) -> u32 {
    let mut causes = 0;
    for _ in 0..adapter.look() {
        let is_enabled = registers.get(RECEIVE_CONTROL) & receiving::ENABLE != 0;
        // Without a receiver, the frame is lost.
        let fits = |frame: &Frame| !is_enabled || has_room(registers, frame);
        let taken = adapter.take_if(|frame| Ok::<_, Infallible>(fits(frame)));
        let Ok(Some(mut frame)) = taken else {
            break;
        };
        if is_enabled && frame.segmentation.is_none() {
            frame.complete_checksum();
            causes |= deliver(frame.bytes, registers, memory);
        }
    }
    causes
}

/// The number of bytes that a frame has in memory.
fn bytes_in_memory(registers: &Registers, length: usize) -> usize {
    let strips = registers.get(RECEIVE_CONTROL) & receiving::STRIP_CHECK != 0;
    length.max(MIN_FRAME) + if strips { 0 } else { CHECK_BYTES }
}

/// The size of the guest's buffers.
fn buffer_bytes(registers: &Registers) -> usize {
    let control = registers.get(RECEIVE_CONTROL);
    let size = 2048 >> (control >> 16 & 3);
    match control & receiving::LARGE_BUFFERS {
        0 => size,
        _ => size * 16,
    }
}

/// Whether there are buffers for a frame, or it is not for the guest. A frame for which the ring
/// cannot have enough counts as one that fits, and is lost.
fn has_room(registers: &Registers, frame: &Frame) -> bool {
    let ring = registers.ring(RECEIVE_RING);
    let bytes = bytes_in_memory(registers, frame.bytes.len());
    let needed = bytes.div_ceil(buffer_bytes(registers)) as u32;
    needed <= ring.available() || (ring.count() != 0 && needed >= ring.count())
}

/// Whether the filter lets a frame pass, and whether it does so by the address itself.
fn passes(registers: &Registers, frame: &[u8]) -> Option<bool> {
    let control = registers.get(RECEIVE_CONTROL);
    let target = frame.get(..6)?;
    if target == [0xff; 6] {
        return (control & receiving::BROADCASTS != 0).then_some(true);
    }
    let is_group = target[0] & 1 != 0;
    let everything = match is_group {
        true => receiving::ALL_MULTICASTS,
        false => receiving::ALL_UNICASTS,
    };
    let is_listed = (0..ADDRESS_COUNT).any(|index| {
        let low = registers.get(ADDRESSES + 8 * index);
        let high = registers.get(ADDRESSES + 8 * index + 4);
        let address = [low.to_le_bytes(), high.to_le_bytes()].concat();
        high & ADDRESS_VALID != 0 && address[..6] == *target
    });
    if is_listed || control & everything != 0 {
        return Some(true);
    }
    // Twelve bits of the address select a bit of the table.
    let bits = u32::from(u16::from_le_bytes([target[4], target[5]]));
    let hash = bits >> [4, 3, 2, 0][(control >> 12 & 3) as usize] & 0xfff;
    let word = registers.get(GROUP_HASHES + 4 * (hash >> 5));
    (is_group && word >> (hash & 31) & 1 != 0).then_some(false)
}

/// Writes a frame into the guest's buffers. Returns the causes of an interrupt.
fn deliver(mut frame: Vec<u8>, registers: &mut Registers, memory: &mut GuestMemory) -> u32 {
    let Some(is_exact) = passes(registers, &frame) else {
        return 0;
    };
    registers.count(ALL_RECEIVED);
    let mut flags = status::DONE | status::NOT_CHECKED;
    if !is_exact {
        flags |= status::INEXACT;
    }
    let tag = take_tag(&mut frame, registers);
    if tag.is_some() {
        flags |= status::VLAN;
    }
    frame.resize(bytes_in_memory(registers, frame.len()), 0);
    let may_be_long = registers.get(RECEIVE_CONTROL) & receiving::LONG_FRAMES != 0;
    let mut ring = registers.ring(RECEIVE_RING);
    let size = buffer_bytes(registers);
    let needed = frame.len().div_ceil(size) as u32;
    if (frame.len() > MOST_BYTES && !may_be_long) || needed > ring.available() {
        return 0;
    }
    registers.count(GOOD_RECEIVED);
    registers.add(GOOD_BYTES_RECEIVED, frame.len() as u64);
    match (frame[0] & 1 != 0, frame[..6] == [0xff; 6]) {
        (_, true) => registers.count(BROADCASTS_RECEIVED),
        (true, _) => registers.count(MULTICASTS_RECEIVED),
        _ => {}
    }
    let mut pieces = frame.chunks(size).peekable();
    while let Some(piece) = pieces.next() {
        let address = PhysicalAddress(ring.address());
        let mut buffer = [0; 8];
        memory.read(address, &mut buffer);
        memory.write(PhysicalAddress(u64::from_le_bytes(buffer)), piece);
        let last = match pieces.peek() {
            None => status::END_OF_PACKET,
            Some(_) => 0,
        };
        let mut rest = [0; DESCRIPTOR_BYTES as usize - 8];
        rest[..2].copy_from_slice(&(piece.len() as u16).to_le_bytes());
        rest[4] = flags | last;
        rest[6..].copy_from_slice(&tag.unwrap_or(0).to_le_bytes());
        memory.write(PhysicalAddress(address.0.wrapping_add(8)), &rest);
        ring.advance();
    }
    registers.set(RECEIVE_RING + RING_HEAD, ring.head);
    // A half, a quarter or an eighth of the ring.
    let few = ring.count() >> (1 + (registers.get(RECEIVE_CONTROL) >> 8 & 3));
    match ring.available() <= few {
        true => cause::RECEIVED | cause::FEW_DESCRIPTORS,
        false => cause::RECEIVED,
    }
}

/// Takes the tag of a VLAN out of a frame, if the driver wants that.
fn take_tag(frame: &mut Vec<u8>, registers: &Registers) -> Option<u16> {
    let kind = (registers.get(VLAN_TYPE) as u16).to_be_bytes();
    let is_wanted = registers.get(CONTROL) & control::VLAN != 0;
    if !is_wanted || frame.len() < ETHERNET_HEADER + 4 || frame[12..14] != kind {
        return None;
    }
    let tag = u16::from_be_bytes([frame[14], frame[15]]);
    frame.drain(12..16);
    Some(tag)
}
