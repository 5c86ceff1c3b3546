//! The software TLB of guests in IA-32e mode.
//!
//! Linear addresses have 48 bits in this mode, too many for one flat table of all pages. Instead
//! there is a *root* of 512 pointers for each view, one for each 512 GiB. A pointer leads to flat
//! tables of that part, whose entries mean the same as those of the flat software TLB: a slot holds
//! *host address minus linear address*, or zero for "not known". The even slot of a page is for
//! accesses that lie in the page, the odd one for those that continue in the next page.
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
//! A pointer does not point to its table but to the place where the table's entry number zero would
//! be, so that generated code need not subtract. Stores use the entry at
//! [`LONG_WRITE_DISPLACEMENT`] from that of loads, and stores that are tested for code use the
//! entry twice as far away.
//!
//! Parts that the guest has not touched all lead to one region that reads as zero and cannot be
//! written. Generated code does not test whether an address is canonical: for an address that is
//! not, `i` is at most 2^24 away from zero, and that much address space on both sides of each root
//! is reserved and inaccessible. So the load of the pointer faults, and the fault makes the monitor
//! execute the instruction with every check. An access that begins at the last canonical bytes and
//! continues beyond them needs no special care: like every access that continues in another part,
//! it finds the last slot of its part, which is never filled.
//!
//! Each [space](SpaceNumber) has its own tables for the lower half of the addresses. When a space
//! is loaded, the root's few pointers are set to these tables. All spaces share the tables of the
//! upper half; of the pages that are not global, these hold only those of the loaded space.
//!
//! R14 of generated code is not the root but [`LongTlb::table`], whose low six bits are 39, so that
//! `sarx reg, reg, r14` yields `i`; the root is at [`LONG_ROOT_DISPLACEMENT`].

mod direct;

pub use self::direct::GsTarget;

use crate::derived::{Derived, Held, PageRange, SPACES, SpaceNumber};
use crate::parts::{
    HALF, PART_BYTES, PART_SHIFT, Part, Parts, TABLE_BYTES, page_number, part_of, place, signed,
    unsigned,
};
use crate::reservation::Reservation;
use crate::shadow_windows::ShadowWindows;
use crate::slots::{Slots, Table, show_page};
use crate::software_tlb::{Entry, Stores};
use crate::view::View;
use std::io;
use tollgate_x86::LinearAddress;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::canonical::is_canonical;

/// Offset from R14 in generated code to the root's entry number zero.
pub const LONG_ROOT_DISPLACEMENT: i32 = -39;
/// Offset from a slot for loads to the corresponding slot for stores.
pub const LONG_WRITE_DISPLACEMENT: i32 = i32::MIN;
/// Offset from a slot for loads to the corresponding slot for stores to pages that hold code, as
/// one of two equal steps: the whole distance is too far for one displacement.
pub const LONG_CODE_WRITE_STEP: i32 = i32::MIN;

/// The part that a canonical linear address lies in, beginning with -[`PARTS`]/2.
pub const fn part_of_linear(linear: i64) -> i64 {
    linear >> PART_SHIFT
}

/// Size of a part in bytes of linear addresses.
pub const PART_SPAN: u64 = 1 << PART_SHIFT;

/// The number of parts.
pub const PARTS: i64 = 2 * HALF;

/// Offset from R14 in generated code to entry number zero of the table for direct access, which has
/// for each part *host minus linear address* in its [shadow window](crate::shadow_windows).
pub const DIRECT_TABLE_DISPLACEMENT: i32 = LONG_ROOT_DISPLACEMENT + (ROOT_BYTES + GUARD) as i32;

/// Size of the guard on each side of a root, in bytes: more than the distance that a non-canonical
/// address can reach.
const GUARD: usize = 256 << 20;
const ROOT_BYTES: usize = 4096;
const _: () = assert!(GUARD as u64 > (1 << (63 - PART_SHIFT)) * 8 + PAGE_SIZE);

