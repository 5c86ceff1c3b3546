//! Commands of fw_cfg's DMA interface, by which whole items are copied to memory.
//!
//! A command lies in memory, in big-endian order. Its address is written to the DMA ports:
//!
//! ```text
//!    0  control  4 bytes: what to do; the selector in the upper half; 0 when it is done
//!    4  length   4 bytes
//!    8  address  8 bytes: where the item's next bytes go
//! ```

use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;

/// Bits of the control field.
const CONTROL_ERROR: u32 = 1 << 0;
/// Copy the item's next bytes to memory.
pub const CONTROL_READ: u32 = 1 << 1;
/// Skip the item's next bytes.
pub const CONTROL_SKIP: u32 = 1 << 2;
/// Select an item first.
pub const CONTROL_SELECT: u32 = 1 << 3;
/// Write the item.
pub const CONTROL_WRITE: u32 = 1 << 4;

/// The maximum number of zeros after the end of an item.
const MOST_ZEROS: u32 = 1 << 20;
/// The number of zeros that are written at once.
const ZEROS: usize = 4096;

/// A command as it was read from memory.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    place: PhysicalAddress,
    /// What to do.
    pub control: u32,
    /// The number of bytes.
    pub length: u32,
    address: u64,
}

impl Command {
    /// Reads a command, or returns `None` if there is no memory at its place.
    pub fn read(place: u64, memory: &GuestMemory) -> Option<Self> {
        let place = PhysicalAddress(place);
        let mut bytes = [0; 16];
        if place.0.checked_add(16).is_none() || !memory.read(place, &mut bytes) {
            return None;
        }
        let u32_at = |at: usize| {
            let bytes: [u8; 4] = std::array::from_fn(|index| bytes[at + index]);
            u32::from_be_bytes(bytes)
        };
        Some(Self {
            place,
            control: u32_at(0),
            length: u32_at(4),
            address: u64::from(u32_at(8)) << 32 | u64::from(u32_at(12)),
        })
    }

    /// Copies the bytes that the command requests, and zeros after their end. Returns false if they
    /// do not fit into memory, or if they are mostly zeros.
    pub fn fill(&self, bytes: &[u8], memory: &mut GuestMemory) -> bool {
        let length = self.length as usize;
        let zeros = length.saturating_sub(bytes.len());
        let end = self.address.checked_add(length as u64);
        if zeros > MOST_ZEROS as usize || end.is_none() {
            return false;
        }
        let bytes = &bytes[..bytes.len().min(length)];
        if !bytes.is_empty() && !memory.write(PhysicalAddress(self.address), bytes) {
            return false;
        }
        (bytes.len()..length).step_by(ZEROS).all(|at| {
            let count = ZEROS.min(length - at);
            memory.write(
                PhysicalAddress(self.address + at as u64),
                &[0; ZEROS][..count],
            )
        })
    }

    /// Reports that the command is done, or has failed.
    pub fn finish(&self, is_done: bool, memory: &mut GuestMemory) {
        let control = if is_done { 0 } else { CONTROL_ERROR };
        memory.write(self.place, &control.to_be_bytes());
    }
}
