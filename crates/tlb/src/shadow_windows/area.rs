//! Where shadow windows lie in the process: regions of a part of the address space that nothing
//! else uses.
//!
//! The regions are kept as *holes*, addresses without any mapping, not as reservations, because
//! holes cost the host less when pages are mapped and unmapped. The kernel places mappings from the
//! stack downwards, tens of TiB above the regions, so it never gets there by itself. With an
//! unlimited stack it would, because it then places mappings from below; in that case there are no
//! windows.

use crate::parts::PART_SHIFT;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Number of bytes that are never mapped next to each window, and next to the region that stands
/// for parts without a window. An access may reach that far beyond the part that its address is in.
pub const BESIDE_WINDOW: u64 = (1 << 31) - (1 << 16);

/// Size of a region, in bytes of linear addresses that it stands for.
const WINDOW_BYTES: u64 = 1 << PART_SHIFT;
/// Size of the gap between two regions, which is never mapped, so that an access that continues
/// past the end of its window faults.
pub(super) const BETWEEN: u64 = 4 << 30;
/// Distance from one region to the next.
const STRIDE: u64 = WINDOW_BYTES + BETWEEN;
/// Address of the first region, which stays empty. Tools that instrument a process keep their data
/// about its memory below this region.
const FIRST: u64 = 0x1100_0000_0000;
/// Number of regions after the first one.
pub(super) const REGIONS: usize = 57;
/// End of the last region. Windows of common parts lie above.
const END: u64 = FIRST + (REGIONS as u64 + 1) * STRIDE;
const _: () = assert!(END <= super::anchors::BEGIN);

/// The regions that are in use by any machine of the process.
static TAKEN: Mutex<[bool; REGIONS]> = Mutex::new([false; REGIONS]);

/// A region of the process, which is given back when dropped. Its owner unmaps what it has mapped
/// there.
#[derive(Debug)]
pub(super) struct Region {
    base: u64,
    /// The number of the region, unless an anchor determines its place.
    number: Option<usize>,
}

impl Region {
    /// Takes a region for the machine. Returns `None` if no region is left, or if the process has
    /// no room for regions.
    pub(super) fn take() -> Option<Self> {
        if !is_free() {
            return None;
        }
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let number = taken.iter().position(|taken| !taken)?;
        taken[number] = true;
        Some(Self {
            base: FIRST + (number as u64 + 1) * STRIDE,
            number: Some(number),
        })
    }

    /// The region at a place that an [anchor](super::anchors) determines, and which the caller
    /// owns.
    pub(super) const fn at(base: u64) -> Self {
        Self { base, number: None }
    }

    /// The first address of the region.
    pub(super) const fn base(&self) -> u64 {
        self.base
    }

    /// The offset of a host address in the region, if the address lies in it.
    pub(super) fn offset(&self, host: u64) -> Option<u64> {
        let offset = host.checked_sub(self.base())?;
        (offset < WINDOW_BYTES).then_some(offset)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            TAKEN.lock().unwrap_or_else(PoisonError::into_inner)[number] = false;
        }
    }
}

/// The address that stands for windows that do not exist: nothing is ever mapped in its region, nor
/// on either side of the region.
pub(super) const fn nothing() -> u64 {
    FIRST + BETWEEN / 2
}

/// Whether a host address lies in the region where nothing is mapped, or next to it.
pub(super) fn is_nothing(host: u64) -> bool {
    (FIRST..FIRST + STRIDE).contains(&host)
}

/// Whether a host address lies in a region, or between two.
pub(super) fn contains(host: u64) -> bool {
    (FIRST..END).contains(&host) || super::anchors::contains(host)
}

/// Whether the process has no other mappings where the regions are, and will not get any.
/// Determined once.
pub(super) fn is_free() -> bool {
    static FREE: OnceLock<bool> = OnceLock::new();
    *FREE.get_or_init(|| is_range_free((FIRST, END)))
}

/// Whether the process has no mapping in a range of addresses (without its end), and will not get
/// any.
pub(super) fn is_range_free(range: (u64, u64)) -> bool {
    has_limited_stack() && is_unmapped(range).unwrap_or_else(|| is_free_in_maps(range))
}

