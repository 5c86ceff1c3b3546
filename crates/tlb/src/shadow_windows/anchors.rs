//! Anchors: one *host minus linear address* for all of the parts that most programs use.
//!
//! Each window has its own distance from linear to host addresses, which translated code loads from
//! a table by the address that it accesses; the load must finish before the access can begin.
//! Programs that may be loaded at any address use the same few parts in every space: Linux puts
//! them and their heaps at two thirds of the lower half, their libraries and stacks at its end. The
//! windows of these *common parts* lie in the process at the same distances from one another as in
//! the guest, so that one distance serves all common parts of a space: its *anchor*. The anchor is
//! the base of the host's GS while the space is loaded:
//!
//! ```text
//! mov rax,[rbx+8]         sarx  rcx, rbx, r15              ; the page
//!                         movzx ecx, byte [rcx+CHECK]      ; faults unless its part is common
//!                         mov   rax, gs:[rbx+8]
//! ```
//!
//! The value of the loaded byte is not used. In the region at `CHECK`, only those pages are mapped,
//! for loads, whose numbers are those of linear pages in common parts. So a register that has
//! passed the check holds an address in one of them, and the access lies in this space's windows or
//! where nothing is ever mapped. No instruction depends on that load, and a register that has
//! passed need not be checked again.
//!
//! The check also passes addresses that are not canonical. Adding the anchor, which is far smaller
//! than the distance to the nearest canonical address, does not make them canonical: the access
//! itself faults.
//!
//! ```text
//! the host's addresses, in parts of 512 GiB (hexadecimal)
//! 5D..A1   programs: 3 parts for each anchor, and one between them in which nothing is mapped
//! AA..     this process's own program
//! B0..F4   libraries and stacks: the same
//! FD..     this process's own libraries, stack and all that it maps
//! ```
//!
//! All anchors belong to one machine of a process, the first that asks for them. All other machines
//! work without anchors, and so does every machine if the host has mapped something else there.

use super::area::{BESIDE_WINDOW, is_range_free};
use crate::derived::{SPACES, SpaceNumber};
use crate::parts::PART_SHIFT;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use tollgate_x86::LinearAddress;
use tollgate_x86::address::PAGE_SIZE;

/// The common parts, first and last: those of programs, and those of libraries and stacks.
const COMMON: [(i64, i64); 2] = [(0xaa, 0xac), (0xfd, 0xff)];
/// Distance from one anchor to the next, in parts: those of programs, and one in which nothing is
/// mapped.
const STEP: i64 = 4;
/// Number of anchors below the guest's own addresses that are not used, so that this process has
/// room for its own mappings.
const LEFT_OUT: i64 = 2;
/// Number of anchors. The last one leads to nothing.
const ANCHORS: i64 = SPACES as i64 + 1;

/// Offset from the number of a linear page to the address from which a byte is loaded to check that
/// the page is in a common part.
pub const CHECK_DISPLACEMENT: i32 = i32::MAX - (PAGE_SIZE as i32 - 1);
const CHECK: u64 = CHECK_DISPLACEMENT as u64;
/// Number of linear pages in a part.
const PART_PAGES: u64 = 1 << (PART_SHIFT - 12);

/// The range of host addresses that a group of common parts uses with all anchors, with one unused
/// part on either side, as first address and end.
const fn extent(group: usize) -> (u64, u64) {
    let (first, last) = COMMON[group];
    let lowest = first - STEP * (LEFT_OUT + ANCHORS) - 1;
    let end = last - STEP * (LEFT_OUT + 1) + 2;
    ((lowest as u64) << PART_SHIFT, (end as u64) << PART_SHIFT)
}

/// The first address of the windows of programs. Other windows may lie below it.
pub(super) const BEGIN: u64 = extent(0).0;

// The two groups do not overlap, nor does this process's own program, which begins at AAh.
const _: () = assert!(extent(0).1 <= 0xaa << PART_SHIFT && 0xae << PART_SHIFT <= extent(1).0);
// Addresses next to a common part are in that part or in one where nothing is mapped.
const _: () = assert!(BESIDE_WINDOW < 1 << PART_SHIFT);
// Adding an anchor does not make a non-canonical address canonical.
const _: () = assert!((STEP * (LEFT_OUT + ANCHORS)) << PART_SHIFT < 1 << 46);

/// Whether windows of a part lie at the anchor of their space.
pub const fn is_common(part: i64) -> bool {
    let [programs, libraries] = COMMON;
    part >= programs.0 && part <= programs.1 || part >= libraries.0 && part <= libraries.1
}

/// Ownership of all anchors of the process, for one machine.
#[derive(Debug)]
pub(super) struct Anchors(());

static TAKEN: AtomicBool = AtomicBool::new(false);

impl Anchors {
    /// Reserves the anchors. Returns `None` if another machine has them or the process has no room
    /// for them.
    pub(super) fn take() -> Option<Self> {
        if !have_place() || TAKEN.swap(true, Ordering::SeqCst) {
            return None;
        }
        Some(Self(()))
    }

    /// The anchor of a space: host minus linear address of its common parts.
    pub(super) const fn of(&self, space: SpaceNumber) -> u64 {
        anchor(space.index() as i64)
    }

