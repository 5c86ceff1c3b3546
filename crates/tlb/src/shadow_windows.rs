//! Shadow windows: guest RAM mapped by the host's page tables where the guest's page tables lead.
//!
//! A window is a region of the process of 512 GiB. It stands for one *part* of an address space of
//! the guest, as the [long software TLB](crate::long_tlb) defines parts. Guest RAM is mapped in it
//! page by page where the guest's own tables lead, so translated code reaches RAM by one addition:
//! a table has *host minus linear address* for each part. An address that is not mapped faults on
//! the host, and the monitor finds out why.
//!
//! ```text
//! linear 7F12_3456_7000h, part 0FEh      window of that part, at 1200_0000_0000h
//!   |  + [table + part * 8]                |
//!   +------------------------------------> 1292_3456_7000h: the page of guest RAM
//! ```
//!
//! A window holds nothing that an entry of the software TLB could not hold: a page is mapped after
//! a walk of the guest's tables, a page that is not dirty yet or that holds translated code is
//! mapped for loads only, and pages that the guest invalidates are unmapped. When the guest
//! invalidates much at one time, the window is only put aside ([`ShadowWindows::is_aside`]): its
//! part leads to nothing until the caller has compared the mapped pages with the guest's tables at
//! that time ([`ShadowWindows::take_back`]). Unmapping all pages and faulting them in again would
//! cost a hundred times as much.
//!
//! Each window of the lower half of the addresses belongs to one space and holds what code at level
//! 3 may access. Those of the upper half are for code at level 0 and shared by all spaces: they
//! hold only global pages, which a load of CR3 does not invalidate. 32-bit guests have windows of
//! the same two kinds, which stand for 4 GiB each: see [`narrow`].

pub mod anchors;
mod area;
pub mod narrow;
pub mod native;
mod native_windows;
mod page_set;
mod part;
mod place;
mod runs;
mod window;

pub use self::area::BESIDE_WINDOW;
pub use self::runs::Run;

use self::anchors::Anchors;
use self::area::Region;
use self::native::SharedNativeSpace;
use self::page_set::PageSet;
use self::part::{PART_PAGES, part_of, start_of};
use self::place::Place;
use self::window::Window;
use crate::derived::{PageRange, SPACES, SpaceNumber};
use crate::view::View;
use std::io;
use std::os::fd::BorrowedFd;
use tollgate_x86::LinearAddress;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::canonical::is_canonical;

/// Maximum distance, in bytes, from the linear address that translated code knows to the address
/// that it accesses.
const NEAR: u64 = 4096;
const _: () = assert!(BESIDE_WINDOW + NEAR < area::BETWEEN / 2);

/// The number of mappings that Linux allows a process by default.
const USUAL_MAP_COUNT: usize = 65_530;

/// Maximum number of mappings in all windows of a vCPU. It is well below the number that Linux
/// allows a process (vm.max_map_count), because the process has other mappings, and removing a page
/// from the middle of a mapping makes two of it.
fn most_mappings() -> usize {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    let count = text.ok().and_then(|text| text.trim().parse().ok());
    count.unwrap_or(USUAL_MAP_COUNT) / 8 * 3
}
/// The page number of the linear address for which windows use the page `named`, if that is not the
/// same number: in windows of 32-bit guests and of programs that run natively.
pub fn page_of(named: u64) -> Option<u64> {
    narrow::page_of(named).or_else(|| native::page_of(named))
}

/// Whether this process has room for windows. Determined once.
pub fn have_place() -> bool {
    area::is_free()
}

/// Counts of the operations on windows since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WindowCounts {
    /// Runs that were mapped.
    pub mapped: u64,
    /// Runs, or pieces of them, that were unmapped or made read-only one by one.
    pub unmapped: u64,
    /// Windows that were emptied as a whole.
    pub emptied: u64,
    /// Windows that were put aside.
    pub put_aside: u64,
}

/// Classifies a host address at which a direct access has faulted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BesideWindow {
    /// The address belongs to no window.
    No,
    /// The address stands for a linear address, in the window of its part.
    Page(LinearAddress),
    /// The address probably stands for a linear address whose part has no window.
    Nothing(LinearAddress),
    /// The address belongs to some window, but stands for no linear address, or for one that is not
    /// known.
    Between,
}

/// The shadow windows of one vCPU.
#[derive(Debug)]
pub struct ShadowWindows {
    windows: Vec<Window>,
    most_mappings: usize,
    /// The pages to which any window may allow stores.
    writable: PageSet,
    /// The pages that any window may have been given for loads only.
    for_loads: PageSet,
    loaded: SpaceNumber,
    anchors: Option<Anchors>,
    /// Whether the anchors are used.
    uses_anchors: bool,
    /// Whether there has been a window of a 32-bit guest.
    has_narrow: bool,
    /// The address spaces of the host in which programs run natively, by space.
    native: [Option<SharedNativeSpace>; SPACES],
    counts: WindowCounts,
}

