//! The software TLB of guests in IA-32e mode.
//!
//! Linear addresses have 48 bits there, too many for one flat table of all pages.
//! For each view there is a *root* of 512 pointers instead, one for each 512 GiB, and a
//! pointer leads to flat tables of that part, with the meaning of the flat software TLB:
//! a slot holds *host address minus linear address*, or zero for "not known"; the even
//! slot of a page is for accesses that lie in it, the odd one for those that go on into
//! the next page.
//!
//! Everything is signed, since canonical addresses are. Take 8 bytes at linear address
//! `FFFF_8880_0012_3FFC`, whose last byte is at `FFFF_8880_0012_4003`:
//!
//! ```text
//! first page   p1 = linear >> 12 = -0007_77FF_FEDD       (arithmetic shifts)
//! last page    p2 = last >> 12   = -0007_77FF_FEDC
//! part          i = linear >> 39 = -239                  one of -256 to 255
//! pointer         = root[i]
//! entry           = pointer + (p1 + p2) * 8              odd: the straddling slot
//! ```
//!
//! A pointer does not point to its table but to where the table's entry number zero would
//! be, so that nothing must be subtracted. Stores use the entry [`LONG_WRITE_DISPLACEMENT`]
//! from that of loads, stores that are tested for code the one twice as far away.
//!
//! Parts that the guest has not touched all lead to one region that reads as zero and
//! cannot be written. Generated code does not test whether an address is canonical: for
//! one that is not, `i` is at most 2^24 away from zero, and on both sides of each root that
//! much address space is reserved and inaccessible. So the load of the pointer faults, and
//! the fault has the monitor do the instruction with every check. An access that begins
//! at the last canonical bytes and goes on beyond them needs no care: like any that
//! goes on into another part it finds its part's last slot, which is never filled.
//!
//! R14 of generated code is not the root but [`LongTlb::table`], whose low six bits are
//! 39, so that `sarx reg, reg, r14` yields `i`; the root is at [`LONG_ROOT_DISPLACEMENT`].

use crate::derived::{Derived, PageRange};
use crate::reservation::Reservation;
use crate::slots::{Slots, Table};
use crate::software_tlb::{Entry, Stores, View};
use std::io;
use tollgate_x86::LinearAddress;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::canonical::is_canonical;

/// From R14 in generated code to the root's entry number zero.
pub const LONG_ROOT_DISPLACEMENT: i32 = -39;
/// From a slot for loads to the same slot for stores.
pub const LONG_WRITE_DISPLACEMENT: i32 = i32::MIN;
/// From a slot for loads to the same slot for stores to pages that hold code, in two equal
/// steps: it is too far for one displacement.
pub const LONG_CODE_WRITE_STEP: i32 = i32::MIN;

/// Linear address bits below the root's index.
const PART_SHIFT: u32 = 39;
/// Parts on either side of zero.
const HALF: i64 = 256;
/// Pages in a part.
const PART_PAGES: i64 = 1 << (PART_SHIFT - 12);
/// Slots in one table of a part.
const PART_SLOTS: i64 = PART_PAGES * 2;
const TABLE_BYTES: usize = PART_SLOTS as usize * 8;
/// Tables of a part, from low to high addresses: stores beside code, stores, loads.
const PART_BYTES: usize = TABLE_BYTES * 3;

/// What a non-canonical address can reach beside a root, in bytes, and then some.
const GUARD: usize = 256 << 20;
const ROOT_BYTES: usize = 4096;
const _: () = assert!(GUARD as u64 > (1 << (63 - PART_SHIFT)) * 8 + PAGE_SIZE);

/// First page behind 4 GiB. The straddling slot before it is never filled: compatibility
/// code uses the same tables, and its accesses go on at address zero there.
const BEHIND_4_GIB: i64 = 1 << 20;

