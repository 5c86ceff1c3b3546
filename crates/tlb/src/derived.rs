//! The trait of all structures that hold data derived from the guest's page tables, and its
//! vocabulary.

use crate::view::View;
use tollgate_x86::LinearAddress;
use tollgate_x86::address::PAGE_SIZE;

/// Consecutive linear pages of 4 KiB, at least one, by their page numbers (addresses shifted right
/// by 12).
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

    /// Whether page `page` is in the range.
    #[inline]
    pub const fn contains(self, page: u64) -> bool {
        self.first <= page && page <= self.last
    }

    /// The number of pages in the range.
    #[inline]
    pub const fn count(self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }

    /// The page numbers in the range.
    #[inline]
    pub fn pages(self) -> impl Iterator<Item = u64> {
        self.first..=self.last
    }
}

/// Maximum number of spaces whose entries can be kept at the same time, including the loaded one.
/// The code that loads spaces may use fewer numbers.
pub const SPACES: usize = 16;

/// The number of a kept space, below [`SPACES`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SpaceNumber(u8);

impl SpaceNumber {
    /// The space with a number, which is taken modulo [`SPACES`].
    pub const fn new(number: usize) -> Self {
        Self((number % SPACES) as u8)
    }

    /// The number as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize % SPACES
    }
}

/// The accesses that an entry allows guest code to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allows {
    /// Loads.
    Loads,
    /// Stores, perhaps only those next to code.
    Stores,
    /// Fetches.
    Fetches,
}

/// Where an entry leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeadsTo {
    /// The page at this host address.
    HostPage(u64),
    /// The physical page with this number.
    PhysicalPage(u64),
    /// The structure does not know where the entry leads.
    Unknown,
}

/// An entry of a structure, for checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Number of the linear page that the entry is about.
    pub linear_page: u64,
    /// Where the entry leads.
    pub leads_to: LeadsTo,
    /// The accesses that the entry allows.
    pub allows: Allows,
    /// The view whose accesses the entry serves. `None` means that the structure does not know.
    pub view: Option<View>,
    /// The space that the entry is kept for. `None` means that accesses find the entry now.
    pub kept_for: Option<SpaceNumber>,
}

/// A structure with entries that were derived from the guest's page tables. The structure knows
/// whether the page of an entry is global, and the linear pages that the entry is about.
/// [`Origins`](crate::Origins) knows the large page that the entry comes from and the physical page
/// that it leads to.
///
/// Only entries of the loaded space are found. Entries of other spaces may be kept, except for
/// global pages: an INVLPG in one space would have to find these in all spaces.
///
/// A structure may always forget more than it is asked to, as a processor may.
pub trait Derived {
    /// Forgets all entries of the loaded space, except those of global pages.
    fn drop_local(&mut self);

    /// Forgets linear pages of the loaded space, global or not.
    fn drop_pages(&mut self, pages: PageRange);

    /// Forgets all entries of the loaded space. The caller will not return to any other space with
    /// `keeps`.
    fn drop_everything(&mut self);

    /// Loads another space. With `keeps`, the entries that were derived when the space was last
    /// loaded are valid; otherwise all of them are forgotten, except those of global pages. The
    /// default implementation keeps no entries of any space.
    fn load(&mut self, to: SpaceNumber, keeps: bool) {
        let _ = (to, keeps);
        self.drop_local();
    }

    /// Forgets the entries that are kept for a space that is not loaded, immediately and even if
    /// there are none. Without this call they would be forgotten when their number is
    /// [loaded](Derived::load) for another space.
    fn purge(&mut self, number: SpaceNumber) {
        let _ = number;
    }

    /// Passes all entries to `check`, including those of spaces that are not loaded. This is slow.
    fn show(&self, check: &mut dyn FnMut(Held)) {
        let _ = check;
    }

    /// Describes a contradiction inside the structure, if there is one. This is slower still.
    fn contradiction(&self) -> Option<String> {
        None
    }
}