/// Maximum number of groups in use. Each costs up to three pages in tables, and as much in the
/// host's page tables if the guest scatters its accesses, so 200 MiB at the very most.
const MAX_GROUPS: u32 = 8192;
/// Number of groups below which idle spaces keep their tables: 6 MiB in tables and as much in the
/// host's page tables.
const FEW_GROUPS: u32 = 512;
/// A space that was not loaded during this many loads of other spaces gives its tables back if more
/// than [`FEW_GROUPS`] groups are in use. Most groups are held by daemons that have gone to sleep.
const IDLE_LOADS: u64 = 512;
/// Number of loads between two searches for idle spaces.
const LOADS_BETWEEN_LOOKS: u64 = 64;
/// Maximum number of parts in use, in both views together: 960 GiB of address space.
const MAX_PARTS: u32 = 160;
/// The most pages that are cleared one by one. For a larger range, the pages that were filled are
/// searched for it.
const MOST_PAGES_BY_NUMBER: u64 = 1024;
/// Maximum number of fills that are remembered.
const MAX_LOG: usize = 1 << 20;

/// The tables of both views for half of the addresses.
type Views = [Parts; 2];

fn new_views() -> Views {
    [Parts::new(), Parts::new()]
}

/// The software TLB of one vCPU in IA-32e mode.
pub struct LongTlb {
    /// For each view: a guard, the root, a guard, the table for direct access; one more guard at
    /// the end.
    roots: Reservation,
    /// The region to which the pointers of unused parts lead.
    nothing: Reservation,
    /// Tables of the upper half of the addresses.
    upper: Views,
    /// Tables of the lower half, by space.
    lower: [Views; SPACES],
    /// The space to which the root leads.
    loaded: SpaceNumber,
    /// The number of loads of spaces so far, and for each space the number at which it was last
    /// left.
    loads: u64,
    left_at: [u64; SPACES],
    parts_in_use: u32,
    /// Number of parts that may be in use: [`MAX_PARTS`], or as many as the host had addresses for.
    most_parts: u32,
    groups_in_use: u32,
    fills: u64,
    /// The shadow windows to which the tables for direct access lead, if this process has room for
    /// them.
    windows: Option<ShadowWindows>,
    /// The value that GS of the vCPU's thread was last set to.
    anchor: Option<u64>,
    /// What that value leads to.
    gs_target: GsTarget,
}

impl LongTlb {
    /// Reserves the roots with their guards (8 GiB of address space, hardly any memory).
    ///
    /// # Errors
    /// The host has no address space left.
    pub fn new() -> io::Result<Self> {
        let size = View::ALL.len() * 2 * (GUARD + ROOT_BYTES) + GUARD;
        let roots = Reservation::inaccessible(size)?;
        for view in View::ALL {
            roots.open(Self::root_offset(view), ROOT_BYTES)?;
            roots.open(Self::direct_offset(view), ROOT_BYTES)?;
        }
        let mut tlb = Self {
            roots,
            nothing: Reservation::zeroes(PART_BYTES)?,
            upper: new_views(),
            lower: std::array::from_fn(|_| new_views()),
            loaded: SpaceNumber::default(),
            loads: 0,
            left_at: [0; SPACES],
            parts_in_use: 0,
            most_parts: MAX_PARTS,
            groups_in_use: 0,
            fills: 0,
            windows: ShadowWindows::new(),
            anchor: None,
            gs_target: GsTarget::default(),
        };
        for view in View::ALL {
            for part in -HALF..HALF {
                tlb.point_to_nothing(view, part);
                tlb.point_direct(view, part, ShadowWindows::slide_to_nothing(part));
            }
        }
        Ok(tlb)
    }

    fn root_offset(view: View) -> usize {
        GUARD + view as usize * 2 * (ROOT_BYTES + GUARD)
    }

    fn direct_offset(view: View) -> usize {
        Self::root_offset(view) + ROOT_BYTES + GUARD
    }