/// Pages whose slots share one host page of each table.
const GROUP_PAGES: i64 = 256;
/// Groups in use at most. Each costs up to three pages in tables and as much in the host's
/// page tables if the guest strews its accesses, so 200 MiB at the very most.
const MAX_GROUPS: u32 = 8192;
/// Parts in use at most, in both views: 384 GiB of address space.
const MAX_PARTS: u32 = 64;
/// Pages that are cleared one by one; of more, those that were filled are looked for.
const MOST_PAGES_BY_NUMBER: u64 = 1024;
/// Fills that are remembered at most.
const MAX_LOG: usize = 1 << 20;

/// Where a table lies in its part, counted in tables.
const fn place(table: Table) -> usize {
    match table {
        Table::CodeWrite => 0,
        Table::Write => 1,
        Table::Read => 2,
    }
}

/// Number of the page, from -2^35 to 2^35 - 1 if the address is canonical.
fn page_number(linear: LinearAddress) -> i64 {
    linear.0 as i64 >> 12
}

/// The number of a page, as [`PageRange`] has it, with the sign of its address.
fn signed(page: u64) -> i64 {
    (page << 12) as i64 >> 12
}

/// The reverse of [`signed`].
fn unsigned(page: i64) -> u64 {
    page as u64 & u64::MAX >> 12
}

fn part_of(page: i64) -> i64 {
    page >> (PART_SHIFT - 12)
}

/// The tables of 512 GiB.
struct Part {
    tables: Reservation,
    /// Groups of pages with memory behind their slots, one bit each.
    groups: Box<[u64]>,
}

impl Part {
    fn new() -> io::Result<Self> {
        Ok(Self {
            tables: Reservation::new(PART_BYTES)?,
            groups: vec![0; (PART_PAGES / GROUP_PAGES / 64) as usize].into_boxed_slice(),
        })
    }

    /// `slot`: of the whole view, taken modulo the part's size.
    fn slot(&self, table: Table, slot: i64) -> *mut u64 {
        let index = place(table) * PART_SLOTS as usize + (slot & (PART_SLOTS - 1)) as usize;
        // SAFETY: the index is below the size of the reservation.
        unsafe { self.tables.base().cast::<u64>().add(index) }
    }

    fn get(&self, table: Table, slot: i64) -> u64 {
        // SAFETY: `slot` yields an aligned address inside the reservation.
        unsafe { self.slot(table, slot).read() }
    }

    fn set(&mut self, table: Table, slot: i64, value: u64) {
        // SAFETY: `slot` yields an aligned address inside the reservation, which
        // only this structure and generated code on the same thread access.
        unsafe { self.slot(table, slot).write(value) }
    }

    /// Sets a page's slot, and the straddling slots on both sides where the neighbour is
    /// known and lies side by side with it.
    fn set_page(&mut self, table: Table, page: i64, delta: u64) {
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

    fn clear_slots(&mut self, table: Table, page: i64) {
        // What reads as zero is not written: it may have no memory behind it.
        let first = page * 2 - i64::from(page & (PART_PAGES - 1) != 0);
        for slot in first..=page * 2 + 1 {
            if self.get(table, slot) != 0 {
                self.set(table, slot, 0);
            }
        }
    }

    fn clear_page(&mut self, page: i64) {
        for table in Table::ALL {
            self.clear_slots(table, page);
        }
    }

    /// Notes that a page's slots are used. True: none of their group was before.
    fn use_group(&mut self, page: i64) -> bool {
        let group = ((page & (PART_PAGES - 1)) / GROUP_PAGES) as usize;
        let bit = 1 << (group % 64);
        let fresh = self.groups[group / 64] & bit == 0;
        self.groups[group / 64] |= bit;
        fresh
    }
}

/// Pages filled since they were last cleared as a whole; some more than once, some whose
/// entry is gone.
#[derive(Default)]
struct Log {
    pages: Vec<i64>,
}

impl Log {
    fn take(&mut self) -> Vec<i64> {
        std::mem::take(&mut self.pages)
    }

