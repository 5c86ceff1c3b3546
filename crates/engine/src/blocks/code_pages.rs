//! Code pages: lists of what leads to each page of code, which survive a change of the address
//! space.
//!
//! A branch to a linear address may be followed without the monitor only as long as the address
//! means what it meant when the link was made, so no link may be followed after the address space
//! has changed. But most pages of code come back: at the same address in a process that runs again,
//! or at another address in a process that maps the same library. So what leads to a page is not
//! forgotten; it is only made inactive, and stays listed with the page. When the monitor next comes
//! to the page, it must look up where the page's linear address leads, for that one branch. If it
//! leads to the physical page that the list is for, everything on the list is valid again.
//!
//! ```text
//! branch to 7f12_3400_0a10 misses; the page tables say physical page 41e: active from here on
//!     slots from active pages that lead here        filled with the distances they had
//!     indirect targets in this page                 entries at 7f12_3400_0a10, ..0b50, ..
//! ```
//!
//! A *code page* is a physical page, seen from the page that the addresses of its blocks name, for
//! code of one privilege. That page is the link page if the blocks are relocatable, otherwise the
//! linear page. Blocks whose first instruction ends in the next page belong to a code page of their
//! own for each physical page that is found there.
//!
//! Each address space that is kept has its own [tables](crate::blocks::link_memory) for programs'
//! code. So a page of programs can be active in any number of spaces at the same time, at another
//! place in each, and loading another space touches none of these pages: what leads to them is in
//! the tables that generated code reads from then on. Pages of all other code are active or
//! inactive for all spaces together, and those that are not global become inactive when their space
//! is left. In each space, active pages obey these rules:
//!
//! - A page becomes active when a look-up in the guest's page tables has just allowed a fetch from
//!   it. It becomes inactive when the result of this look-up is invalidated, which
//!   [`Derived`](tollgate_tlb::Derived) reports. A page of programs stays active in its space while
//!   other spaces are loaded, unless it is global there: an INVLPG in one space would have to find
//!   it in all spaces. Other pages may be activated as they were when their space is loaded again,
//!   if the results of its look-ups are kept (see [`kept_pages`](crate::blocks::kept_pages)).
//! - A slot or an entry of the branch tables is filled only while the page that it leads to is
//!   active.
//! - A slot between relocatable pages is filled only while both have the same slide, since a direct
//!   branch does not change the slide. In one space an active page has one slide, so comparing the
//!   slides when either page becomes active is enough.

mod activated_ahead;

pub use activated_ahead::Expected;

use crate::abi::link_layout::{
    MAX_SLOTS, ModeTable, is_programs_part, is_programs_slot, table_offset,
};
use crate::blocks::link_memory::{LinkMemory, OWNERS, Owner, Tables};
use crate::blocks::link_target::Target;
use rustc_hash::{FxHashMap, FxHashSet};
use tollgate_tlb::{Allows, Held, LeadsTo, PageRange, SpaceNumber, View};

/// Number of a code page. It is given out again when the page has no blocks any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodePageId(u32);

impl CodePageId {
    /// Makes the number of a code page from the result of [`CodePageId::number`].
    pub(crate) fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number as an integer, which is never `u32::MAX`.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// An active page that is neither global nor a page of programs, as it was found, so that it can be
/// activated again.
#[derive(Clone, Copy, Debug)]
pub struct LocalPage {
    id: CodePageId,
    key: CodePageKey,
    found: Found,
}

impl LocalPage {
    /// The key of the code page.
    pub fn key(&self) -> CodePageKey {
        self.key
    }

    /// The place where the page was found.
    pub fn found(&self) -> Found {
        self.found
    }