impl ShadowWindows {
    /// Starts without windows. Returns `None` if this process has no room for them.
    pub fn new() -> Option<Self> {
        area::is_free().then(|| Self {
            windows: Vec::new(),
            most_mappings: most_mappings(),
            writable: PageSet::default(),
            for_loads: PageSet::default(),
            loaded: SpaceNumber::default(),
            anchors: None,
            uses_anchors: false,
            has_narrow: false,
            native: Default::default(),
            counts: WindowCounts::default(),
        })
    }

    /// Counts of the operations so far.
    pub fn counts(&self) -> WindowCounts {
        self.counts
    }

    /// The present number of mappings in this process.
    pub fn mappings(&self) -> usize {
        let here = self.windows.iter().filter(|it| !native::is_part(it.part));
        here.map(|window| window.runs.len()).sum()
    }

    fn find(&self, part: i64) -> Option<usize> {
        let is_it = |it: &Window| it.part == part && it.is_of(self.loaded);
        self.windows.iter().position(is_it)
    }

    fn at(&self, linear: LinearAddress) -> Option<&Window> {
        let index = self.find(part_of(linear.page()))?;
        self.windows.get(index)
    }

    /// Host minus linear address for a part (-256 to 255) of the loaded space.
    pub fn delta(&self, part: i64) -> u64 {
        let window = self.find(part).map(|index| &self.windows[index]);
        match window.filter(|window| !window.aside).map(Window::delta) {
            Some(Some(delta)) => delta,
            Some(None) | None => Self::slide_to_nothing(part),
        }
    }

    /// Switches the anchors on or off. The first time they are reserved for this machine, unless
    /// another machine has them.
    pub fn use_anchors(&mut self, uses: bool) {
        self.uses_anchors = uses;
        if uses && self.anchors.is_none() {
            self.anchors = Anchors::take();
            // Windows that lie elsewhere make room for those at the anchor.
            self.empty(|window| anchors::is_common(window.part));
        }
    }

    /// Host minus linear address of the loaded space's [common parts](anchors). While one of their
    /// windows is put aside, this is a value that makes each access to them fault. `None` means
    /// that this machine has no anchors, or that they are switched off.
    pub fn anchor(&self) -> Option<u64> {
        let anchors = self.anchors.as_ref().filter(|_| self.uses_anchors)?;
        Some(match self.common_aside() {
            None => anchors.of(self.loaded),
            Some(_) => anchors.nothing(),
        })
    }

    /// An address in a common part of the loaded space whose window is put aside.
    pub fn common_aside(&self) -> Option<LinearAddress> {
        let is_it = |window: &&Window| {
            window.aside && anchors::is_common(window.part) && window.is_of(self.loaded)
        };
        let window = self.windows.iter().find(is_it)?;
        Some(LinearAddress(start_of(window.part)))
    }

    /// The distance from linear to host addresses that makes each access to a part fault.
    pub fn slide_to_nothing(part: i64) -> u64 {
        area::nothing().wrapping_sub(start_of(part))
    }

    /// Classifies a host address at which translated code has faulted. `near` is a linear address
    /// of the same part, if the code knows one.
    pub fn what_is(&self, host: u64, near: LinearAddress) -> BesideWindow {
        if area::is_nothing(host) {
            let part = part_of(near.page());
            let linear = host.wrapping_sub(Self::slide_to_nothing(part));
            // An access that continues in the next part is in no window of this part, even if both
            // have windows.
            let is_near = part_of(linear / PAGE_SIZE) == part && linear.wrapping_sub(near.0) < NEAR;
            return match is_canonical(near.0) && is_near {
                true => BesideWindow::Nothing(LinearAddress(linear)),
                false => BesideWindow::Between,
            };
        }
        let found = self.windows.iter().find_map(|window| {
            let Place::Here(region) = &window.place else {
                return None;
            };
            region.offset(host)?;
            let linear = LinearAddress(host.wrapping_sub(window.delta()?));
            (window.is_of(self.loaded)).then_some(BesideWindow::Page(linear))
        });
        if let Some(found) = found {
            return found;
        }
        let anchored = self.anchors.as_ref().and_then(|anchors| {
            let mut both = [anchors.of(self.loaded), anchors.nothing()].into_iter();
            both.find_map(|anchor| Anchors::linear(anchor, host))
        });
        match anchored {
            Some(linear) => BesideWindow::Page(linear),
            None if area::contains(host) => BesideWindow::Between,
            None => BesideWindow::No,
        }
    }

