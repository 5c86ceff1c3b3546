//! The memory map that INT 15h, function E820h, of firmware would report.

use super::layout::{EXTENDED_BIOS_DATA, KERNEL};
use crate::acpi;
use crate::board::{io_apic, local_apic};
use tollgate_memory::PhysicalLayout;
use tollgate_memory::layout::{DISPLAY_START, HIGH_RAM_START};
use tollgate_x86::local_apic_msrs::APIC_DEFAULT_ADDRESS;

/// The use of a range of addresses (ACPI 6.5, table 15.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum MemoryKind {
    /// RAM that the system may use.
    Usable = 1,
    /// Addresses that the system must not use.
    Reserved = 2,
}

/// One range of the memory map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRange {
    /// The first physical address.
    pub start: u64,
    /// The size in bytes, which is never zero.
    pub size: u64,
    /// The use of the range.
    pub kind: MemoryKind,
}

impl MemoryRange {
    /// Returns the 20 bytes of an E820 entry: start, size, kind.
    pub fn to_bytes(self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.start.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size.to_le_bytes());
        bytes[16..].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes
    }
}

/// Returns the memory map of a machine with this RAM, in ascending order and without overlaps. The
/// area of the ACPI tables is reserved; RAM between display memory and tables is not listed.
pub fn memory_map(layout: &PhysicalLayout) -> Vec<MemoryRange> {
    use MemoryKind::{Reserved, Usable};
    let low_end = layout.low_bytes();
    let high_end = HIGH_RAM_START + layout.high_bytes();
    [
        (0, EXTENDED_BIOS_DATA.min(low_end), Usable),
        (EXTENDED_BIOS_DATA, DISPLAY_START.min(low_end), Reserved),
        (acpi::TABLES_START, acpi::TABLES_END.min(low_end), Reserved),
        (KERNEL, low_end, Usable),
        (
            io_apic::BASE_ADDRESS,
            io_apic::BASE_ADDRESS + io_apic::REGISTER_BYTES,
            Reserved,
        ),
        (
            APIC_DEFAULT_ADDRESS,
            APIC_DEFAULT_ADDRESS + local_apic::REGISTER_BYTES,
            Reserved,
        ),
        (HIGH_RAM_START, high_end, Usable),
    ]
    .into_iter()
    .filter(|(start, end, _)| end > start)
    .map(|(start, end, kind)| MemoryRange {
        start,
        size: end - start,
        kind,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(bytes: u64) -> Vec<MemoryRange> {
        memory_map(&PhysicalLayout::new(bytes))
    }

    #[test]
    fn usable_memory_is_ram_and_ranges_do_not_overlap() {
        for bytes in [1 << 19, 1 << 20, 64 << 20, 5 << 30] {
            let layout = PhysicalLayout::new(bytes);
            let map = memory_map(&layout);
            for pair in map.windows(2) {
                assert!(pair[0].start + pair[0].size <= pair[1].start);
            }
            for range in map.iter().filter(|range| range.kind == MemoryKind::Usable) {
                let start = tollgate_x86::PhysicalAddress(range.start);
                assert!(layout.is_ram(start, range.size));
            }
        }
    }

    #[test]
    fn memory_above_4_gib_is_listed_last() {
        let last = *map(5 << 30).last().unwrap();
        assert_eq!((last.start, last.size), (4 << 30, 2 << 30));
        assert_eq!(map(64 << 20)[3].size, 63 << 20);
    }
}
