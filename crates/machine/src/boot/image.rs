//! A kernel file, with bounds checks that return errors.

use super::files::{HostFile, too_little};
use super::{BootError, layout};
use std::ops::Range;
use tollgate_memory::GuestMemory;
use tollgate_memory::layout::DEVICES_START;
use tollgate_x86::PhysicalAddress;

/// The number of bytes at the start of a kernel file in which all boot protocols have their headers,
/// except for ELF's: multiboot 2 needs the most.
const HEAD_BYTES: u64 = 32 << 10;

/// A kernel file, with its name for messages.
pub struct Image {
    file: HostFile,
    name: String,
    head: Vec<u8>,
}

impl Image {
    /// Reads the start of a kernel file.
    ///
    /// # Errors
    /// [`BootError::Unreadable`].
    pub fn new(file: HostFile, name: String) -> Result<Self, BootError> {
        let head = file.read(0, file.size().min(HEAD_BYTES) as usize)?;
        Ok(Self { file, name, head })
    }

    /// Returns the first [`HEAD_BYTES`] of the file, or all of a shorter one.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn size(&self) -> u64 {
        self.file.size()
    }

    /// Returns the range of `length` bytes at `offset`. `expected` describes them in the error
    /// message.
    ///
    /// # Errors
    /// [`BootError::Truncated`] if the file ends before them.
    pub fn part(&self, offset: u64, length: u64, expected: &str) -> Result<Range<u64>, BootError> {
        let needed = offset.saturating_add(length);
        if needed > self.size() {
            return Err(BootError::Truncated {
                kernel: self.name.clone(),
                expected: expected.to_owned(),
                needed,
                size: self.size(),
            });
        }
        Ok(offset..needed)
    }

    /// Reads `length` bytes at `offset`. `expected` describes them in the error message.
    ///
    /// # Errors
    /// [`BootError::Truncated`] or [`BootError::Unreadable`].
    pub fn read(&self, offset: u64, length: u64, expected: &str) -> Result<Vec<u8>, BootError> {
        self.part(offset, length, expected)?;
        self.file.read(offset, length as usize)
    }

    /// Reads a part of the file into memory at `address`.
    ///
    /// # Errors
    /// [`BootError::TooLittleMemory`] or [`BootError::Unreadable`].
    pub fn fill(
        &self,
        part: Range<u64>,
        address: u64,
        memory: &mut GuestMemory,
    ) -> Result<(), BootError> {
        let length = part.end - part.start;
        self.file.fill(part.start, length, address, memory)
    }

    /// Loads a part of the kernel at `start`, with zeros after it up to `end`. Allowed are addresses
    /// from 1 MiB, and conventional memory from `lowest`.
    ///
    /// # Errors
    /// [`BootError::Unsupported`] for other addresses, [`BootError::TooLittleMemory`], and
    /// [`BootError::Unreadable`].
    pub fn load(
        &self,
        part: Range<u64>,
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
        self.fill(part, start, memory)
    }

    pub fn unsupported(&self, what: impl Into<String>) -> BootError {
        BootError::Unsupported {
            kernel: self.name.clone(),
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