    /// The look-ups that the page relies on, one for each linear page, in the form that a check of
    /// derived structures expects. `kept_for` is the space for which the page is kept.
    pub fn held(&self, kept_for: Option<SpaceNumber>) -> impl Iterator<Item = Held> {
        let first = (self.found.linear_page, self.key.physical_page);
        let second = (self.key.second_page).map(|physical| (self.found.last_page, physical));
        let view = match self.key.user {
            true => View::User,
            false => View::Supervisor,
        };
        let pages = std::iter::once(first).chain(second);
        pages.map(move |(linear_page, physical_page)| Held {
            linear_page,
            leads_to: LeadsTo::PhysicalPage(physical_page),
            allows: Allows::Fetches,
            view: Some(view),
            kept_for,
        })
    }
}

/// How many times in succession a page may be activated without being reached by a branch.
const MOST_RETURNS: u16 = 128;
/// How many times in succession a page may stay active or be activated without being reached.
const MOST_STAYS: u16 = 1024;
/// Maximum number of pages that are activated together when a space is loaded. With more, a process
/// that is loaded for a short time would pay more for them than for the pages that it reaches.
const MOST_PUT_BACK: usize = 160;

/// Stands for no number: the end of a chain, or a slot that is not listed.
const NONE: u32 = u32::MAX;
/// Number of chains of active pages. A page's linear page number selects its chain.
const CHAINS: usize = 1 << 10;

/// The key of a code page: everything that distinguishes it from other code pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CodePageKey {
    /// Number of the physical page.
    pub physical_page: u64,
    /// Number of the physical page in which the first instructions of its blocks end, if they
    /// straddle.
    pub second_page: Option<u64>,
    /// Number of the page that the addresses of its blocks name: the link page or the linear page.
    pub page: u64,
    /// The blocks of the page are relocatable.
    pub relocates: bool,
    /// The blocks of the page are code of privilege level 3.
    pub user: bool,
}

/// The place where a code page was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Number of the linear page.
    pub linear_page: u64,
    /// Number of the second linear page; equal to `linear_page` if the page has no second page.
    pub last_page: u64,
    /// The slide from the page's link page to this place, in bytes; 0 if the page is not
    /// relocatable.
    pub slide: u64,
    /// The page survives an address-space switch.
    pub global: bool,
    /// The page is kept with its address space: no guest page that it depends on is global.
    pub is_kept: bool,
}

impl Found {
    /// Whether a page that is active at this place need not be activated again when it was found at
    /// `found`. The new place may be valid for longer.
    fn stands_for(&self, found: &Found) -> bool {
        let place = |it: &Found| (it.linear_page, it.last_page, it.slide);
        place(self) == place(found) && (found.global || !self.global)
    }

    /// Whether the place depends on one of these linear pages.
    fn depends_on(&self, pages: PageRange) -> bool {
        pages.contains(self.linear_page) || pages.contains(self.last_page)
    }
}

/// A block that is a target of indirect branches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndirectTarget {
    /// The block's EIP, or the link address of that EIP.
    pub rip: u64,
    /// The block's mode.
    pub mode: ModeTable,
    /// Host address of the block's code.
    pub address: u64,
}

/// A slot, as it is listed by the page that it leads from or the page that it leads to.
#[derive(Clone, Copy, Debug)]
struct Link {
    slot: u32,
    /// The number of the page at the other end of the slot.
    other: u32,
    /// The value of the slot when it is filled: a distance in the code cache, which fits into 32
    /// bits.
    distance: i32,
}

/// The positions of a slot in the lists of its two pages.
#[derive(Clone, Copy, Debug)]
struct Listing {
    from: u32,
    to: u32,
    /// Index in the list of slots that lead from the page `from`; `arrival` is the index in the
    /// list of slots that lead to the page `to`.
    departure: u32,
    arrival: u32,
}

const UNLISTED: Listing = Listing {
    from: NONE,
    to: NONE,
    departure: 0,
    arrival: 0,
};

/// The listing of each slot: first slots of programs, then all others.
#[derive(Default)]
struct Listings([Vec<Listing>; 2]);

impl Listings {
    fn of_mut(&mut self, slot: u32) -> &mut Listing {
        let part = usize::from(!is_programs_slot(slot));
        let (listings, index) = (&mut self.0[part], slot as usize % MAX_SLOTS);
        if listings.len() <= index {
            listings.resize(index + 1, UNLISTED);
        }
        &mut listings[index]
    }

    /// All slots that are listed.
    fn all(&self) -> impl Iterator<Item = (u32, &Listing)> {
        let parts = (0..).step_by(MAX_SLOTS).zip(&self.0);
        let all = parts.flat_map(|(first, listings)| (first..).zip(listings));
        all.filter(|(_, listing)| listing.from != NONE)
    }
}

/// What happens to an active page when a space is loaded for which the page was kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// The page stays active.
    Stays,
    /// The page stays active, and the list of local pages already names it.
    IsListed,
    /// The page becomes inactive, so that the next branch to it must reach it through the monitor.
    IsToBeMet,
}

