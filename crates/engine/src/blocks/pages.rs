//! The physical pages, and the bytes of them, that active blocks were made from.

use crate::abi::sites::BlockId;
use rustc_hash::FxHashMap;
use tollgate_memory::GuestMemory;
use tollgate_memory::gate::CodeWrite;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// The part of one physical page that a block was made from.
#[derive(Clone, Copy, Debug)]
struct PagePart {
    id: BlockId,
    /// Offset in the page of the first byte; `last` is that of the last byte.
    first: u16,
    last: u16,
}

impl PagePart {
    /// The 64-byte lines that the part touches, one bit each.
    fn lines(self) -> u64 {
        let (first, last) = (self.first / 64, self.last / 64);
        (u64::MAX >> (63 - (last - first))) << first
    }
}

/// For each physical page: the parts of it that active blocks were made from.
#[derive(Default)]
pub struct PageParts {
    by_page: FxHashMap<u64, Vec<PagePart>>,
}

impl PageParts {
    /// Notes that a block was made from `length` bytes at `physical`, and marks these bytes as code
    /// in `memory`. Bytes that follow the end of the first page lie in `second_page`.
    pub fn list(
        &mut self,
        id: BlockId,
        physical: u64,
        second_page: Option<u64>,
        length: u32,
        memory: &mut GuestMemory,
    ) {
        let first = physical % PAGE_SIZE;
        let in_first = u64::from(length).min(PAGE_SIZE - first);
        memory.code().mark(PhysicalAddress(physical), in_first);
        self.add(physical / PAGE_SIZE, id, first, in_first);
        if let Some(page) = second_page {
            let rest = (u64::from(length) - in_first).max(1);
            let start = PhysicalAddress(page * PAGE_SIZE);
            memory.code().mark(start, rest);
            self.add(page, id, 0, rest);
        }
    }

    fn add(&mut self, page: u64, id: BlockId, first: u64, length: u64) {
        self.by_page.entry(page).or_default().push(PagePart {
            id,
            first: first as u16,
            last: (first + length - 1) as u16,
        });
    }

    /// Whether active blocks were made from a page.
    pub fn has_code(&self, page: u64) -> bool {
        self.by_page.contains_key(&page)
    }

    /// Forgets the part of a page that a block was made from.
    pub fn forget(&mut self, page: u64, id: BlockId, memory: &mut GuestMemory) {
        let Some(list) = self.by_page.get_mut(&page) else {
            return;
        };
        list.retain(|part| part.id != id);
        self.clear_lines(page, memory);
    }

    /// StateMap those lines of a page as plain data again that no remaining block was made from.
    pub fn clear_lines(&mut self, page: u64, memory: &mut GuestMemory) {
        let list = self.by_page.get(&page).map_or(&[][..], Vec::as_slice);
        if list.is_empty() {
            self.by_page.remove(&page);
            memory.code().clear_page(page);
            return;
        }
        let kept = list.iter().fold(0, |lines, part| lines | part.lines());
        let gone = memory.code().lines(page) & !kept;
        memory.code().clear_lines(page, gone);
    }

    /// Gives `memory` the list of the bytes of a page that active blocks were made from.
    pub fn describe_bytes(&self, page: u64, memory: &GuestMemory) {
        let parts = self.by_page.get(&page).map_or(&[][..], Vec::as_slice);
        let bytes = parts.iter().map(|it| (it.first.into(), it.last.into()));
        memory.code().describe_bytes(page, bytes);
    }

    /// Forgets the parts of several blocks, each named with its page. Each page is visited once,
    /// however many of its parts are forgotten.
    pub fn forget_all(&mut self, parts: &mut [(u64, BlockId)], memory: &mut GuestMemory) {
        parts.sort_unstable();
        for gone in parts.chunk_by(|one, next| one.0 == next.0) {
            let page = gone[0].0;
            let Some(list) = self.by_page.get_mut(&page) else {
                continue;
            };
            let is_gone = |id| gone.binary_search(&(page, id)).is_ok();
            list.retain(|part| !is_gone(part.id));
            self.clear_lines(page, memory);
        }
    }

    /// Forgets the parts of a page that contain one of the bytes of a write, and appends their
    /// blocks to `written`.
    pub fn take_written(
        &mut self,
        write: CodeWrite,
        written: &mut Vec<BlockId>,
        memory: &mut GuestMemory,
    ) {
        let CodeWrite { page, first, last } = write;
        let Some(parts) = self.by_page.get_mut(&page) else {
            return;
        };
        let (before, mut kept) = (parts.len(), 0);
        parts.retain(|part| {
            let is_written = part.first <= last && part.last >= first;
            if is_written {
                written.push(part.id);
            } else {
                kept |= part.lines();
            }
            !is_written
        });
        if parts.len() != before {
            let gone = memory.code().lines(page) & !kept;
            memory.code().clear_lines(page, gone);
            memory.code().warm(page);
        }
    }
}
