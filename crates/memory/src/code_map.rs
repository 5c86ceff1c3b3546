//! Which lines of RAM, of 64 bytes each, the translator has read as code.
//!
//! The unit is a line and not a page: kernels keep data next to code, and a store to such data must
//! not cost a retranslation. (For pages where code and data share lines, there are also maps of
//! [bytes](crate::code_bytes).) Lines have no reference counts; a line stays marked until its
//! translations are dropped and their owner clears it. Another user that has read lines, of code or
//! of page tables, may [hold](CodeMap::hold) them: then they also stay marked until it releases
//! them.

use crate::cells::cells;
use crate::code_bytes::CodeBytes;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// The size of a line in bytes.
pub const LINE_SIZE: u64 = 64;

/// The lines of one page that `length` bytes at `offset` touch, as a bit for each. The range is cut
/// at the page's end.
pub const fn line_mask(offset: u64, length: u64) -> u64 {
    if length == 0 || offset >= PAGE_SIZE {
        return 0;
    }
    let first = offset / LINE_SIZE;
    let last_byte = offset.saturating_add(length - 1);
    let last = if last_byte >= PAGE_SIZE {
        63
    } else {
        last_byte / LINE_SIZE
    };
    (u64::MAX >> (63 - last)) & (u64::MAX << first)
}

/// A bit for each 64-byte line of RAM that holds translated code.
#[derive(Debug)]
pub struct CodeMap {
    /// One word for each page. Untouched parts cost no host memory.
    lines: Box<[Cell<u64>]>,
    /// One byte for each page: [`WATCHED`] and the heat.
    pages: Box<[Cell<u8>]>,
    /// Maps of bytes, for pages where lines are too coarse.
    bytes: CodeBytes,
    /// The lines that are held, by page. Only this module borrows it.
    held: RefCell<FxHashMap<u64, u64>>,
}

/// Flag: every store to the page is first tested for code.
const WATCHED: u8 = 0x80;
/// Maximum of the heat, which counts recent writes to code on the page.
const MAX_HEAT: u8 = 64;

impl CodeMap {
    /// Makes an empty map for physical addresses below `span`.
    pub fn new(span: u64) -> Self {
        Self {
            lines: cells(vec![0; span.div_ceil(PAGE_SIZE) as usize]),
            pages: cells(vec![0; span.div_ceil(PAGE_SIZE) as usize]),
            bytes: CodeBytes::new(span),
            held: RefCell::default(),
        }
    }

    /// Whether stores to the page are tested for code. They must be while any of its lines holds
    /// code, and may be for a while longer.
    #[inline]
    pub fn is_watched(&self, page: u64) -> bool {
        self.pages
            .get(page as usize)
            .is_some_and(|state| state.get() & WATCHED != 0)
    }

    /// Starts testing stores to the page for code.
    pub fn watch(&self, page: u64) {
        if let Some(state) = self.pages.get(page as usize) {
            state.set(state.get() | WATCHED);
        }
    }

    /// Notes that code on the page was written.
    pub fn warm(&self, page: u64) {
        if let Some(state) = self.pages.get(page as usize)
            && state.get() & !WATCHED < MAX_HEAT
        {
            state.set(state.get() + 1);
        }
    }

    /// Whether code on the page was written recently.
    pub fn is_hot(&self, page: u64) -> bool {
        self.pages
            .get(page as usize)
            .is_some_and(|state| state.get() & !WATCHED != 0)
    }

    /// The caller no longer needs stores to the page to be tested. Returns true if they are not
    /// tested from now on. The more often the code of a page was written, the longer it stays
    /// watched.
    pub fn may_unwatch(&self, page: u64) -> bool {
        if self.page_has_code(page) {
            return false;
        }
        match self.pages.get(page as usize) {
            Some(state) if state.get() & !WATCHED != 0 => {
                state.set(state.get() - 1);
                state.get() & WATCHED == 0
            }
            Some(state) => {
                state.set(0);
                true
            }
            None => true,
        }
    }