/// A place where a page is active.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The owner of the tables that lead to this place.
    owner: Owner,
    found: Found,
    /// Number of the next active page in the same chain of the owner.
    next: u32,
}

struct CodePage {
    key: CodePageKey,
    /// Number of blocks that were made from the page.
    blocks: u32,
    /// The places where the page is active, at most one for each owner.
    places: Vec<Place>,
    /// Value of [`CodePages::clock`] when the page was last reached.
    used: u32,
    /// How many times the page stayed active or was activated since it was last reached.
    returns: u16,
    /// What happens to the page at one load of a space, and the number of that load
    /// ([`CodePages::loads`]).
    fate: (u64, Fate),
    /// Slots that lead to the page.
    arrivals: Vec<Link>,
    /// Slots that lead from the page.
    departures: Vec<Link>,
    targets: Vec<IndirectTarget>,
}

impl CodePage {
    /// The place where the page is active in the owner's tables.
    #[inline]
    fn found(&self, owner: Owner) -> Option<&Found> {
        let place = self.places.iter().find(|place| place.owner == owner);
        place.map(|place| &place.found)
    }

    fn place_mut(&mut self, owner: Owner) -> Option<&mut Place> {
        self.places.iter_mut().find(|place| place.owner == owner)
    }

    /// Whether a slot may be filled that leads to this page, which is active in the owner's tables
    /// with this slide, from the page `from`.
    fn may_be_reached_from(&self, from: &CodePage, owner: Owner, slide: u64) -> bool {
        // Code that is not relocatable has no slide that could be wrong.
        !self.key.relocates || from.found(owner).is_some_and(|from| from.slide == slide)
    }
}

/// Counts of what was done with code pages, for tests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CodePageCounts {
    /// Number of times that a page was activated.
    pub activate: u64,
    /// Number of these times at which the page was activated before control reached it.
    pub foreseen: u64,
    /// Number of links and targets that were restored when their pages were activated.
    pub restored: u64,
}

/// All code pages of one vCPU.
pub struct CodePages {
    pages: Vec<CodePage>,
    free: Vec<u32>,
    by_key: FxHashMap<CodePageKey, u32>,
    /// Relocatable pages that have a second page, by the number of the first physical page and the
    /// link page.
    straddling: FxHashMap<(u64, u64), Vec<u32>>,
    listings: Listings,
    /// Active pages that are neither global nor pages of programs. The list may also name pages
    /// that are inactive now.
    local: Vec<u32>,
    /// Active pages of programs in the loaded space that are not kept with it. The list may also
    /// name pages that are inactive now.
    not_kept: Vec<u32>,
    /// For each owner: the first page of each chain of active pages.
    chains: Box<[[u32; CHAINS]; OWNERS]>,
    /// For each owner: the number of active pages.
    active: [usize; OWNERS],
    loaded: SpaceNumber,
    last_met: activated_ahead::LastMet,
    /// Number of times that [`CodePages::watch_use`] was called. The count wraps around, so very
    /// old pages may look young.
    clock: u32,
    /// Number of times that another space was loaded.
    loads: u64,
    counts: CodePageCounts,
}

impl Default for CodePages {
    fn default() -> Self {
        Self {
            pages: Vec::new(),
            free: Vec::new(),
            by_key: FxHashMap::default(),
            straddling: FxHashMap::default(),
            listings: Listings::default(),
            local: Vec::new(),
            not_kept: Vec::new(),
            chains: Box::new([[NONE; CHAINS]; OWNERS]),
            active: [0; OWNERS],
            loaded: SpaceNumber::default(),
            last_met: activated_ahead::LastMet::default(),
            clock: 0,
            loads: 0,
            counts: CodePageCounts::default(),
        }
    }
}

impl CodePages {
    /// Counts of what was done.
    #[cfg(test)]
    pub fn counts(&self) -> CodePageCounts {
        self.counts
    }

    /// The owner of the tables that now lead to pages with this key.
    #[inline]
    fn owner(&self, key: &CodePageKey) -> Owner {
        match key.user {
            true => Owner::Space(self.loaded),
            false => Owner::Common,
        }
    }

    /// The place where a page is active in the loaded space.
    fn found(&self, id: u32) -> Option<&Found> {
        let page = self.pages.get(id as usize)?;
        page.found(self.owner(&page.key))
    }

