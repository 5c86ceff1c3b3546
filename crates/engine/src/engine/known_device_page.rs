//! The linear page that is known to lead to a device: what the engine remembers of it.

use crate::abi::context::NO_PAGE;
use tollgate_tlb::PageRange;

/// A linear page, used at level 0, that leads to a device's registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct DevicePage {
    /// Zero minus the page's number, or [`NO_PAGE`].
    pub negated: u64,
    /// Whether stores are allowed.
    pub writable: bool,
    pub global: bool,
}

impl DevicePage {
    /// No page is known.
    pub const NONE: Self = Self {
        negated: NO_PAGE,
        writable: false,
        global: false,
    };

    /// Forgets the page unless it is global.
    pub fn drop_local(&mut self) {
        if !self.global {
            *self = Self::NONE;
        }
    }

    /// Adjusts to the load of another space: a global page stays known only in the upper half,
    /// where it is global in all spaces.
    pub fn load(&mut self) {
        let is_upper = self.negated.wrapping_neg() >> 51 != 0;
        if !self.global || !is_upper {
            *self = Self::NONE;
        }
    }

    /// Forgets the page if it is one of `pages`.
    pub fn drop_pages(&mut self, pages: PageRange) {
        if pages.contains(self.negated.wrapping_neg()) {
            *self = Self::NONE;
        }
    }
}
