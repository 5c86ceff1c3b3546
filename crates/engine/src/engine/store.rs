//! Describes the blocks of an engine, so that another one can [use them](super::bring_stored).

use super::Engine;
use crate::abi::link_layout::{MAX_SLOTS, ModeId};
use crate::abi::sites::{BlockId, LinkPlace, MAX_BLOCKS, SiteKind};
use crate::blocks::block::Block;
use crate::policy::instruction_kind::Helper;
use crate::policy::mode::ModeFlags;
use crate::stored::candidate::decode;
use crate::stored::file::{Writer, contents_hash};
use crate::stored::key::Key;
use crate::stored::records::{BlockRecord, Index, LinkRecord, PageRecord};
use rustc_hash::FxHashMap;
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// With more blocks of a page for other contents, none of them is described again.
const MOST_EARLIER: usize = 256;
/// The most records of a physical page. Later runs add to the last one.
const MOST_RECORDS: usize = 8;

/// A block while its page is described.
struct Described<'a> {
    id: BlockId,
    block: &'a Block,
    guest: &'a [u8],
    code: Vec<u8>,
    helpers: Vec<u16>,
}

impl Engine {
    /// Describes all blocks that another engine can use, and what was not taken of the stored
    /// translations that this engine uses. `None` if numbers become scarce: then it is better to
    /// begin without what was stored.
    ///
    /// A caller that [opens](crate::stored::StoredTranslations::open) the description must have the
    /// same `identity`, which stands for everything that blocks depend on in addition to the guest's
    /// code: the program, what the guest is offered, and the settings of translation. With the same
    /// `key` the blocks need not be verified.
    pub fn store(&self, identity: u64, key: Option<Key>, memory: &GuestMemory) -> Option<Vec<u8>> {
        let next_slots = self.links.next_slots();
        let block_numbers = self.blocks.numbers();
        let is_roomy = block_numbers as usize <= MAX_BLOCKS / 2
            && next_slots[0] as usize <= MAX_SLOTS + MAX_SLOTS / 2
            && next_slots[1] as usize <= MAX_SLOTS / 2;
        if !is_roomy || self.translator.counts_instructions {
            return None;
        }
        let pages = self.storable_pages();
        let mut writer = Writer::new(key);
        for (physical_page, ids) in &pages {
            let mut contents = [0; PAGE_SIZE as usize];
            let start = PhysicalAddress(physical_page * PAGE_SIZE);
            if memory.read(start, &mut contents) {
                self.store_page(*physical_page, ids, &contents, &mut writer);
            }
        }
        if let Some(bringing) = &self.bringing {
            let mut is_here = vec![false; bringing.stored().page_count()];
            (bringing.all_taken()).for_each(|page| is_here[page] = true);
            // What is not signed must not be signed now without a check.
            let is_left = |page: &usize| !is_here[*page] && bringing.stored().is_signed();
            for page in (0..is_here.len()).filter(is_left) {
                writer.copy(bringing.stored(), page);
            }
        }
        let index = Index {
            modes: (0..self.modes.len())
                .map(|number| *self.modes.get(ModeId(number as u32)))
                .collect(),
            block_numbers,
            next_slots,
            translated: self.counts.translations,
            pages: Vec::new(),
        };
        Some(writer.finish(index, identity))
    }

    /// The active blocks that can be stored, by physical page, in the order in which the first
    /// block of each page was placed.
    fn storable_pages(&self) -> Vec<(u64, Vec<BlockId>)> {
        let mut places: FxHashMap<u64, usize> = FxHashMap::default();
        let mut pages: Vec<(u64, Vec<BlockId>)> = Vec::new();
        for id in self.blocks.ids() {
            let Some(block) = self.block(id).filter(|block| self.is_storable(block)) else {
                continue;
            };
            let page = block.key().physical / PAGE_SIZE;
            let place = *places.entry(page).or_insert_with(|| {
                pages.push((page, Vec::new()));
                pages.len() - 1
            });
            pages[place].1.push(id);
        }
        pages
    }

    fn is_storable(&self, block: &Block) -> bool {
        let key = block.key();
        let mode = self.mode(key.mode);
        !block.is_retired()
            && key.second_page == u64::MAX
            && block.code_page().is_some()
            && !mode.flags.contains(ModeFlags::SINGLE)
            && !block.has_signal_completions()
    }

