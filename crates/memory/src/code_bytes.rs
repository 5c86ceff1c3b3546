//! Which *bytes* of a page hold translated code, for pages where 64-byte lines are too coarse.
//!
//! Programs of 16-bit systems keep their variables among their code, in the same 64-byte lines.
//! With only a mark for each line, every store to such a variable might be a store to code. So a
//! page where that has happened gets a map of its bytes, and generated code that finds the line of
//! a store marked consults the map.
//!
//! A map may name bytes that hold no code any more, but never omits one that does: marking code
//! sets bits, and only [`CodeBytes::describe`], which is given all code of the page, clears them.
//! There are [`MOST_PAGES`] maps; a new one replaces the oldest.

use crate::cells::cells;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use tollgate_x86::address::PAGE_SIZE;

/// Maximum number of pages that have a map.
const MOST_PAGES: usize = 256;

/// Bit n of word m stands for byte 64m + n of a page.
type Bytes = [Cell<u64>; 64];

/// The maps of all pages that have one.
#[derive(Debug)]
pub(crate) struct CodeBytes {
    /// For each page the host address of its map, or zero. Untouched parts cost no memory.
    table: Box<[Cell<u64>]>,
    /// Only this module borrows it, so a borrow cannot fail.
    maps: RefCell<Maps>,
}

#[derive(Debug, Default)]
struct Maps {
    /// Boxed, since generated code holds their addresses.
    by_page: FxHashMap<u64, Box<Bytes>>,
    /// The pages that have a map, the oldest first.
    order: VecDeque<u64>,
}

/// Sets the bits of the bytes `first..=last`, which are offsets in the page.
fn set(map: &Bytes, first: u64, last: u64) {
    let last = last.min(PAGE_SIZE - 1);
    for line in first / 64..=last / 64 {
        let from = first.saturating_sub(line * 64);
        let to = (last - line * 64).min(63);
        let word = &map[line as usize];
        word.set(word.get() | u64::MAX >> (63 - to) & u64::MAX << from);
    }
}

/// Sets the bits of all bytes in a mask of lines.
fn set_lines(map: &Bytes, lines: u64) {
    let is_named = |line: &usize| lines >> line & 1 != 0;
    (0..64)
        .filter(is_named)
        .for_each(|line| map[line].set(u64::MAX));
}

impl CodeBytes {
    /// Makes an empty table for physical addresses below `span`.
    pub(crate) fn new(span: u64) -> Self {
        Self {
            table: cells(vec![0; span.div_ceil(PAGE_SIZE) as usize]),
            maps: RefCell::default(),
        }
    }

    /// The first word of the table of addresses, which has one word for each physical page.
    pub(crate) fn table(&self) -> *const u64 {
        self.table.as_ptr().cast()
    }

    /// Whether a page has a map.
    #[inline]
    pub(crate) fn has(&self, page: u64) -> bool {
        self.table
            .get(page as usize)
            .is_some_and(|it| it.get() != 0)
    }

    /// Notes that the bytes `first..=last` of a page hold code.
    #[inline]
    pub(crate) fn mark(&self, page: u64, first: u64, last: u64) {
        if self.has(page) {
            self.change(page, |map| set(map, first, last));
        }
    }

    /// Notes that all bytes of some lines of a page count as code.
    pub(crate) fn mark_lines(&self, page: u64, lines: u64) {
        if self.has(page) {
            self.change(page, |map| set_lines(map, lines));
        }
    }

    /// Makes or replaces the map of a page, unless the page lies beyond the table: code is in each of the ranges `code` (first
    /// and last byte) and in the lines `lines`.
    pub(crate) fn describe(&self, page: u64, code: impl Iterator<Item = (u64, u64)>, lines: u64) {
        if page >= self.table.len() as u64 {
            return;
        }
        if !self.has(page) {
            self.add(page);
        }
        self.change(page, |map| {
            map.iter().for_each(|word| word.set(0));
            set_lines(map, lines);
            code.for_each(|(first, last)| set(map, first, last));
        });
    }

    fn add(&self, page: u64) {
        let mut maps = self.maps.borrow_mut();
        if maps.by_page.len() >= MOST_PAGES
            && let Some(oldest) = maps.order.pop_front()
        {
            self.table[oldest as usize].set(0);
            maps.by_page.remove(&oldest);
        }
        let map = Box::new([const { Cell::new(0) }; 64]);
        self.table[page as usize].set(map.as_ptr() as u64);
        maps.order.push_back(page);
        maps.by_page.insert(page, map);
    }

    fn change(&self, page: u64, change: impl FnOnce(&Bytes)) {
        if let Some(map) = self.maps.borrow().by_page.get(&page) {
            change(map);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that the map of a page names.
    fn named(maps: &CodeBytes, page: u64) -> Vec<u64> {
        let maps = maps.maps.borrow();
        let map = &maps.by_page[&page];
        (0..PAGE_SIZE)
            .filter(|byte| map[(byte / 64) as usize].get() >> (byte % 64) & 1 != 0)
            .collect()
    }

    #[test]
    fn a_map_names_the_bytes_that_it_was_told_of_and_what_was_marked_since() {
        let maps = CodeBytes::new(0x10_0000);
        maps.mark(1, 0, 9);
        assert!(!maps.has(1), "only `describe` gives a page a map");
        maps.describe(1, [(60, 67), (4095, 4095)].into_iter(), 0);
        assert_eq!(named(&maps, 1), [60, 61, 62, 63, 64, 65, 66, 67, 4095]);
        maps.mark(1, 0, 1);
        maps.mark_lines(1, 1 << 2);
        let marked: Vec<_> = [0, 1].into_iter().chain(60..68).chain(128..192).collect();
        assert_eq!(named(&maps, 1), [&marked[..], &[4095]].concat());
        maps.describe(1, [(0, 4095)].into_iter(), 0);
        assert_eq!(named(&maps, 1).len(), 4096);
        maps.describe(1, std::iter::empty(), 0b10);
        assert_eq!(named(&maps, 1), (64..128).collect::<Vec<_>>());
    }

    #[test]
    fn the_oldest_map_makes_room() {
        let maps = CodeBytes::new(0x1000_0000);
        let pages = 0..MOST_PAGES as u64 + 2;
        pages
            .clone()
            .for_each(|page| maps.describe(page, [(0, 0)].into_iter(), 0));
        assert!(!maps.has(0) && !maps.has(1));
        assert!(pages.skip(2).all(|page| maps.has(page)));
        maps.describe(1 << 40, std::iter::empty(), 0);
        assert!(!maps.has(1 << 40), "there is no such page");
    }
}
