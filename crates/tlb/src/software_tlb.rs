//! The flat software TLB of 32-bit guests.
//!
//! Each privilege view has tables for reads, for writes, and for writes to pages that hold
//! translated code; each table has two 8-byte slots for each guest page. Slot `2 * page` holds
//! *host address minus linear address* for accesses that lie in the page. Slot `2 * page + 1` holds
//! the difference for accesses that begin in the page and end in the next one; it is filled only
//! where the two pages are adjacent in host memory. Zero means "not known".
//!
//! Generated code adds the page numbers of an access's first and last byte to get the slot, so one
//! load answers both "is it mapped" and "does it straddle".
//!
//! A page that holds translated code has no entry for writes. Instead it has one in the third
//! table, which is used only by code that first tests whether the store hits translated code.
//!
//! The tables are sparse: only the pages that the guest has touched use memory. Logs of the filled
//! slots make clearing the tables as cheap as filling them was.

use crate::derived::{Derived, Held, PageRange};
use crate::reservation::Reservation;
use crate::shadow_windows::ShadowWindows;
use crate::slots::{KnownPage, Slots, Table, show_page};
use crate::view::View;
use std::io;
use tollgate_x86::LinearAddress;
use tollgate_x86::address::PAGE_SIZE;

const PAGES: usize = 1 << 20;
const SLOTS: usize = PAGES * 2;
/// Bytes from a slot in the read table to the corresponding slot in the write table.
pub const WRITE_TABLE_OFFSET: i32 = (SLOTS * 8) as i32;
/// Bytes from a slot in the read table to the corresponding slot in the table for writes to pages
/// that hold code.
pub const CODE_WRITE_TABLE_OFFSET: i32 = 2 * WRITE_TABLE_OFFSET;
/// Bytes from a view's table for reads to its word for direct access: *host minus linear address*
/// in the view's [shadow window](crate::shadow_windows::narrow).
pub const NARROW_DELTA_OFFSET: i32 = 3 * WRITE_TABLE_OFFSET;
/// Size of a view in slots: three tables, and a page with the word for direct access.
const VIEW_SLOTS: usize = SLOTS * 3 + 512;
/// Bytes that follow the tables and can be loaded, but have no meaning: as many as a segment of 64
/// KiB has.
const LIMIT_BYTES: usize = 1 << 16;
/// Bytes that follow those and where every load faults: as many as 32-bit offsets reach, and an
/// operand beyond.
const BEYOND_LIMIT: usize = (1 << 32) + PAGE_SIZE as usize;
/// Size of all tables in bytes.
const TABLES: usize = VIEW_SLOTS * 8 * View::ALL.len();

/// Bytes from a view's read table to the region from which generated code loads a byte by the
/// offset of an operand's last byte in a segment of 64 KiB: for an offset beyond FFFFh the load
/// faults. So the load replaces a comparison with the limit, and no instruction depends on the
/// loaded value. Offsets have 32 bits at most.
pub const fn limit_check_offset(view: View) -> i32 {
    (TABLES - view as usize * VIEW_SLOTS * 8) as i32
}

/// Bytes from a slot of the user's view to the corresponding slot of the supervisor's view.
pub const SUPERVISOR_VIEW_OFFSET: i32 =
    (View::Supervisor as i32 - View::User as i32) * (VIEW_SLOTS * 8) as i32;

/// Which stores may use a page's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stores {
    /// No store may use the entry: all stores miss.
    Never,
    /// Only stores that were tested and do not hit translated code.
    BesideCode,
    /// Every store.
    Always,
}

/// The translation of one page, to be filled in.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Any linear address in the page.
    pub linear: LinearAddress,
    /// Host address of the page's first byte.
    pub host_page: u64,
    /// The stores that may use the entry.
    pub stores: Stores,
    /// Whether the page is global, so that the entry survives an address-space switch.
    pub global: bool,
}

/// The pages that were filled since they were last cleared as a whole, each listed once. Some
/// listed pages may no longer have an entry.
struct Log {
    pages: Vec<u32>,
    listed: Box<[u64]>,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            pages: Vec::new(),
            listed: vec![0; PAGES / 64].into_boxed_slice(),
        }
    }
}