    /// Marks the lines of `length` bytes as code. The part of the range beyond RAM is ignored.
    pub fn mark(&self, physical: PhysicalAddress, length: u64) {
        for (page, mask) in pages_of(physical, length) {
            if let Some(lines) = self.lines.get(page as usize) {
                lines.set(lines.get() | mask);
                let start = page * PAGE_SIZE;
                let last = (physical.0.saturating_add(length) - 1).saturating_sub(start);
                self.bytes
                    .mark(page, physical.0.saturating_sub(start), last);
            }
        }
    }

    /// Describes a page's code to the byte: it lies in the ranges `code`, first and last offset of
    /// each, and in the lines that are held. Generated code needs no exit for stores to other bytes
    /// from now on.
    pub fn describe_bytes(&self, page: u64, code: impl Iterator<Item = (u64, u64)>) {
        self.bytes.describe(page, code, self.held(page));
    }

    /// Removes the marks of all code on a page.
    pub fn clear_page(&self, page: u64) {
        self.clear_lines(page, u64::MAX);
    }

    /// Removes the marks of some lines of a page, except those that are held.
    pub fn clear_lines(&self, page: u64, mask: u64) {
        if let Some(lines) = self.lines.get(page as usize) {
            lines.set(lines.get() & (!mask | self.held(page)));
        }
    }

    /// Removes all marks except those of lines that are held.
    pub fn clear(&self) {
        self.lines.iter().for_each(|lines| lines.set(0));
        for (&page, &held) in self.held.borrow().iter() {
            if let Some(lines) = self.lines.get(page as usize) {
                lines.set(held);
            }
        }
    }

    /// Marks lines of a page, and keeps them marked.
    pub fn hold(&self, page: u64, mask: u64) {
        if let Some(lines) = self.lines.get(page as usize)
            && mask != 0
        {
            lines.set(lines.get() | mask);
            self.bytes.mark_lines(page, mask);
            *self.held.borrow_mut().entry(page).or_default() |= mask;
        }
    }

    /// Releases lines of a page that [`CodeMap::hold`] has held. They stay marked until the user
    /// that marks code clears them.
    pub fn release(&self, page: u64, mask: u64) {
        let mut held = self.held.borrow_mut();
        if let Some(lines) = held.get_mut(&page) {
            *lines &= !mask;
            if *lines == 0 {
                held.remove(&page);
            }
        }
    }

    /// The lines of a page that are held.
    #[inline]
    pub fn held(&self, page: u64) -> u64 {
        let held = self.held.borrow();
        match held.is_empty() {
            true => 0,
            false => held.get(&page).copied().unwrap_or(0),
        }
    }

    /// Whether any line of the page holds code.
    #[inline]
    pub fn page_has_code(&self, page: u64) -> bool {
        self.lines(page) != 0
    }

    /// The lines of a page that hold code: bit n stands for bytes 64n to 64n + 63.
    #[inline]
    pub fn lines(&self, page: u64) -> u64 {
        self.lines.get(page as usize).map_or(0, Cell::get)
    }

    /// Whether any of the `length` bytes lies in a line that holds code.
    #[inline]
    pub fn contains(&self, physical: PhysicalAddress, length: u64) -> bool {
        pages_of(physical, length).any(|(page, mask)| self.lines(page) & mask != 0)
    }

    /// The first word of the table of lines, which has one `u64` for each physical page, for
    /// generated code that tests a store itself. Valid for as long as the map exists.
    pub fn table(&self) -> *const u64 {
        self.lines.as_ptr().cast()
    }

    /// The first word of the table of byte maps: for each physical page the address of 64 words
    /// with a bit for each of its bytes, or zero. Valid for as long as the map exists.
    pub fn table_of_bytes(&self) -> *const u64 {
        self.bytes.table()
    }
}

