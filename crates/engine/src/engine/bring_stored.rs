//! Takes blocks from [stored translations](crate::stored) instead of translating them, a page at a
//! time.

use super::Engine;
use super::bringing::Bringing;
use crate::abi::link_layout::ModeId;
use crate::abi::sites::{BlockId, LinkPlace, SiteKind};
use crate::blocks::block::{Block, BlockKey, NewBlock};
use crate::blocks::code_pages::IndirectTarget;
use crate::blocks::packed_tables::PackedTables;
use crate::policy::mode::Modes;
use crate::stored::StoredTranslations;
use crate::stored::candidate::{Facts, helpers_of};
use crate::stored::records::{BlockRecord, LinkRecord};
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// A physical page for which blocks are taken, and where control has come to it.
struct PageToBring {
    number: u64,
    offset: u16,
    contents: [u8; PAGE_SIZE as usize],
    bringing: Box<Bringing>,
}

impl PageToBring {
    /// Whether a stored page may have the block to which control has come.
    fn may_have(&self, candidate: usize) -> bool {
        let entry = self.bringing.stored().entry(candidate);
        entry.is_some_and(|entry| entry.may_begin_at(self.offset))
    }
}

/// What must be among the blocks of a stored page, so that they are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// One block at least, whichever it is.
    Any,
    /// A block at the offset to which control has come.
    AtOffset,
}

impl Engine {
    /// Takes blocks from stored translations from now on where their guest code is in memory.
    /// Returns false, and changes nothing, if this engine has made blocks or modes already.
    ///
    /// Mode numbers that were handed out before are invalid afterwards.
    pub fn use_stored(&mut self, stored: StoredTranslations, memory: &mut GuestMemory) -> bool {
        let index = stored.index();
        if !self.blocks.is_fresh() || self.translator.counts_instructions {
            return false;
        }
        self.flush(memory);
        self.modes = Modes::default();
        self.mode_epoch += 1;
        for (number, &mode) in index.modes.iter().enumerate() {
            if self.modes.is_full_for(&mode) || self.modes.intern(mode) != ModeId(number as u32) {
                self.modes = Modes::default();
                return false;
            }
        }
        for number in 0..self.modes.len() {
            let table = self.modes.table(ModeId(number as u32));
            self.links.prepare(table);
        }
        self.blocks.reserve(index.block_numbers);
        self.links.reserve_slots(index.next_slots);
        let facts = Facts::new(
            &self.modes,
            self.translator.features(),
            self.translator.register_map(),
            index.block_numbers,
            index.next_slots,
        );
        let bringing = Box::new(Bringing::new(stored, facts));
        self.kept_stored.push(bringing.ahead.share());
        self.bringing = Some(bringing);
        true
    }

    /// Whether the caller must look for stored translations because control comes to a physical
    /// page: true once, and again after code of the page was written.
    #[inline]
    pub fn looks_for_stored(&mut self, physical_page: u64) -> bool {
        // Stored blocks know nothing of breakpoints.
        self.translator.breakpoints.is_empty()
            && (self.bringing.as_deref_mut())
                .is_some_and(|bringing| bringing.looks_for(physical_page))
    }

    /// Takes blocks of a physical page from stored translations because control has come to this
    /// physical address, and [`Engine::looks_for_stored`] has returned true. Returns whether there
    /// are new blocks.
    ///
    /// The lines of their code are marked in `memory` here. The caller must ensure that stores to
    /// the page are tested before guest code runs again.
    pub fn bring_stored(&mut self, physical: u64, memory: &mut GuestMemory) -> bool {
        let Some(mut page) = self.page_to_bring(physical, memory) else {
            return false;
        };
        let number = page.number;
        page.bringing.find_candidates(number, &page.contents);
        // Where blocks were taken before, one that is missing is [asked for](Self::bring_missing).
        let is_new = page.bringing.taken(number).is_empty();
        let is_found = is_new && {
            let left = page.bringing.left(number).to_vec();
            let (likely, others): (Vec<_>, Vec<_>) = (left.iter().map(|left| left.page))
                .partition(|&candidate| page.may_have(candidate));
            let mut candidates = likely.into_iter().chain(others);
            candidates.any(|candidate| self.bring_page(candidate, Wanted::Any, &mut page, memory))
        };
        self.bringing = Some(page.bringing);
        is_found
    }

    /// Whether more blocks of a physical page may be stored than were taken.
    pub fn has_more_stored(&self, physical_page: u64) -> bool {
        self.translator.breakpoints.is_empty()
            && (self.bringing.as_deref())
                .is_some_and(|bringing| !bringing.left(physical_page).is_empty())
    }

    /// Takes more blocks from stored translations because no block was found at this physical
    /// address. Returns whether there are new blocks; then the caller must do as after
    /// [`Engine::bring_stored`], and there may be more to take.
    pub fn bring_missing(&mut self, physical: u64, memory: &mut GuestMemory) -> bool {
        let Some(mut page) = self.page_to_bring(physical, memory) else {
            return false;
        };
        let left = page.bringing.left(page.number).iter();
        let likely: Vec<usize> = (left.map(|left| left.page))
            .filter(|&candidate| page.may_have(candidate))
            .collect();
        let is_found = likely.into_iter().any(|candidate| {
            let is_found = self.bring_page(candidate, Wanted::AtOffset, &mut page, memory);
            if !is_found {
                page.bringing.note_vain(page.number, candidate);
            }
            is_found
        });
        self.bringing = Some(page.bringing);
        is_found
    }