    /// Adds a block to the code page with this key, and makes the page if it does not exist yet.
    pub fn add_block(&mut self, key: CodePageKey) -> CodePageId {
        let Self {
            pages,
            free,
            by_key,
            straddling,
            clock,
            ..
        } = self;
        let mut is_new = false;
        let id = *by_key.entry(key).or_insert_with(|| {
            is_new = true;
            let page = CodePage {
                key,
                blocks: 0,
                places: Vec::new(),
                used: 0,
                returns: 0,
                fate: (0, Fate::IsToBeMet),
                arrivals: Vec::new(),
                departures: Vec::new(),
                targets: Vec::new(),
            };
            if let Some(id) = free.pop() {
                pages[id as usize] = page;
                return id;
            }
            pages.push(page);
            pages.len() as u32 - 1
        });
        if is_new && key.relocates && key.second_page.is_some() {
            let of_first = straddling.entry((key.physical_page, key.page));
            of_first.or_default().push(id);
        }
        pages[id as usize].blocks += 1;
        pages[id as usize].used = *clock;
        CodePageId(id)
    }

    /// Removes a block that died from its page. Nothing may lead to the block any more, and its
    /// slots must have been released.
    pub fn remove_block(&mut self, id: CodePageId, memory: &mut LinkMemory) {
        let page = &mut self.pages[id.0 as usize];
        page.blocks -= 1;
        if page.blocks != 0 {
            return;
        }
        debug_assert!(page.arrivals.is_empty() && page.departures.is_empty());
        let key = page.key;
        while let Some(place) = self.pages[id.0 as usize].places.last() {
            self.deactivate(id.0, place.owner, memory);
        }
        self.by_key.remove(&key);
        let place = (key.physical_page, key.page);
        if let Some(of_first) = self.straddling.get_mut(&place) {
            of_first.retain(|&other| other != id.0);
            if of_first.is_empty() {
                self.straddling.remove(&place);
            }
        }
        self.free.push(id.0);
    }

    /// Activates a page that a look-up has just found at this place. Returns whether the page was
    /// not active there before.
    #[inline]
    pub fn activate(&mut self, id: CodePageId, found: Found, memory: &mut LinkMemory) -> bool {
        let page = &mut self.pages[id.0 as usize];
        let owner = match page.key.user {
            true => Owner::Space(self.loaded),
            false => Owner::Common,
        };
        page.used = self.clock;
        match page.place_mut(owner) {
            Some(Place { found: known, .. }) if known.stands_for(&found) => {
                if known.is_kept && !found.is_kept {
                    known.is_kept = false;
                    if owner != Owner::Common {
                        self.drop_stale_of_space();
                        self.not_kept.push(id.0);
                    }
                }
                false
            }
            _ => {
                page.returns = 0;
                if page.key.second_page.is_none() {
                    self.last_met.note(page.key.page, id.0);
                }
                self.restore(id.0, owner, found, memory);
                true
            }
        }
    }

    /// The active pages that are neither global nor pages of programs and that are kept with their
    /// space, from the page that was activated last to the first. A page may appear twice.
    pub fn local_pages(&self) -> impl Iterator<Item = LocalPage> {
        self.local.iter().rev().filter_map(|&id| {
            let page = &self.pages[id as usize];
            let found = page.found(Owner::Common);
            let found = found.filter(|found| found.is_kept && !found.global)?;
            Some(LocalPage {
                id: CodePageId(id),
                key: page.key,
                found: *found,
            })
        })
    }

    /// Notes that another space is loaded. Pages of programs stay active in the space that is left,
    /// except pages that are not kept with it. In the new space they are active as they were when
    /// that space was left, unless the space does not keep them (`keeps` is false).
    ///
    /// Of all other pages that are not global, only those stay active that are in `kept`, the list
    /// of the new space, at the place where they are active now. The page of `kept` that was
    /// reached most recently comes last. If the list's last pages are inactive and still exist,
    /// they are activated as they were when the space was left, because what was looked up then
    /// still holds. From time to time a page that could stay active becomes inactive nevertheless,
    /// so that it must be reached by a branch, and pages that are not used any more disappear.
    pub fn load(
        &mut self,
        to: SpaceNumber,
        keeps: bool,
        kept: &[LocalPage],
        memory: &mut LinkMemory,
    ) {
        let left = Owner::Space(self.loaded);
        for id in std::mem::take(&mut self.not_kept) {
            // The list may name a page twice, or a page that got the number of a removed one.
            let found = self.pages[id as usize].found(left);
            if found.is_some_and(|found| !found.is_kept) {
                self.deactivate(id, left, memory);
            }
        }
        self.load_common(kept, memory);
        memory.load(to, |memory| self.forget(left, memory));
        self.loaded = to;
        if !keeps {
            self.forget(Owner::Space(to), memory);
        }
    }

