//! Regions that are set and moved while the guest runs, and the dirty pages of display memory.

use super::GuestMemory;
use crate::map::{BlockId, MapError, REGIONS_END, Region};
use crate::ram::MemoryError;
use std::io;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

impl GuestMemory {
    /// Makes a block for regions: `bytes` zeroed bytes (a multiple of 4096, at most 4 GiB) that
    /// have no address yet.
    ///
    /// # Errors
    ///
    /// The size is impossible, or the host refused.
    pub fn new_block(&self, bytes: u64) -> Result<BlockId, MemoryError> {
        self.0.ram.new_block(bytes)
    }

    /// Writes to a block, as a loader does: no page becomes dirty, and no region may contain the
    /// block. Returns false, and writes nothing, if the range exceeds the block.
    ///
    /// # Errors
    ///
    /// The host's error; the contents are then undefined.
    pub fn write_block(&mut self, block: BlockId, offset: u64, data: &[u8]) -> io::Result<bool> {
        let written = self.0.ram.write_block(block, offset, data)?;
        for region in self.0.ram.mapped_regions() {
            if region.block.is_some_and(|(mapped, _)| mapped == block) {
                self.note_write(region.start, region.bytes);
            }
        }
        Ok(written)
    }

    /// Reads from a block, as a display does; no region may show the block.
    ///
    /// # Errors
    ///
    /// The range exceeds the block, or the host's error; `data` is then undefined.
    pub fn read_block(&self, block: BlockId, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.ram.read_block(block, offset, data)
    }

    /// The sizes in bytes of all blocks, in the order in which they were made.
    pub fn block_sizes(&self) -> Vec<(BlockId, u64)> {
        self.0.ram.block_sizes()
    }

    /// Writes a byte of the RAM under a region, as a chip set does for stores where loads reach a
    /// ROM. Does nothing where the RAM is visible, or where there is none.
    pub fn write_beneath(&mut self, address: PhysicalAddress, byte: u8) {
        if !self.0.ram.is_writable_page(address.page()) {
            // Only the host could fail, for a file that it holds in memory.
            let _ = self.0.ram.write_beneath(address.0, byte);
        }
    }

    /// Maps a region, which hides what was there. To change a region's kind, or to move it, set it
    /// again.
    ///
    /// # Errors
    ///
    /// [`MapError`]; the map is then unchanged.
    pub fn set_region(&mut self, region: Region) -> Result<(), MapError> {
        self.change_region(region.start, region.bytes, Some(region))
    }

    /// Removes the regions in a range of whole pages, where the layout is valid again.
    ///
    /// # Errors
    ///
    /// [`MapError`]; the map is then unchanged.
    pub fn clear_region(&mut self, start: PhysicalAddress, bytes: u64) -> Result<(), MapError> {
        self.change_region(start, bytes, None)
    }

    fn change_region(
        &mut self,
        start: PhysicalAddress,
        bytes: u64,
        region: Option<Region>,
    ) -> Result<(), MapError> {
        let end = start.0.checked_add(bytes).ok_or(MapError::Range)?;
        if !start.0.is_multiple_of(PAGE_SIZE) || !end.is_multiple_of(PAGE_SIZE) {
            return Err(MapError::Range);
        }
        let (first, end) = (start.page(), end / PAGE_SIZE);
        self.0.ram.set_region(first, end, region)?;
        // The range may contain other bytes now.
        self.note_write(start, bytes);
        self.note_map_change(first, end - 1);
        Ok(())
    }

    /// The pages of display memory from `first` to `last` that were written since the last call for
    /// them, in ascending order.
    pub fn take_dirty_pages(&mut self, first: u64, last: u64) -> Vec<u64> {
        let last = last.min(REGIONS_END / PAGE_SIZE - 1);
        let map = self.0.ram.map();
        let pages: Vec<u64> = (first..=last)
            .filter(|&page| map.take_dirty(page))
            .collect();
        // The next store to each page must be noticed, so translations that permit stores are
        // dropped.
        for page in &pages {
            self.note_map_change(*page, *page);
        }
        pages
    }

