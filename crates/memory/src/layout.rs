//! Where RAM lies in the guest's physical address space.
//!
//! ```text
//!   0000_0000 .. 000a_0000   conventional memory
//!   000a_0000 .. 000c_0000   display adapter (device memory)
//!   000c_0000 .. 000f_ffff   RAM that holds what firmware would provide
//!   0010_0000 .. c000_0000   RAM, as far as it reaches
//!   c000_0000 .. 1_0000_0000 devices
//!   1_0000_0000 ..           the RAM that found no room below 3 GiB
//! ```

use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// First byte of the display adapter's window.
pub const DISPLAY_START: u64 = 0xa_0000;
/// First byte after the display adapter's window.
pub const DISPLAY_END: u64 = 0xc_0000;
/// First byte that belongs to devices below 4 GiB.
pub const DEVICES_START: u64 = 0xc000_0000;
/// First byte of the RAM above the devices.
pub const HIGH_RAM_START: u64 = 0x1_0000_0000;

/// A contiguous range of RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRegion {
    /// Address of the first byte.
    pub start: PhysicalAddress,
    /// Size in bytes; never zero.
    pub size: u64,
}

impl MemoryRegion {
    /// First address after the region.
    pub const fn end(&self) -> u64 {
        self.start.0 + self.size
    }
}

/// The fixed memory layout for one amount of RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PhysicalLayout {
    low_pages: u64,
    high_pages: u64,
}

impl PhysicalLayout {
    /// The layout for `bytes` of RAM (a multiple of 4096).
    pub const fn new(bytes: u64) -> Self {
        let low = if bytes < DEVICES_START {
            bytes
        } else {
            DEVICES_START
        };
        Self {
            low_pages: low / PAGE_SIZE,
            high_pages: (bytes - low) / PAGE_SIZE,
        }
    }

    /// Bytes of RAM below 3 GiB, including those in the display adapter's window.
    pub const fn low_bytes(&self) -> u64 {
        self.low_pages * PAGE_SIZE
    }

    /// Bytes of RAM above 4 GiB.
    pub const fn high_bytes(&self) -> u64 {
        self.high_pages * PAGE_SIZE
    }

    /// First physical address after the last byte of RAM.
    pub const fn span(&self) -> u64 {
        if self.high_pages == 0 {
            self.low_bytes()
        } else {
            HIGH_RAM_START + self.high_bytes()
        }
    }

    /// Whether a page (physical address divided by 4096) is RAM.
    #[inline]
    pub const fn is_ram_page(&self, page: u64) -> bool {
        if page < self.low_pages {
            page < DISPLAY_START / PAGE_SIZE || page >= DISPLAY_END / PAGE_SIZE
        } else {
            page.wrapping_sub(HIGH_RAM_START / PAGE_SIZE) < self.high_pages
        }
    }

    /// Whether every byte of `address..address + length` is RAM. True for an empty range.
    #[inline]
    pub const fn is_ram(&self, address: PhysicalAddress, length: u64) -> bool {
        if length == 0 {
            return true;
        }
        let Some(last) = address.0.checked_add(length - 1) else {
            return false;
        };
        let (first_page, last_page) = (address.0 / PAGE_SIZE, last / PAGE_SIZE);
        self.is_ram_page(first_page)
            && self.is_ram_page(last_page)
            // Both ends may be RAM with a hole between them.
            && !(address.0 < DISPLAY_START && last >= DISPLAY_END)
            && !(address.0 < DEVICES_START && last >= HIGH_RAM_START)
    }

    /// The ranges of RAM, in ascending order.
    pub fn regions(&self) -> Vec<MemoryRegion> {
        let low = self.low_bytes();
        [
            (0, low.min(DISPLAY_START)),
            (DISPLAY_END, low),
            (HIGH_RAM_START, HIGH_RAM_START + self.high_bytes()),
        ]
        .into_iter()
        .filter(|(start, end)| end > start)
        .map(|(start, end)| MemoryRegion {
            start: PhysicalAddress(start),
            size: end - start,
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn small_memory_has_the_display_hole_and_nothing_above() {
        let layout = PhysicalLayout::new(16 << 20);
        assert!(layout.is_ram_page(0x9f));
        assert!(!layout.is_ram_page(0xa0));
        assert!(!layout.is_ram_page(0xbf));
        assert!(layout.is_ram_page(0xc0));
        assert!(layout.is_ram_page(0xfff));
        assert!(!layout.is_ram_page(0x1000));
        assert!(!layout.is_ram_page(HIGH_RAM_START / PAGE_SIZE));
        assert!(!layout.is_ram_page(u64::MAX));
        assert_eq!(layout.span(), 16 << 20);
    }

    #[test]
    fn memory_beyond_3_gib_continues_at_4_gib() {
        let layout = PhysicalLayout::new(4 * GIB);
        assert_eq!(layout.low_bytes(), 3 * GIB);
        assert_eq!(layout.high_bytes(), GIB);
        assert_eq!(layout.span(), 5 * GIB);
        assert!(!layout.is_ram_page(DEVICES_START / PAGE_SIZE));
        assert!(layout.is_ram_page(5 * GIB / PAGE_SIZE - 1));
        assert!(!layout.is_ram_page(5 * GIB / PAGE_SIZE));
        assert_eq!(layout.regions().len(), 3);
        assert_eq!(layout.regions()[2].end(), 5 * GIB);
    }

    #[test]
    fn a_range_with_a_hole_inside_is_not_ram() {
        let layout = PhysicalLayout::new(4 * GIB);
        let ram = |start, length| layout.is_ram(PhysicalAddress(start), length);
        assert!(ram(0x9_f000, 0x1000));
        assert!(!ram(0x9_ffff, 2));
        assert!(!ram(0x9_f000, 0x10_0000));
        assert!(!ram(0xbfff_f000, 2 * GIB));
        assert!(!ram(u64::MAX, 2));
        assert!(ram(0xdead_beef_0000, 0));
    }
}