    /// Makes all pages inactive in a space that is not loaded.
    pub fn purge(&mut self, number: SpaceNumber, memory: &mut LinkMemory) {
        self.forget(Owner::Space(number), memory);
    }

    /// Makes all pages of an owner inactive.
    fn forget(&mut self, owner: Owner, memory: &mut LinkMemory) {
        self.forget_some(owner, memory, |_| true);
    }

    fn forget_some(
        &mut self,
        owner: Owner,
        memory: &mut LinkMemory,
        is_void: impl Fn(&Found) -> bool,
    ) {
        if self.active[owner.index()] != 0 {
            for chain in 0..CHAINS {
                self.drop_chain(chain, owner, memory, &is_void);
            }
        }
    }

    /// Handles the code pages that all programs share when an address space is loaded.
    fn load_common(&mut self, kept: &[LocalPage], memory: &mut LinkMemory) {
        self.loads += 1;
        let loads = self.loads;
        for local in kept {
            let page = &mut self.pages[local.id.0 as usize];
            if page.key != local.key || page.found(Owner::Common) != Some(&local.found) {
                continue;
            }
            page.returns += 1;
            page.fate = if page.returns <= MOST_STAYS {
                (loads, Fate::Stays)
            } else {
                page.returns = 0;
                (loads, Fate::IsToBeMet)
            };
        }
        let mut local = std::mem::take(&mut self.local);
        local.retain(|&id| {
            let page = &mut self.pages[id as usize];
            if page.fate == (loads, Fate::Stays) {
                page.fate = (loads, Fate::IsListed);
                return true;
            }
            // The list may name a page twice, or a page that got the number of a removed one.
            let is_listed = page.fate == (loads, Fate::IsListed);
            if !is_listed && page.found(Owner::Common).is_some_and(|it| !it.global) {
                self.deactivate(id, Owner::Common, memory);
            }
            false
        });
        self.local = local;
        let last = kept.len().saturating_sub(MOST_PUT_BACK);
        for local in &kept[last..] {
            let page = &self.pages[local.id.0 as usize];
            if page.fate != (loads, Fate::IsToBeMet) {
                self.put_back(local, memory);
            }
        }
    }

    fn put_back(&mut self, local: &LocalPage, memory: &mut LinkMemory) {
        let page = &mut self.pages[local.id.0 as usize];
        if page.key != local.key || page.blocks == 0 || page.found(Owner::Common).is_some() {
            return;
        }
        page.returns += 1;
        if page.returns > MOST_RETURNS {
            page.returns = 0;
            return;
        }
        self.restore(local.id.0, Owner::Common, local.found, memory);
    }

    /// The slide at which the page with this key is active in the loaded space, or at which code is
    /// active that begins in that page and ends in another.
    pub fn active_slide(&self, key: &CodePageKey) -> Option<u64> {
        let slide = |id: &u32| self.found(*id).map(|found| found.slide);
        let of_page = self.by_key.get(key).and_then(slide);
        of_page.or_else(|| {
            let straddling = self.straddling.get(&(key.physical_page, key.page))?;
            straddling.iter().find_map(slide)
        })
    }

    /// Calls `check` for each look-up that an active page relies on, in all spaces.
    pub fn show(&self, check: &mut dyn FnMut(Held)) {
        for (id, page) in (0..).zip(&self.pages) {
            for place in &page.places {
                let (id, key, found) = (CodePageId(id), page.key, place.found);
                let kept_for = match place.owner {
                    Owner::Space(number) if number != self.loaded => Some(number),
                    _ => None,
                };
                LocalPage { id, key, found }
                    .held(kept_for)
                    .for_each(&mut *check);
            }
        }
    }