    /// Whether the window of an address in the loaded space is put aside.
    pub fn is_aside(&self, linear: LinearAddress) -> bool {
        self.at(linear).is_some_and(|window| window.aside)
    }

    /// The run that is mapped at an address of the loaded space.
    pub fn mapped(&self, linear: LinearAddress) -> Option<Run> {
        self.at(linear)?.runs.at(linear.page())
    }

    /// The runs in the window of an address of the loaded space, if the window is put aside.
    pub fn runs_aside(&self, linear: LinearAddress) -> Vec<Run> {
        let window = self.at(linear).filter(|window| window.aside);
        window.map_or_else(Vec::new, |window| window.runs.iter().copied().collect())
    }

    /// Takes back a window that was put aside. The guest's tables lead to the pages that are mapped
    /// there, except for the ranges of pages (without their end) that have `gone`.
    pub fn take_back(&mut self, linear: LinearAddress, gone: &[(u64, u64)]) {
        let Some(index) = self.find(part_of(linear.page())) else {
            return;
        };
        let window = &mut self.windows[index];
        for &(first, end) in gone {
            self.counts.unmapped += window.unmap(first, end);
        }
        window.aside = false;
    }

    /// Notes that the page mapped at an address of the loaded space belongs to a large page of the
    /// guest of `bytes` bytes, a power of two. Must follow [`ShadowWindows::map`].
    pub fn note_large(&mut self, linear: LinearAddress, bytes: u64) {
        let large = PageRange::of_large_page(linear.page(), bytes);
        if let Some(index) = self.find(part_of(linear.page())) {
            self.windows[index].large.insert(large.first, large.count());
        }
    }