    /// The anchor that makes each access to a common part fault.
    pub(super) const fn nothing(&self) -> u64 {
        anchor(SPACES as i64)
    }

    /// The linear address in a common part whose access by this anchor reaches a host address.
    pub(super) fn linear(anchor: u64, host: u64) -> Option<LinearAddress> {
        let linear = host.wrapping_sub(anchor);
        is_common(linear as i64 >> PART_SHIFT).then_some(LinearAddress(linear))
    }
}

impl Drop for Anchors {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::SeqCst);
    }
}

/// The anchor with a number below [`ANCHORS`].
const fn anchor(number: i64) -> u64 {
    (-(STEP * (LEFT_OUT + 1 + number)) << PART_SHIFT) as u64
}

/// Whether a host address lies where windows of common parts are, or next to them.
pub(super) fn contains(host: u64) -> bool {
    let is_in = |group| (extent(group).0..extent(group).1).contains(&host);
    is_in(0) || is_in(1)
}

/// Whether this process has room for anchors. If so, the bytes that check parts are mapped.
/// Determined once.
pub fn have_place() -> bool {
    static READY: OnceLock<bool> = OnceLock::new();
    *READY.get_or_init(|| {
        let half = PART_PAGES << 8;
        // The region extends to what is loaded for an address above the lower half that an anchor
        // moves back into the lower half.
        let checks = (CHECK, CHECK + 2 * half);
        let places = [extent(0), extent(1), checks];
        places.into_iter().all(is_range_free) && COMMON.into_iter().all(map_checks)
    })
}

/// Maps the bytes that check that pages are in these parts.
fn map_checks((first, last): (i64, i64)) -> bool {
    let address = CHECK + first as u64 * PART_PAGES;
    let bytes = (last - first + 1) as u64 * PART_PAGES;
    // SAFETY: new memory at an address where nothing is mapped (MAP_FIXED_NOREPLACE); it stays for
    // the life of the process, which only loads from it.
    let mapped = unsafe {
        libc::mmap(
            address as *mut _,
            bytes as usize,
            libc::PROT_READ,
            libc::MAP_PRIVATE
                | libc::MAP_ANONYMOUS
                | libc::MAP_NORESERVE
                | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    mapped as u64 == address
}

/// Sets GS of the calling thread to the anchor of a space.
pub(crate) fn load(anchor: u64) {
    // SAFETY: the host's processor has FSGSBASE, which `doctor` demands and the caller's anchors
    // imply. Nothing else in the process uses GS: x86-64 Linux programs have their thread's memory
    // in FS, and only the translated code of this thread's machine uses GS.
    unsafe { std::arch::asm!("wrgsbase {}", in(reg) anchor, options(nostack, preserves_flags)) };
}

#[cfg(test)]
mod tests {
    use tollgate_test_support::skip;

    use super::*;

    /// Whether a byte is loaded from a host address to check a part.
    fn is_check(host: u64) -> bool {
        let end = CHECK + (PART_PAGES << 9);
        (CHECK..end).contains(&host)
    }

    #[test]
    fn no_two_anchors_lead_to_one_place() {
        let mut parts = std::collections::BTreeSet::new();
        for number in 0..ANCHORS {
            for (first, last) in COMMON {
                for part in first - 1..=last + 1 {
                    let host = ((part << PART_SHIFT) as u64).wrapping_add(anchor(number));
                    assert!(contains(host), "{part:x} by {number}");
                    let is_edge = !is_common(part);
                    let is_new = parts.insert((host >> PART_SHIFT, is_edge));
                    // A part between two anchors is at the edge of both.
                    assert!(is_new || is_edge, "{part:x} by {number}");
                    assert!(!parts.contains(&(host >> PART_SHIFT, !is_edge)));
                }
            }
        }
        assert!(!contains(0x5555_5555_4000) && !contains(0x7f00_0000_0000));
    }

    #[test]
    fn what_is_in_no_common_part_stays_out_of_the_process() {
        for number in 0..ANCHORS {
            for linear in [
                0x0000_8000_0000_0000_u64,
                0x0001_5555_0000_0000,
                0x7fff_7f00_0000_0000,
                0xfffe_ffff_ffff_ffff,
            ] {
                let host = linear.wrapping_add(anchor(number));
                let is_canonical = tollgate_x86::canonical::is_canonical(host);
                // If the address is canonical, the byte that is loaded to check it is never mapped.
                assert!(
                    !is_canonical || is_check(CHECK + (linear >> 12)),
                    "{linear:x}"
                );
            }
        }
    }

    #[test]
    fn one_machine_has_the_anchors() {
        let Some(anchors) = Anchors::take() else {
            skip::impossible("something is mapped where anchors lead");
            return;
        };
        assert!(Anchors::take().is_none());
        let space = SpaceNumber::new(3);
        let linear = 0x7f12_3456_7000_u64;
        let host = linear.wrapping_add(anchors.of(space));
        assert_eq!(
            Anchors::linear(anchors.of(space), host),
            Some(LinearAddress(linear))
        );
        assert_eq!(Anchors::linear(anchors.nothing(), host), None);
    }
}
