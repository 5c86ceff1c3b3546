//! Instruction fetch: from CS:EIP to the physical place of the bytes.

use crate::guest_view::{GuestView, code_address};
use tollgate_engine::blocks::links::Dependence;
use tollgate_engine::engine::CodeAddress;
use tollgate_tlb::{Derived, PageRange};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{CpuState, Exception, LinearAddress};

const ENTRIES: usize = 1024;
/// Pages that are dropped one by one; for more, all entries are looked at.
const MOST_PAGES_BY_NUMBER: u64 = 256;

/// Where code of a linear page is fetched from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// Number of the physical page.
    pub physical_page: u64,
    /// Survives an address-space switch.
    pub global: bool,
}

#[derive(Clone, Copy)]
struct Cached {
    /// Linear page and privilege; `u64::MAX`: empty.
    tag: u64,
    fetch: Fetch,
    /// Counts address-space switches: in which one the entry was made. Global ones hold in
    /// all.
    space: u32,
}

const EMPTY: Cached = Cached {
    tag: u64::MAX,
    fetch: Fetch {
        physical_page: 0,
        global: false,
    },
    space: 0,
};

fn tag_of(page: u64, privilege: Privilege) -> u64 {
    page << 1 | u64::from(privilege == Privilege::User)
}

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
}

impl Default for FetchCache {
    fn default() -> Self {
        Self {
            entries: Box::new([EMPTY; ENTRIES]),
            space: 0,
        }
    }
}

impl FetchCache {
    /// Where code of a linear page is fetched from, if it is known.
    #[inline]
    pub fn look_up(&self, page: u64, privilege: Privilege) -> Option<Fetch> {
        let tag = tag_of(page, privilege);
        let entry = &self.entries[tag as usize % ENTRIES];
        let holds = entry.tag == tag && (entry.fetch.global || entry.space == self.space);
        holds.then_some(entry.fetch)
    }

    /// Notes where code of a linear page is fetched from.
    pub fn fill(&mut self, page: u64, privilege: Privilege, fetch: Fetch) {
        let tag = tag_of(page, privilege);
        self.entries[tag as usize % ENTRIES] = Cached {
            tag,
            fetch,
            space: self.space,
        };
    }
}

impl Derived for FetchCache {
    fn drop_local(&mut self) {
        match self.space.checked_add(1) {
            Some(space) => self.space = space,
            None => self.drop_everything(),
        }
    }

    fn drop_pages(&mut self, pages: PageRange) {
        if pages.count() > MOST_PAGES_BY_NUMBER {
            for entry in self.entries.iter_mut() {
                if entry.tag != EMPTY.tag && pages.contains(entry.tag >> 1) {
                    *entry = EMPTY;
                }
            }
            return;
        }
        for page in pages.pages() {
            for privilege in [Privilege::Supervisor, Privilege::User] {
                let tag = tag_of(page, privilege);
                let entry = &mut self.entries[tag as usize % ENTRIES];
                if entry.tag == tag {
                    *entry = EMPTY;
                }
            }
        }
    }

    fn drop_everything(&mut self) {
        self.entries.fill(EMPTY);
        self.space = 0;
    }
}

impl GuestView {
    fn fetch_page(
        &mut self,
        state: &CpuState,
        linear: LinearAddress,
        privilege: Privilege,
    ) -> Result<Fetch, Exception> {
        if let Some(fetch) = self.translations.fetch(linear, privilege) {
            return Ok(fetch);
        }
        let found = self.walk(state, linear, AccessKind::Fetch, privilege)?;
        Ok(self.translations.fill_fetch(linear, privilege, &found))
    }

    /// The place of the instruction at CS:`rip`. With `with_next` the following page is
    /// looked up too.
    ///
    /// # Errors
    /// #GP(0) beyond the limit or at an address that is not canonical, or the page fault.
    pub fn place(
        &mut self,
        state: &CpuState,
        rip: u64,
        with_next: bool,
    ) -> Result<CodeAddress, Exception> {
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
        let page = self.fetch_page(state, address, privilege)?;
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
            Some(self.fetch_page(state, next, privilege)?.physical_page)
        } else {
            None
        };
        Ok(CodeAddress {
            physical: page.physical_page << 12 | address.page_offset(),
            next_page,
            rip,
            linear,
            global: page.global,
            home: None,
        })
    }

    /// What links depend on that depend on the page behind `dependence` too.
    pub fn with_next_page(
        &mut self,
        state: &CpuState,
        dependence: Dependence,
    ) -> Option<Dependence> {
        let privilege = Privilege::of_cpl(state.cpl());
        let next = page_behind(dependence.page, state.is_64_bit());
        let second = self.fetch_page(state, next, privilege).ok()?;
        Some(Dependence {
            last_page: next.page(),
            global: dependence.global && second.global,
            ..dependence
        })
    }
}
