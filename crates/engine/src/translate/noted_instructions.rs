//! Sets of physical addresses of instructions that are translated in another form than most.
//!
//! Nearly all blocks contain no such instruction, so the addresses in a page are summarised by a
//! mask with one bit for each 64-byte line. A block reads the mask of its page once, and looks up
//! an address only if the bit of its line is set.

use rustc_hash::{FxHashMap, FxHashSet};

/// Maximum number of remembered addresses. Forgetting one costs another fault and another
/// translation.
const MOST: usize = 1 << 16;

/// A set of physical addresses of limited size.
#[derive(Clone, Debug, Default)]
pub(crate) struct NotedInstructions {
    addresses: FxHashSet<u64>,
    /// For each physical page: the lines among its 64 that contain addresses.
    lines: FxHashMap<u64, u64>,
}

/// The bit of an address's line in the mask of its page.
fn line(physical: u64) -> u64 {
    1 << (physical >> 6 & 63)
}

impl NotedInstructions {
    /// Adds an address. A full set is emptied first.
    pub(crate) fn note(&mut self, physical: u64) {
        if self.addresses.len() >= MOST {
            self.addresses.clear();
            self.lines.clear();
        }
        self.addresses.insert(physical);
        *self.lines.entry(physical >> 12).or_default() |= line(physical);
    }

    /// The mask of an address's page, which [`NotedInstructions::contains`] needs.
    pub(crate) fn lines_of_page(&self, physical: u64) -> u64 {
        self.lines.get(&(physical >> 12)).copied().unwrap_or(0)
    }

    /// Whether an address is in the set. `lines` is the mask of its page.
    pub(crate) fn contains(&self, lines: u64, physical: u64) -> bool {
        lines & line(physical) != 0 && self.addresses.contains(&physical)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(noted: &NotedInstructions, physical: u64) -> bool {
        noted.contains(noted.lines_of_page(physical), physical)
    }

    #[test]
    fn what_was_noted_is_found_and_nothing_else() {
        let mut noted = NotedInstructions::default();
        for physical in [0, 0x1040, 0x1fff, 0x7_0000_0003] {
            noted.note(physical);
            assert!(has(&noted, physical));
        }
        for other in [1, 0x1041, 0x1080, 0x2040, 0x1ffe, 0x3] {
            assert!(!has(&noted, other), "{other:#x}");
        }
    }

    #[test]
    fn a_full_set_begins_again() {
        let mut noted = NotedInstructions::default();
        for number in 0..=MOST as u64 {
            noted.note(number * 4096);
        }
        assert!(has(&noted, MOST as u64 * 4096));
        assert!(!has(&noted, 4096));
        assert_eq!(noted.lines.len(), 1);
    }
}