impl Log {
    fn note(&mut self, page: usize) {
        let bit = 1 << (page % 64);
        if self.listed[page / 64] & bit == 0 {
            self.listed[page / 64] |= bit;
            self.pages.push(page as u32);
        }
    }

    fn lists(&self, page: usize) -> bool {
        self.listed[page / 64] >> (page % 64) & 1 != 0
    }

    fn take(&mut self) -> Vec<u32> {
        for &page in &self.pages {
            self.listed[page as usize / 64] = 0;
        }
        std::mem::take(&mut self.pages)
    }
}

/// The logs of one view.
#[derive(Default)]
struct Logs {
    local: Log,
    global: Log,
}

/// The flat software TLB of one vCPU.
pub struct SoftwareTlb {
    tables: Reservation,
    logs: [Logs; 2],
    fills: u64,
}

impl SoftwareTlb {
    /// Reserves the tables (96 MiB of address space, hardly any memory), followed by the 4 GiB for
    /// [`limit_check_offset`]. At first, direct accesses find nothing.
    ///
    /// # Errors
    /// The host has no address space left.
    pub fn new() -> io::Result<Self> {
        let tables = Reservation::inaccessible(TABLES + LIMIT_BYTES + BEYOND_LIMIT)?;
        tables.open(0, TABLES)?;
        tables.open_for_loads(TABLES, LIMIT_BYTES)?;
        let mut tlb = Self {
            tables,
            logs: Default::default(),
            fills: 0,
        };
        for view in View::ALL {
            tlb.point_direct(view, ShadowWindows::slide_to_nothing(0));
        }
        Ok(tlb)
    }

    /// Host address of a view's read table. The write table lies [`WRITE_TABLE_OFFSET`] bytes
    /// above.
    pub fn table(&self, view: View) -> u64 {
        self.tables.base() as u64 + (view as usize * VIEW_SLOTS * 8) as u64
    }

    /// Whether generated code loads from a host address only for an operand beyond the limit of a
    /// segment of 64 KiB.
    pub fn is_beyond_limit(&self, host: u64) -> bool {
        let first = self.tables.base() as u64 + (TABLES + LIMIT_BYTES) as u64;
        host >= first && self.tables.contains(host)
    }

    fn direct_word(&self, view: View) -> *mut u64 {
        let index = view as usize * VIEW_SLOTS + NARROW_DELTA_OFFSET as usize / 8;
        // SAFETY: the index is below the size of the reservation.
        unsafe { self.tables.base().cast::<u64>().add(index) }
    }

    /// Host minus linear address for direct accesses of a view.
    pub fn direct_delta(&self, view: View) -> u64 {
        // SAFETY: an aligned address inside the reservation.
        unsafe { self.direct_word(view).read() }
    }

    /// Sets host minus linear address for direct accesses of a view.
    pub fn point_direct(&mut self, view: View, delta: u64) {
        // SAFETY: an aligned address inside the reservation, which only this structure and
        // generated code on the same thread access.
        unsafe { self.direct_word(view).write(delta) }
    }

    /// The pages that loads and stores of a view find and that are not global, in order.
    pub fn known_pages(&self, view: View) -> Vec<KnownPage> {
        let logs = &self.logs[view as usize];
        let is_local = |page: &&u32| !logs.global.lists(**page as usize);
        let mut pages: Vec<u32> = logs.local.pages.iter().filter(is_local).copied().collect();
        pages.sort_unstable();
        let known = pages.into_iter().filter_map(|page| {
            let delta = self.get(view, Table::Read, page as usize * 2);
            let writable = self.get(view, Table::Write, page as usize * 2) != 0;
            let page = u64::from(page);
            (delta != 0).then(|| KnownPage {
                page,
                host: delta.wrapping_add(page << 12),
                writable,
            })
        });
        known.collect()
    }

    /// How many entries were filled since the start.
    pub fn fills(&self) -> u64 {
        self.fills
    }

