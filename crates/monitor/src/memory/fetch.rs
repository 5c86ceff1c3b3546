//! Instruction fetch: finds the physical address of the bytes at CS:EIP.

use crate::memory::addresses::code_address;
use crate::memory::guest_view::GuestView;
use crate::memory::unchanged_tables::Unchanged;
use tollgate_engine::blocks::links::Dependence;
use tollgate_engine::engine::CodeAddress;
use tollgate_tlb::{Allows, Derived, Held, LeadsTo, PageRange, SPACES, SpaceNumber, View};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::paging::{AccessKind, PagingRegisters, Privilege};
use tollgate_x86::{CpuState, Exception, LinearAddress};

const ENTRIES: usize = 1024;
/// The most pages that are dropped one by one. For a larger range all entries are examined.
const MOST_PAGES_BY_NUMBER: u64 = 256;

/// The physical page from which code of a linear page is fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// Number of the physical page.
    pub physical_page: u64,
    /// Whether the page is global, so that the entry survives an address-space switch.
    pub global: bool,
}

#[derive(Clone, Copy)]
struct Cached {
    /// Linear page and privilege. `u64::MAX` means that the entry is empty.
    tag: u64,
    fetch: Fetch,
    /// The stamp of the space that the entry was made in. Entries of global pages are valid in all
    /// spaces.
    stamp: u32,
}

const EMPTY: Cached = Cached {
    tag: u64::MAX,
    fetch: Fetch {
        physical_page: 0,
        global: false,
    },
    stamp: 0,
};

fn tag_of(page: u64, privilege: Privilege) -> u64 {
    page << 1 | u64::from(privilege == Privilege::User)
}

/// The first address of the page that follows page number `page`, where code continues.
fn page_behind(page: u64, wide: bool) -> LinearAddress {
    let next = page.wrapping_add(1).wrapping_mul(PAGE_SIZE);
    LinearAddress(if wide { next } else { next & 0xffff_ffff })
}

/// A small direct-mapped cache of fetch translations. Its entries live as long as TLB entries.
pub struct FetchCache {
    entries: Box<[Cached; ENTRIES]>,
    loaded: SpaceNumber,
    /// The stamp of each space, which its entries carry. A space gets a new stamp when its entries
    /// are forgotten.
    stamps: [u32; SPACES],
    /// The last stamp that was given to a space.
    last_stamp: u32,
    /// Whether there may be entries of global pages that user code was fetched from.
    has_global_user_pages: bool,
}

impl Default for FetchCache {
    fn default() -> Self {
        Self {
            entries: Box::new([EMPTY; ENTRIES]),
            loaded: SpaceNumber::default(),
            stamps: std::array::from_fn(|number| number as u32),
            last_stamp: SPACES as u32,
            has_global_user_pages: false,
        }
    }
}

impl FetchCache {
    /// Index of the entry for a tag. Programs that run alternately are often copies of one program
    /// with the same linear pages, so each space has its user pages at a different place in the
    /// table.
    #[inline]
    fn index(&self, tag: u64) -> usize {
        const USER: u64 = 1;
        let number = self.loaded.index() as u64;
        // The first four spaces are farthest apart.
        let apart = number % 4 * (ENTRIES / 4) as u64 + number / 4 * (ENTRIES / SPACES) as u64;
        (tag ^ ((tag & USER) * apart)) as usize % ENTRIES
    }

    /// The physical page that code of a linear page is fetched from, if the cache has it.
    #[inline]
    pub fn look_up(&self, page: u64, privilege: Privilege) -> Option<Fetch> {
        let tag = tag_of(page, privilege);
        let entry = &self.entries[self.index(tag)];
        let stamp = self.stamps[self.loaded.index()];
        let holds = entry.tag == tag && (entry.fetch.global || entry.stamp == stamp);
        holds.then_some(entry.fetch)
    }

    /// The pages that programs of the loaded space were fetched from, in ascending order.
    pub fn user_pages(&self) -> Vec<u64> {
        const USER: u64 = 1;
        let stamp = self.stamps[self.loaded.index()];
        let is_it = |entry: &&Cached| {
            entry.tag & USER != 0 && entry.tag != u64::MAX && entry.stamp == stamp
        };
        let mut pages: Vec<u64> = (self.entries.iter().filter(is_it))
            .map(|entry| entry.tag >> 1)
            .collect();
        pages.sort_unstable();
        pages
    }