    /// The physical page of an address, if blocks can be taken for it now. The caller must put
    /// [`Engine::bringing`] back.
    fn page_to_bring(&mut self, physical: u64, memory: &GuestMemory) -> Option<PageToBring> {
        // While blocks of this engine are examined for room, none is placed.
        if self.eviction.is_some() {
            return None;
        }
        let number = physical / PAGE_SIZE;
        let mut contents = [0; PAGE_SIZE as usize];
        if !memory.read(PhysicalAddress(number * PAGE_SIZE), &mut contents) {
            return None;
        }
        Some(PageToBring {
            number,
            offset: (physical % PAGE_SIZE) as u16,
            contents,
            bringing: self.bringing.take()?,
        })
    }

    /// Takes those blocks of a stored page whose guest code is at the physical page, if what is
    /// wanted is among them. Returns whether there are any.
    fn bring_page(
        &mut self,
        candidate: usize,
        wanted: Wanted,
        page: &mut PageToBring,
        memory: &mut GuestMemory,
    ) -> bool {
        if !page.bringing.ahead.is_sound(candidate) {
            return false;
        }
        // The record borrows the store, which nothing changes while blocks are taken.
        let stored = page.bringing.ahead.share();
        let Some(record) = stored.record(candidate) else {
            return false;
        };
        let is_there = |block: &BlockRecord<'_>| {
            let at = usize::from(block.offset);
            page.contents.get(at..at + block.guest.len()) == Some(block.guest)
        };
        if wanted == Wanted::AtOffset {
            let mut blocks = record.blocks.iter();
            if !blocks.any(|block| block.offset == page.offset && is_there(block)) {
                return false;
            }
        }
        let mut count = 0;
        for block in record.blocks.iter().filter(|block| is_there(block)) {
            if self.bring_block(block, page.number, &mut page.bringing, memory) {
                count += 1;
            }
        }
        if count == 0 {
            return false;
        }
        self.link_pages.adopt(page.number, &record.link_pages);
        for link in &record.links {
            self.bring_link(link);
        }
        page.bringing.note_taken(page.number, candidate);
        self.counts.brought += count;
        true
    }

    fn bring_block(
        &mut self,
        block: &BlockRecord<'_>,
        physical_page: u64,
        bringing: &mut Bringing,
        memory: &mut GuestMemory,
    ) -> bool {
        let id = BlockId(block.number);
        let mode_id = ModeId(block.mode);
        let key = BlockKey {
            physical: physical_page * PAGE_SIZE + u64::from(block.offset),
            second_page: u64::MAX,
            rip: block.rip,
            relocates: block.relocates,
            mode: mode_id,
        };
        let mode = *self.modes.get(mode_id);
        let features = self.translator.features();
        // SAFETY: the record is part of the last of `kept_stored`, which live as long as the engine's
        // blocks, and `StoredTranslations::open` demands that the bytes stay as they are.
        let Some(tables) = (unsafe { PackedTables::of_stored(block.tables) }) else {
            return false;
        };
        let Some(helpers) = helpers_of(block, &mode, features) else {
            return false;
        };
        let Some(code_page) = self.code_page(&key) else {
            return false;
        };
        if self.blocks.get(id).is_some() || self.blocks.find(&key).is_some() {
            return false;
        }
        if !bringing.take_slots(tables.sites(block.rip)) {
            return false;
        }
        let Some(host) = self.allocate(block.code.len(), memory) else {
            return false;
        };
        self.cache.write(host, block.code);
        for &(slot, stub) in &bringing.room {
            let stub = self.cache.address(host + stub) as u64;
            self.links.set_stub(slot, stub);
        }
        let code_page = self.links.add_block(code_page);
        let new = NewBlock {
            key,
            code_page: Some(code_page),
            host,
            host_length: block.code.len() as u32,
            guest_length: block.guest.len() as u16,
            helpers,
            x87_notes: Box::default(),
            completions: Box::default(),
        };
        self.list(id, &key, block.guest.len() as u32, memory);
        self.blocks.insert(id, Block::new(new, &mode, tables));
        if block.is_target {
            let target = IndirectTarget {
                rip: block.rip,
                mode: self.mode_table(mode_id),
                address: self.cache.address(host) as u64,
            };
            self.links.add_target(code_page, target);
        }
        true
    }

    /// Makes a link between two blocks from the store, if both are there and the link is one that
    /// control could have made. It becomes active with the page that it leads to.
    fn bring_link(&mut self, link: &LinkRecord) {
        let (from, to) = (BlockId(link.from), BlockId(link.to));
        if !(self.blocks.is_reserved(from) && self.blocks.is_reserved(to)) {
            return;
        }
        let (Some(source), Some(target)) = (self.blocks.get(from), self.blocks.get(to)) else {
            return;
        };
        let index = usize::from(link.site);
        let Some(site) = source.site(index) else {
            return;
        };
        let (source_key, target_key) = (source.key(), target.key());
        let leads_there = site.rip == target.rip()
            && source.relocates() == target.relocates()
            && self.modes.of_branches(source_key.mode) == target_key.mode
            && !source.is_retired()
            && !target.is_retired();
        if !leads_there || self.blocks.links.is_made(from, index) {
            return;
        }
        match site.kind {
            SiteKind::Link(LinkPlace::Direct { windowless, .. })
                if windowless.is_none()
                    && source_key.physical / PAGE_SIZE == target_key.physical / PAGE_SIZE
                    && source.code_page() == target.code_page() =>
            {
                self.link_direct(from, index, to);
            }
            SiteKind::Link(LinkPlace::Slot { slot, stub }) => {
                let pages = source.code_page().zip(target.code_page());
                let distance = target.host.wrapping_sub(source.host + stub) as i32;
                if let Some((from_page, to_page)) = pages {
                    (self.links).list_link(slot, distance, from_page, to_page);
                    self.counts.links += 1;
                    self.blocks.links.list(from, link.site, to);
                }
            }
            _ => {}
        }
    }
}