    /// Describes an entry or a slot that is filled although its page is inactive or has another
    /// slide. Slots for which `is_listed` returns true are listed elsewhere and are not checked.
    pub fn contradiction(
        &self,
        memory: &LinkMemory,
        is_listed: impl Fn(u32) -> bool,
    ) -> Option<String> {
        Owner::all().find_map(|owner| {
            let tables = memory.get(owner)?;
            let what = self.contradiction_in(owner, tables, &is_listed)?;
            Some(format!("{owner:?}: {what}"))
        })
    }

    fn contradiction_in(
        &self,
        owner: Owner,
        tables: &Tables,
        is_listed: impl Fn(u32) -> bool,
    ) -> Option<String> {
        let is_common = owner == Owner::Common;
        for (slot, listing) in self.listings.all() {
            if is_programs_slot(slot) == is_common || is_listed(slot) || tables.slot(slot) == 0 {
                continue;
            }
            let (from, to) = (
                &self.pages[listing.from as usize],
                &self.pages[listing.to as usize],
            );
            let Some(found) = to.found(owner) else {
                let page = to.key.physical_page;
                return Some(format!(
                    "slot {slot} leads to page {page:x}, which is inactive"
                ));
            };
            // Code of an inactive page may still be running, with the slide that it had.
            let from = from.found(owner);
            if to.key.relocates && from.is_some_and(|from| from.slide != found.slide) {
                return Some(format!("slot {slot} leads to a page with another slide"));
            }
        }
        let targets = |active: bool| {
            let pages = self.pages.iter();
            let pages = pages.filter(move |page| page.found(owner).is_some() == active);
            pages.flat_map(|page| &page.targets)
        };
        let reachable: FxHashSet<u64> = targets(true).map(|it| it.address).collect();
        let looked_at = targets(true).chain(targets(false)).map(|it| it.mode.table);
        let looked_at =
            looked_at.filter(|&table| is_programs_part(table_offset(table) as u32) != is_common);
        let mut unreachable: FxHashSet<u64> = targets(false).map(|it| it.address).collect();
        unreachable.retain(|address| !reachable.contains(address));
        let mut known = Vec::new();
        for table in looked_at {
            if known.contains(&table) {
                continue;
            }
            known.push(table);
            let found = tables.targets(table).find(|it| unreachable.contains(it));
            if let Some(address) = found {
                return Some(format!(
                    "an indirect branch finds {address:x}, whose page is inactive"
                ));
            }
        }
        None
    }

    fn restore(&mut self, id: u32, owner: Owner, found: Found, memory: &mut LinkMemory) {
        self.deactivate(id, owner, memory);
        if owner == Owner::Common && !found.global {
            self.drop_stale();
            self.local.push(id);
        }
        if owner != Owner::Common && !found.is_kept {
            self.drop_stale_of_space();
            self.not_kept.push(id);
        }
        let chain = &mut self.chains[owner.index()][found.linear_page as usize % CHAINS];
        let next = std::mem::replace(chain, id);
        let page = &mut self.pages[id as usize];
        page.places.push(Place { owner, found, next });
        self.active[owner.index()] += 1;
        self.counts.activate += 1;

        let page = &self.pages[id as usize];
        let Some(tables) = memory.of(owner) else {
            return;
        };
        let mut restored = page.targets.len();
        for link in &page.arrivals {
            let from = &self.pages[link.other as usize];
            if page.may_be_reached_from(from, owner, found.slide) {
                tables.set_slot(link.slot, link.distance as u64);
                restored += 1;
            }
        }
        if page.key.relocates {
            for link in &page.departures {
                // This page may be active again with another slide than its code has used until
                // now.
                let to = self.pages[link.other as usize].found(owner);
                let leads = to.is_some_and(|to| to.slide == found.slide);
                let distance = if leads { link.distance as u64 } else { 0 };
                tables.set_slot(link.slot, distance);
                restored += usize::from(leads);
            }
        }
        for target in &page.targets {
            fill(target, found.slide, tables);
        }
        self.counts.restored += restored as u64;
    }

    /// Keeps the list of local pages from growing without limit while no address space is switched.
    fn drop_stale(&mut self) {
        if self.local.len() < 2 * self.active[Owner::Common.index()] + 64 {
            return;
        }
        self.local.sort_unstable();
        self.local.dedup();
        let pages = &self.pages;
        let found = |id: &u32| pages[*id as usize].found(Owner::Common);
        self.local
            .retain(|id| found(id).is_some_and(|it| !it.global));
    }

