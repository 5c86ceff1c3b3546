//! A chain of descriptors: the buffers of one request (virtio 1.2, 2.7.5).

use super::queue::QueueError;
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;

/// Descriptor flag: another descriptor follows.
const NEXT: u16 = 1;
/// Descriptor flag: the device writes the buffer.
const WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
const INDIRECT: u16 = 4;
/// The size of a descriptor in bytes.
const DESCRIPTOR_BYTES: u64 = 16;
/// The maximum number of descriptors in a chain. The chains of a driver are no longer than the
/// queue, or than a table with the number of segments that the device accepts.
pub const MAX_DESCRIPTORS: usize = 1024;

/// A buffer in guest memory. Its addresses may lie outside of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The address of the first byte.
    pub address: PhysicalAddress,
    /// The size in bytes.
    pub bytes: u32,
}

/// The buffers of one request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chain {
    /// The first descriptor of the chain, which identifies it when it is returned to the driver.
    pub head: u16,
    /// The buffers that the device may read, in order.
    pub readable: Vec<Segment>,
    /// The buffers that the device may write, in order.
    pub writable: Vec<Segment>,
}

struct Descriptor {
    segment: Segment,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn read(memory: &GuestMemory, table: u64, index: u16) -> Result<Self, QueueError> {
        let mut bytes = [0; DESCRIPTOR_BYTES as usize];
        let address = table.wrapping_add(u64::from(index) * DESCRIPTOR_BYTES);
        if !memory.read(PhysicalAddress(address), &mut bytes) {
            return Err(QueueError::NoMemory);
        }
        let [
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            l0,
            l1,
            l2,
            l3,
            f0,
            f1,
            n0,
            n1,
        ] = bytes;
        Ok(Self {
            segment: Segment {
                address: PhysicalAddress(u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7])),
                bytes: u32::from_le_bytes([l0, l1, l2, l3]),
            },
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        })
    }
}

impl Chain {
    /// Reads the chain that begins with descriptor `head` of a table of `size` descriptors.
    ///
    /// # Errors
    /// The chain is invalid: see [`QueueError`].
    pub fn read(
        memory: &GuestMemory,
        table: u64,
        size: u16,
        head: u16,
    ) -> Result<Self, QueueError> {
        let mut chain = Self {
            head,
            ..Self::default()
        };
        let (mut table, mut size, mut is_indirect) = (table, size, false);
        let (mut index, mut total) = (head, 0u32);
        // A chain with more descriptors than the table has a loop.
        let mut left = size;
        loop {
            if index >= size {
                return Err(QueueError::Index);
            }
            left = left.checked_sub(1).ok_or(QueueError::Loop)?;
            let descriptor = Descriptor::read(memory, table, index)?;
            if descriptor.flags & INDIRECT != 0 {
                let bytes = u64::from(descriptor.segment.bytes);
                let entries = bytes / DESCRIPTOR_BYTES;
                let is_allowed = !is_indirect
                    && descriptor.flags & NEXT == 0
                    && bytes.is_multiple_of(DESCRIPTOR_BYTES)
                    && (1..=MAX_DESCRIPTORS as u64).contains(&entries);
                if !is_allowed {
                    return Err(QueueError::IndirectTable);
                }
                (table, size, is_indirect) = (descriptor.segment.address.0, entries as u16, true);
                (index, left) = (0, size);
                continue;
            }
            total = total
                .checked_add(descriptor.segment.bytes)
                .ok_or(QueueError::TooLong)?;
            if chain.readable.len() + chain.writable.len() == MAX_DESCRIPTORS {
                return Err(QueueError::TooLong);
            }
            if descriptor.flags & WRITE != 0 {
                chain.writable.push(descriptor.segment);
            } else if chain.writable.is_empty() {
                chain.readable.push(descriptor.segment);
            } else {
                return Err(QueueError::Order);
            }
            if descriptor.flags & NEXT == 0 {
                return Ok(chain);
            }
            index = descriptor.next;
        }
    }

    /// Returns the number of bytes that the device may read.
    pub fn readable_bytes(&self) -> u64 {
        total(&self.readable)
    }

    /// Returns the number of bytes that the device may write.
    pub fn writable_bytes(&self) -> u64 {
        total(&self.writable)
    }

    /// Returns the addresses and sizes of `bytes` bytes that the device may read, from `offset` on.
    pub fn readable_pieces(&self, offset: u64, bytes: usize) -> Vec<(PhysicalAddress, u64)> {
        let pieces = pieces(&self.readable, offset, bytes);
        pieces
            .map(|(address, bytes)| (address, bytes as u64))
            .collect()
    }

    /// Returns the addresses and sizes of `bytes` bytes that the device may write, from `offset` on.
    pub fn writable_pieces(&self, offset: u64, bytes: usize) -> Vec<(PhysicalAddress, u64)> {
        let pieces = pieces(&self.writable, offset, bytes);
        pieces
            .map(|(address, bytes)| (address, bytes as u64))
            .collect()
    }

    /// Copies bytes that the device may read, from `offset` on, to `data`. Returns false if the
    /// buffers are too short or not completely in memory; the contents of `data` are then
    /// undefined.
    pub fn copy_out(&self, memory: &GuestMemory, offset: u64, data: &mut [u8]) -> bool {
        let mut done = 0;
        for (address, bytes) in pieces(&self.readable, offset, data.len()) {
            if !memory.read(address, &mut data[done..done + bytes]) {
                return false;
            }
            done += bytes;
        }
        done == data.len()
    }

    /// Copies `data` to the bytes that the device may write, from `offset` on. Returns false if the
    /// buffers are too short or not completely in memory; a part may have been written then.
    pub fn copy_in(&self, memory: &mut GuestMemory, offset: u64, data: &[u8]) -> bool {
        let mut done = 0;
        for (address, bytes) in pieces(&self.writable, offset, data.len()) {
            if !memory.write(address, &data[done..done + bytes]) {
                return false;
            }
            done += bytes;
        }
        done == data.len()
    }
}

fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|s| u64::from(s.bytes)).sum()
}

/// Returns the pieces of `segments` that contain `bytes` bytes from `offset` on.
fn pieces(
    segments: &[Segment],
    offset: u64,
    bytes: usize,
) -> impl Iterator<Item = (PhysicalAddress, usize)> {
    let (mut skip, mut left) = (offset, bytes);
    segments.iter().filter_map(move |segment| {
        let skipped = skip.min(segment.bytes.into());
        skip -= skipped;
        let piece = left.min((u64::from(segment.bytes) - skipped) as usize);
        left -= piece;
        let address = PhysicalAddress(segment.address.0.wrapping_add(skipped));
        (piece > 0).then_some((address, piece))
    })
}