/// The pages that a range touches, each with the mask of the lines that it touches.
pub fn pages_of(physical: PhysicalAddress, length: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = physical.0.saturating_add(length);
    let mut next = physical.0;
    std::iter::from_fn(move || {
        if next >= end {
            return None;
        }
        let page_end = (next | (PAGE_SIZE - 1)).saturating_add(1);
        let piece = page_end.min(end) - next;
        let item = (next / PAGE_SIZE, line_mask(next % PAGE_SIZE, piece));
        next = page_end;
        Some(item)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_covers_exactly_the_touched_lines() {
        assert_eq!(line_mask(0, 1), 1);
        assert_eq!(line_mask(63, 1), 1);
        assert_eq!(line_mask(63, 2), 0b11);
        assert_eq!(line_mask(0, 4096), u64::MAX);
        assert_eq!(line_mask(4095, 1), 1 << 63);
        assert_eq!(line_mask(4095, 100), 1 << 63);
        assert_eq!(line_mask(0, 0), 0);
        assert_eq!(line_mask(4096, 1), 0);
    }

    #[test]
    fn code_that_straddles_a_page_marks_both() {
        let map = CodeMap::new(0x10_0000);
        map.mark(PhysicalAddress(0x1ffe), 4);
        assert_eq!(map.lines(1), 1 << 63);
        assert_eq!(map.lines(2), 1);
        assert!(map.page_has_code(1) && map.page_has_code(2));
        assert!(!map.page_has_code(3));
        map.clear_page(1);
        assert!(!map.page_has_code(1) && map.page_has_code(2));
    }

    #[test]
    fn lines_that_are_held_stay_marked_until_they_are_released() {
        let map = CodeMap::new(0x10_0000);
        map.mark(PhysicalAddress(0x1000), 128);
        map.hold(1, 0b110);
        map.clear_page(1);
        assert_eq!(map.lines(1), 0b110);
        map.clear();
        assert_eq!((map.lines(1), map.held(1)), (0b110, 0b110));
        map.release(1, 0b010);
        assert_eq!(map.lines(1), 0b110, "others may have code there");
        map.clear_page(1);
        assert_eq!((map.lines(1), map.held(1)), (0b100, 0b100));
        map.release(1, u64::MAX);
        map.clear_page(1);
        assert!(!map.page_has_code(1));
        map.hold(1 << 40, 1);
        assert_eq!(map.held(1 << 40), 0, "there is no such page");
    }

    #[test]
    fn data_beside_code_is_not_code() {
        let map = CodeMap::new(0x10_0000);
        map.mark(PhysicalAddress(0x1000), 64);
        assert!(map.contains(PhysicalAddress(0x103f), 1));
        assert!(!map.contains(PhysicalAddress(0x1040), 4000));
        assert!(map.contains(PhysicalAddress(0xfff), 2));
    }

    #[test]
    fn addresses_outside_memory_are_ignored() {
        let map = CodeMap::new(0x1000);
        map.mark(PhysicalAddress(u64::MAX - 2), u64::MAX);
        map.mark(PhysicalAddress(0x1000), 1);
        map.clear_page(u64::MAX);
        assert!(!map.page_has_code(u64::MAX));
        assert!(!map.contains(PhysicalAddress(u64::MAX), 4));
    }

    #[test]
    fn a_page_is_watched_while_it_holds_code_and_longer_if_that_was_written() {
        let map = CodeMap::new(0x10_0000);
        map.mark(PhysicalAddress(0x1000), 1);
        map.watch(1);
        map.warm(1);
        assert!(!map.may_unwatch(1));
        map.clear_page(1);
        assert!(map.is_hot(1) && !map.may_unwatch(1) && map.is_watched(1));
        assert!(!map.is_hot(1) && map.may_unwatch(1) && !map.is_watched(1));
        assert!(map.may_unwatch(1 << 40) && !map.is_watched(1 << 40));
    }
}
