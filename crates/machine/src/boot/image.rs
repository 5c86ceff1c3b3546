//! A kernel file's bytes, with bounds checks that return errors.

use super::{BootError, layout};
use tollgate_memory::GuestMemory;
use tollgate_memory::layout::DEVICES_START;
use tollgate_x86::PhysicalAddress;

/// A kernel file in memory, with its name for messages.
#[derive(Clone, Copy)]
pub struct Image<'a> {
    bytes: &'a [u8],
    name: &'a str,
}

impl<'a> Image<'a> {
    pub fn new(bytes: &'a [u8], name: &'a str) -> Self {
        Self { bytes, name }
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn name(&self) -> &'a str {
        self.name
    }

    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns `length` bytes at `offset`. `expected` describes them in the error message.
    pub fn slice(&self, offset: u64, length: u64, expected: &str) -> Result<&'a [u8], BootError> {
        let end = offset.saturating_add(length);
        usize::try_from(offset)
            .ok()
            .zip(usize::try_from(end).ok())
            .and_then(|(start, end)| self.bytes.get(start..end))
            .ok_or_else(|| BootError::Truncated {
                kernel: self.name.to_owned(),
                expected: expected.to_owned(),
                needed: end,
                size: self.size(),
            })
    }

    /// Loads a part of the kernel: `bytes` at `start`, and zeros after them up to `end`. Allowed
    /// are addresses from 1 MiB, and conventional memory from `lowest`.
    ///
    /// # Errors
    /// [`BootError::Unsupported`] for other addresses, and [`BootError::TooLittleMemory`].
    pub fn load(
        &self,
        bytes: &[u8],
        start: u64,
        end: u64,
        lowest: u64,
        memory: &mut GuestMemory,
    ) -> Result<(), BootError> {
        let conventional = start >= lowest && end <= layout::EXTENDED_BIOS_DATA;
        if !conventional && start < layout::KERNEL {
            return Err(self.unsupported(format!(
                "it must be loaded at {start:#x}; allowed are addresses from {lowest:#x} to {:#x} or from {:#x}",
                layout::EXTENDED_BIOS_DATA,
                layout::KERNEL
            )));
        }
        require_memory(memory, end)?;
        // All other memory is still zero.
        for address in start.max(layout::BIOS_DATA)..end.min(layout::BIOS_DATA_END) {
            write(memory, address, &[0])?;
        }
        write(memory, start, bytes)
    }

    pub fn unsupported(&self, what: impl Into<String>) -> BootError {
        BootError::Unsupported {
            kernel: self.name.to_owned(),
            what: what.into(),
        }
    }
}

/// Reads a little-endian 16-bit field. Bytes beyond the end count as zero.
pub fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u32_at(bytes, offset) as u16
}

/// Reads a little-endian 32-bit field. Bytes beyond the end count as zero.
pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut field = [0; 4];
    for (position, byte) in field.iter_mut().enumerate() {
        *byte = offset
            .checked_add(position)
            .and_then(|index| bytes.get(index))
            .copied()
            .unwrap_or(0);
    }
    u32::from_le_bytes(field)
}

/// Reads a little-endian 64-bit field. Bytes beyond the end count as zero.
pub fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from(u32_at(bytes, offset)) | u64::from(u32_at(bytes, offset.saturating_add(4))) << 32
}

/// Writes a little-endian field into a structure that the loader builds.
pub fn put(bytes: &mut [u8], offset: usize, field: &[u8]) {
    bytes[offset..offset + field.len()].copy_from_slice(field);
}

/// Returns the first address after the RAM below 3 GiB.
pub fn low_memory_end(memory: &GuestMemory) -> u64 {
    memory.ram().size().min(DEVICES_START)
}

/// Checks that `end` lies within the RAM below 3 GiB.
pub fn require_memory(memory: &GuestMemory, end: u64) -> Result<(), BootError> {
    if end <= low_memory_end(memory) {
        Ok(())
    } else {
        Err(too_little(memory, end))
    }
}

/// Writes to guest memory. If there is no RAM at an address, the machine has too little memory.
pub fn write(memory: &mut GuestMemory, address: u64, bytes: &[u8]) -> Result<(), BootError> {
    if memory.write(PhysicalAddress(address), bytes) {
        Ok(())
    } else {
        Err(too_little(
            memory,
            address.saturating_add(bytes.len() as u64),
        ))
    }
}

fn too_little(memory: &GuestMemory, needed: u64) -> BootError {
    BootError::TooLittleMemory {
        needed,
        memory: memory.ram().size(),
    }
}
