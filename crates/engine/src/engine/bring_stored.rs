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
use crate::stored::file::contents_hash;
use crate::stored::records::{BlockRecord, LinkRecord};
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

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
        self.bringing = Some(Box::new(Bringing::new(stored, facts)));
        true
    }

    /// Whether the caller must look for stored translations because control comes to a physical
    /// page: true once, and again after code of the page was written.
    #[inline]
    pub fn looks_for_stored(&mut self, physical_page: u64) -> bool {
        let bringing = self.bringing.as_deref_mut();
        bringing.is_some_and(|bringing| bringing.looks_for(physical_page))
    }

    /// Takes the blocks of a physical page from stored translations, if there are any. Returns
    /// whether there are new blocks.
    ///
    /// The lines of their code are marked in `memory` here. The caller must ensure that stores to
    /// the page are tested before guest code runs again.
    pub fn bring_stored(&mut self, physical_page: u64, memory: &mut GuestMemory) -> bool {
        // While blocks of this engine are examined for room, none is placed.
        if self.eviction.is_some() {
            return false;
        }
        let Some(mut bringing) = self.bringing.take() else {
            return false;
        };
        let mut contents = [0; PAGE_SIZE as usize];
        if !memory.read(PhysicalAddress(physical_page * PAGE_SIZE), &mut contents) {
            self.bringing = Some(bringing);
            return false;
        }
        let stored = bringing.stored();
        let alike = stored.pages_with(contents_hash(&contents));
        let candidates: Vec<usize> = alike.chain(stored.pages_at(physical_page)).collect();
        let is_found = candidates.into_iter().any(|page| {
            bringing.ahead.is_sound(page)
                && self.bring_page(page, physical_page, &contents, &mut bringing, memory)
        });
        self.bringing = Some(bringing);
        is_found
    }

    /// Takes those blocks of a stored page whose guest code is at the physical page. Returns
    /// whether there are any.
    fn bring_page(
        &mut self,
        page: usize,
        physical_page: u64,
        contents: &[u8],
        bringing: &mut Bringing,
        memory: &mut GuestMemory,
    ) -> bool {
        // The record borrows the store, which nothing changes while blocks are taken.
        let stored = bringing.ahead.share();
        let Some(record) = stored.record(page) else {
            return false;
        };
        let mut count = 0;
        for block in &record.blocks {
            let at = usize::from(block.offset);
            let is_there = contents.get(at..at + block.guest.len()) == Some(block.guest);
            if is_there && self.bring_block(block, physical_page, bringing, memory) {
                count += 1;
            }
        }
        if count == 0 {
            return false;
        }
        self.link_pages.adopt(physical_page, &record.link_pages);
        for link in &record.links {
            self.bring_link(link);
        }
        bringing.note_taken(physical_page, page);
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
        let Some(tables) = PackedTables::from_bytes(block.tables) else {
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