    /// Keeps the list of pages that are not kept with the loaded space from growing without limit.
    fn drop_stale_of_space(&mut self) {
        let owner = Owner::Space(self.loaded);
        if self.not_kept.len() < 2 * self.active[owner.index()] + 64 {
            return;
        }
        self.not_kept.sort_unstable();
        self.not_kept.dedup();
        let pages = &self.pages;
        let found = |id: &u32| pages[*id as usize].found(owner);
        self.not_kept
            .retain(|id| found(id).is_some_and(|it| !it.is_kept));
    }

    /// Makes a page inactive: nothing in the owner's tables leads to it any more.
    fn deactivate(&mut self, id: u32, owner: Owner, memory: &mut LinkMemory) {
        let page = &mut self.pages[id as usize];
        let Some(index) = page.places.iter().position(|place| place.owner == owner) else {
            return;
        };
        let Place { found, next, .. } = page.places.swap_remove(index);
        if let Some(tables) = memory.of(owner) {
            for link in &page.arrivals {
                tables.set_slot(link.slot, 0);
            }
            for target in &page.targets {
                empty(target, found.slide, tables);
            }
        }
        self.active[owner.index()] -= 1;
        let chain = &mut self.chains[owner.index()][found.linear_page as usize % CHAINS];
        if *chain == id {
            *chain = next;
            return;
        }
        let mut before = *chain;
        while let Some(page) = self.pages.get_mut(before as usize) {
            let Some(place) = page.place_mut(owner) else {
                return;
            };
            if place.next == id {
                place.next = next;
                return;
            }
            before = place.next;
        }
    }

    /// Lists a slot that leads from a block of the page `from` to the page `to`, and fills the
    /// slot. The page `to` must just have been activated, with the same slide if both pages are
    /// relocatable. In other spaces the slot is filled as if the pages became active there.
    pub fn link(
        &mut self,
        slot: u32,
        distance: i32,
        from: CodePageId,
        to: CodePageId,
        memory: &mut LinkMemory,
    ) {
        self.list_link(slot, distance, from, to, memory);
        memory.set_slot(slot, distance as u64);
    }

    /// Lists a slot that leads from a block of the page `from` to the page `to`, and fills it in
    /// the spaces where the page `to` is active.
    pub fn list_link(
        &mut self,
        slot: u32,
        distance: i32,
        from: CodePageId,
        to: CodePageId,
        memory: &mut LinkMemory,
    ) {
        if self.unlist(slot) {
            memory.empty_slot(slot);
        }
        let link = |other: CodePageId| Link {
            slot,
            other: other.0,
            distance,
        };
        let departures = &mut self.pages[from.0 as usize].departures;
        let departure = departures.len() as u32;
        departures.push(link(to));
        let arrivals = &mut self.pages[to.0 as usize].arrivals;
        let arrival = arrivals.len() as u32;
        arrivals.push(link(from));
        *self.listings.of_mut(slot) = Listing {
            from: from.0,
            to: to.0,
            departure,
            arrival,
        };
        let (from, to) = (&self.pages[from.0 as usize], &self.pages[to.0 as usize]);
        for Place { owner, found, .. } in &to.places {
            if to.may_be_reached_from(from, *owner, found.slide)
                && let Some(tables) = memory.of(*owner)
            {
                tables.set_slot(slot, distance as u64);
            }
        }
    }

    /// Removes a slot from the lists of its pages. Returns whether it was listed; if so, the caller
    /// must empty the slot in all spaces.
    pub fn unlist(&mut self, slot: u32) -> bool {
        let listing = std::mem::replace(self.listings.of_mut(slot), UNLISTED);
        if listing.from == NONE {
            return false;
        }
        let departures = &mut self.pages[listing.from as usize].departures;
        departures.swap_remove(listing.departure as usize);
        if let Some(moved) = departures.get(listing.departure as usize) {
            self.listings.of_mut(moved.slot).departure = listing.departure;
        }
        let arrivals = &mut self.pages[listing.to as usize].arrivals;
        arrivals.swap_remove(listing.arrival as usize);
        if let Some(moved) = arrivals.get(listing.arrival as usize) {
            self.listings.of_mut(moved.slot).arrival = listing.arrival;
        }
        true
    }

