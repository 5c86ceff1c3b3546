//! The contents of guest-physical pages where they differ from
//! [`PhysicalLayout`](crate::PhysicalLayout): ROM, display memory, and hidden RAM.
//!
//! ```text
//! layout:  RAM ............ | display | RAM ........................ | devices
//! regions:                    Display   Rom  Rom          Device       Display   Rom
//!            a later region hides earlier ones; the layout is valid where there is no region
//! ```
//!
//! Regions consist of whole pages below 4 GiB, and change while the guest runs: shadow RAM is
//! opened and locked, a base address register moves. The bytes of a region are those of RAM at the
//! same address, or of a *block*: memory that is not RAM and can be placed anywhere.

use crate::cells::cells;
use crate::layout::HIGH_RAM_START;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// The first address at which no region can lie.
pub const REGIONS_END: u64 = HIGH_RAM_START;

/// How accesses to a region are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// Loads and stores reach memory.
    Ram,
    /// Loads and fetches reach memory, stores go to the machine's bus; if no device responds there,
    /// they are ignored.
    Rom,
    /// Loads and stores go to the machine's bus.
    Device,
    /// Loads and stores reach memory, and the pages that were written can be queried.
    Display,
}

/// A block: separate memory for ROM and display memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockId(pub(crate) usize);

/// A part of guest-physical memory that differs from the layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Address of the first byte; a multiple of 4096.
    pub start: PhysicalAddress,
    /// Size in bytes: a positive multiple of 4096. The region ends at or below 4 GiB.
    pub bytes: u64,
    /// How accesses to the region are served.
    pub kind: RegionKind,
    /// The block with the region's bytes, and the offset of the first byte in it, a multiple of
    /// 4096. `None`: the bytes are those of RAM at the same address, all of which must exist unless
    /// the region is a device's.
    pub block: Option<(BlockId, u64)>,
}

impl Region {
    /// Number of the first page.
    pub const fn first_page(&self) -> u64 {
        self.start.0 / PAGE_SIZE
    }

    /// Number of the page after the last one.
    pub const fn end_page(&self) -> u64 {
        (self.start.0 + self.bytes) / PAGE_SIZE
    }
}

/// Why a region could not be set; the map is unchanged.
#[derive(Debug)]
pub enum MapError {
    /// The range is not whole pages, is empty, or is not below 4 GiB.
    Range,
    /// The block does not exist or is too short, or there is no RAM at the region's address.
    NoMemory,
    /// The host refused to map the memory.
    Host(io::Error),
}

impl fmt::Display for MapError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range => write!(formatter, "a memory region must be whole pages below 4 GiB"),
            Self::NoMemory => write!(formatter, "there is no memory for a region"),
            Self::Host(error) => write!(formatter, "cannot map a memory region: {error}"),
        }
    }
}

impl std::error::Error for MapError {}

/// What accesses to a page reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageUse {
    /// Loads and stores reach memory.
    Ram,
    /// Loads reach RAM whose contents are still in a snapshot's file. Before a store,
    /// [`crate::GuestMemory::take_own`] must copy them.
    Saved,
    /// Only loads reach memory.
    Rom,
    /// Neither loads nor stores reach memory.
    Device,
    /// Display memory, for which stores are noted.
    Display {
        /// Whether it was written since the last query.
        dirty: bool,
    },
}

/// Values of the entries of the map's page table.
mod entry {
    /// The page is as the layout says.
    pub const LAYOUT: u8 = 0;
    pub const RAM: u8 = 1;
    pub const ROM: u8 = 2;
    pub const DEVICE: u8 = 3;
    pub const DISPLAY: u8 = 4;
    pub const DISPLAY_DIRTY: u8 = 5;
}

/// A block: a file with the memory of a region.
#[derive(Debug)]
pub(crate) struct Block {
    pub file: OwnedFd,
    pub bytes: u64,
}

/// The regions, and an entry for each page below 4 GiB.
#[derive(Debug)]
pub(crate) struct MemoryMap {
    /// Parts that no region touches use no host memory.
    pages: Box<[Cell<u8>]>,
    /// Whether there is or was any region; if not, the table is not consulted.
    in_use: Cell<bool>,
    /// The regions in ascending order, without overlaps.
    regions: RefCell<Vec<Region>>,
    pub blocks: RefCell<Vec<Block>>,
}

impl MemoryMap {
    pub fn new() -> Self {
        Self {
            pages: cells(vec![entry::LAYOUT; (REGIONS_END / PAGE_SIZE) as usize]),
            in_use: Cell::new(false),
            regions: RefCell::default(),
            blocks: RefCell::default(),
        }
    }

