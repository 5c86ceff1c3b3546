//! Lists of table entries by the linear pages that they depend on.
//!
//! All entries are removed when the address space is switched. That happens so often that it must
//! cost little more than emptying the entries: no entry is searched for in a map then.

use rustc_hash::FxHashMap;
use std::hash::Hash;
use tollgate_tlb::PageRange;

/// Linear pages of the first and of the last byte that an entry depends on.
type Pages = (u64, u64);

/// Capacity of the maps, and number of spare lists, that remain when all entries are dropped.
const MOST_SPARE: usize = 64;

/// Entries that may be filled.
pub struct EntriesByPage<E> {
    /// The pages that each entry depends on.
    filled: FxHashMap<E, Pages>,
    /// The entries of each page. A list may name entries that were removed or that depend on other
    /// pages now.
    by_page: FxHashMap<u64, Vec<E>>,
    /// Empty lists for reuse by pages that come later.
    spare: Vec<Vec<E>>,
}

impl<E> Default for EntriesByPage<E> {
    fn default() -> Self {
        Self {
            filled: FxHashMap::default(),
            by_page: FxHashMap::default(),
            spare: Vec::new(),
        }
    }
}

impl<E: Copy + Eq + Ord + Hash> EntriesByPage<E> {
    /// Notes that an entry is filled and depends on these pages.
    pub fn list(&mut self, entry: E, pages: Pages) {
        if self.filled.insert(entry, pages) == Some(pages) {
            return;
        }
        let (first, last) = pages;
        for page in [first, last] {
            let spare = &mut self.spare;
            let list = self.by_page.entry(page);
            let list = list.or_insert_with(|| spare.pop().unwrap_or_default());
            // An entry that is filled for several pages in turn is appended to their lists
            // repeatedly.
            if list.len() >= 32 && list.len().is_power_of_two() {
                list.sort_unstable();
                list.dedup();
                list.retain(|entry| self.filled.contains_key(entry));
            }
            list.push(entry);
            if first == last {
                break;
            }
        }
    }

    /// The pages that entries depend on, one pair for each entry.
    pub fn pages(&self) -> impl Iterator<Item = Pages> {
        self.filled.values().copied()
    }

    /// Whether an entry is listed.
    pub fn has(&self, entry: E) -> bool {
        self.filled.contains_key(&entry)
    }

    /// Removes an entry from the lists.
    pub fn remove(&mut self, entry: E) {
        self.filled.remove(&entry);
    }

    /// Removes all entries that depend on one of these pages, and calls `drop` for each.
    pub fn drop_pages(&mut self, pages: PageRange, mut drop: impl FnMut(E)) {
        let depends = |of: &Pages| pages.contains(of.0) || pages.contains(of.1);
        if pages.count() > self.by_page.len() as u64 {
            self.filled.retain(|&entry, of| {
                let kept = !depends(of);
                if !kept {
                    drop(entry);
                }
                kept
            });
            return;
        }
        for page in pages.pages() {
            let Some(mut list) = self.by_page.remove(&page) else {
                continue;
            };
            for entry in list.drain(..) {
                if self.filled.get(&entry).is_some_and(depends) {
                    self.filled.remove(&entry);
                    drop(entry);
                }
            }
            self.spare.push(list);
        }
    }

    /// Removes all entries, and calls `drop` for each.
    pub fn drop_all(&mut self, mut drop: impl FnMut(E)) {
        // Draining a map takes time in proportion to its capacity, even if the map is empty.
        if !self.filled.is_empty() {
            for (entry, _) in self.filled.drain() {
                drop(entry);
            }
            self.filled.shrink_to(MOST_SPARE);
        }
        if !self.by_page.is_empty() {
            for (_, mut list) in self.by_page.drain() {
                list.clear();
                self.spare.push(list);
            }
            self.by_page.shrink_to(MOST_SPARE);
            self.spare.truncate(MOST_SPARE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tollgate_test_support::Random;

    #[test]
    fn having_held_much_does_not_make_the_next_drop_dear() {
        let mut listed = EntriesByPage::<u32>::default();
        for entry in 0..10_000 {
            listed.list(entry, (entry.into(), entry.into()));
        }
        listed.drop_all(|_| {});
        assert!(listed.filled.capacity() < 1000 && listed.by_page.capacity() < 1000);
        assert!(listed.spare.len() <= MOST_SPARE);
    }

    /// Compares the entries and the pages that they depend on with a plain map.
    #[test]
    fn exactly_what_depends_on_a_page_goes_with_it() {
        let mut random = Random::new(9);
        let mut listed = EntriesByPage::<u32>::default();
        let mut model = BTreeMap::new();
        for _ in 0..20_000 {
            let page = random.below(40) as u64;
            match random.below(40) {
                0 => {
                    let mut dropped = Vec::new();
                    listed.drop_all(|entry| dropped.push(entry));
                    dropped.sort_unstable();
                    assert_eq!(dropped, model.keys().copied().collect::<Vec<_>>());
                    model.clear();
                }
                1..8 => {
                    let last = page + [0, 0, 3, 100][random.below(4)];
                    let range = PageRange { first: page, last };
                    let mut dropped = Vec::new();
                    listed.drop_pages(range, |entry| dropped.push(entry));
                    dropped.sort_unstable();
                    let depends =
                        |of: &Pages| (page..=last).contains(&of.0) || (page..=last).contains(&of.1);
                    let gone = model.iter().filter(|(_, of)| depends(of));
                    assert_eq!(dropped, gone.map(|(&entry, _)| entry).collect::<Vec<_>>());
                    model.retain(|_, of| !depends(of));
                }
                8..10 => {
                    let entry = random.below(100) as u32;
                    listed.remove(entry);
                    model.remove(&entry);
                }
                _ => {
                    let pages = (page, page + random.below(2) as u64);
                    let entry = random.below(100) as u32;
                    listed.list(entry, pages);
                    model.insert(entry, pages);
                }
            }
        }
    }
}
