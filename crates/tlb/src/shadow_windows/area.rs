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

/// Bytes of linear addresses that a region stands for.
const WINDOW_BYTES: u64 = 1 << PART_SHIFT;
/// What lies between two regions and is never mapped: an access that goes on beyond the end of its
/// window faults.
pub(super) const BETWEEN: u64 = 4 << 30;
/// From one region to the next.
const STRIDE: u64 = WINDOW_BYTES + BETWEEN;
/// The first region, which stays empty. Below it the tools that instrument a process keep what
/// they know of its memory.
const FIRST: u64 = 0x1100_0000_0000;
/// Regions behind that one.
pub(super) const REGIONS: usize = 57;
/// Behind the last region. Windows of common parts lie above.
const END: u64 = FIRST + (REGIONS as u64 + 1) * STRIDE;
const _: () = assert!(END <= super::anchors::BEGIN);

/// Which regions belong to somebody; those of all machines of the process.
static TAKEN: Mutex<[bool; REGIONS]> = Mutex::new([false; REGIONS]);

/// A region of the process, given back when dropped. Its owner unmaps what it has mapped there.
#[derive(Debug)]
pub(super) struct Region {
    base: u64,
    /// Its number, if it is one of those that are given out.
    number: Option<usize>,
}

impl Region {
    /// A region of the machine's own. `None`: there is none left, or none at all here.
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

    /// The region at a place that is the owner's by another rule: where an [anchor](super::anchors)
    /// leads.
    pub(super) const fn at(base: u64) -> Self {
        Self { base, number: None }
    }

    /// Its first address.
    pub(super) const fn base(&self) -> u64 {
        self.base
    }

    /// How far in the region a host address lies, if it does.
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

/// The first address of a region in which nothing is ever mapped, nor on either side of it.
pub(super) const fn nothing() -> u64 {
    FIRST + BETWEEN / 2
}

/// Whether a host address lies in the region where nothing is mapped, or beside it.
pub(super) fn is_nothing(host: u64) -> bool {
    (FIRST..FIRST + STRIDE).contains(&host)
}

/// Whether a host address lies in a region, or between two.
pub(super) fn contains(host: u64) -> bool {
    (FIRST..END).contains(&host) || super::anchors::contains(host)
}

/// Whether nothing else is, or will be, where the regions are. Found out once.
pub(super) fn is_free() -> bool {
    static FREE: OnceLock<bool> = OnceLock::new();
    *FREE.get_or_init(|| is_range_free((FIRST, END)))
}

/// Whether nothing is, or will be, from one address to before another.
pub(super) fn is_range_free(range: (u64, u64)) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps");
    let is_in_the_way = |line: &str| is_in_the_way(line, range);
    has_limited_stack() && maps.is_ok_and(|maps| !maps.lines().any(is_in_the_way))
}

/// Whether a line of /proc/self/maps is of a mapping from one address to before another.
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
    // SAFETY: fills the structure that it is given.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) };
    failed == 0 && limit.rlim_cur != libc::RLIM_INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_apart_and_come_back() {
        let (Some(first), Some(second)) = (Region::take(), Region::take()) else {
            eprintln!("skipped: something is mapped where windows would be");
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
