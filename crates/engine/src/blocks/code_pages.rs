//! Code pages: links and targets of indirect branches that survive a change of address space.
//!
//! What leads to code depends on what linear addresses mean, so it must not be followed when
//! the address space has changed. But most pages of code come back: at the same address in a
//! process that runs again, elsewhere in another that maps the same library. So what leads to
//! a page is only put out of force, and listed with the page. When the monitor next comes to
//! the page, it has to look up where the page's linear address leads, for that one branch. If
//! that is the physical page that the list is for, everything on the list is right again.
//!
//! ```text
//! branch to 7f12_3400_0a10 misses; the page tables say physical page 41e: in force from here
//!     slots from pages in force that lead here      filled with the distances they had
//!     indirect targets in this page                 entries at 7f12_3400_0a10, ..0b50, ..
//! ```
//!
//! A *code page* is a physical page under the addresses that its blocks name, for code of one
//! privilege: its home, if they are relocatable, or else the linear page. Blocks whose first
//! instruction ends in the next page make a code page of their own with each physical page that is
//! found there.
//!
//! Each address space that is kept has [tables](crate::blocks::link_memory) of its own for programs'
//! code. So a page of programs is in force in any number of spaces at the same time, in each at a
//! place of its own, and another space is loaded without a look at any of these pages: what leads to
//! them lies in the tables that generated code now reads. Pages of all other code are in force or
//! not for all spaces together; those that are not global go out of force with the space. What is in
//! force obeys these rules, in each space:
//!
//! - A page is put in force by a look-up of the guest's page tables that has just allowed to
//!   fetch code there, and goes out of force with what was looked up: by
//!   [`Derived`](tollgate_tlb::Derived). A page of programs stays in force with its space while
//!   other spaces are loaded, unless it is global there: INVLPG in one space would have to find it
//!   in all. Other pages may be put in force as they were when their space is loaded again and what
//!   was looked up there is kept (see [`kept_pages`](crate::blocks::kept_pages)).
//! - A slot is filled only while the page that it leads to is in force, an entry of the branch
//!   tables too.
//! - A slot between relocatable pages is filled only while both have the same delta, since a
//!   direct branch does not change it. In one space a page in force has one delta, so it is enough
//!   to compare when either comes in force.

mod foreseen;

pub use foreseen::Expected;

use crate::abi::link_layout::{
    BranchTable, MAX_SLOTS, ModeId, is_programs_part, is_programs_slot, table_offset,
};
use crate::blocks::link_memory::{LinkMemory, OWNERS, Owner, Tables};
use crate::blocks::links::Target;
use rustc_hash::{FxHashMap, FxHashSet};
use tollgate_tlb::{Allows, Held, LeadsTo, PageRange, SpaceNumber, View};

/// Number of a code page; given out again when the page has no blocks any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodePageId(u32);

impl CodePageId {
    /// The page of a number that [`CodePageId::number`] has given.
    pub(crate) fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number: never `u32::MAX`.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// A page in force that is neither global nor one of programs, to be put in force again.
#[derive(Clone, Copy, Debug)]
pub struct LocalPage {
    id: CodePageId,
    key: CodePageKey,
    found: Found,
}

impl LocalPage {
    /// What it is.
    pub fn key(&self) -> CodePageKey {
        self.key
    }

    /// Where it was found.
    pub fn found(&self) -> Found {
        self.found
    }

    /// It as entries of the space that it is kept for.
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

/// How often in succession a page is put in force without being met.
const MOST_RETURNS: u16 = 128;
/// How often in succession a page stays in force without being met, or returns.
const MOST_STAYS: u16 = 1024;
/// Pages that are put in force at once at most when a space is loaded. More would cost a process
/// more that is loaded for a short while than what it meets then.
const MOST_PUT_BACK: usize = 160;

/// No number: an end of a chain, a slot that is not listed.
const NONE: u32 = u32::MAX;
/// Chains of pages in force, by linear page.
const CHAINS: usize = 1 << 10;

/// What a code page is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CodePageKey {
    /// Number of the physical page.
    pub physical_page: u64,
    /// That of the page in which its blocks' first instructions end, if that is another.
    pub second_page: Option<u64>,
    /// Number of the page that its blocks' addresses name: the home, or the linear page.
    pub page: u64,
    /// Its blocks are relocatable.
    pub relocates: bool,
    /// Its blocks are code of privilege level 3.
    pub user: bool,
}

/// Where a page has been found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Number of the linear page.
    pub linear_page: u64,
    /// That of the second page; the same if there is none.
    pub last_page: u64,
    /// The distance from the page's home to there, in bytes; 0 if it is not relocatable.
    pub delta: u64,
    /// Survives an address-space switch.
    pub global: bool,
    /// Is kept with its address space: no page of the guest's that it depends on is global.
    pub is_kept: bool,
}