    fn slot(&self, view: View, table: Table, slot: usize) -> *mut u64 {
        let table = match table {
            Table::Read => 0,
            Table::Write => 1,
            Table::CodeWrite => 2,
        };
        let index = view as usize * VIEW_SLOTS + table * SLOTS + slot % SLOTS;
        // SAFETY: the index is below the size of the reservation.
        unsafe { self.tables.base().cast::<u64>().add(index) }
    }

    fn get(&self, view: View, table: Table, slot: usize) -> u64 {
        // SAFETY: `slot` yields an aligned address inside the reservation.
        unsafe { self.slot(view, table, slot).read() }
    }

    fn set(&mut self, view: View, table: Table, slot: usize, value: u64) {
        // SAFETY: `slot` yields an aligned address inside the reservation, which
        // only this structure and generated code on the same thread access.
        unsafe { self.slot(view, table, slot).write(value) }
    }

    /// Fills the entry of a page in one view.
    pub fn fill(&mut self, view: View, entry: Entry) {
        let page = entry.linear.page() as usize % PAGES;
        let delta = entry.host_page.wrapping_sub((page as u64) << 12);
        let logs = &mut self.logs[view as usize];
        if entry.global {
            logs.global.note(page);
        } else {
            logs.local.note(page);
        }
        self.fills += 1;
        self.set_page(view, Table::Read, page, delta);
        match entry.stores {
            Stores::Never => {}
            Stores::BesideCode => self.set_page(view, Table::CodeWrite, page, delta),
            Stores::Always => self.set_page(view, Table::Write, page, delta),
        }
    }

    /// Sets the slot of a page. Also sets the straddling slots on both sides if the neighbouring
    /// page is known and adjacent in host memory.
    fn set_page(&mut self, view: View, table: Table, page: usize, delta: u64) {
        let side_by_side = |neighbour: u64| if neighbour == delta { delta } else { 0 };
        self.set(view, table, page * 2, delta);
        if page > 0 {
            let below = self.get(view, table, page * 2 - 2);
            self.set(view, table, page * 2 - 1, side_by_side(below));
        }
        if page + 1 < PAGES {
            let above = self.get(view, table, page * 2 + 2);
            self.set(view, table, page * 2 + 1, side_by_side(above));
        }
    }

    fn clear_slots(&mut self, view: View, table: Table, page: usize) {
        self.set(view, table, page * 2, 0);
        self.set(view, table, page * 2 + 1, 0);
        if page > 0 {
            self.set(view, table, page * 2 - 1, 0);
        }
    }

    fn clear_entry(&mut self, view: View, page: usize) {
        for table in Table::ALL {
            self.clear_slots(view, table, page);
        }
    }

    fn clear_filled_entry(&mut self, view: View, page: usize) {
        let is_filled = |&table: &Table| self.get(view, table, page * 2) != 0;
        if Table::ALL.iter().any(is_filled) {
            self.clear_entry(view, page);
        }
    }

    /// If this linear page leads to this host page, makes its entries allow only stores next to
    /// code, because code was translated from the page. Returns whether they allowed other stores
    /// before.
    pub fn protect(&mut self, linear_page: u64, host_page: u64) -> bool {
        let page = linear_page as usize % PAGES;
        let mut allowed = false;
        for view in View::ALL {
            let delta = self.get(view, Table::Write, page * 2);
            if delta != 0 && delta.wrapping_add((page as u64) << 12) == host_page {
                self.clear_slots(view, Table::Write, page);
                self.set_page(view, Table::CodeWrite, page, delta);
                allowed = true;
            }
        }
        allowed
    }
}

impl Slots for SoftwareTlb {
    #[inline]
    fn entry(&self, view: View, table: Table, first: LinearAddress, last: LinearAddress) -> u64 {
        let slot = (first.page() + last.page()) as usize;
        if slot < SLOTS {
            self.get(view, table, slot)
        } else {
            0
        }
    }
}

