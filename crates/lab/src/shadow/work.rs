//! The work for the guest in `guests/shadow.S`.

use crate::experiment::{LabError, Stop};
use crate::paged_guest::{Images, PAGES, PagedGuest};

/// The assembled guest.
pub const IMAGES: Images = Images {
    wide: include_bytes!(concat!(env!("OUT_DIR"), "/shadow-64.bin")),
    narrow: include_bytes!(concat!(env!("OUT_DIR"), "/shadow.bin")),
};

/// The routines of `guests/shadow.S`, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Routine {
    /// Loads the spaces in turn and reads their pages.
    Switch,
    /// Changes an entry and invalidates its page.
    Invalidate,
    /// Only invalidates a page.
    OnlyInvalidate,
    /// Invalidates all pages of the data one by one.
    RangeByPage,
    /// Invalidates all pages of the data by a hypercall.
    RangeByCall,
    /// Invalidates all spaces.
    Purge,
    /// Uses all spaces, then two, and invalidates all each time.
    Twice,
}

/// The work for one run of the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// The routine to run.
    pub routine: Routine,
    /// The number of spaces.
    pub spaces: u64,
    /// The number of pages that are read each time; may be zero.
    pub pages: u64,
    /// The number of rounds.
    pub rounds: u64,
}

impl Work {
    /// The sum of what the guest must have read: the words in the pages of the first space are 1,
    /// those of the second 2, and so on.
    pub fn sum(&self) -> u64 {
        let of_each = self.pages * self.spaces * (self.spaces + 1) / 2;
        match self.routine {
            Routine::Switch => self.rounds * of_each,
            // The first page is mapped to that of the first space and of the second in turns.
            Routine::Invalidate => self.rounds * self.pages + self.rounds / 2,
            Routine::OnlyInvalidate => 0,
            Routine::RangeByPage | Routine::RangeByCall | Routine::Purge => {
                self.rounds * self.pages
            }
            Routine::Twice => of_each + self.rounds * self.pages * 3,
        }
    }

    /// Makes the guest do this work. Returns the cycles that the rounds took.
    ///
    /// # Errors
    ///
    /// Those of [`PagedGuest::run`].
    pub fn run(&self, guest: &mut PagedGuest, stop: &Stop) -> Result<u64, LabError> {
        let places = guest.places();
        let parameters = [
            places.spaces,
            places.data,
            self.pages,
            self.rounds,
            places.first_entry,
            places.entry_values,
            places.operand,
            PAGES,
        ];
        guest.run(
            self.routine as u64,
            self.spaces,
            parameters,
            self.sum(),
            stop,
        )
    }
}
