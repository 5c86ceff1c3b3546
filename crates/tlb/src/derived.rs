//! The trait of all structures that hold data derived from the guest's page tables, and its
//! vocabulary.

use crate::software_tlb::View;
use tollgate_x86::LinearAddress;
use tollgate_x86::address::PAGE_SIZE;

/// Consecutive linear pages of 4 KiB, at least one, by their numbers: addresses shifted by 12.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRange {
    /// The first page.
    pub first: u64,
    /// The last page, not below the first.
    pub last: u64,
}

impl PageRange {
    /// The one page that holds an address.
    #[inline]
    pub const fn of(linear: LinearAddress) -> Self {
        Self {
            first: linear.page(),
            last: linear.page(),
        }
    }

    /// The pages of the large page of `size` bytes (a power of two) that holds page `page`.
    pub const fn of_large_page(page: u64, size: u64) -> Self {
        let others = size / PAGE_SIZE - 1;
        Self {
            first: page & !others,
            last: page | others,
        }
    }

    /// Whether page `page` is one of them.
    #[inline]
    pub const fn contains(self, page: u64) -> bool {
        self.first <= page && page <= self.last
    }

    /// How many they are.
    #[inline]
    pub const fn count(self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }

    /// The pages' numbers.
    #[inline]
    pub fn pages(self) -> impl Iterator<Item = u64> {
        self.first..=self.last
    }
}

/// Spaces whose entries can be kept at the same time, the loaded one among them. Who loads spaces
/// may use fewer numbers.
pub const SPACES: usize = 16;

/// Which of the kept spaces: below [`SPACES`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SpaceNumber(u8);

impl SpaceNumber {
    /// The space of that number, taken modulo [`SPACES`].
    pub const fn new(number: usize) -> Self {
        Self((number % SPACES) as u8)
    }

    /// Its number.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize % SPACES
    }
}

/// What an entry lets guest code do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allows {
    /// Loads.
    Loads,
    /// Stores, perhaps only those beside code.
    Stores,
    /// Fetches.
    Fetches,
}

/// Where an entry leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeadsTo {
    /// To the page at this host address.
    HostPage(u64),
    /// To the physical page of this number.
    PhysicalPage(u64),
    /// The structure does not know.
    Unknown,
}

/// An entry of a structure, to be checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Number of the linear page that it is about.
    pub linear_page: u64,
    /// Where it leads.
    pub leads_to: LeadsTo,
    /// What it allows.
    pub allows: Allows,
    /// Whose accesses it serves; `None`: the structure does not know.
    pub view: Option<View>,
    /// The space that it is kept for; `None`: it is found now.
    pub kept_for: Option<SpaceNumber>,
}

/// A structure with entries that were derived from the guest's page tables. It knows of each
/// whether the page is global, and the linear pages that it is about; from which large page
/// and to which physical page it leads is known to [`Origins`](crate::Origins).
///
/// Entries are found of the space that is loaded. Those of others may be kept, but for global
/// pages: an INVLPG in one space would have to find those of all.
///
/// More than what is named may be forgotten, as a processor may.
pub trait Derived {
    /// Forgets all but global pages of the space that is loaded.
    fn drop_local(&mut self);

    /// Forgets linear pages, global or not, of the space that is loaded.
    fn drop_pages(&mut self, pages: PageRange);

    /// Forgets everything, of the space that is loaded: the caller comes back to no other one
    /// with `keeps`.
    fn drop_everything(&mut self);

    /// Another space is loaded. With `keeps` what was derived when it was last loaded holds;
    /// otherwise all but global pages of it is forgotten. What is not overridden keeps
    /// nothing of any space.
    fn load(&mut self, to: SpaceNumber, keeps: bool) {
        let _ = (to, keeps);
        self.drop_local();
    }

    /// Forgets what is kept of a space that is not loaded, at once and whether there is anything or
    /// not. It would be forgotten at the latest when its number is [loaded](Derived::load) for
    /// another.
    fn purge(&mut self, number: SpaceNumber) {
        let _ = number;
    }

    /// Hands all entries to `check`, those of spaces that are not loaded too. It is slow.
    fn show(&self, check: &mut dyn FnMut(Held)) {
        let _ = check;
    }

    /// What of the structure contradicts itself. It is slower still.
    fn contradiction(&self) -> Option<String> {
        None
    }
}
