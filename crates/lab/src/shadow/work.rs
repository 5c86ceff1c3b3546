//! What the guest in `guests/shadow.S` is to do.

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
    /// Loads the spaces in turn.
    Switch,
    /// Changes an entry and invalidates its page.
    Invalidate,
    /// Only invalidates a page.
    OnlyInvalidate,
    /// Invalidates all pages of the data one by one.
    RangeByPage,
    /// Does so by a hypercall.
    RangeByCall,
    /// Invalidates all spaces.
    Purge,
    /// Uses all spaces, then two, and invalidates all each time.
    Twice,
}

/// What the guest is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// Which routine.
    pub routine: Routine,
    /// Of how many spaces.
    pub spaces: u64,
    /// Pages that are read each time; zero: none is.
    pub pages: u64,
    /// How often.
    pub rounds: u64,
}

impl Work {
    /// What the guest must have read: the words of a space's pages are its number from 1 on.
    pub fn sum(&self) -> u64 {
        let of_each = self.pages * self.spaces * (self.spaces + 1) / 2;
        match self.routine {
            Routine::Switch => self.rounds * of_each,
            // The first page is that of the first space and of the second in turns.
            Routine::Invalidate => self.rounds * self.pages + self.rounds / 2,
            Routine::OnlyInvalidate => 0,
            Routine::RangeByPage | Routine::RangeByCall | Routine::Purge => {
                self.rounds * self.pages
            }
            Routine::Twice => of_each + self.rounds * self.pages * 3,
        }
    }

    /// Has the guest do it: cycles that the rounds took.
    ///
    /// # Errors
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