impl Found {
    /// Whether it is also true of a page that has been found like that. It may last shorter.
    fn stands_for(&self, found: &Found) -> bool {
        let place = |it: &Found| (it.linear_page, it.last_page, it.delta);
        place(self) == place(found) && (found.global || !self.global)
    }

    /// Whether it depends on one of these linear pages.
    fn depends_on(&self, pages: PageRange) -> bool {
        pages.contains(self.linear_page) || pages.contains(self.last_page)
    }
}

/// A block that indirect branches lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndirectTarget {
    /// Its EIP, or the home of that.
    pub rip: u64,
    /// Its mode.
    pub mode: ModeId,
    /// The mode's table.
    pub table: BranchTable,
    /// Host address of its code.
    pub address: u64,
}

/// A slot, as one of the two pages lists it.
#[derive(Clone, Copy, Debug)]
struct Link {
    slot: u32,
    /// The page at its other end.
    other: u32,
    /// What the slot holds when it is filled. Distances in the code cache have 32 bits.
    distance: i32,
}

/// Where a slot is listed.
#[derive(Clone, Copy, Debug)]
struct Listing {
    from: u32,
    to: u32,
    /// Index among the links from there, and among those that lead there.
    departure: u32,
    arrival: u32,
}

const UNLISTED: Listing = Listing {
    from: NONE,
    to: NONE,
    departure: 0,
    arrival: 0,
};

/// Where each slot is listed: slots of programs, and all others.
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

/// What becomes of a page when a space is loaded of which it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It stays in force.
    Stays,
    /// The same, and it is listed.
    IsListed,
    /// It goes out of force, so that it has to be met.
    IsToBeMet,
}

/// Where a page is in force.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Whose tables lead there.
    owner: Owner,
    found: Found,
    /// The next page in force in the owner's chain.
    next: u32,
}

struct CodePage {
    key: CodePageKey,
    /// Blocks that were made from it.
    blocks: u32,
    /// Where it is in force, for each owner one place at most.
    places: Vec<Place>,
    /// When it was last met: [`CodePages::clock`].
    used: u32,
    /// How often it was put in force as it was since it was last met.
    returns: u16,
    /// What becomes of it at the load of this number: [`CodePages::loads`].
    fate: (u64, Fate),
    /// Slots that lead here.
    arrivals: Vec<Link>,
    /// Slots that lead from here.
    departures: Vec<Link>,
    targets: Vec<IndirectTarget>,
}

impl CodePage {
    /// Where it is in force in the owner's tables.
    #[inline]
    fn found(&self, owner: Owner) -> Option<&Found> {
        let place = self.places.iter().find(|place| place.owner == owner);
        place.map(|place| &place.found)
    }

    fn place_mut(&mut self, owner: Owner) -> Option<&mut Place> {
        self.places.iter_mut().find(|place| place.owner == owner)
    }

    /// Whether a slot that leads from a page in one place to this one in another may be filled.
    fn may_be_reached_from(&self, from: &CodePage, (owner, delta): (Owner, u64)) -> bool {
        // Code that is not relocatable has no delta that could be wrong.
        !self.key.relocates || from.found(owner).is_some_and(|from| from.delta == delta)
    }
}

/// What code pages have done: for statistics and tests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CodePageCounts {
    /// Times that a page was put in force.
    pub put_in_force: u64,
    /// So many of them before control came there.
    pub foreseen: u64,
    /// Links and targets that came back with them.
    pub restored: u64,
}