    /// Takes the memory of what was taken back, unless it is much.
    fn keep(&mut self, mut pages: Vec<i64>) {
        pages.clear();
        pages.shrink_to(1 << 16);
        self.pages = pages;
    }
}

/// One view: its root is in [`LongTlb::roots`].
struct Parts {
    parts: Box<[Option<Part>]>,
    local: Log,
    global: Log,
}

impl Parts {
    fn new() -> Self {
        Self {
            parts: (0..HALF * 2).map(|_| None).collect(),
            local: Log::default(),
            global: Log::default(),
        }
    }

    /// The part of a page, if the page is canonical and its part in use.
    fn part(&self, page: i64) -> Option<&Part> {
        let index = usize::try_from(part_of(page) + HALF).ok()?;
        self.parts.get(index)?.as_ref()
    }

    fn part_mut(&mut self, page: i64) -> Option<&mut Part> {
        let index = usize::try_from(part_of(page) + HALF).ok()?;
        self.parts.get_mut(index)?.as_mut()
    }

    fn clear(&mut self, page: i64) {
        if let Some(part) = self.part_mut(page) {
            part.clear_page(page);
        }
    }

    /// Clears those of many pages that were filled.
    fn clear_filled(&mut self, pages: PageRange) {
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

/// The tables of one vCPU in IA-32e mode.
pub struct LongTlb {
    /// Per view: guard, root; one more guard behind.
    roots: Reservation,
    /// What the pointers of parts not in use lead to.
    nothing: Reservation,
    views: [Parts; 2],
    parts_in_use: u32,
    groups_in_use: u32,
    fills: u64,
}

impl LongTlb {
    /// Reserves the roots and their surroundings (7 GiB of address space, hardly any memory).
    ///
    /// # Errors
    /// The host has no address space left.
    pub fn new() -> io::Result<Self> {
        let size = View::ALL.len() * (GUARD + ROOT_BYTES) + GUARD;
        let roots = Reservation::inaccessible(size)?;
        for view in View::ALL {
            roots.open(Self::root_offset(view), ROOT_BYTES)?;
        }
        let mut tlb = Self {
            roots,
            nothing: Reservation::zeroes(PART_BYTES)?,
            views: [Parts::new(), Parts::new()],
            parts_in_use: 0,
            groups_in_use: 0,
            fills: 0,
        };
        tlb.release();
        Ok(tlb)
    }

    fn root_offset(view: View) -> usize {
        GUARD + view as usize * (ROOT_BYTES + GUARD)
    }

    /// What R14 must hold for a view.
    pub fn table(&self, view: View) -> u64 {
        let zero = self.roots.base() as u64 + Self::root_offset(view) as u64 + HALF as u64 * 8;
        zero.wrapping_sub(LONG_ROOT_DISPLACEMENT as i64 as u64)
    }

    /// Whether a host address is one that generated code reads for a linear address that is
    /// not canonical.
    pub fn is_beside_root(&self, host: u64) -> bool {
        self.roots.contains(host)
    }

    /// How many entries were filled since the start.
    pub fn fills(&self) -> u64 {
        self.fills
    }

    /// Has the root's pointer of a part (-256 to 255) lead to tables at `tables`.
    fn point(&mut self, view: View, part: i64, tables: u64) {
        let loads = tables + (place(Table::Read) * TABLE_BYTES) as u64;
        let entry_zero = loads.wrapping_sub((part * TABLE_BYTES as i64) as u64);
        let index = (part + HALF) as usize % (2 * HALF as usize);
        // SAFETY: the root was opened by `new`, and the index is below its 512 entries.
        unsafe {
            let root = self.roots.base().add(Self::root_offset(view));
            root.cast::<u64>().add(index).write(entry_zero);
        }
    }

    /// Gives all tables back.
    fn release(&mut self) {
        let nothing = self.nothing.base() as u64;
        for view in View::ALL {
            for part in -HALF..HALF {
                self.point(view, part, nothing);
            }
            self.views[view as usize] = Parts::new();
        }
        self.parts_in_use = 0;
        self.groups_in_use = 0;
    }

    /// Fills a page's entry in one view. Does nothing for an address that is not canonical,
    /// or if the host has no address space left. May forget any other entry.
    pub fn fill(&mut self, view: View, entry: Entry) {
        if !is_canonical(entry.linear.0) {
            return;
        }
        let page = page_number(entry.linear);
        let delta = entry.host_page.wrapping_sub((page as u64) << 12);
        if self.groups_in_use >= MAX_GROUPS || self.parts_in_use >= MAX_PARTS {
            self.release();
        }
        let parts = &self.views[view as usize];
        if parts.local.pages.len() + parts.global.pages.len() >= MAX_LOG {
            self.drop_everything();
        }
        if self.views[view as usize].part(page).is_none() && self.add_part(view, page).is_err() {
            return;
        }
        self.fills += 1;
        let parts = &mut self.views[view as usize];
        let Some(part) = parts.part_mut(page) else {
            return;
        };
        self.groups_in_use += u32::from(part.use_group(page));
        // Who fills a page again as it is has it listed already: where it was local and
        // turns global it is forgotten too early, the reverse is the guest's to announce.
        let listed = part.get(Table::Read, page * 2) == delta;
        part.set_page(Table::Read, page, delta);
        match entry.stores {
            Stores::Never => {}
            Stores::BesideCode => part.set_page(Table::CodeWrite, page, delta),
            Stores::Always => part.set_page(Table::Write, page, delta),
        }
        if !listed {
            let log = if entry.global {
                &mut parts.global
            } else {
                &mut parts.local
            };
            log.pages.push(page);
        }
    }

    fn add_part(&mut self, view: View, page: i64) -> io::Result<()> {
        let part = Part::new()?;
        let index = part_of(page);
        self.point(view, index, part.tables.base() as u64);
        self.views[view as usize].parts[(index + HALF) as usize] = Some(part);
        self.parts_in_use += 1;
        Ok(())
    }

    /// If this linear page leads to this host page, has it allow only stores beside code,
    /// because code was translated from there. Whether it allowed others before.
    pub fn protect(&mut self, linear_page: u64, host_page: u64) -> bool {
        let page = signed(linear_page);
        let mut allowed = false;
        for parts in &mut self.views {
            let Some(part) = parts.part_mut(page) else {
                continue;
            };
            let delta = part.get(Table::Write, page * 2);
            if delta != 0 && delta.wrapping_add((page as u64) << 12) == host_page {
                part.clear_slots(Table::Write, page);
                part.set_page(Table::CodeWrite, page, delta);
                allowed = true;
            }
        }
        allowed
    }
}

impl Slots for LongTlb {
    #[inline]
    fn entry(&self, view: View, table: Table, first: LinearAddress, last: LinearAddress) -> u64 {
        let (first, last) = (page_number(first), page_number(last));
        let part = self.views[view as usize].part(first);
        part.map_or(0, |part| part.get(table, first + last))
    }
}

impl Derived for LongTlb {
    fn drop_local(&mut self) {
        for parts in &mut self.views {
            let pages = parts.local.take();
            for &page in &pages {
                parts.clear(page);
            }
            parts.local.keep(pages);
        }
    }

    fn drop_pages(&mut self, pages: PageRange) {
        for parts in &mut self.views {
            if pages.count() <= MOST_PAGES_BY_NUMBER {
                for page in pages.pages() {
                    parts.clear(signed(page));
                }
            } else {
                parts.clear_filled(pages);
            }
        }
    }

    fn drop_everything(&mut self) {
        self.drop_local();
        for parts in &mut self.views {
            let pages = parts.global.take();
            for &page in &pages {
                parts.clear(page);
            }
            parts.global.keep(pages);
        }
    }
}

#[cfg(test)]
#[path = "long_tlb_tests.rs"]
mod tests;