    /// Whether a block was written through a region of display memory, or such a region was set,
    /// since the last call.
    pub fn take_block_dirty(&mut self, block: BlockId) -> bool {
        let mut is_dirty = false;
        for region in self.0.ram.mapped_regions() {
            if region.block.is_some_and(|(mapped, _)| mapped == block) {
                let last = region.start.page() + (region.bytes / PAGE_SIZE).saturating_sub(1);
                is_dirty |= !self.take_dirty_pages(region.start.page(), last).is_empty();
            }
        }
        is_dirty
    }

    /// Notes that a page may be written through its host address from now on, so that it counts as
    /// dirty if it is display memory.
    #[inline]
    pub fn mark_dirty(&mut self, page: u64) {
        self.0.ram.map().mark_dirty(page);
    }

    fn note_map_change(&mut self, first: u64, last: u64) {
        let mut changes = self.0.map_changes.borrow_mut();
        match changes.last_mut() {
            Some(known) if first <= known.1 + 1 && known.0 <= last + 1 => {
                *known = (known.0.min(first), known.1.max(last));
            }
            _ => changes.push((first, last)),
        }
        self.0.has_map_changes.set(true);
    }

    /// Whether other memory or devices have appeared at some pages since the last
    /// [`GuestMemory::take_map_changes`], so that everything derived from these pages is invalid;
    /// or pages [have moved](GuestMemory::has_moved).
    #[inline]
    pub fn has_map_changes(&self) -> bool {
        self.0.has_map_changes.get() || self.has_moved()
    }