/// All code pages.
pub struct CodePages {
    pages: Vec<CodePage>,
    free: Vec<u32>,
    by_key: FxHashMap<CodePageKey, u32>,
    /// Relocatable pages that have a second one, by the first and the home.
    straddling: FxHashMap<(u64, u64), Vec<u32>>,
    listings: Listings,
    /// Pages in force that are neither global nor programs'; may name pages that no longer are.
    local: Vec<u32>,
    /// Pages of programs in force in the loaded space that are not kept with it; may name pages that
    /// no longer are.
    not_kept: Vec<u32>,
    /// By owner, the first page of each chain of pages in force.
    chains: Box<[[u32; CHAINS]; OWNERS]>,
    /// Pages in force, by owner.
    in_force: [usize; OWNERS],
    loaded: SpaceNumber,
    last_met: foreseen::LastMet,
    /// Counts how often the use of pages was looked at. It wraps; so old pages may look young.
    clock: u32,
    /// How often another space was loaded.
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
            in_force: [0; OWNERS],
            loaded: SpaceNumber::default(),
            last_met: foreseen::LastMet::default(),
            clock: 0,
            loads: 0,
            counts: CodePageCounts::default(),
        }
    }
}

impl CodePages {
    /// What has been done.
    pub fn counts(&self) -> CodePageCounts {
        self.counts
    }

    /// Whose tables lead to pages of that kind now.
    #[inline]
    fn owner(&self, key: &CodePageKey) -> Owner {
        match key.user {
            true => Owner::Space(self.loaded),
            false => Owner::Common,
        }
    }

    /// Where a page is in force in the loaded space.
    fn found(&self, id: u32) -> Option<&Found> {
        let page = self.pages.get(id as usize)?;
        page.found(self.owner(&page.key))
    }

    /// The page that a new block was made from.
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

    /// A block of a page died: nothing leads to it any more, and its slots were released.
    pub fn remove_block(&mut self, id: CodePageId, memory: &mut LinkMemory) {
        let page = &mut self.pages[id.0 as usize];
        page.blocks -= 1;
        if page.blocks != 0 {
            return;
        }
        debug_assert!(page.arrivals.is_empty() && page.departures.is_empty());
        let key = page.key;
        while let Some(place) = self.pages[id.0 as usize].places.last() {
            self.put_out_of_force(id.0, place.owner, memory);
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

    /// A look-up has just found a page: it is in force there from now on. Whether it was not before.
    #[inline]
    pub fn put_in_force(&mut self, id: CodePageId, found: Found, memory: &mut LinkMemory) -> bool {
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
                self.restore(id.0, (owner, found), memory);
                true
            }
        }
    }

    /// The pages in force that are neither global nor programs' and are kept with their space, those
    /// met last first. A page may be there twice.
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

    /// Another space is loaded. Programs' pages of the one that is left stay in force there, but for
    /// those that are not kept with it. Those of the new one are in force as they were when it was
    /// left, unless it does not `keep` them.
    ///
    /// Of all other pages that are not global only those stay in force that have been
    /// looked up there too, with the same result, and are `kept`, the one met last at the end.
    /// The last of the others come back as they were when the space was left, if they are still
    /// the same: what was looked up then holds. Now and then a page that is the
    /// same goes out of force nevertheless, so that it has to be met and those that are not used
    /// any more become fewer.
    pub fn load(
        &mut self,
        (to, keeps): (SpaceNumber, bool),
        kept: &[LocalPage],
        memory: &mut LinkMemory,
    ) {
        let left = Owner::Space(self.loaded);
        for id in std::mem::take(&mut self.not_kept) {
            // A number may have been given out again, or stand there twice.
            let found = self.pages[id as usize].found(left);
            if found.is_some_and(|found| !found.is_kept) {
                self.put_out_of_force(id, left, memory);
            }
        }
        self.load_common(kept, memory);
        memory.load(to, |memory| self.forget(left, memory));
        self.loaded = to;
        if !keeps {
            self.forget(Owner::Space(to), memory);
        }
    }

    /// Nothing is known of a space any more that is not loaded.
    pub fn purge(&mut self, number: SpaceNumber, memory: &mut LinkMemory) {
        self.forget(Owner::Space(number), memory);
    }

    /// Puts all pages of an owner out of force.
    fn forget(&mut self, owner: Owner, memory: &mut LinkMemory) {
        self.forget_some(owner, memory, |_| true);
    }

    fn forget_some(
        &mut self,
        owner: Owner,
        memory: &mut LinkMemory,
        is_void: impl Fn(&Found) -> bool,
    ) {
        if self.in_force[owner.index()] != 0 {
            for chain in 0..CHAINS {
                self.drop_chain(chain, owner, memory, &is_void);
            }
        }
    }

