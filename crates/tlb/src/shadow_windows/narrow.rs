//! The shadow windows of guests whose linear addresses have 32 bits.
//!
//! There is one window for each view of a space, and each stands for all 4 GiB. To be windows like
//! those of 64-bit guests, they have parts of their own, next to those of canonical addresses: in
//! the lower half the part of the programs of one space, in the upper half that of the kernel. The
//! page that [`ShadowWindows`] uses for a page of a 32-bit guest is
//! [`named`] by view and linear address.
//!
//! ```text
//! linear C012_3456h, supervisor's view    named FFFF_7F80_C012_3456h, of part -257
//!                    user's view          named 0000_8000_C012_3456h, of part 256
//! ```
//!
//! In such a window nothing is ever mapped above the first 4 GiB, where an access that should wrap
//! continues.

use super::part::{part_of, start_of};
use super::{BesideWindow, Run, ShadowWindows};
use crate::derived::PageRange;
use crate::parts::HALF;
use crate::view::View;
use tollgate_x86::LinearAddress;
use tollgate_x86::address::PAGE_SIZE;

/// Size of the linear addresses of 32 bits.
const SPAN: u64 = 1 << 32;
const SPAN_PAGES: u64 = SPAN / PAGE_SIZE;

/// The part of a view's window, which no canonical address has.
const fn part(view: View) -> i64 {
    match view {
        View::Supervisor => -HALF - 1,
        View::User => HALF,
    }
}

/// Whether a part belongs to a window of a 32-bit guest.
pub(crate) const fn is_part(number: i64) -> bool {
    number == part(View::Supervisor) || number == part(View::User)
}

/// The address that windows use for a 32-bit linear address in a view.
pub fn named(view: View, linear: LinearAddress) -> LinearAddress {
    LinearAddress(start_of(part(view)) + linear.0 % SPAN)
}

/// The page number of the 32-bit linear address for which windows use the page `named`.
pub fn page_of(named: u64) -> Option<u64> {
    is_part(part_of(named)).then_some(named % SPAN_PAGES)
}

/// The pages that a view's windows use for pages below 4 GiB. `None` means that none of the pages
/// is below 4 GiB.
pub(super) fn named_pages(view: View, pages: PageRange) -> Option<PageRange> {
    let first_of_all = start_of(part(view)) / PAGE_SIZE;
    (pages.first < SPAN_PAGES).then(|| PageRange {
        first: first_of_all + pages.first,
        last: first_of_all + pages.last.min(SPAN_PAGES - 1),
    })
}

/// Whether pages of a part of a 32-bit guest lie in the first 4 GiB of the part.
pub(super) fn holds(run: &Run) -> bool {
    let first = (run.page * PAGE_SIZE).wrapping_sub(start_of(part_of(run.page))) / PAGE_SIZE;
    first < SPAN_PAGES && run.count <= SPAN_PAGES - first
}

impl ShadowWindows {
    /// Whether there has been a window of a 32-bit guest since the start.
    pub fn has_narrow(&self) -> bool {
        self.has_narrow
    }

    /// Host minus 32-bit linear address in a view of the loaded space.
    pub fn narrow_delta(&self, view: View) -> u64 {
        let part = part(view);
        self.delta(part).wrapping_add(start_of(part))
    }

    /// Classifies a host address as [`ShadowWindows::what_is`] does, for linear addresses of 32
    /// bits.
    pub fn what_is_narrow(&self, view: View, host: u64) -> BesideWindow {
        let start = self.narrow_delta(view);
        let linear = host.wrapping_sub(start);
        if linear < SPAN {
            // This is also the answer without a window: all accesses of the view lead to the same
            // one.
            return BesideWindow::Page(LinearAddress(linear));
        }
        match super::area::contains(host) {
            true => BesideWindow::Between,
            false => BesideWindow::No,
        }
    }
}