    fn store_page(
        &self,
        physical_page: u64,
        ids: &[BlockId],
        contents: &[u8],
        writer: &mut Writer,
    ) {
        let known: Vec<Described<'_>> = (ids.iter())
            .filter_map(|&id| {
                let block = self.block(id)?;
                let at = (block.key().physical % PAGE_SIZE) as usize;
                let guest = contents.get(at..at + usize::from(block.guest_length))?;
                Some(Described {
                    id,
                    block,
                    guest,
                    code: self.unlinked_code(block),
                    helpers: self.helper_offsets(block, guest)?,
                })
            })
            .collect();
        if known.is_empty() {
            return;
        }
        let earlier = self.earlier_records(physical_page);
        let mut record_of: FxHashMap<u32, usize> = FxHashMap::default();
        for (index, record) in earlier.iter().enumerate().rev() {
            record_of.extend(record.blocks.iter().map(|block| (block.number, index)));
        }
        // What this run has translated comes into a record of its own.
        let newest = earlier.len().min(MOST_RECORDS - 1);
        let count = earlier.len().max(newest + 1);
        let mut records: Vec<Vec<&Described<'_>>> = vec![Vec::new(); count];
        for block in &known {
            let record = record_of.get(&block.id.0).copied();
            records[record.unwrap_or(newest)].push(block);
        }
        let mut earlier = earlier.into_iter();
        for blocks in &records {
            let mut record = earlier.next().unwrap_or_default();
            let is_gone = |block: &BlockRecord<'_>| self.block(BlockId(block.number)).is_none();
            record.blocks.retain(is_gone);
            if record.blocks.len() > MOST_EARLIER {
                record = PageRecord::default();
            }
            self.add_blocks(&mut record, blocks);
            if !record.blocks.is_empty() {
                record.link_pages = self.link_pages.of(physical_page).collect();
                writer.add(physical_page, contents_hash(contents), &record);
            }
        }
    }

    /// Adds blocks of this engine to a record, before those that it has, and their links.
    fn add_blocks<'a>(&self, record: &mut PageRecord<'a>, known: &[&'a Described<'_>]) {
        let links = &mut record.links;
        for block in known {
            let id = block.id;
            links.extend(self.links_of(id).map(|(site, to)| LinkRecord {
                from: id.0,
                site,
                to: to.0,
            }));
            links.extend(self.links_to(id).map(|(from, site)| LinkRecord {
                from: from.0,
                site,
                to: id.0,
            }));
        }
        links.sort_unstable_by_key(|link| (link.from, link.site, link.to));
        links.dedup();
        let blocks = known.iter().map(|it| {
            let key = it.block.key();
            BlockRecord {
                number: it.id.0,
                offset: (key.physical % PAGE_SIZE) as u16,
                rip: key.rip,
                relocates: key.relocates,
                is_target: self.is_target(it.block),
                mode: key.mode.0,
                guest: it.guest,
                code: &it.code,
                tables: it.block.table_bytes(),
                helpers: it.helpers.clone(),
            }
        });
        record.blocks.splice(..0, blocks);
    }

    /// What an earlier description has of the pages from which blocks were taken for a physical
    /// page: also blocks that stand for other contents of the page.
    fn earlier_records(&self, physical_page: u64) -> Vec<PageRecord<'_>> {
        let Some(bringing) = self.bringing.as_deref() else {
            return Vec::new();
        };
        let taken = bringing.taken(physical_page).iter();
        taken
            .filter_map(|&page| bringing.stored().record(page))
            .collect()
    }

    /// Whether indirect branches find a block.
    fn is_target(&self, block: &Block) -> bool {
        let address = self.cache.address(block.host) as u64;
        block
            .code_page()
            .is_some_and(|page| self.links.is_target(page, address))
    }

    /// Where in a block's guest code the instructions are that the monitor executes. `None` if one
    /// of them is not what the bytes there are decoded to.
    fn helper_offsets(&self, block: &Block, guest: &[u8]) -> Option<Vec<u16>> {
        let key = block.key();
        let mode = self.mode(key.mode);
        let features = self.translator.features();
        let offset = |helper: &Helper| {
            let offset = mode.wrap(helper.instruction.ip().wrapping_sub(key.rip));
            let offset = u16::try_from(offset).ok()?;
            let bytes = guest
                .get(usize::from(offset)..)
                .filter(|it| !it.is_empty())?;
            let again = decode(key.rip, offset, bytes, mode, features);
            let is_same = again.eq_all_bits(&helper.instruction);
            is_same.then_some(offset)
        };
        block.helpers().iter().map(offset).collect()
    }

    /// A block's code in which each direct branch leads to its stub.
    fn unlinked_code(&self, block: &Block) -> Vec<u8> {
        let mut code = (self.cache).read(block.host..block.host + block.host_length);
        for site in block.sites().iter() {
            if let SiteKind::Link(LinkPlace::Direct { distance, stub, .. }) = site.kind {
                let at = distance as usize;
                let value = stub.wrapping_sub(distance + 4);
                if let Some(place) = code.get_mut(at..at + 4) {
                    place.copy_from_slice(&value.to_le_bytes());
                }
            }
        }
        code
    }
}
