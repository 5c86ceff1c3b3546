//! The tables of the [`LongTlb`](crate::LongTlb): the tables of one part of 512 GiB, and those of
//! one view for half of the addresses, with logs of the filled slots.

use crate::derived::PageRange;
use crate::reservation::Reservation;
use crate::slots::Table;
use rustc_hash::FxHashSet;
use std::io;
use tollgate_x86::LinearAddress;

/// Number of linear address bits below the index into the root.
pub(crate) const PART_SHIFT: u32 = 39;
/// Number of parts on either side of address zero.
pub(crate) const HALF: i64 = 256;
/// Number of pages in a part.
pub(crate) const PART_PAGES: i64 = 1 << (PART_SHIFT - 12);
/// Number of slots in one table of a part.
pub(crate) const PART_SLOTS: i64 = PART_PAGES * 2;
pub(crate) const TABLE_BYTES: usize = PART_SLOTS as usize * 8;
/// Size of the tables of a part. From low to high addresses these are: stores next to code, stores,
/// loads.
pub(crate) const PART_BYTES: usize = TABLE_BYTES * 3;

/// The first page above 4 GiB. The straddling slot before it is never filled: compatibility-mode
/// code uses the same tables, and its accesses continue at address zero there.
pub(crate) const BEHIND_4_GIB: i64 = 1 << 20;

/// Number of pages whose slots share one host page of each table.
pub(crate) const GROUP_PAGES: i64 = 256;
/// The position of a table in its part, counted in tables.
pub(crate) const fn place(table: Table) -> usize {
    match table {
        Table::CodeWrite => 0,
        Table::Write => 1,
        Table::Read => 2,
    }
}

/// The number of the page of an address, from -2^35 to 2^35 - 1 if the address is canonical.
pub(crate) fn page_number(linear: LinearAddress) -> i64 {
    linear.0 as i64 >> 12
}

/// A page number as in [`PageRange`], with the sign of the page's address.
pub(crate) fn signed(page: u64) -> i64 {
    (page << 12) as i64 >> 12
}

/// The reverse of [`signed`].
pub(crate) fn unsigned(page: i64) -> u64 {
    page as u64 & u64::MAX >> 12
}

pub(crate) fn part_of(page: i64) -> i64 {
    page >> (PART_SHIFT - 12)
}

/// The tables of one part, which is 512 GiB.
pub(crate) struct Part {
    pub(crate) tables: Reservation,
    /// The groups of pages whose slots have memory.
    pub(crate) groups: FxHashSet<u32>,
}

impl Part {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            tables: Reservation::new(PART_BYTES)?,
            groups: FxHashSet::default(),
        })
    }

    /// The address of a slot. `slot` counts in the whole view; it is taken modulo the part's size.
    pub(crate) fn slot(&self, table: Table, slot: i64) -> *mut u64 {
        let index = place(table) * PART_SLOTS as usize + (slot & (PART_SLOTS - 1)) as usize;
        // SAFETY: the index is below the size of the reservation.
        unsafe { self.tables.base().cast::<u64>().add(index) }
    }

    pub(crate) fn get(&self, table: Table, slot: i64) -> u64 {
        // SAFETY: `slot` yields an aligned address inside the reservation.
        unsafe { self.slot(table, slot).read() }
    }

    pub(crate) fn set(&mut self, table: Table, slot: i64, value: u64) {
        // SAFETY: `slot` yields an aligned address inside the reservation, which
        // only this structure and generated code on the same thread access.
        unsafe { self.slot(table, slot).write(value) }
    }

    /// Sets the slot of a page. Also sets the straddling slots on both sides if the neighbouring
    /// page is known and adjacent in host memory.
    pub(crate) fn set_page(&mut self, table: Table, page: i64, delta: u64) {
        let side_by_side = |neighbour: u64| if neighbour == delta { delta } else { 0 };
        self.set(table, page * 2, delta);
        if page & (PART_PAGES - 1) != 0 && page != BEHIND_4_GIB {
            let below = self.get(table, page * 2 - 2);
            self.set(table, page * 2 - 1, side_by_side(below));
        }
        if (page + 1) & (PART_PAGES - 1) != 0 && page + 1 != BEHIND_4_GIB {
            let above = self.get(table, page * 2 + 2);
            self.set(table, page * 2 + 1, side_by_side(above));
        }
    }

    pub(crate) fn clear_slots(&mut self, table: Table, page: i64) {
        // A slot that reads as zero is not written, because it may have no memory.
        let first = page * 2 - i64::from(page & (PART_PAGES - 1) != 0);
        for slot in first..=page * 2 + 1 {
            if self.get(table, slot) != 0 {
                self.set(table, slot, 0);
            }
        }
    }

    pub(crate) fn clear_page(&mut self, page: i64) {
        for table in Table::ALL {
            self.clear_slots(table, page);
        }
    }

    /// Notes that the slots of a page are used. Returns true for the first page of its group.
    pub(crate) fn use_group(&mut self, page: i64) -> bool {
        let group = (page & (PART_PAGES - 1)) / GROUP_PAGES;
        self.groups.insert(group as u32)
    }
}