    /// The tables for a canonical page in the loaded space.
    fn parts(&self, view: View, page: i64) -> &Parts {
        let half = match page < 0 {
            true => &self.upper,
            false => &self.lower[self.loaded.index()],
        };
        &half[view as usize]
    }

    fn parts_mut(&mut self, view: View, page: i64) -> &mut Parts {
        let half = match page < 0 {
            true => &mut self.upper,
            false => &mut self.lower[self.loaded.index()],
        };
        &mut half[view as usize]
    }

    /// All tables to which the root leads.
    fn loaded_parts(&mut self) -> impl Iterator<Item = &mut Parts> {
        let lower = &mut self.lower[self.loaded.index()];
        self.upper.iter_mut().chain(lower)
    }

    /// The value that R14 must have for a view.
    pub fn table(&self, view: View) -> u64 {
        let zero = self.roots.base() as u64 + Self::root_offset(view) as u64 + HALF as u64 * 8;
        zero.wrapping_sub(LONG_ROOT_DISPLACEMENT as i64 as u64)
    }

    /// Whether generated code reads a host address only for a linear address that is not canonical.
    pub fn is_beside_root(&self, host: u64) -> bool {
        self.roots.contains(host)
    }

    /// How many entries were filled since the start.
    pub fn fills(&self) -> u64 {
        self.fills
    }

    /// The address of the root's pointer for a part (-256 to 255), and the pointer's value if it
    /// leads to tables at `tables`.
    fn pointer(&self, view: View, part: i64, tables: u64) -> (*mut u64, u64) {
        let loads = tables + (place(Table::Read) * TABLE_BYTES) as u64;
        let entry_zero = loads.wrapping_sub((part * TABLE_BYTES as i64) as u64);
        let index = (part + HALF) as usize % (2 * HALF as usize);
        // SAFETY: the index is below the root's 512 entries.
        let place = unsafe {
            let root = self.roots.base().add(Self::root_offset(view));
            root.cast::<u64>().add(index)
        };
        (place, entry_zero)
    }

    /// Makes the root's pointer for a part (-256 to 255) lead to tables at `tables`.
    fn point(&mut self, view: View, part: i64, tables: u64) {
        let (place, pointer) = self.pointer(view, part, tables);
        // SAFETY: the root was opened by `new`.
        unsafe { place.write(pointer) };
    }

    fn point_to_nothing(&mut self, view: View, part: i64) {
        self.point(view, part, self.nothing.base() as u64);
    }

    /// Gives back all tables of one half of the addresses, which the loaded space uses.
    fn release_loaded(&mut self, is_upper: bool) {
        for view in View::ALL {
            let half = match is_upper {
                true => &mut self.upper,
                false => &mut self.lower[self.loaded.index()],
            };
            let parts = std::mem::replace(&mut half[view as usize], Parts::new());
            for part in parts.in_use {
                self.point_to_nothing(view, part);
            }
        }
    }

    /// Gives back the tables of all spaces that are not loaded. Returns whether there were any.
    fn release_others(&mut self) -> bool {
        let mut any = false;
        for number in (0..SPACES).filter(|&number| number != self.loaded.index()) {
            any |= self.lower[number].iter().any(|it| !it.in_use.is_empty());
            self.lower[number] = new_views();
        }
        any
    }

    /// Gives back the tables of spaces that have not been loaded for long, if many groups are in
    /// use.
    fn release_idle(&mut self) {
        if self.groups_in_use <= FEW_GROUPS {
            return;
        }
        let mut any = false;
        for number in (0..SPACES).filter(|&number| number != self.loaded.index()) {
            let space = &mut self.lower[number];
            let is_idle = self.loads - self.left_at[number] > IDLE_LOADS;
            if is_idle && space.iter().any(|it| !it.in_use.is_empty()) {
                *space = new_views();
                any = true;
            }
        }
        if any {
            self.count_in_use();
        }
    }