    /// The part of a load that concerns pages which are not programs'.
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
            // A number may have been given out again, or stand there twice.
            let is_listed = page.fate == (loads, Fate::IsListed);
            if !is_listed && page.found(Owner::Common).is_some_and(|it| !it.global) {
                self.put_out_of_force(id, Owner::Common, memory);
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
        self.restore(local.id.0, (Owner::Common, local.found), memory);
    }

    /// The delta with which a page is in force in the loaded space, if it is, or code that begins in
    /// it and ends in another.
    pub fn delta_in_force(&self, key: &CodePageKey) -> Option<u64> {
        let delta = |id: &u32| self.found(*id).map(|found| found.delta);
        let of_page = self.by_key.get(key).and_then(delta);
        of_page.or_else(|| {
            let straddling = self.straddling.get(&(key.physical_page, key.page))?;
            straddling.iter().find_map(delta)
        })
    }

    /// Hands the pages in force to `check`, in all spaces.
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

    /// What is filled although its page is not in force, or has another delta. Slots that are
    /// listed elsewhere, as `is_listed` says, are not looked at.
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
                return Some(format!("slot {slot} leads to page {page:x}, not in force"));
            };
            // A page out of force runs on with the delta that it had.
            let from = from.found(owner);
            if to.key.relocates && from.is_some_and(|from| from.delta != found.delta) {
                return Some(format!("slot {slot} leads to a page with another delta"));
            }
        }
        let targets = |in_force: bool| {
            let pages = self.pages.iter();
            let pages = pages.filter(move |page| page.found(owner).is_some() == in_force);
            pages.flat_map(|page| &page.targets)
        };
        let reachable: FxHashSet<u64> = targets(true).map(|it| it.address).collect();
        let looked_at = targets(true).chain(targets(false)).map(|it| it.table);
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
                    "an indirect branch finds {address:x}, not in force"
                ));
            }
        }
        None
    }

    fn restore(&mut self, id: u32, (owner, found): (Owner, Found), memory: &mut LinkMemory) {
        self.put_out_of_force(id, owner, memory);
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
        self.in_force[owner.index()] += 1;
        self.counts.put_in_force += 1;

        let page = &self.pages[id as usize];
        let Some(tables) = memory.of(owner) else {
            return;
        };
        let mut restored = page.targets.len();
        for link in &page.arrivals {
            let from = &self.pages[link.other as usize];
            if page.may_be_reached_from(from, (owner, found.delta)) {
                tables.set_slot(link.slot, link.distance as u64);
                restored += 1;
            }
        }
        if page.key.relocates {
            for link in &page.departures {
                // It may have come back with another delta than it ran on with till now.
                let to = self.pages[link.other as usize].found(owner);
                let leads = to.is_some_and(|to| to.delta == found.delta);
                let distance = if leads { link.distance as u64 } else { 0 };
                tables.set_slot(link.slot, distance);
                restored += usize::from(leads);
            }
        }
        for target in &page.targets {
            fill(target, found.delta, tables);
        }
        self.counts.restored += restored as u64;
    }

    /// Keeps the list of local pages from growing without an address-space switch.
    fn drop_stale(&mut self) {
        if self.local.len() < 2 * self.in_force[Owner::Common.index()] + 64 {
            return;
        }
        self.local.sort_unstable();
        self.local.dedup();
        let pages = &self.pages;
        let found = |id: &u32| pages[*id as usize].found(Owner::Common);
        self.local
            .retain(|id| found(id).is_some_and(|it| !it.global));
    }

    /// The same for the list of pages that are not kept with the loaded space.
    fn drop_stale_of_space(&mut self) {
        let owner = Owner::Space(self.loaded);
        if self.not_kept.len() < 2 * self.in_force[owner.index()] + 64 {
            return;
        }
        self.not_kept.sort_unstable();
        self.not_kept.dedup();
        let pages = &self.pages;
        let found = |id: &u32| pages[*id as usize].found(owner);
        self.not_kept
            .retain(|id| found(id).is_some_and(|it| !it.is_kept));
    }

    /// Nothing in an owner's tables leads to a page any more.
    fn put_out_of_force(&mut self, id: u32, owner: Owner, memory: &mut LinkMemory) {
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
                empty(target, found.delta, tables);
            }
        }
        self.in_force[owner.index()] -= 1;
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

    /// Lists a slot of a page's block that leads to another page, and fills it: that page was
    /// just put in force, and if they are relocatable it has the same delta. In other spaces it is
    /// filled as if the pages came in force there.
    pub fn link(
        &mut self,
        slot: u32,
        distance: i32,
        (from, to): (CodePageId, CodePageId),
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
        memory.set_slot(slot, distance as u64);
        let (from, to) = (&self.pages[from.0 as usize], &self.pages[to.0 as usize]);
        for Place { owner, found, .. } in &to.places {
            if to.may_be_reached_from(from, (*owner, found.delta))
                && let Some(tables) = memory.of(*owner)
            {
                tables.set_slot(slot, distance as u64);
            }
        }
    }

    /// A slot leads to no page any more. It must be emptied in all spaces if it did.
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

    /// Lets indirect branches find a block of a page that was just put in force.
    pub fn add_target(&mut self, id: CodePageId, target: IndirectTarget, memory: &mut LinkMemory) {
        let page = &mut self.pages[id.0 as usize];
        if !page.targets.contains(&target) {
            page.targets.push(target);
        }
        for place in &page.places {
            if let Some(tables) = memory.of(place.owner) {
                fill(&target, place.found.delta, tables);
            }
        }
    }

    /// A block of a page, whose code begins at a host address, can no longer be found.
    pub fn remove_target(&mut self, id: CodePageId, address: u64, memory: &mut LinkMemory) {
        let CodePage {
            places, targets, ..
        } = &mut self.pages[id.0 as usize];
        targets.retain(|target| {
            let is_gone = target.address == address;
            for place in places.iter().filter(|_| is_gone) {
                if let Some(tables) = memory.of(place.owner) {
                    empty(target, place.found.delta, tables);
                }
            }
            !is_gone
        });
    }

    /// How often [`CodePages::watch_use`] was called since a page was last used.
    pub fn age(&self, id: CodePageId) -> u32 {
        self.clock.wrapping_sub(self.pages[id.0 as usize].used)
    }

    /// Puts all pages out of force in all spaces, so that each that is used from now on is met again.
    pub fn watch_use(&mut self, memory: &mut LinkMemory) {
        for owner in Owner::all() {
            self.forget(owner, memory);
        }
        self.clock = self.clock.wrapping_add(1);
    }

    /// Puts all but global pages of the loaded space out of force.
    pub fn drop_local(&mut self, memory: &mut LinkMemory) {
        let mut local = std::mem::take(&mut self.local);
        for id in local.drain(..) {
            // A number may have been given out again.
            let found = self.pages[id as usize].found(Owner::Common);
            if found.is_some_and(|it| !it.global) {
                self.put_out_of_force(id, Owner::Common, memory);
            }
        }
        self.local = local;
        self.forget_some(Owner::Space(self.loaded), memory, |found| !found.global);
    }

    /// Puts linear pages of the loaded space out of force, global or not.
    pub fn drop_pages(&mut self, pages: PageRange, memory: &mut LinkMemory) {
        let is_void = |found: &Found| found.depends_on(pages);
        for owner in [Owner::Common, Owner::Space(self.loaded)] {
            if pages.count() >= CHAINS as u64 - 1 {
                self.forget_some(owner, memory, is_void);
                continue;
            }
            // What begins in the page before may end in the first.
            let before = pages.first.wrapping_sub(1);
            for page in std::iter::once(before).chain(pages.pages()) {
                self.drop_chain(page as usize % CHAINS, owner, memory, &is_void);
            }
        }
    }

    /// Puts all pages of the loaded space out of force.
    pub fn drop_all(&mut self, memory: &mut LinkMemory) {
        for owner in [Owner::Common, Owner::Space(self.loaded)] {
            self.forget(owner, memory);
        }
    }

    /// Puts those pages of one of an owner's chains out of force that are void.
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
                self.put_out_of_force(id, owner, memory);
            }
        }
    }
}

fn fill(target: &IndirectTarget, delta: u64, tables: &mut Tables) {
    let (rip, address) = (target.rip.wrapping_add(delta), target.address);
    tables.fill_indirect(rip, (target.mode, target.table), Target { address, delta });
}

/// Empties a target's entry, unless another has taken its place.
fn empty(target: &IndirectTarget, delta: u64, tables: &mut Tables) {
    let rip = target.rip.wrapping_add(delta);
    tables.empty_indirect(rip, target.table, target.address);
}

#[cfg(test)]
#[path = "code_pages_tests.rs"]
mod tests;