/// The pages that were filled since they were last cleared as a whole. Some pages are listed more
/// than once, and some no longer have an entry.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) pages: Vec<i64>,
}

impl Log {
    pub(crate) fn take(&mut self) -> Vec<i64> {
        std::mem::take(&mut self.pages)
    }

    /// Reuses the memory of a taken list, unless there is a lot of it.
    pub(crate) fn keep(&mut self, mut pages: Vec<i64>) {
        pages.clear();
        pages.shrink_to(1 << 16);
        self.pages = pages;
    }
}

/// The tables of one view for half of the addresses. Their root is in the field `roots` of the
/// [`LongTlb`](crate::LongTlb).
pub(crate) struct Parts {
    /// The parts by number, modulo their count; numbers of the upper half are negative.
    pub(crate) parts: Box<[Option<Part>]>,
    /// The numbers of the parts in use.
    pub(crate) in_use: Vec<i64>,
    pub(crate) local: Log,
    pub(crate) global: Log,
}

impl Parts {
    pub(crate) fn new() -> Self {
        Self {
            parts: (0..HALF).map(|_| None).collect(),
            in_use: Vec::new(),
            local: Log::default(),
            global: Log::default(),
        }
    }

    pub(crate) fn index(part: i64) -> usize {
        (part & (HALF - 1)) as usize
    }

    /// The part of a canonical page of this half, if the part is in use.
    pub(crate) fn part(&self, page: i64) -> Option<&Part> {
        self.parts.get(Self::index(part_of(page)))?.as_ref()
    }

    pub(crate) fn part_mut(&mut self, page: i64) -> Option<&mut Part> {
        self.parts.get_mut(Self::index(part_of(page)))?.as_mut()
    }

    pub(crate) fn clear_log(&mut self, which: fn(&mut Self) -> &mut Log) {
        let pages = which(self).take();
        for &page in &pages {
            self.clear(page);
        }
        which(self).keep(pages);
    }

    /// Clears all tables as a whole.
    pub(crate) fn empty(&mut self) {
        for &number in &self.in_use {
            if let Some(part) = &mut self.parts[Self::index(number)] {
                part.tables.discard();
                part.groups.clear();
            }
        }
        self.local.pages.clear();
        self.global.pages.clear();
    }

    /// Clears all entries except those of global pages.
    pub(crate) fn clear_local(&mut self) {
        self.clear_log(|parts| &mut parts.local);
    }

    pub(crate) fn clear_global(&mut self) {
        self.clear_log(|parts| &mut parts.global);
    }

    pub(crate) fn clear(&mut self, page: i64) {
        if let Some(part) = self.part_mut(page) {
            part.clear_page(page);
        }
    }

    /// Clears those pages of a large range that were filled.
    pub(crate) fn clear_filled(&mut self, pages: PageRange) {
        let logs = [&self.local.pages, &self.global.pages];
        let is_named = |page: &i64| pages.contains(unsigned(*page));
        let filled: Vec<i64> = logs
            .into_iter()
            .flatten()
            .copied()
            .filter(is_named)
            .collect();
        for page in filled {
            self.clear(page);
        }
    }
}