    /// Notes the physical page that code of a linear page is fetched from.
    pub fn fill(&mut self, page: u64, privilege: Privilege, fetch: Fetch) {
        let tag = tag_of(page, privilege);
        self.has_global_user_pages |= fetch.global && privilege == Privilege::User;
        self.entries[self.index(tag)] = Cached {
            tag,
            fetch,
            stamp: self.stamps[self.loaded.index()],
        };
    }
}

impl Derived for FetchCache {
    fn drop_local(&mut self) {
        match self.last_stamp.checked_add(1) {
            Some(stamp) => {
                self.last_stamp = stamp;
                self.stamps[self.loaded.index()] = stamp;
            }
            None => {
                let loaded = self.loaded;
                *self = Self::default();
                self.loaded = loaded;
            }
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
                let entry = &mut self.entries[self.index(tag)];
                if entry.tag == tag {
                    *entry = EMPTY;
                }
            }
        }
    }

    fn drop_everything(&mut self) {
        self.entries.fill(EMPTY);
        self.has_global_user_pages = false;
    }

    fn load(&mut self, to: SpaceNumber, keeps: bool) {
        if self.has_global_user_pages {
            // An invalidation in one space does not search for the global user pages of other
            // spaces.
            self.drop_everything();
        }
        self.loaded = to;
        if !keeps {
            self.drop_local();
        }
    }

    fn purge(&mut self, number: SpaceNumber) {
        if number != self.loaded {
            for entry in self.entries.iter_mut() {
                if entry.stamp == self.stamps[number.index()] && !entry.fetch.global {
                    *entry = EMPTY;
                }
            }
        }
    }

    fn show(&self, check: &mut dyn FnMut(Held)) {
        for entry in self.entries.iter().filter(|it| it.tag != EMPTY.tag) {
            let space = self.stamps.iter().position(|&it| it == entry.stamp);
            let kept_for = match space {
                _ if entry.fetch.global => None,
                Some(number) if number == self.loaded.index() => None,
                Some(number) => Some(SpaceNumber::new(number)),
                None => continue,
            };
            check(Held {
                linear_page: entry.tag >> 1,
                leads_to: LeadsTo::PhysicalPage(entry.fetch.physical_page),
                allows: Allows::Fetches,
                view: Some(match entry.tag & 1 {
                    0 => View::Supervisor,
                    _ => View::User,
                }),
                kept_for,
            });
        }
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
        let fetch = self.translations.fill_fetch(linear, privilege, &found);
        self.confirm(state);
        Ok(fetch)
    }

    /// Whether code of the page of `linear` would be fetched from this physical page, with a page
    /// that is not global and without a change to the page tables. If so, the cache notes the
    /// translation.
    pub fn foresee_fetch(
        &mut self,
        state: &CpuState,
        linear: LinearAddress,
        privilege: Privilege,
        physical_page: u64,
    ) -> bool {
        let expected = Fetch {
            physical_page,
            global: false,
        };
        if let Some(fetch) = self.translations.fetch(linear, privilege) {
            return fetch == expected;
        }
        let mut tables = Unchanged::new(&mut self.memory);
        let found =
            PagingRegisters::of(state).walk(&mut tables, linear, AccessKind::Fetch, privilege);
        let lacks_bits = tables.lacks_bits();
        let Ok(found) = found else {
            return false;
        };
        if lacks_bits
            || found.global
            || found.physical.page() != physical_page
            || !self.translations.has_room()
        {
            return false;
        }
        self.translations.fill_fetch(linear, privilege, &found);
        self.confirm(state);
        true
    }

    /// The location of the instruction at CS:`rip`. `with_next` also looks up the following page.
    ///
    /// # Errors
    /// #GP(0) if the address is beyond the limit or not canonical, or the page fault.
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
            link_address: None,
        })
    }

    /// Extends `dependence`, on which links depend, by the page that follows.
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
            is_kept: dependence.is_kept && !second.global,
            ..dependence
        })
    }
}