    /// Lets indirect branches find a block of a page that was just activated.
    pub fn add_target(&mut self, id: CodePageId, target: IndirectTarget, memory: &mut LinkMemory) {
        let page = &mut self.pages[id.0 as usize];
        if !page.targets.contains(&target) {
            page.targets.push(target);
        }
        for place in &page.places {
            if let Some(tables) = memory.of(place.owner) {
                fill(&target, place.found.slide, tables);
            }
        }
    }

    /// Whether an indirect target of a page has its host code at `address`.
    pub fn is_target(&self, id: CodePageId, address: u64) -> bool {
        let targets = &self.pages[id.0 as usize].targets;
        targets.iter().any(|target| target.address == address)
    }

    /// Removes those indirect targets of a page that have their host code at `address`.
    pub fn remove_target(&mut self, id: CodePageId, address: u64, memory: &mut LinkMemory) {
        let CodePage {
            places, targets, ..
        } = &mut self.pages[id.0 as usize];
        targets.retain(|target| {
            let is_gone = target.address == address;
            for place in places.iter().filter(|_| is_gone) {
                if let Some(tables) = memory.of(place.owner) {
                    empty(target, place.found.slide, tables);
                }
            }
            !is_gone
        });
    }

    /// Number of times that [`CodePages::watch_use`] was called since a page was last used.
    pub fn age(&self, id: CodePageId) -> u32 {
        self.clock.wrapping_sub(self.pages[id.0 as usize].used)
    }

    /// Makes all pages inactive in all spaces, so that each page that is used from now on is
    /// reached through the monitor again.
    pub fn watch_use(&mut self, memory: &mut LinkMemory) {
        for owner in Owner::all() {
            self.forget(owner, memory);
        }
        self.clock = self.clock.wrapping_add(1);
    }

    /// Makes all pages of the loaded space inactive, except global pages.
    pub fn drop_local(&mut self, memory: &mut LinkMemory) {
        let mut local = std::mem::take(&mut self.local);
        for id in local.drain(..) {
            // The number may belong to another page now.
            let found = self.pages[id as usize].found(Owner::Common);
            if found.is_some_and(|it| !it.global) {
                self.deactivate(id, Owner::Common, memory);
            }
        }
        self.local = local;
        self.forget_some(Owner::Space(self.loaded), memory, |found| !found.global);
    }

    /// Makes all pages inactive that depend on these linear pages of the loaded space, global or
    /// not.
    pub fn drop_pages(&mut self, pages: PageRange, memory: &mut LinkMemory) {
        let is_void = |found: &Found| found.depends_on(pages);
        for owner in [Owner::Common, Owner::Space(self.loaded)] {
            if pages.count() >= CHAINS as u64 - 1 {
                self.forget_some(owner, memory, is_void);
                continue;
            }
            // Code that begins in the page before the range may end in the first page of the range.
            let before = pages.first.wrapping_sub(1);
            for page in std::iter::once(before).chain(pages.pages()) {
                self.drop_chain(page as usize % CHAINS, owner, memory, &is_void);
            }
        }
    }

    /// Makes all pages of the loaded space inactive.
    pub fn drop_all(&mut self, memory: &mut LinkMemory) {
        for owner in [Owner::Common, Owner::Space(self.loaded)] {
            self.forget(owner, memory);
        }
    }

    /// Makes those pages of one chain of an owner inactive for which `is_void` returns true.
    fn drop_chain(
        &mut self,
        chain: usize,
        owner: Owner,
        memory: &mut LinkMemory,
        is_void: &impl Fn(&Found) -> bool,
    ) {
        let mut next = self.chains[owner.index()][chain];
        while let Some(page) = self.pages.get_mut(next as usize) {
            let Some(place) = page.place_mut(owner) else {
                return;
            };
            let id = std::mem::replace(&mut next, place.next);
            if is_void(&place.found) {
                self.deactivate(id, owner, memory);
            }
        }
    }
}

fn fill(target: &IndirectTarget, slide: u64, tables: &mut Tables) {
    let (rip, address) = (target.rip.wrapping_add(slide), target.address);
    tables.fill_indirect(rip, target.mode, Target { address, slide });
}

/// Empties the entry of an indirect target, unless another target has taken its place.
fn empty(target: &IndirectTarget, slide: u64, tables: &mut Tables) {
    let rip = target.rip.wrapping_add(slide);
    tables.empty_indirect(rip, target.mode.table, target.address);
}

#[cfg(test)]
#[path = "code_pages_tests.rs"]
mod tests;
