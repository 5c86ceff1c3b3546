//! The engine: blocks, the cache that holds their code, and what connects them.
//!
//! All of it runs on the vCPU's thread while guest code does not. Signal handlers
//! read [`Engine::guest_position`] only when they interrupted guest code, when
//! nobody is changing anything.

use crate::allow_list::Features;
use crate::block::{
    Block, BlockId, BlockKey, Incoming, LinkPlace, MAX_BLOCKS, Restore, Site, SiteKind, unpack_site,
};
use crate::code_cache::{Allocation, CodeCache};
use crate::links::{Dependence, LinkTables};
use crate::mode::{Mode, ModeFlags, ModeId, Modes};
use crate::register_map::RegisterMap;
use crate::translate::{Request, TranslateError, Translation, Translator};
use crate::verify;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::io;
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;

/// Modes kept apart at most; more can only be a guest that makes them up.
const MAX_MODES: usize = 1 << 14;

/// What the engine has done so far.
#[derive(Clone, Copy, Default, Debug)]
pub struct EngineCounts {
    /// Blocks translated.
    pub translations: u64,
    /// Guest bytes translated.
    pub guest_bytes: u64,
    /// Host bytes emitted.
    pub host_bytes: u64,
    /// Blocks dropped because their code was written.
    pub invalidated: u64,
    /// Blocks dropped to make room.
    pub evicted: u64,
    /// Links made.
    pub links: u64,
}

/// Exact guest state at a host address.
#[derive(Clone, Copy, Debug)]
pub struct GuestPosition {
    /// EIP of the instruction that has not completed.
    pub eip: u32,
    /// Added to R12 to get ESP (16-bit wrap on 16-bit stacks).
    pub esp: i32,
    /// Registers to put back first.
    pub restore: Restore,
    /// The block.
    pub block: BlockId,
    /// Where the guest's registers live.
    pub map: &'static RegisterMap,
    /// The block holds one instruction and returns to the monitor behind it.
    pub single: bool,
}

/// A fetch that failed: the code does not lie where it can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookUp {
    /// A block.
    Block(BlockId),
    /// The instruction goes on in the next page: give that page's number.
    NeedsNextPage,
}

/// Where the code of one block lies, for profilers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TranslatedBlock {
    /// Host address of the code that runs.
    pub host: u64,
    /// Bytes of it.
    pub bytes: u32,
    /// Guest linear address of the first instruction.
    pub linear: u32,
}

/// Where the code to be run lies.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Physical address of the first byte.
    pub physical: u64,
    /// Physical page of the following linear page, if known.
    pub next_page: Option<u64>,
    /// EIP.
    pub eip: u32,
    /// Linear address.
    pub linear: u32,
}

/// Translations and everything that belongs to them.
pub struct Engine {
    cache: CodeCache,
    blocks: Vec<Option<Box<Block>>>,
    free_ids: Vec<BlockId>,
    by_key: FxHashMap<BlockKey, BlockId>,
    by_page: FxHashMap<u64, Vec<BlockId>>,
    by_host: BTreeMap<u32, BlockId>,
    modes: Modes,
    translator: Translator,
    links: LinkTables,
    verify_code: bool,
    counts: EngineCounts,
    slots: Vec<u32>,
    generation: u64,
    mode_epoch: u64,
}

impl Engine {
    /// An engine with a code cache of about `cache_bytes`; with `verify_code` every
    /// block passes the verifier before it can run.
    ///
    /// # Errors
    /// The host refused memory.
    pub fn new(cache_bytes: usize, features: Features, verify_code: bool) -> io::Result<Self> {
        Ok(Self {
            cache: CodeCache::new(cache_bytes)?,
            blocks: Vec::new(),
            free_ids: Vec::new(),
            by_key: FxHashMap::default(),
            by_page: FxHashMap::default(),
            by_host: BTreeMap::new(),
            modes: Modes::default(),
            translator: Translator::new(features),
            links: LinkTables::new()?,
            verify_code,
            counts: EngineCounts::default(),
            slots: Vec::new(),
            generation: 0,
            mode_epoch: 0,
        })
    }