impl Derived for SoftwareTlb {
    fn drop_local(&mut self) {
        for view in View::ALL {
            for page in self.logs[view as usize].local.take() {
                self.clear_entry(view, page as usize);
            }
        }
    }

    fn drop_pages(&mut self, pages: PageRange) {
        // Linear addresses have 32 bits here, so pages above 4 GiB have no entries.
        let last = pages.last.min(PAGES as u64 - 1);
        for view in View::ALL {
            for page in pages.first..last + 1 {
                self.clear_filled_entry(view, page as usize);
            }
        }
    }

    fn drop_everything(&mut self) {
        self.drop_local();
        for view in View::ALL {
            for page in self.logs[view as usize].global.take() {
                self.clear_entry(view, page as usize);
            }
        }
    }

    fn show(&self, check: &mut dyn FnMut(Held)) {
        for view in View::ALL {
            let logs = &self.logs[view as usize];
            for &page in logs.local.pages.iter().chain(&logs.global.pages) {
                let get = |table, straddles| {
                    let slot = page as usize * 2 + usize::from(straddles);
                    self.get(view, table, slot)
                };
                let page = u64::from(page);
                show_page(view, None, [page, page + 1], get, check);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(linear: u64, host_page: u64, global: bool) -> Entry {
        Entry {
            linear: LinearAddress(linear),
            host_page,
            stores: Stores::Always,
            global,
        }
    }

    #[test]
    fn what_is_loaded_for_a_limit_lies_behind_the_tables() {
        let tlb = SoftwareTlb::new().unwrap();
        for view in View::ALL {
            let first = tlb.table(view) + limit_check_offset(view) as u64;
            let last = first + 0xffff;
            // SAFETY: 64 KiB that are mapped for loads for as long as `tlb` lives.
            let found = unsafe { [*(first as *const u8), *(last as *const u8)] };
            assert_eq!(found, [0, 0]);
            let furthest = first + u64::from(u32::MAX) + 255;
            let beyond = [first, last, last + 1, furthest].map(|it| tlb.is_beyond_limit(it));
            assert_eq!(beyond, [false, false, true, true]);
        }
    }

    #[test]
    fn a_filled_page_is_found_in_its_own_view_only() {
        let mut tlb = SoftwareTlb::new().unwrap();
        tlb.fill(View::User, entry(0x5000, 0x7000_0000_0000, false));
        assert_eq!(
            tlb.look_up(View::User, true, LinearAddress(0x5123)),
            Some(0x7000_0000_0123)
        );
        assert_eq!(
            tlb.look_up(View::Supervisor, false, LinearAddress(0x5123)),
            None
        );
    }

    #[test]
    fn straddling_is_allowed_only_between_neighbours_in_host_memory() {
        let mut tlb = SoftwareTlb::new().unwrap();
        tlb.fill(View::User, entry(0x5000, 0x7000_0000_0000, false));
        tlb.fill(View::User, entry(0x6000, 0x7000_0000_1000, false));
        tlb.fill(View::User, entry(0x7000, 0x7000_0009_0000, false));
        assert_ne!(tlb.get(View::User, Table::Read, 11), 0);
        assert_eq!(tlb.get(View::User, Table::Read, 13), 0);
        tlb.drop_pages(PageRange::of(LinearAddress(0x6000)));
        assert_eq!(tlb.get(View::User, Table::Read, 11), 0);
    }

    #[test]
    fn global_entries_survive_an_address_space_switch() {
        let mut tlb = SoftwareTlb::new().unwrap();
        tlb.fill(View::Supervisor, entry(0xc000_0000, 0x7000_0000_0000, true));
        tlb.fill(View::Supervisor, entry(0x1000, 0x7000_0000_1000, false));
        tlb.drop_local();
        assert!(
            tlb.look_up(View::Supervisor, false, LinearAddress(0xc000_0000))
                .is_some()
        );
        assert!(
            tlb.look_up(View::Supervisor, false, LinearAddress(0x1000))
                .is_none()
        );
        tlb.drop_everything();
        assert!(
            tlb.look_up(View::Supervisor, false, LinearAddress(0xc000_0000))
                .is_none()
        );
    }

    #[test]
    fn a_range_of_pages_is_dropped_in_both_views_and_no_page_beside_it() {
        let mut tlb = SoftwareTlb::new().unwrap();
        for page in 0x400..0x404u64 {
            let host = 0x7000_0000_0000 + page * 0x1000;
            tlb.fill(View::Supervisor, entry(page << 12, host, true));
            tlb.fill(View::User, entry(page << 12, host, false));
        }
        let (first, last) = (0x401, 0x402);
        tlb.drop_pages(PageRange { first, last });
        for view in View::ALL {
            let found = |page: u64| {
                tlb.look_up(view, false, LinearAddress(page << 12))
                    .is_some()
            };
            let left = [0x400, 0x401, 0x402, 0x403].map(found);
            assert_eq!(left, [true, false, false, true]);
        }
    }

    #[test]
    fn pages_beyond_4_gib_are_none_of_this_table() {
        let mut tlb = SoftwareTlb::new().unwrap();
        tlb.fill(View::User, entry(0x5000, 0x7000_0000_0000, true));
        let page = 0x10_0005;
        tlb.drop_pages(PageRange {
            first: page,
            last: u64::MAX >> 12,
        });
        assert!(
            tlb.look_up(View::User, false, LinearAddress(0x5000))
                .is_some()
        );
    }

    #[test]
    fn a_page_that_turns_local_is_cleared_by_a_switch() {
        let mut tlb = SoftwareTlb::new().unwrap();
        tlb.fill(View::User, entry(0x5000, 0x7000_0000_0000, true));
        tlb.drop_pages(PageRange::of(LinearAddress(0x5000)));
        tlb.fill(View::User, entry(0x5000, 0x7000_0000_3000, false));
        tlb.drop_local();
        assert!(
            tlb.look_up(View::User, false, LinearAddress(0x5000))
                .is_none()
        );
        tlb.fill(View::User, entry(0x5000, 0x7000_0000_3000, false));
        assert!(
            tlb.look_up(View::User, false, LinearAddress(0x5000))
                .is_some()
        );
    }

    #[test]
    fn a_page_that_moves_leaves_no_straddling_entry_behind() {
        let mut tlb = SoftwareTlb::new().unwrap();
        tlb.fill(View::User, entry(0x5000, 0x7000_0000_0000, false));
        tlb.fill(View::User, entry(0x6000, 0x7000_0000_1000, false));
        tlb.fill(View::User, entry(0x6000, 0x7000_0009_0000, false));
        assert_eq!(tlb.get(View::User, Table::Write, 11), 0);
    }

    #[test]
    fn protecting_a_page_reaches_both_views() {
        let mut tlb = SoftwareTlb::new().unwrap();
        tlb.fill(View::Supervisor, entry(0x1000, 0x7000_0000_0000, false));
        tlb.fill(View::User, entry(0x9000, 0x7000_0000_0000, true));
        for page in [1, 9] {
            tlb.protect(page, 0x7000_0000_0000);
        }
        assert!(
            tlb.look_up(View::Supervisor, true, LinearAddress(0x1000))
                .is_none()
        );
        assert!(
            tlb.look_up(View::User, true, LinearAddress(0x9000))
                .is_none()
        );
        assert!(
            tlb.look_up(View::User, false, LinearAddress(0x9000))
                .is_some()
        );
    }
    #[test]
    fn a_protected_page_takes_stores_beside_code_until_it_is_forgotten() {
        let mut tlb = SoftwareTlb::new().unwrap();
        tlb.fill(View::User, entry(0x9000, 0x7000_0000_0000, true));
        tlb.protect(9, 0x7000_0000_0000);
        let delta = 0x7000_0000_0000 - 0x9000;
        assert_eq!(tlb.get(View::User, Table::CodeWrite, 18), delta);
        tlb.drop_pages(PageRange::of(LinearAddress(0x9000)));
        assert_eq!(tlb.get(View::User, Table::CodeWrite, 18), 0);
    }
}