    /// What accesses to the page reach because of a region; `None` where the layout is valid.
    #[inline]
    pub fn page(&self, page: u64) -> Option<PageUse> {
        if !self.in_use.get() {
            return None;
        }
        match self.pages.get(page as usize)?.get() {
            entry::RAM => Some(PageUse::Ram),
            entry::ROM => Some(PageUse::Rom),
            entry::DEVICE => Some(PageUse::Device),
            entry::DISPLAY => Some(PageUse::Display { dirty: false }),
            entry::DISPLAY_DIRTY => Some(PageUse::Display { dirty: true }),
            _ => None,
        }
    }

    /// Whether any page may differ from the layout.
    #[inline]
    pub fn is_in_use(&self) -> bool {
        self.in_use.get()
    }

    /// Notes a store to a page, if it is display memory.
    #[inline]
    pub fn mark_dirty(&self, page: u64) {
        if self.page(page) == Some(PageUse::Display { dirty: false }) {
            self.pages[page as usize].set(entry::DISPLAY_DIRTY);
        }
    }

    /// Clears the mark of a store from a page. Returns whether it had one.
    pub fn take_dirty(&self, page: u64) -> bool {
        let dirty = self.page(page) == Some(PageUse::Display { dirty: true });
        if dirty {
            self.pages[page as usize].set(entry::DISPLAY);
        }
        dirty
    }

    /// The regions, in ascending order.
    pub fn regions(&self) -> Vec<Region> {
        self.regions.borrow().clone()
    }

    /// Makes the pages `first..end` as `region` says; without one, as the layout says.
    pub fn set(&self, first: u64, end: u64, region: Option<Region>) {
        let entry = match region.map(|region| region.kind) {
            None => entry::LAYOUT,
            Some(RegionKind::Ram) => entry::RAM,
            Some(RegionKind::Rom) => entry::ROM,
            Some(RegionKind::Device) => entry::DEVICE,
            // The display has not shown these bytes yet, so they start dirty.
            Some(RegionKind::Display) => entry::DISPLAY_DIRTY,
        };
        for page in &self.pages[first as usize..end as usize] {
            page.set(entry);
        }
        let mut regions = self.regions.borrow_mut();
        let old = std::mem::take(&mut *regions);
        regions.extend(old.iter().flat_map(|old| pieces_outside(old, first, end)));
        regions.extend(region);
        regions.sort_unstable_by_key(|region| region.start.0);
        self.in_use.set(true);
    }
}

/// The parts of a region below page `first` and from page `end` on.
fn pieces_outside(region: &Region, first: u64, end: u64) -> impl Iterator<Item = Region> + use<> {
    let (from, to) = (region.first_page(), region.end_page());
    let piece = move |region: Region, from: u64, to: u64| {
        (from < to).then(|| Region {
            start: PhysicalAddress(from * PAGE_SIZE),
            bytes: (to - from) * PAGE_SIZE,
            block: region
                .block
                .map(|(block, offset)| (block, offset + (from * PAGE_SIZE - region.start.0))),
            ..region
        })
    };
    let below = piece(*region, from, to.min(first));
    let above = piece(*region, from.max(end), to);
    below.into_iter().chain(above)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(page: u64, pages: u64, kind: RegionKind) -> Region {
        Region {
            start: PhysicalAddress(page * PAGE_SIZE),
            bytes: pages * PAGE_SIZE,
            kind,
            block: Some((BlockId(0), 0x8000)),
        }
    }

    #[test]
    fn a_later_region_hides_what_it_covers_and_splits_the_rest() {
        let map = MemoryMap::new();
        assert_eq!(map.page(0x11), None);
        map.set(0x10, 0x18, Some(region(0x10, 8, RegionKind::Rom)));
        map.set(0x12, 0x14, Some(region(0x12, 2, RegionKind::Device)));
        let uses: Vec<_> = (0x0f..0x19).map(|page| map.page(page)).collect();
        let (rom, device) = (Some(PageUse::Rom), Some(PageUse::Device));
        let expected = [None, rom, rom, device, device, rom, rom, rom, rom, None];
        assert_eq!(uses, expected);
        let regions = map.regions();
        let places: Vec<_> = regions
            .iter()
            .map(|region| (region.first_page(), region.end_page(), region.block))
            .collect();
        assert_eq!(
            places,
            [
                (0x10, 0x12, Some((BlockId(0), 0x8000))),
                (0x12, 0x14, Some((BlockId(0), 0x8000))),
                (0x14, 0x18, Some((BlockId(0), 0xc000))),
            ]
        );
        map.set(0, 0x100, None);
        assert!(map.regions().is_empty());
        assert_eq!(map.page(0x11), None);
    }

    #[test]
    fn display_pages_are_dirty_until_that_is_taken() {
        let map = MemoryMap::new();
        map.set(4, 6, Some(region(4, 2, RegionKind::Display)));
        assert!(map.take_dirty(4) && map.take_dirty(5));
        assert!(!map.take_dirty(4));
        map.mark_dirty(4);
        map.mark_dirty(7);
        assert!(map.take_dirty(4) && !map.take_dirty(5) && !map.take_dirty(7));
    }
}
