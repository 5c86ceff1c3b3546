//! Allocates memory for the structures that a loader leaves in addition to the kernel.
//!
//! Each structure has a usual address ([`super::layout`]). If a kernel is linked there, it gets
//! that memory, and the structure moves to the first free page of conventional memory. If there is
//! none, it moves to an address after the kernel and its modules:
//!
//! ```text
//!   0    1000h                                9FC00h     1 MiB
//!   |BDA |  tables   information   text  ... |  firmware | kernel | modules | ...
//!        '-- first choice, else the first free page here     '-- last choice --'
//! ```

use super::image::low_memory_end;
use super::{BootError, layout};
use std::ops::Range;
use tollgate_memory::GuestMemory;

const PAGE: u64 = 0x1000;

/// The physical addresses that are in use.
pub struct Room {
    taken: Vec<Range<u64>>,
    /// The first address after the usable RAM.
    end: u64,
}

impl Room {
    /// Describes `memory` with these addresses in use.
    pub fn new(taken: Vec<Range<u64>>, memory: &GuestMemory) -> Self {
        Self {
            taken,
            end: low_memory_end(memory),
        }
    }

    /// Returns the first page boundary, from 1 MiB on, after all addresses in use.
    pub fn behind(&self) -> u64 {
        let end = self.taken.iter().map(|range| range.end).max().unwrap_or(0);
        end.max(layout::KERNEL).next_multiple_of(PAGE)
    }

    /// Marks these addresses as in use.
    pub fn take(&mut self, range: Range<u64>) {
        self.taken.push(range);
    }

    /// Allocates `size` bytes at `preferred` if they are free, and elsewhere otherwise. Returns the
    /// address.
    ///
    /// # Errors
    /// [`BootError::TooLittleMemory`].
    pub fn place(&mut self, preferred: u64, size: u64) -> Result<u64, BootError> {
        let pages = (PAGE..layout::EXTENDED_BIOS_DATA).step_by(PAGE as usize);
        let address = std::iter::once(preferred)
            .chain(pages)
            .find(|&address| self.is_free_conventional(address, size))
            .unwrap_or(self.behind());
        let end = address.saturating_add(size);
        if end > self.end {
            return Err(BootError::TooLittleMemory {
                needed: end,
                memory: self.end,
            });
        }
        self.take(address..end);
        Ok(address)
    }

    /// Whether `size` bytes at `address` lie in conventional memory and are not in use.
    fn is_free_conventional(&self, address: u64, size: u64) -> bool {
        let end = address.saturating_add(size);
        end <= layout::EXTENDED_BIOS_DATA
            && self
                .taken
                .iter()
                .all(|range| range.end <= address || range.start >= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(taken: &[Range<u64>]) -> Room {
        let memory = GuestMemory::new(4 << 20).unwrap();
        Room::new(taken.to_vec(), &memory)
    }

    #[test]
    fn structures_lie_where_they_usually_do_if_that_is_free() {
        let mut room = room(&[0x10_0000..0x10_4000, 0x10_5000..0x10_5001]);
        assert_eq!(room.place(0x7000, 0x100), Ok(0x7000));
        assert_eq!(room.place(0x7100, 0x100), Ok(0x7100));
        assert_eq!(room.behind(), 0x10_6000);
    }

    #[test]
    fn structures_give_way_to_the_kernel_and_to_each_other() {
        let mut room = room(&[0x1000..0x2001, 0x7080..0x7090]);
        assert_eq!(room.place(0x7000, 0x100), Ok(0x3000));
        assert_eq!(room.place(0x7000, 0x80), Ok(0x7000));
        assert_eq!(room.place(0x3000, 0x1001), Ok(0x4000));
    }

    #[test]
    fn without_conventional_memory_they_lie_behind_everything() {
        let mut room = room(&[0x500..0x9_fc00, 0x20_0000..0x20_0001]);
        assert_eq!(room.place(0x7000, 0x2000), Ok(0x20_1000));
        assert_eq!(room.place(0x7000, 1), Ok(0x20_3000));
        let whole = (4 << 20) - 0x20_3000;
        assert!(matches!(
            room.place(0x7000, whole),
            Err(BootError::TooLittleMemory { .. })
        ));
        assert!(room.place(0x7000, u64::MAX).is_err());
    }
}