    /// Maps pages of guest RAM, which begin at `offset` in `file`, in the loaded space, replacing
    /// what is mapped there. All of them lie in one part.
    ///
    /// # Errors
    /// The host's mmap failed, or there is no region left; the pages are then not mapped.
    pub fn map(&mut self, run: Run, file: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        let part = part_of(run.page);
        let is_one = run.count <= PART_PAGES && part_of(run.end() - 1) == part;
        let has_place = match narrow::is_part(part) {
            true => narrow::holds(&run),
            false => native::is_part(part) || is_canonical(run.page * PAGE_SIZE),
        };
        if !is_one || !has_place {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.has_narrow |= narrow::is_part(part);
        if self.mappings() >= self.most_mappings {
            self.make_room();
        }
        let index = match self.find(part) {
            Some(index) => index,
            None => {
                let place = self.take_place(part)?;
                self.windows.push(Window::new(place, part, self.loaded));
                self.windows.len() - 1
            }
        };
        let window = &mut self.windows[index];
        self.counts.unmapped += window.unmap(run.page, run.end());
        window.place.map(&run, file, offset)?;
        self.counts.mapped += 1;
        match run.writable {
            true => self.writable.insert(run.physical, run.count),
            false => self.for_loads.insert(run.physical, run.count),
        }
        window.runs.insert(run);
        Ok(())
    }

    /// The place for a new window of a part.
    fn take_place(&mut self, part: i64) -> io::Result<Place> {
        if native::is_part(part) {
            let space = self.native_space().ok_or(io::ErrorKind::NotFound)?;
            return Ok(Place::Native(space.clone()));
        }
        let anchors = self.anchors.as_ref().filter(|_| anchors::is_common(part));
        if let Some(anchor) = anchors.map(|anchors| anchors.of(self.loaded)) {
            let base = start_of(part).wrapping_add(anchor);
            return Ok(Place::Here(Region::at(base)));
        }
        let region = match Region::take() {
            Some(region) => region,
            None => {
                let loaded = self.loaded;
                self.empty(|window| !window.is_of(loaded) && !native::is_part(window.part));
                Region::take().ok_or(io::ErrorKind::OutOfMemory)?
            }
        };
        Ok(Place::Here(region))
    }

    /// Empties windows, those of other spaces first.
    fn make_room(&mut self) {
        let loaded = self.loaded;
        let is_here = |window: &Window| !native::is_part(window.part);
        self.empty(|window| is_here(window) && !window.is_of(loaded));
        if self.mappings() >= self.most_mappings {
            self.empty(is_here);
        }
    }

    fn empty(&mut self, which: impl Fn(&Window) -> bool) {
        let before = self.windows.len();
        self.windows.retain(|window| !which(window));
        self.counts.emptied += (before - self.windows.len()) as u64;
    }

    /// Empties the windows of all spaces.
    pub fn empty_all(&mut self) {
        self.empty(|_| true);
    }

    /// Empties all windows that belong to the loaded space alone.
    pub fn empty_loaded(&mut self) {
        let loaded = Some(self.loaded);
        self.empty(|window| window.space == loaded);
    }

    /// Makes all windows, in any space, refuse stores to a physical page. Returns whether some
    /// window allowed them.
    pub fn protect(&mut self, physical_page: u64) -> bool {
        if !self.writable.may_hold(physical_page) {
            return false;
        }
        let mut allowed = false;
        for window in &mut self.windows {
            let leads_there = |run: &&Run| {
                let offset = physical_page.wrapping_sub(run.physical);
                run.writable && offset < run.count
            };
            let runs = window.runs.iter().filter(leads_there);
            let page = |run: &Run| run.page + (physical_page - run.physical);
            for page in runs.map(page).collect::<Vec<u64>>() {
                window.protect(page);
                self.counts.unmapped += 1;
                allowed = true;
            }
        }
        self.writable.remove(physical_page);
        allowed
    }

    /// Unmaps the physical pages from `first` up to but not including `end` from all windows that
    /// were given them for loads only, in any space: other memory has their contents now.
    pub fn unmap_loads_from(&mut self, first: u64, end: u64) {
        if !(first..end).any(|page| self.for_loads.may_hold(page)) {
            return;
        }
        for window in &mut self.windows {
            let pages = |run: &Run| {
                let (from, to) = (first.max(run.physical), end.min(run.physical + run.count));
                let place = |physical: u64| run.page + (physical - run.physical);
                (!run.writable && from < to).then(|| (place(from), place(to)))
            };
            for (from, to) in window.runs.iter().filter_map(pages).collect::<Vec<_>>() {
                self.counts.unmapped += window.unmap(from, to);
            }
        }
        (first..end).for_each(|page| self.for_loads.remove(page));
    }

    /// Forgets linear pages of the loaded space.
    pub fn drop_pages(&mut self, pages: PageRange) {
        let narrow = View::ALL.map(|view| narrow::named_pages(view, pages));
        let native = native::named_pages(pages);
        for pages in narrow.into_iter().chain([native, Some(pages)]).flatten() {
            let (first, end) = (pages.first, pages.last.saturating_add(1));
            for window in &mut self.windows {
                if window.is_of(self.loaded) && !window.aside {
                    self.counts.unmapped += window.invalidate(first, end);
                }
            }
        }
    }

    /// Puts the windows of the loaded space aside; with `all`, also those of global pages.
    pub fn put_aside(&mut self, all: bool) {
        for window in &mut self.windows {
            let is_meant = window.space == Some(self.loaded) || all && window.space.is_none();
            if is_meant && !window.aside {
                window.aside = true;
                self.counts.put_aside += 1;
            }
        }
    }

    /// Empties the windows of a space that is not loaded.
    pub fn purge(&mut self, number: SpaceNumber) {
        if number != self.loaded {
            self.empty(|window| window.space == Some(number));
        }
    }

    /// Loads another space. Without `keeps`, the windows under its number belong to another space
    /// or were invalidated.
    pub fn load(&mut self, to: SpaceNumber, keeps: bool) {
        self.loaded = to;
        if !keeps {
            self.put_aside(false);
        }
    }

    /// The number of the loaded space.
    pub fn loaded(&self) -> SpaceNumber {
        self.loaded
    }

    /// The part of a window, by the window's index, and its space if it is in the lower half.
    pub fn owner(&self, index: usize) -> Option<(i64, Option<SpaceNumber>)> {
        let window = self.windows.get(index)?;
        Some((window.part, window.space))
    }

    /// Passes each run that translated code can find to `see`, with the space that the run is kept
    /// for or `None` for all spaces. Windows that are put aside are left out.
    pub fn show(&self, mut see: impl FnMut(Option<SpaceNumber>, Run)) {
        for window in self.windows.iter().filter(|window| !window.aside) {
            for run in window.runs.iter() {
                see(window.space, *run);
            }
        }
    }

    /// The parts that have windows in any space.
    pub fn parts(&self) -> impl Iterator<Item = i64> {
        let mut parts: Vec<i64> = self.windows.iter().map(|window| window.part).collect();
        parts.sort_unstable();
        parts.dedup();
        parts.into_iter()
    }
}

const _: () = assert!(
    SPACES * 3 < area::REGIONS,
    "each space may have windows in addition to those of common parts"
);

#[cfg(test)]
#[path = "shadow_windows_tests.rs"]
mod tests;
