//! Instruction fetch: from CS:EIP to the physical place of the bytes.

use crate::guest_view::{GuestView, code_address};
use tollgate_engine::blocks::links::Dependence;
use tollgate_engine::engine::Place;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{CpuState, Exception, LinearAddress};

const ENTRIES: usize = 1024;
/// 4 MiB regions that are told apart: all below 4 GiB.
const REGIONS: usize = 1024;
/// Pages of this size and larger span regions.
const HUGE_PAGE: u64 = 1 << 30;

#[derive(Clone, Copy)]
struct Cached {
    /// Linear page and privilege; `u64::MAX`: empty.
    tag: u64,
    physical_page: u64,
    global: bool,
    page_size: u64,
    /// The address space in which the entry was made; global ones hold in all.
    space: u32,
}

const EMPTY: Cached = Cached {
    tag: u64::MAX,
    physical_page: 0,
    global: false,
    page_size: PAGE_SIZE,
    space: 0,
};

/// The first address of the page behind page number `page`, where code goes on.
fn page_behind(page: u64, wide: bool) -> LinearAddress {
    let next = page.wrapping_add(1).wrapping_mul(PAGE_SIZE);
    LinearAddress(if wide { next } else { next & 0xffff_ffff })
}

/// Where pages of code lie: a small direct-mapped cache of fetch translations, with
/// the lifetime of TLB entries.
pub struct FetchCache {
    entries: Box<[Cached; ENTRIES]>,
    space: u32,
    /// 4 MiB regions with entries derived from large pages, one bit each.
    large_regions: [u64; REGIONS / 64],
    /// There are entries derived from 1 GiB pages.
    has_huge: bool,
}

impl Default for FetchCache {
    fn default() -> Self {
        Self {
            entries: Box::new([EMPTY; ENTRIES]),
            space: 0,
            large_regions: [0; REGIONS / 64],
            has_huge: false,
        }
    }
}

impl FetchCache {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.entries.fill(EMPTY);
        self.space = 0;
    }

    /// Forgets all but global pages.
    pub fn clear_local(&mut self) {
        match self.space.checked_add(1) {
            Some(space) => self.space = space,
            None => self.clear(),
        }
    }

    /// Forgets one page and whatever came from the same large page.
    pub fn clear_page(&mut self, page: u64) {
        for tag in [page << 1, page << 1 | 1] {
            let entry = &mut self.entries[tag as usize % ENTRIES];
            if entry.tag == tag {
                *entry = EMPTY;
            }
        }
        if self.has_huge {
            for entry in self.entries.iter_mut() {
                if entry.page_size >= HUGE_PAGE && entry.tag >> 19 == page >> 18 {
                    *entry = EMPTY;
                }
            }
        }
        let region = (page >> 10) as usize % REGIONS;
        if self.large_regions[region / 64] & 1 << (region % 64) == 0 {
            return;
        }
        self.large_regions[region / 64] &= !(1 << (region % 64));
        for entry in self.entries.iter_mut() {
            if entry.page_size > PAGE_SIZE && (entry.tag >> 11) as usize % REGIONS == region {
                *entry = EMPTY;
            }
        }
    }

    fn page(
        &mut self,
        view: &mut GuestView,
        state: &CpuState,
        linear: LinearAddress,
        privilege: Privilege,
    ) -> Result<Cached, Exception> {
        let page = linear.page();
        let tag = page << 1 | u64::from(privilege == Privilege::User);
        let slot = &mut self.entries[tag as usize % ENTRIES];
        if slot.tag == tag && (slot.global || slot.space == self.space) {
            return Ok(*slot);
        }
        let found = view.walk(state, linear, AccessKind::Fetch, privilege)?;
        self.has_huge |= found.page_size >= HUGE_PAGE;
        if found.page_size > PAGE_SIZE {
            let region = (page >> 10) as usize % REGIONS;
            self.large_regions[region / 64] |= 1 << (region % 64);
        }
        *slot = Cached {
            tag,
            physical_page: found.physical.page(),
            global: found.global,
            page_size: found.page_size,
            space: self.space,
        };
        Ok(*slot)
    }

    /// The place of the instruction at CS:`rip`. With `with_next` the following page is
    /// looked up too.
    ///
    /// # Errors
    /// #GP(0) beyond the limit or at an address that is not canonical, or the page fault.
    pub fn place(
        &mut self,
        view: &mut GuestView,
        state: &CpuState,
        rip: u64,
        with_next: bool,
    ) -> Result<Place, Exception> {
        let cs = state.cs();
        let wide = state.is_64_bit();
        let reachable = if wide {
            is_canonical(rip)
        } else {
            rip <= u64::from(cs.limit)
        };
        if !reachable {
            return Err(Exception::general_protection(0));
        }
        let linear = code_address(state);
        let privilege = Privilege::of_cpl(state.cpl());
        let address = LinearAddress(linear);
        let page = self.page(view, state, address, privilege)?;
        let next_page = if with_next {
            // An instruction that crosses the limit faults before its second page does.
            let first_of_next = rip.wrapping_add(PAGE_SIZE - address.page_offset());
            let reachable = if wide {
                is_canonical(first_of_next)
            } else {
                first_of_next <= u64::from(cs.limit) || cs.limit == u32::MAX
            };
            if !reachable {
                return Err(Exception::general_protection(0));
            }
            let next = page_behind(address.page(), wide);
            Some(self.page(view, state, next, privilege)?.physical_page)
        } else {
            None
        };
        Ok(Place {
            physical: page.physical_page << 12 | address.page_offset(),
            next_page,
            rip,
            linear,
        })
    }

    /// What links to code at `linear` depend on; the pages must have been looked up.
    pub fn dependence(
        &mut self,
        view: &mut GuestView,
        state: &CpuState,
        linear: u64,
        straddles: bool,
    ) -> Option<Dependence> {
        let privilege = Privilege::of_cpl(state.cpl());
        let first = self
            .page(view, state, LinearAddress(linear), privilege)
            .ok()?;
        let page = linear >> 12;
        let mut dependence = Dependence {
            page,
            last_page: page,
            global: first.global,
            page_size: first.page_size,
        };
        if straddles {
            let next = page_behind(page, state.is_64_bit());
            let second = self.page(view, state, next, privilege).ok()?;
            dependence.last_page = next.page();
            dependence.global &= second.global;
            dependence.page_size = dependence.page_size.max(second.page_size);
        }
        Some(dependence)
    }
}