    /// Gives back tables if too many are in use: those of other spaces, or all.
    fn make_room(&mut self) {
        if !self.is_full() {
            return;
        }
        if self.release_others() {
            self.count_in_use();
        }
        if self.is_full() {
            self.release_loaded(true);
            self.release_loaded(false);
            self.count_in_use();
        }
    }

    fn is_full(&self) -> bool {
        self.groups_in_use >= MAX_GROUPS || self.parts_in_use >= self.most_parts
    }

    fn count_in_use(&mut self) {
        let halves = self.lower.iter().chain([&self.upper]);
        let parts = halves.flatten().flat_map(|parts| parts.parts.iter());
        (self.parts_in_use, self.groups_in_use) = (0, 0);
        for part in parts.flatten() {
            self.parts_in_use += 1;
            self.groups_in_use += part.groups.len() as u32;
        }
    }

    /// Fills the entry of a page in one view. Does nothing if the address is not canonical or the
    /// host has no address space left. May forget any other entry.
    pub fn fill(&mut self, view: View, entry: Entry) {
        if !is_canonical(entry.linear.0) {
            return;
        }
        let page = page_number(entry.linear);
        let delta = entry.host_page.wrapping_sub((page as u64) << 12);
        self.make_room();
        let parts = self.parts(view, page);
        if parts.local.pages.len() + parts.global.pages.len() >= MAX_LOG {
            self.drop_everything();
        }
        if self.parts(view, page).part(page).is_none() && self.add_part(view, page).is_err() {
            return;
        }
        self.fills += 1;
        let parts = self.parts_mut(view, page);
        let Some(part) = parts.part_mut(page) else {
            return;
        };
        let is_fresh_group = part.use_group(page);
        // A page that is filled again unchanged is already in a log. If it was local and becomes
        // global, it is forgotten too early. The reverse is rare and is logged again, because
        // another space may not use what the entry allows now.
        let is_as_it_was = part.get(Table::Read, page * 2) == delta;
        part.set_page(Table::Read, page, delta);
        match entry.stores {
            Stores::Never => {}
            Stores::BesideCode => part.set_page(Table::CodeWrite, page, delta),
            Stores::Always => part.set_page(Table::Write, page, delta),
        }
        // A global page of the lower half must not be kept as a local one.
        let may_be_other = match entry.global {
            true => page >= 0,
            false => !parts.global.pages.is_empty(),
        };
        if !is_as_it_was || may_be_other {
            let log = if entry.global {
                &mut parts.global
            } else {
                &mut parts.local
            };
            log.pages.push(page);
        }
        self.groups_in_use += u32::from(is_fresh_group);
    }

    fn add_part(&mut self, view: View, page: i64) -> io::Result<()> {
        let part = Part::new().or_else(|_| {
            // The process may not get more addresses (`ulimit -v`): from now on it must do with the
            // present ones.
            self.most_parts = self.parts_in_use.max(1);
            self.make_room();
            Part::new()
        })?;
        let index = part_of(page);
        self.point(view, index, part.tables.base() as u64);
        let parts = self.parts_mut(view, page);
        parts.parts[Parts::index(index)] = Some(part);
        parts.in_use.push(index);
        self.parts_in_use += 1;
        Ok(())
    }

    /// Makes the entries that lead from this linear page to this host page, in any space, allow
    /// only stores next to code, because code was translated from the page. Returns whether an
    /// entry allowed other stores before.
    pub fn protect(&mut self, linear_page: u64, host_page: u64) -> bool {
        let page = signed(linear_page);
        let mut allowed = false;
        let halves = match page < 0 {
            true => std::slice::from_mut(&mut self.upper),
            false => &mut self.lower[..],
        };
        for parts in halves.iter_mut().flatten() {
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
        if !is_canonical(first.0) {
            return 0;
        }
        let (first, last) = (page_number(first), page_number(last));
        let part = self.parts(view, first).part(first);
        part.map_or(0, |part| part.get(table, first + last))
    }
}

impl Derived for LongTlb {
    fn drop_local(&mut self) {
        self.change_windows(|windows| windows.put_aside(false));
        for parts in self.loaded_parts() {
            parts.clear_local();
        }
    }