    /// Where guest registers live; [`RegisterMap::LEGACY`] at first.
    pub fn register_map(&self) -> &'static RegisterMap {
        self.translator.register_map()
    }

    /// Has guest registers live elsewhere from now on. Drops all blocks.
    pub fn set_register_map(&mut self, map: &'static RegisterMap, memory: &mut GuestMemory) {
        self.flush(memory);
        self.translator.set_register_map(map);
    }

    /// What has been done.
    pub fn counts(&self) -> EngineCounts {
        self.counts
    }

    /// Changes whenever a block dies: positions in blocks noted before are void.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Blocks alive.
    pub fn block_count(&self) -> usize {
        self.by_host.len()
    }

    /// All live blocks, by host address.
    pub fn blocks(&self) -> impl Iterator<Item = TranslatedBlock> {
        self.by_host.iter().filter_map(|(&host, &id)| {
            let block = self.block(id)?;
            Some(TranslatedBlock {
                host: self.cache.address(host) as u64,
                bytes: block.host_length,
                linear: self
                    .mode(block.key.mode)
                    .code_base
                    .wrapping_add(block.key.eip),
            })
        })
    }

    /// Addresses at which guest code runs.
    pub fn code_range(&self) -> std::ops::Range<u64> {
        self.cache.executable_range()
    }

    /// The link tables (R13).
    pub fn links_base(&self) -> u64 {
        self.links.base()
    }

    /// Changes whenever mode numbers have been given out anew: old ones are void.
    pub fn mode_epoch(&self) -> u64 {
        self.mode_epoch
    }

    /// The number of a mode.
    pub fn intern(&mut self, mode: Mode, memory: &mut GuestMemory) -> ModeId {
        if self.modes.len() >= MAX_MODES {
            self.flush(memory);
            self.modes = Modes::default();
            self.mode_epoch += 1;
        }
        self.modes.intern(mode)
    }

    /// The mode behind a number.
    pub fn mode(&self, id: ModeId) -> &Mode {
        self.modes.get(id)
    }

    /// A live block.
    pub fn block(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id.0 as usize)?.as_deref()
    }

    /// The site that an exit names, if its block still lives.
    pub fn site(&self, packed: u32) -> Option<(BlockId, usize, Site)> {
        let (id, index) = unpack_site(packed);
        let site = *self.block(id)?.sites.get(index)?;
        Some((id, index, site))
    }

    /// Host address of an offset in a block.
    pub fn address(&self, block: BlockId, offset: u32) -> Option<*const u8> {
        let block = self.block(block)?;
        (offset < block.host_length).then(|| self.cache.address(block.host + offset))
    }

    /// Exact guest state at a host address in the code cache. Safe to call from a
    /// signal handler that interrupted guest code on this engine's thread.
    pub fn guest_position(&self, pc: u64) -> Option<GuestPosition> {
        let range = self.cache.executable_range();
        if !range.contains(&pc) {
            return None;
        }
        let offset = (pc - range.start) as u32;
        let (_, &id) = self.by_host.range(..=offset).next_back()?;
        let block = self.block(id)?;
        let mark = block.mark_at(offset - block.host)?;
        Some(GuestPosition {
            eip: mark.eip,
            esp: mark.esp,
            restore: mark.restore,
            block: id,
            map: self.translator.register_map(),
            single: self.mode(block.key.mode).flags.contains(ModeFlags::SINGLE),
        })
    }

    /// Whether a block's stack adjustments wrap at 16 bits.
    pub fn has_narrow_stack(&self, block: BlockId) -> bool {
        self.block(block)
            .is_some_and(|b| !self.mode(b.key.mode).flags.contains(ModeFlags::STACK32))
    }

    /// Finds the block for a place and mode, without translating.
    pub fn find(&self, place: &Place, mode: ModeId) -> Option<BlockId> {
        let key = BlockKey {
            physical: place.physical,
            second_page: u64::MAX,
            eip: place.eip,
            mode,
        };
        if let Some(&id) = self.by_key.get(&key) {
            return Some(id);
        }
        let second_page = place.next_page?;
        self.by_key.get(&BlockKey { second_page, ..key }).copied()
    }

    /// Translates the block for a place and mode.
    ///
    /// The caller must make the code's host pages unwritable in every software TLB
    /// before guest code runs again; the pages are marked in `memory` here.
    pub fn translate(&mut self, place: &Place, mode: ModeId, memory: &mut GuestMemory) -> LookUp {
        let mut bytes = [0xff_u8; 4096 + 16];
        let in_page = (4096 - place.physical % 4096) as usize;
        // Where there is no memory the bus reads as FFh.
        memory.read(PhysicalAddress(place.physical), &mut bytes[..in_page]);
        let mode_word = *self.modes.get(mode);
        let id = self.take_id(memory);
        while self.slots.len() < Translator::SLOTS_PER_BLOCK {
            let Some(slot) = self.links.take_slot() else {
                break;
            };
            self.slots.push(slot);
        }
        let request = Request {
            bytes: &bytes[..in_page],
            straddles: false,
            eip: place.eip,
            linear: place.linear,
            mode: &mode_word,
            mode_id: mode.0,
            block: id,
        };
        let mut second_page = u64::MAX;
        let translation = match self.translator.translate(&request, &self.slots) {
            Ok(translation) => translation,
            Err(TranslateError::NeedsNextPage) => {
                let Some(next) = place.next_page else {
                    self.free_ids.push(id);
                    return LookUp::NeedsNextPage;
                };
                second_page = next;
                memory.read(
                    PhysicalAddress(next << 12),
                    &mut bytes[in_page..in_page + 16],
                );
                let request = Request {
                    bytes: &bytes[..in_page + 16],
                    straddles: true,
                    eip: place.eip,
                    linear: place.linear,
                    mode: &mode_word,
                    mode_id: mode.0,
                    block: id,
                };
                self.translator
                    .translate(&request, &self.slots)
                    .expect("fifteen bytes hold every instruction")
            }
        };
        let key = BlockKey {
            physical: place.physical,
            second_page,
            eip: place.eip,
            mode,
        };
        self.install(id, key, translation, memory);
        LookUp::Block(id)
    }

    fn take_id(&mut self, memory: &mut GuestMemory) -> BlockId {
        if let Some(id) = self.free_ids.pop() {
            return id;
        }
        if self.blocks.len() >= MAX_BLOCKS {
            self.flush(memory);
            if let Some(id) = self.free_ids.pop() {
                return id;
            }
        }
        self.blocks.push(None);
        BlockId(self.blocks.len() as u32 - 1)
    }

    fn install(
        &mut self,
        id: BlockId,
        key: BlockKey,
        translation: Translation,
        memory: &mut GuestMemory,
    ) {
        let length = self.translator.code().len();
        let host = self.allocate(length, memory);
        self.cache.write(host, self.translator.code());
        if self.verify_code {
            let findings = verify::verify(
                self.translator.code(),
                self.mode(key.mode),
                self.translator.register_map(),
            );
            assert!(
                findings.is_empty(),
                "emitted code failed verification: {findings:?}"
            );
        }
        // Slots that the translation did not use stay for the next one.
        let used: Vec<u32> = translation
            .sites
            .iter()
            .filter_map(|site| match site.kind {
                SiteKind::Link(LinkPlace::Slot { slot, .. }) => Some(slot),
                _ => None,
            })
            .collect();
        self.slots.retain(|slot| !used.contains(slot));
        let first = key.physical;
        let in_first = u64::from(translation.guest_length).min(4096 - first % 4096);
        memory.code_mut().mark(PhysicalAddress(first), in_first);
        self.by_page.entry(first >> 12).or_default().push(id);
        if key.second_page != u64::MAX {
            let rest = (u64::from(translation.guest_length) - in_first).max(1);
            memory
                .code_mut()
                .mark(PhysicalAddress(key.second_page << 12), rest);
            self.by_page.entry(key.second_page).or_default().push(id);
        }
        self.counts.translations += 1;
        self.counts.guest_bytes += u64::from(translation.guest_length);
        self.counts.host_bytes += length as u64;
        self.by_key.insert(key, id);
        self.by_host.insert(host, id);
        self.blocks[id.0 as usize] = Some(Box::new(Block {
            key,
            host,
            host_length: length as u32,
            guest_length: translation.guest_length,
            marks: translation.marks.into_boxed_slice(),
            sites: translation.sites.into_boxed_slice(),
            helpers: translation.helpers.into_boxed_slice(),
            incoming: Vec::new(),
            outgoing: Vec::new(),
        }));
    }

    fn allocate(&mut self, bytes: usize, memory: &mut GuestMemory) -> u32 {
        loop {
            match self.cache.allocate(bytes) {
                Allocation::At(offset) => return offset,
                Allocation::Evict { start, end } => {
                    let doomed: Vec<BlockId> =
                        self.by_host.range(start..end).map(|(_, &id)| id).collect();
                    self.counts.evicted += doomed.len() as u64;
                    for id in doomed {
                        self.drop_block(id, memory);
                    }
                }
            }
        }
    }

    /// Links a block's site to a target block in the same page; the distance is
    /// patched in place.
    pub fn link_direct(&mut self, from: BlockId, site_index: usize, to: BlockId) {
        let (Some(source), Some(target)) = (self.block(from), self.block(to)) else {
            return;
        };
        let Some(Site {
            kind: SiteKind::Link(LinkPlace::Direct { distance, .. }),
            ..
        }) = source.sites.get(site_index).copied()
        else {
            return;
        };
        if target.key.second_page != u64::MAX
            || source.outgoing.iter().any(|o| o.0 as usize == site_index)
        {
            return;
        }
        let place = source.host + distance;
        let value = target.host.wrapping_sub(place + 4);
        self.cache.write(place, &value.to_le_bytes());
        self.counts.links += 1;
        if let Some(target) = self.blocks[to.0 as usize].as_deref_mut() {
            target.incoming.push(Incoming {
                from,
                site: site_index as u16,
            });
        }
        if let Some(source) = self.blocks[from.0 as usize].as_deref_mut() {
            source.outgoing.push((site_index as u16, to));
        }
    }

    /// Fills the slot of a block's site with a target.
    pub fn link_slot(
        &mut self,
        from: BlockId,
        site_index: usize,
        to: BlockId,
        dependence: Dependence,
    ) {
        let (Some(source), Some(target)) = (self.block(from), self.block(to)) else {
            return;
        };
        let Some(Site {
            kind: SiteKind::Link(LinkPlace::Slot { slot, stub }),
            ..
        }) = source.sites.get(site_index).copied()
        else {
            return;
        };
        let distance = u64::from(target.host).wrapping_sub(u64::from(source.host + stub));
        self.links.fill_slot(slot, distance, dependence);
        self.counts.links += 1;
        if let Some(target) = self.blocks[to.0 as usize].as_deref_mut() {
            let incoming = Incoming {
                from,
                site: site_index as u16,
            };
            if !target.incoming.contains(&incoming) {
                target.incoming.push(incoming);
            }
        }
    }

    /// Lets indirect branches find a block.
    pub fn link_indirect(&mut self, to: BlockId, dependence: Dependence) {
        let Some(target) = self.block(to) else { return };
        let (eip, mode) = (target.key.eip, target.key.mode.0);
        let address = self.cache.address(target.host) as u64;
        self.links.fill_hash(eip, mode, address, dependence);
        self.counts.links += 1;
    }

    /// CR3 was loaded: linear addresses of non-global pages mean something else.
    pub fn clear_local_links(&mut self) {
        self.links.clear_local();
    }

    /// All linear addresses may mean something else.
    pub fn clear_all_links(&mut self) {
        self.links.clear_all();
    }

    /// A linear page means something else.
    pub fn clear_page_links(&mut self, page: u32) {
        self.links.clear_page(page);
    }

    /// Drops the blocks that were made from the lines in `lines` (bit per 64 bytes) of
    /// a physical page.
    pub fn invalidate_lines(&mut self, page: u64, lines: u64, memory: &mut GuestMemory) {
        let Some(candidates) = self.by_page.get(&page) else {
            return;
        };
        let doomed: Vec<BlockId> = candidates
            .iter()
            .copied()
            .filter(|&id| {
                self.block(id)
                    .is_some_and(|block| block_lines(block, page) & lines != 0)
            })
            .collect();
        self.counts.invalidated += doomed.len() as u64;
        for id in doomed {
            self.drop_block(id, memory);
        }
    }

    /// Drops every block.
    pub fn flush(&mut self, memory: &mut GuestMemory) {
        let all: Vec<BlockId> = self.by_host.values().copied().collect();
        self.counts.evicted += all.len() as u64;
        for id in all {
            self.drop_block(id, memory);
        }
        self.cache.reset();
    }

    fn drop_block(&mut self, id: BlockId, memory: &mut GuestMemory) {
        let Some(block) = self.blocks[id.0 as usize].take() else {
            return;
        };
        self.generation += 1;
        self.by_key.remove(&block.key);
        self.by_host.remove(&block.host);
        for incoming in &block.incoming {
            self.cut(*incoming, id);
        }
        for &(site, to) in &block.outgoing {
            if let Some(target) = self.blocks[to.0 as usize].as_deref_mut() {
                target
                    .incoming
                    .retain(|incoming| *incoming != Incoming { from: id, site });
            }
        }
        for site in &block.sites {
            if let SiteKind::Link(LinkPlace::Slot { slot, .. }) = site.kind {
                self.links.release_slot(slot);
            }
        }
        self.links
            .forget_hash(block.key.eip, self.cache.address(block.host) as u64);
        self.forget_page(block.key.physical >> 12, id, memory);
        if block.key.second_page != u64::MAX {
            self.forget_page(block.key.second_page, id, memory);
        }
        self.free_ids.push(id);
    }

    /// Makes a site that led to a dying block lead to its stub again.
    fn cut(&mut self, incoming: Incoming, dying: BlockId) {
        let Some(source) = self.blocks[incoming.from.0 as usize].as_deref_mut() else {
            return;
        };
        let Some(site) = source.sites.get(incoming.site as usize).copied() else {
            return;
        };
        match site.kind {
            SiteKind::Link(LinkPlace::Direct { distance, stub }) => {
                if !source.outgoing.contains(&(incoming.site, dying)) {
                    return;
                }
                source.outgoing.retain(|o| o.0 != incoming.site);
                let place = source.host + distance;
                let value = (source.host + stub).wrapping_sub(place + 4);
                self.cache.write(place, &value.to_le_bytes());
            }
            SiteKind::Link(LinkPlace::Slot { slot, .. }) => self.links.forget_slot(slot),
            _ => {}
        }
    }

    fn forget_page(&mut self, page: u64, id: BlockId, memory: &mut GuestMemory) {
        let Some(list) = self.by_page.get_mut(&page) else {
            return;
        };
        list.retain(|&other| other != id);
        if list.is_empty() {
            self.by_page.remove(&page);
            memory.code_mut().clear_page(page);
            return;
        }
        // Lines that no remaining block was made from are plain data again.
        let kept = self.by_page[&page]
            .iter()
            .filter_map(|&id| self.block(id))
            .fold(0, |lines, block| lines | block_lines(block, page));
        let gone = memory.code().lines(page) & !kept;
        memory.code_mut().clear_lines(page, gone);
    }
}

/// The 64-byte lines of a physical page that a block was made from, one bit each.
fn block_lines(block: &Block, page: u64) -> u64 {
    let start = block.key.physical;
    let length = u64::from(block.guest_length);
    let mut lines = 0;
    if start >> 12 == page {
        let first = start % 4096 / 64;
        let last = (start % 4096 + length - 1).min(4095) / 64;
        lines |= mask(first, last);
    }
    if block.key.second_page == page {
        let in_first = 4096 - start % 4096;
        let last = length.saturating_sub(in_first).saturating_sub(1) / 64;
        lines |= mask(0, last.min(63));
    }
    lines
}

/// Bits `first..=last`.
fn mask(first: u64, last: u64) -> u64 {
    (u64::MAX >> (63 - (last - first))) << first
}
