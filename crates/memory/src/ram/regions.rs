//! Regions in the mapping of guest RAM: which pages are memory, and of which file.

use super::{GUARD_BYTES, GuestRam, MemoryBacking, MemoryError};
use crate::map::{Block, BlockId, MapError, MemoryMap, PageUse, REGIONS_END, Region, RegionKind};
use std::io;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

impl GuestRam {
    /// What accesses to a physical page (address divided by 4096) reach.
    #[inline]
    pub fn page_use(&self, physical_page: u64) -> PageUse {
        match self.map.page(physical_page) {
            Some(known) => known,
            None if self.saved.has(physical_page) => PageUse::Saved,
            None if self.layout.is_ram_page(physical_page) => PageUse::Ram,
            None => PageUse::Device,
        }
    }

    /// Whether a physical page is RAM from the machine's own file, with no region over it.
    pub(crate) fn is_own_page(&self, physical_page: u64) -> bool {
        self.map.page(physical_page).is_none() && self.layout.is_ram_page(physical_page)
    }

    /// Whether stores to a physical page reach the memory that loads see.
    pub(crate) fn is_writable_page(&self, physical_page: u64) -> bool {
        !matches!(self.page_use(physical_page), PageUse::Device | PageUse::Rom)
    }

    /// The regions that differ from the layout, in ascending order.
    pub fn mapped_regions(&self) -> Vec<Region> {
        self.map.regions()
    }

    pub(crate) const fn map(&self) -> &MemoryMap {
        &self.map
    }

    /// Makes a block of `bytes` zeroed bytes, a multiple of 4096, that has no address yet.
    pub(crate) fn new_block(&self, bytes: u64) -> Result<BlockId, MemoryError> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_SIZE) || bytes > REGIONS_END {
            return Err(MemoryError::InvalidSize(bytes));
        }
        let file = MemoryBacking::Anonymous.create(bytes)?;
        let mut blocks = self.map.blocks.borrow_mut();
        blocks.push(Block { file, bytes });
        Ok(BlockId(blocks.len() - 1))
    }

    /// The sizes of all blocks, in the order in which they were made.
    pub(crate) fn block_sizes(&self) -> Vec<(BlockId, u64)> {
        let blocks = self.map.blocks.borrow();
        let numbered = blocks.iter().enumerate();
        numbered
            .map(|(at, block)| (BlockId(at), block.bytes))
            .collect()
    }

    /// Writes to a block, wherever it is mapped. Returns false, and writes nothing, if the range
    /// exceeds the block.
    pub(crate) fn write_block(&self, id: BlockId, offset: u64, data: &[u8]) -> io::Result<bool> {
        use std::os::unix::fs::FileExt;
        let blocks = self.map.blocks.borrow();
        let end = offset.saturating_add(data.len() as u64);
        let Some(block) = blocks.get(id.0).filter(|block| end <= block.bytes) else {
            return Ok(false);
        };
        let file = std::fs::File::from(block.file.try_clone()?);
        file.write_all_at(data, offset).map(|()| true)
    }

    /// Reads from a block, wherever it is mapped.
    pub(crate) fn read_block(&self, id: BlockId, offset: u64, data: &mut [u8]) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let blocks = self.map.blocks.borrow();
        let block = blocks.get(id.0).ok_or(io::ErrorKind::NotFound)?;
        let file = std::fs::File::from(block.file.try_clone()?);
        file.read_exact_at(data, offset)
    }

    /// Writes a byte of the RAM at a physical address below 3 GiB, whatever region hides it.
    pub(crate) fn write_beneath(&self, address: u64, byte: u8) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        if address < self.layout.low_bytes() {
            self.take_own(address / PAGE_SIZE, address / PAGE_SIZE + 1)?;
            if self.is_secret() {
                return self.write_secret(address, byte);
            }
            let file = std::fs::File::from(self.file.try_clone()?);
            file.write_all_at(&[byte], address)?;
        }
        Ok(())
    }

    /// Makes the pages `first..end` as `region` says, which covers exactly these; without one, as
    /// the layout says. The caller drops what was derived from them.
    pub(crate) fn set_region(
        &self,
        first: u64,
        end: u64,
        region: Option<Region>,
    ) -> Result<(), MapError> {
        if first >= end || end > REGIONS_END / PAGE_SIZE {
            return Err(MapError::Range);
        }
        let (start, bytes) = (first * PAGE_SIZE, (end - first) * PAGE_SIZE);
        let at = (GUARD_BYTES + start) as usize;
        self.take_own(first, end).map_err(MapError::Host)?;
        match region {
            Some(Region {
                block: Some((id, offset)),
                ..
            }) => {
                let blocks = self.map.blocks.borrow();
                let block = blocks.get(id.0).ok_or(MapError::NoMemory)?;
                if !offset.is_multiple_of(PAGE_SIZE) {
                    return Err(MapError::Range);
                }
                if offset.saturating_add(bytes) > block.bytes {
                    return Err(MapError::NoMemory);
                }
                self.reservation
                    .map(at, bytes as usize, &block.file, offset)
                    .map_err(MapError::Host)?;
            }
            Some(Region { kind, .. })
                if kind != RegionKind::Device && start + bytes > self.layout.low_bytes() =>
            {
                return Err(MapError::NoMemory);
            }
            _ => {
                let ram_end = (start + bytes).min(self.layout.low_bytes()).max(start);
                let ram_bytes = (ram_end - start) as usize;
                let rest = bytes as usize - ram_bytes;
                self.reservation
                    .map(at, ram_bytes, &self.file, start)
                    .and_then(|()| self.reservation.unmap(at + ram_bytes, rest))
                    .map_err(MapError::Host)?;
            }
        }
        self.map.set(first, end, region);
        Ok(())
    }

    /// Whether loads of all `length` bytes at `address` reach memory; false for an empty range.
    #[inline]
    pub(super) fn is_readable(&self, address: PhysicalAddress, length: u64) -> bool {
        if !self.map.is_in_use() {
            return length != 0 && self.layout.is_ram(address, length);
        }
        self.all_pages(address, length, |page| page != PageUse::Device)
    }

    /// Whether stores to all `length` bytes at `address` reach memory; false for an empty range.
    #[inline]
    pub(super) fn is_writable(&self, address: PhysicalAddress, length: u64) -> bool {
        if !self.map.is_in_use() {
            return length != 0 && self.layout.is_ram(address, length);
        }
        self.all_pages(address, length, |page| {
            !matches!(page, PageUse::Device | PageUse::Rom)
        })
    }

    fn all_pages(
        &self,
        address: PhysicalAddress,
        length: u64,
        is_good: impl Fn(PageUse) -> bool,
    ) -> bool {
        let Some(last) = length
            .checked_sub(1)
            .and_then(|rest| address.0.checked_add(rest))
        else {
            return false;
        };
        (address.page()..=last / PAGE_SIZE).all(|page| is_good(self.page_use(page)))
    }
}