    fn drop_pages(&mut self, pages: PageRange) {
        self.drop_window_pages(pages);
        if pages.count() > MOST_PAGES_BY_NUMBER {
            for parts in self.loaded_parts() {
                parts.clear_filled(pages);
            }
            return;
        }
        for page in pages.pages().map(signed) {
            for view in View::ALL {
                self.parts_mut(view, page).clear(page);
            }
        }
    }

    fn drop_everything(&mut self) {
        self.change_windows(|windows| windows.put_aside(true));
        for parts in self.loaded_parts() {
            parts.clear_local();
            parts.clear_global();
        }
    }

    fn load(&mut self, to: SpaceNumber, keeps: bool) {
        for view in View::ALL {
            // Pages that are not global are dropped from the upper half, global ones from the lower
            // half.
            self.upper[view as usize].clear_local();
            let left = &mut self.lower[self.loaded.index()][view as usize];
            left.clear_global();
            for index in 0..left.in_use.len() {
                let part = self.lower[self.loaded.index()][view as usize].in_use[index];
                self.point_to_nothing(view, part);
            }
            let next = &mut self.lower[to.index()][view as usize];
            if !keeps {
                next.clear_local();
            }
            for index in 0..next.in_use.len() {
                let next = &self.lower[to.index()][view as usize];
                let number = next.in_use[index];
                if let Some(part) = &next.parts[Parts::index(number)] {
                    let tables = part.tables.base() as u64;
                    self.point(view, number, tables);
                }
            }
        }
        self.loads += 1;
        self.left_at[self.loaded.index()] = self.loads;
        self.loaded = to;
        if self.loads.is_multiple_of(LOADS_BETWEEN_LOOKS) {
            self.release_idle();
        }
        self.load_windows(to, keeps);
    }

    fn purge(&mut self, number: SpaceNumber) {
        if number == self.loaded {
            return;
        }
        for parts in &mut self.lower[number.index()] {
            parts.empty();
        }
        self.count_in_use();
        self.change_windows(|windows| windows.purge(number));
    }

    fn show(&self, check: &mut dyn FnMut(Held)) {
        let lower = self.lower.iter().enumerate().map(|(number, views)| {
            let is_kept = number != self.loaded.index();
            (views, is_kept.then(|| SpaceNumber::new(number)))
        });
        for (views, kept_for) in lower.chain([(&self.upper, None)]) {
            for view in View::ALL {
                let parts = &views[view as usize];
                for &page in parts.local.pages.iter().chain(&parts.global.pages) {
                    let Some(part) = parts.part(page) else {
                        continue;
                    };
                    let get = |table, straddles| part.get(table, page * 2 + i64::from(straddles));
                    let pages = [unsigned(page), unsigned(page + 1)];
                    show_page(view, kept_for, pages, get, check);
                }
            }
        }
    }

    /// Reports a pointer of a root that leads to other tables than those of the loaded space.
    fn contradiction(&self) -> Option<String> {
        for view in View::ALL {
            for part in -HALF..HALF {
                let parts = self.parts(view, part << (PART_SHIFT - 12));
                let tables = match &parts.parts[Parts::index(part)] {
                    Some(part) => part.tables.base() as u64,
                    None => self.nothing.base() as u64,
                };
                let (place, pointer) = self.pointer(view, part, tables);
                // SAFETY: the root was opened by `new`, and the place is inside.
                let found = unsafe { place.read() };
                if found != pointer {
                    let what = "the root of the software TLB does not lead to the loaded space";
                    return Some(format!("{what}: {view:?} part {part}"));
                }
            }
        }
        None
    }
}

#[cfg(test)]
#[path = "long_tlb_tests.rs"]
mod tests;