    /// Takes the ranges of pages, first and last, where other memory or devices appear now.
    pub fn take_map_changes(&mut self) -> Vec<(u64, u64)> {
        self.0.has_map_changes.set(false);
        self.0.map_changes.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::RegionKind;

    fn memory() -> GuestMemory {
        GuestMemory::new(2 << 20).unwrap()
    }

    const PAGE: u64 = PAGE_SIZE;

    fn region(page: u64, pages: u64, kind: RegionKind, block: Option<BlockId>) -> Region {
        Region {
            start: PhysicalAddress(page * PAGE),
            bytes: pages * PAGE,
            kind,
            block: block.map(|block| (block, 0)),
        }
    }

    #[test]
    fn rom_is_read_and_not_written_and_what_it_hides_comes_back() {
        let mut memory = memory();
        let at = PhysicalAddress(0xf_0000);
        memory.write_u32(at, 1);
        let block = memory.new_block(2 * PAGE).unwrap();
        assert!(memory.write_block(block, 0, &[0x22; 4]).unwrap());
        memory
            .set_region(region(0xf0, 2, RegionKind::Rom, Some(block)))
            .unwrap();
        assert_eq!(memory.read_u32(at), 0x2222_2222);
        assert!(!memory.write_u32(at, 7));
        assert!(!memory.write(PhysicalAddress(0xe_fffe), &[0; 4]));
        assert_eq!(memory.read_u32(at), 0x2222_2222);
        assert_eq!(memory.take_map_changes(), [(0xf0, 0xf1)]);
        memory.clear_region(at, PAGE).unwrap();
        assert_eq!(memory.read_u32(at), 1);
        assert_eq!(memory.take_map_changes(), [(0xf0, 0xf0)]);
    }

    /// A chip set's memory attribute registers do this: loads reach RAM, and stores are ignored or
    /// reach RAM.
    #[test]
    fn ram_can_be_locked_and_opened_where_it_is() {
        let mut memory = memory();
        let at = PhysicalAddress(0xe_0000);
        memory.write_u32(at, 5);
        for (kind, writable) in [(RegionKind::Rom, false), (RegionKind::Ram, true)] {
            memory.set_region(region(0xe0, 1, kind, None)).unwrap();
            assert_eq!(memory.read_u32(at), 5);
            assert_eq!(memory.write_u32(at, 5), writable);
        }
        memory
            .set_region(region(0xe0, 1, RegionKind::Device, None))
            .unwrap();
        assert_eq!(memory.read_u32(at), u32::MAX);
        assert!(memory.ram().host_page(0xe0).is_none());
    }

    #[test]
    fn stores_reach_the_ram_beneath_a_rom() {
        let mut memory = memory();
        let at = PhysicalAddress(0xe_0000);
        let block = memory.new_block(PAGE).unwrap();
        memory
            .set_region(region(0xe0, 1, RegionKind::Rom, Some(block)))
            .unwrap();
        memory.write_beneath(at, 0x5a);
        memory.write_beneath(PhysicalAddress(1 << 40), 1);
        assert_eq!(memory.read_u32(at), 0);
        memory.clear_region(at, PAGE).unwrap();
        assert_eq!(memory.read_u32(at), 0x5a);
        memory.write_beneath(at, 7);
        assert_eq!(
            memory.read_u32(at),
            0x5a,
            "visible RAM must be written through the gate"
        );
    }

    #[test]
    fn a_block_above_ram_moves_with_its_contents() {
        let mut memory = memory();
        let block = memory.new_block(2 * PAGE).unwrap();
        let (old, new) = (0xe_0000, 0xf_fffe);
        memory
            .set_region(region(old, 2, RegionKind::Ram, Some(block)))
            .unwrap();
        assert!(memory.write_u32(PhysicalAddress(old * PAGE + 0xffe), 0x1234_5678));
        memory
            .clear_region(PhysicalAddress(old * PAGE), 2 * PAGE)
            .unwrap();
        memory
            .set_region(region(new, 2, RegionKind::Ram, Some(block)))
            .unwrap();
        assert_eq!(
            memory.read_u32(PhysicalAddress(old * PAGE + 0xffe)),
            u32::MAX
        );
        assert_eq!(
            memory.read_u32(PhysicalAddress(new * PAGE + 0xffe)),
            0x1234_5678
        );
    }

    #[test]
    fn written_display_pages_are_told_once() {
        let mut memory = memory();
        let block = memory.new_block(32 * PAGE).unwrap();
        memory
            .set_region(region(0xa0, 32, RegionKind::Display, Some(block)))
            .unwrap();
        let all: Vec<u64> = (0xa0..0xc0).collect();
        assert_eq!(memory.take_dirty_pages(0, u64::MAX), all);
        memory.take_map_changes();
        memory.write_u32(PhysicalAddress(0xb_8ffe), 7);
        memory.mark_dirty(0xa1);
        assert_eq!(memory.take_dirty_pages(0xa2, 0xbf), [0xb8, 0xb9]);
        assert_eq!(memory.take_map_changes(), [(0xb8, 0xb9)]);
        assert_eq!(memory.take_dirty_pages(0xa0, 0xbf), [0xa1]);
    }

    #[test]
    fn a_region_over_code_makes_it_stale() {
        let mut memory = memory();
        memory.code().mark(PhysicalAddress(0x3000), 1);
        memory
            .set_region(region(3, 1, RegionKind::Rom, None))
            .unwrap();
        assert!(memory.has_code_writes() && memory.has_map_changes());
    }

    #[test]
    fn impossible_regions_are_refused() {
        let mut memory = memory();
        let block = memory.new_block(PAGE).unwrap();
        let rom = RegionKind::Rom;
        for bad in [
            region(0xf0, 0, rom, Some(block)),
            region(0xf0, 2, rom, Some(block)),
            region(0xf0, 1, rom, Some(BlockId(9))),
            region(0xf_ffff, 2, rom, Some(block)),
            region(1 << 40, 1, rom, Some(block)),
            region(0x1ff, 2, rom, None),
            Region {
                start: PhysicalAddress(0x10),
                ..region(0, 1, rom, Some(block))
            },
            Region {
                block: Some((block, u64::MAX - 0xfff)),
                ..region(0xf0, 1, rom, None)
            },
        ] {
            assert!(memory.set_region(bad).is_err(), "{bad:?}");
        }
        let end = PhysicalAddress(u64::MAX - 0xfff);
        assert!(memory.clear_region(end, 0x1000).is_err());
        assert!(memory.new_block(0).is_err() && memory.new_block(100).is_err());
        assert!(!memory.write_block(block, 0xfff, &[0; 2]).unwrap());
        assert!(!memory.has_map_changes());
    }
}
