//! A set of physical pages that were mapped in windows in some way.
//!
//! When code is translated from a page, the page loses its write permission in every window. Most
//! such pages were never mapped for stores; one bit for each page shows this without a search
//! through each run of each window. The same holds for pages that were mapped for loads only, when
//! their contents move to another file.

/// Number of pages that have a bit: 1 TiB of guest RAM. Pages beyond these are always searched for.
const MOST: u64 = 1 << 28;

/// A set of physical pages that has all pages that are mapped in the set's way, and some that were.
#[derive(Debug, Default)]
pub(super) struct PageSet {
    words: Vec<u64>,
}

impl PageSet {
    /// Adds `count` pages from `first` on, which are mapped in the set's way.
    pub(super) fn insert(&mut self, first: u64, count: u64) {
        let end = first.saturating_add(count).min(MOST);
        for page in first..end {
            let index = (page / 64) as usize;
            if index >= self.words.len() {
                self.words.resize(index + 1, 0);
            }
            self.words[index] |= 1 << (page % 64);
        }
    }

    /// Whether a page may be mapped in the set's way.
    pub(super) fn may_hold(&self, page: u64) -> bool {
        let word = self.words.get((page / 64) as usize);
        page >= MOST || word.is_some_and(|word| word & 1 << (page % 64) != 0)
    }

    /// Removes a page that no window maps in the set's way.
    pub(super) fn remove(&mut self, page: u64) {
        if page < MOST
            && let Some(word) = self.words.get_mut((page / 64) as usize)
        {
            *word &= !(1 << (page % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_held_from_their_insertion_to_their_removal() {
        let mut pages = PageSet::default();
        pages.insert(60, 10);
        for page in 0..200 {
            assert_eq!(pages.may_hold(page), (60..70).contains(&page), "{page}");
        }
        pages.remove(64);
        pages.remove(1_000);
        assert!(!pages.may_hold(64) && pages.may_hold(63) && pages.may_hold(65));
    }

    #[test]
    fn pages_without_a_bit_may_always_be_held() {
        let mut pages = PageSet::default();
        pages.insert(MOST - 1, 2);
        pages.insert(u64::MAX, 2);
        pages.remove(MOST);
        assert!(pages.may_hold(MOST - 1) && pages.may_hold(MOST) && pages.may_hold(u64::MAX));
        assert!(!pages.may_hold(MOST - 2));
    }
}