/// Whether the process has no mapping in a range of addresses (without its end), as far as the host
/// can tell by an attempt to map all of it. That takes microseconds; the list of all mappings takes
/// the longer the more there are.
fn is_unmapped((first, end): (u64, u64)) -> Option<bool> {
    let bytes = (end - first) as usize;
    // SAFETY: a new mapping without access, which replaces nothing (MAP_FIXED_NOREPLACE).
    let mapped = unsafe {
        libc::mmap(
            first as *mut _,
            bytes,
            libc::PROT_NONE,
            libc::MAP_PRIVATE
                | libc::MAP_ANONYMOUS
                | libc::MAP_NORESERVE
                | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    if mapped != libc::MAP_FAILED {
        // SAFETY: the range is the mapping just made, which nothing has used.
        unsafe { libc::munmap(mapped, bytes) };
        // A kernel that does not know the flag may choose another place.
        return (mapped as u64 == first).then_some(true);
    }
    let error = std::io::Error::last_os_error();
    // Any other error, such as a limit on addresses, says nothing.
    (error.raw_os_error() == Some(libc::EEXIST)).then_some(false)
}

fn is_free_in_maps(range: (u64, u64)) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps");
    let is_in_the_way = |line: &str| is_in_the_way(line, range);
    maps.is_ok_and(|maps| !maps.lines().any(is_in_the_way))
}

/// Whether a line of /proc/self/maps describes a mapping in a range of addresses (without its end).
fn is_in_the_way(line: &str, (begin, behind): (u64, u64)) -> bool {
    let range = line.split_whitespace().next().unwrap_or_default();
    let mut ends = range.split('-').map(|end| u64::from_str_radix(end, 16));
    match (ends.next(), ends.next()) {
        (Some(Ok(first)), Some(Ok(end))) => first < behind && end > begin,
        _ => true,
    }
}

fn has_limited_stack() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call fills the structure that it is given.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) };
    failed == 0 && limit.rlim_cur != libc::RLIM_INFINITY
}

#[cfg(test)]
mod tests {
    use tollgate_test_support::skip;

    use super::*;

    #[test]
    fn regions_are_apart_and_come_back() {
        let (Some(first), Some(second)) = (Region::take(), Region::take()) else {
            skip::impossible("something is mapped where windows would be");
            return;
        };
        assert!(first.base().abs_diff(second.base()) >= STRIDE);
        assert_eq!(first.offset(first.base() + 5), Some(5));
        assert_eq!(first.offset(first.base() - 1), None);
        assert_eq!(first.offset(first.base() + WINDOW_BYTES), None);
        assert!(!is_nothing(first.base()) && is_nothing(nothing()));
        let base = first.base();
        drop(first);
        let again: Vec<Region> = (0..REGIONS).map_while(|_| Region::take()).collect();
        assert!(again.iter().any(|region| region.base() == base));
    }

    #[test]
    fn a_range_with_a_mapping_in_it_is_not_free() {
        let own = (&raw const TAKEN) as u64 & !0xfff;
        for (first, end) in [(own, own + 0x1000), (own - 0x10_0000, own + 0x10_0000)] {
            assert_eq!(is_unmapped((first, end)), Some(false));
            assert!(!is_free_in_maps((first, end)));
        }
        // Nothing is left behind where nothing was.
        // Other tests use the regions, so this place is outside of them.
        let nowhere = (FIRST - 0x2000, FIRST - 0x1000);
        for _ in 0..2 {
            assert_eq!(is_unmapped(nowhere), Some(true));
            assert!(is_free_in_maps(nowhere));
        }
    }

    #[test]
    fn mappings_among_the_regions_are_seen() {
        let is_in_the_way = |line| is_in_the_way(line, (FIRST, END));
        assert!(is_in_the_way(
            "110000001000-110000002000 r--p 00000000 00:00 0"
        ));
        assert!(is_in_the_way(
            "100000000000-200000000000 r--p 00000000 00:00 0"
        ));
        assert!(!is_in_the_way(
            "7fff00000000-7fff00001000 r--p 00000000 00:00 0"
        ));
        assert!(!is_in_the_way(
            "00400000-00401000 r-xp 00000000 00:00 0 /bin/true"
        ));
        assert!(is_in_the_way("what is this"));
    }
}
