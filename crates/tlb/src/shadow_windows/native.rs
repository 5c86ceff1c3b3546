//! The windows of programs that run natively: guest RAM mapped at the program's own addresses, in a
//! process of the host that runs the program.
//!
//! Such a window lies in an address space of the host other than this process's, so no translated
//! code reaches it. In everything else it is a window like the others: what it holds was found by a
//! walk of the guest's tables and is forgotten when the guest invalidates it. It has parts of its
//! own, beyond those of canonical addresses and of [32-bit guests](super::narrow):
//!
//! ```text
//! linear 7F12_3456_7000h, of part 0FEh    named 0001_7F12_3456_7000h, of part 2FEh
//! ```

use super::part::{part_of, start_of};
use super::runs::Run;
use crate::derived::PageRange;
use crate::parts::HALF;
use std::fmt::Debug;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tollgate_x86::LinearAddress;
use tollgate_x86::address::PAGE_SIZE;

/// The distance of a name from the address that it stands for.
const DISTANCE: u64 = 1 << 48;
const DISTANCE_PAGES: u64 = DISTANCE / PAGE_SIZE;
/// The addresses that programs can have. Linux maps nothing for a process below 64 KiB
/// (vm.mmap_min_addr).
const BEGIN: u64 = 64 << 10;
const END: u64 = 1 << 47;
/// The parts of the names.
const PARTS: Range<i64> = 2 * HALF..3 * HALF;

/// What a program may do with a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// Whether it may store to the page. It may always load.
    pub writable: bool,
    /// Whether it may execute the page.
    pub executable: bool,
}

impl Rights {
    /// The rights that a run's pages have.
    pub(super) const fn of(run: &Run) -> Self {
        Self {
            writable: run.writable,
            executable: run.executable,
        }
    }
}

/// An address space of the host in which programs of one space of the guest run. The calls may be
/// carried out later, but in this order and before the program runs.
pub trait NativeSpace: Debug + Send {
    /// Maps `bytes` bytes of a file, from `offset` on, at an address, in the place of whatever is
    /// mapped there.
    fn map(&mut self, address: u64, bytes: u64, source: (BorrowedFd<'_>, u64), rights: Rights);

    /// Removes the mappings in a range.
    fn unmap(&mut self, address: u64, bytes: u64);

    /// The addresses that the space does not have for its programs.
    fn reserved(&self) -> Range<u64>;

    /// Changes what a program may do in a range, all of which is mapped.
    fn protect(&mut self, address: u64, bytes: u64, rights: Rights);
}

/// An address space that the windows share with whatever runs the program.
pub type SharedNativeSpace = Arc<Mutex<dyn NativeSpace>>;

/// Borrows a space. A thread that panicked while it had the space has queued whole calls only.
pub(super) fn locked(space: &SharedNativeSpace) -> MutexGuard<'_, dyn NativeSpace + 'static> {
    space.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a part belongs to windows of programs that run natively.
pub(crate) fn is_part(number: i64) -> bool {
    PARTS.contains(&number)
}

/// Whether programs in a space of the host can have the page of an address.
pub(super) fn has_page(space: &SharedNativeSpace, linear: LinearAddress) -> bool {
    let reserved = locked(space).reserved();
    (BEGIN..END).contains(&linear.0) && !reserved.contains(&linear.page_base().0)
}

/// The address that windows use for an address of a program that runs natively.
pub const fn named(linear: LinearAddress) -> LinearAddress {
    LinearAddress(linear.0 % END + DISTANCE)
}

/// The same if programs can have the address.
pub fn name_of(linear: LinearAddress) -> Option<LinearAddress> {
    (BEGIN..END).contains(&linear.0).then(|| named(linear))
}

/// The page number of the linear address for which windows use the page `named`.
pub fn page_of(named: u64) -> Option<u64> {
    is_part(part_of(named)).then(|| named - DISTANCE_PAGES)
}

/// The first address that a part of such names stands for.
pub(super) fn start_of_named(part: i64) -> LinearAddress {
    LinearAddress(start_of(part) - DISTANCE)
}

/// The pages that windows use for pages of a program. `None` means that no program can have one of
/// the pages.
pub(super) fn named_pages(pages: PageRange) -> Option<PageRange> {
    let end = END / PAGE_SIZE;
    (pages.first < end).then(|| PageRange {
        first: pages.first + DISTANCE_PAGES,
        last: pages.last.min(end - 1) + DISTANCE_PAGES,
    })
}
