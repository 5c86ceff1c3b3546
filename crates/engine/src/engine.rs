//! The engine: blocks, the cache that holds their code, and what connects them.
//!
//! All of it runs on the vCPU's thread while guest code does not. Signal handlers
//! read [`Engine::guest_position`] only when they interrupted guest code, when
//! nobody is changing anything.

pub mod written;

use crate::abi::completion::{Completion, X87Note};
use crate::abi::far_pointer::FarPointer;
use crate::abi::link_layout::{BranchTable, ModeId};
use crate::abi::marks::{Restore, Shadow};
use crate::abi::register_map::RegisterMap;
use crate::abi::sites::{BlockId, LinkPlace, MAX_BLOCKS, Site, SiteKind, unpack_site};
use crate::blocks::block::{Block, BlockKey, Incoming};
use crate::blocks::code_cache::{Allocation, CodeCache};
use crate::blocks::links::{Dependence, LinkTables};
use crate::policy::allow_list::Features;
use crate::policy::mode::{Mode, ModeFlags, Modes};
use crate::policy::virtual_interrupts::VirtualInterrupts;
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
    /// Blocks dropped or retired because their code was written.
    pub invalidated: u64,
    /// Retired blocks taken back because their code was there again.
    pub revived: u64,
    /// Blocks dropped to make room.
    pub evicted: u64,
    /// Links made.
    pub links: u64,
}

/// Exact guest state at a host address.
#[derive(Clone, Copy, Debug)]
pub struct GuestPosition {
    /// EIP of the instruction that has not completed.
    pub rip: u64,
    /// Added to R12 to get ESP (16-bit wrap on 16-bit stacks).
    pub esp: i32,
    /// Registers to put back first.
    pub restore: Restore,
    /// What is still to be noted of the instruction before.
    pub x87_note: Option<X87Note>,
    /// What is still to be done of the instruction before.
    pub completion: Option<Completion>,
    /// The instruction holds interrupts off until it has completed.
    pub shadowed: Shadow,
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
    pub linear: u64,
}

/// Where the code to be run lies.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Physical address of the first byte.
    pub physical: u64,
    /// Physical page of the following linear page, if known.
    pub next_page: Option<u64>,
    /// EIP.
    pub rip: u64,
    /// Linear address.
    pub linear: u64,
}

/// The part of one page that a block was made from.
#[derive(Clone, Copy, Debug)]
struct PagePart {
    id: BlockId,
    /// Offsets of its first and last byte in the page.
    first: u16,
    last: u16,
}

impl PagePart {
    /// The 64-byte lines that it touches, one bit each.
    fn lines(self) -> u64 {
        let (first, last) = (self.first / 64, self.last / 64);
        (u64::MAX >> (63 - (last - first))) << first
    }
}

/// Translations and everything that belongs to them.
pub struct Engine {
    cache: CodeCache,
    blocks: Vec<Option<Box<Block>>>,
    free_ids: Vec<BlockId>,
    by_key: FxHashMap<BlockKey, BlockId>,
    by_page: FxHashMap<u64, Vec<PagePart>>,
    /// Blocks whose code was written, by what they translated, the oldest first.
    retired: FxHashMap<BlockKey, Vec<BlockId>>,
    /// Blocks whose code is being written: empty but for its allocation otherwise.
    doomed: Vec<BlockId>,
    /// Every block, retired or not.
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
            retired: FxHashMap::default(),
            doomed: Vec::new(),
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

    /// Where guest registers live in code that is not 64-bit code;
    /// [`RegisterMap::LEGACY`] at first.
    pub fn register_map(&self) -> &'static RegisterMap {
        self.translator.register_map()
    }

    /// Has guest registers live elsewhere from now on, but for 64-bit code. Drops all
    /// blocks.
    pub fn set_register_map(&mut self, map: &'static RegisterMap, memory: &mut GuestMemory) {
        self.flush(memory);
        self.translator.set_register_map(map);
    }

    /// How the sensitive instructions are run.
    pub fn virtual_interrupts(&self) -> VirtualInterrupts {
        self.translator.virtual_interrupts
    }

    /// Has the sensitive instructions run otherwise from now on. Drops all blocks.
    pub fn set_virtual_interrupts(&mut self, choice: VirtualInterrupts, memory: &mut GuestMemory) {
        self.flush(memory);
        self.translator.set_virtual_interrupts(choice);
    }

    /// Has each guest instruction count itself in [`crate::Context::instructions`], or not.
    /// Drops all blocks.
    pub fn set_counts_instructions(&mut self, counts: bool, memory: &mut GuestMemory) {
        self.flush(memory);
        self.translator.counts_instructions = counts;
    }

    /// Whether guest instructions count themselves.
    pub fn counts_instructions(&self) -> bool {
        self.translator.counts_instructions
    }

    /// What has been done.
    pub fn counts(&self) -> EngineCounts {
        self.counts
    }

    /// Changes whenever a block dies: positions in blocks noted before are void.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Blocks alive, retired ones included.
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
                linear: self.mode(block.key.mode).linear(block.key.rip),
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
        if self.modes.len() >= MAX_MODES || self.modes.is_full_for(&mode) {
            self.flush(memory);
            self.modes = Modes::default();
            self.mode_epoch += 1;
        }
        let id = self.modes.intern(mode);
        self.links.prepare(self.modes.table(id));
        id
    }

    /// Where a mode's indirect branches find their targets.
    pub fn branch_table(&self, id: ModeId) -> BranchTable {
        self.modes.table(id)
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
            rip: mark.rip,
            esp: mark.esp,
            restore: mark.restore,
            x87_note: block.x87_note_at(offset - block.host).copied(),
            completion: block.completion_at(offset - block.host).copied(),
            shadowed: mark.shadowed,
            block: id,
            map: self.map_of(id),
            single: self.is_single(id),
        })
    }

    /// Exact guest state while the store of a site is tested for code (see
    /// [`crate::gate::code_store`]). Safe to call as [`Engine::guest_position`] is.
    pub fn position_of_store(&self, packed: u32) -> Option<GuestPosition> {
        let (block, _, site) = self.site(packed)?;
        Some(GuestPosition {
            rip: site.rip,
            esp: site.esp,
            restore: self.translator.rcx_freed(),
            x87_note: None,
            completion: None,
            shadowed: site.shadowed,
            block,
            map: self.map_of(block),
            single: self.is_single(block),
        })
    }

    /// Where guest registers live in a block.
    fn map_of(&self, block: BlockId) -> &'static RegisterMap {
        match self.block(block) {
            Some(block) => self.translator.map_of(self.mode(block.key.mode)),
            None => self.register_map(),
        }
    }

    /// Whether a block holds one instruction and returns to the monitor behind it.
    fn is_single(&self, block: BlockId) -> bool {
        self.block(block)
            .is_some_and(|b| self.mode(b.key.mode).flags.contains(ModeFlags::SINGLE))
    }

    /// The bits of RSP that a block's stack adjustments change: 64, 32 or 16.
    pub fn stack_mask(&self, block: BlockId) -> u64 {
        let flags = self
            .block(block)
            .map_or(ModeFlags::STACK32, |block| self.mode(block.key.mode).flags);
        if flags.contains(ModeFlags::CODE64) {
            u64::MAX
        } else if flags.contains(ModeFlags::STACK32) {
            0xffff_ffff
        } else {
            0xffff
        }
    }

    /// Finds the block for a place and mode, without translating.
    pub fn find(&self, place: &Place, mode: ModeId) -> Option<BlockId> {
        let key = BlockKey {
            physical: place.physical,
            second_page: u64::MAX,
            rip: place.rip,
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
    /// The caller must see to it that stores to the code's pages are tested before guest
    /// code runs again; the lines are marked in `memory` here.
    pub fn translate(&mut self, place: &Place, mode: ModeId, memory: &mut GuestMemory) -> LookUp {
        let mut bytes = [0xff_u8; Translator::MOST_BYTES + 16];
        let in_page = (4096 - place.physical % 4096).min(Translator::MOST_BYTES as u64) as usize;
        // Where there is no memory the bus reads as FFh.
        memory.read(PhysicalAddress(place.physical), &mut bytes[..in_page]);
        let mode_word = *self.modes.get(mode);
        let branch_table = self.modes.table(mode);
        let family = self.modes.family(mode);
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
            rip: place.rip,
            linear: place.linear,
            mode: &mode_word,
            mode_id: mode.0,
            branch_table,
            family,
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
                    rip: place.rip,
                    linear: place.linear,
                    mode: &mode_word,
                    mode_id: mode.0,
                    branch_table,
                    family,
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
            rip: place.rip,
            mode,
        };
        self.install(id, key, translation, &bytes, memory);
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
        bytes: &[u8],
        memory: &mut GuestMemory,
    ) {
        let length = self.translator.code().len();
        let host = self.allocate(length, memory);
        self.cache.write(host, self.translator.code());
        if self.verify_code {
            let mode = self.mode(key.mode);
            let map = self.translator.map_of(mode);
            let findings = verify::verify(self.translator.code(), mode, map);
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
        // Where code is written often, it may come back.
        let bytes = if memory.code().is_hot(key.physical >> 12) {
            &bytes[..translation.guest_length as usize]
        } else {
            &[]
        };
        self.list(id, key, translation.guest_length, memory);
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
            marks: translation.marks,
            sites: translation.sites,
            helpers: translation.helpers,
            immediates: translation.immediates,
            x87_notes: translation.x87_notes,
            completions: translation.completions,
            bytes: bytes.into(),
            is_retired: false,
            retirements: 0,
            is_link_wanted: false,
            incoming: Vec::new(),
            outgoing: Vec::new(),
        }));
    }

    /// Marks what a block was made from as code.
    fn list(&mut self, id: BlockId, key: BlockKey, guest_length: u32, memory: &mut GuestMemory) {
        let first = key.physical % 4096;
        let in_first = u64::from(guest_length).min(4096 - first);
        memory
            .code_mut()
            .mark(PhysicalAddress(key.physical), in_first);
        self.by_page
            .entry(key.physical >> 12)
            .or_default()
            .push(PagePart {
                id,
                first: first as u16,
                last: (first + in_first - 1) as u16,
            });
        if key.second_page != u64::MAX {
            let rest = (u64::from(guest_length) - in_first).max(1);
            memory
                .code_mut()
                .mark(PhysicalAddress(key.second_page << 12), rest);
            self.by_page
                .entry(key.second_page)
                .or_default()
                .push(PagePart {
                    id,
                    first: 0,
                    last: rest as u16 - 1,
                });
        }
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
        let (rip, mode) = (target.key.rip, target.key.mode);
        let mode = (mode, self.modes.table(mode));
        let address = self.cache.address(target.host) as u64;
        self.links.fill_hash(rip, mode, address, dependence);
        self.counts.links += 1;
    }

    /// Lets far transfers of real and V86 mode find a block.
    pub fn link_far(&mut self, to: BlockId, dependence: Dependence) {
        let Some(target) = self.block(to) else { return };
        let (rip, mode) = (target.key.rip, target.key.mode);
        let Some(pointer) = FarPointer::of(self.mode(mode).code_base, rip) else {
            return;
        };
        let address = self.cache.address(target.host) as u64;
        let family = self.modes.family(mode);
        self.links.fill_far(pointer, family, address, dependence);
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
    pub fn clear_page_links(&mut self, page: u64) {
        self.links.clear_page(page);
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
        let Some(block) = self.block(id) else {
            return;
        };
        let key = block.key;
        if !block.is_retired {
            self.forget_page(key.physical >> 12, id, memory);
            if key.second_page != u64::MAX {
                self.forget_page(key.second_page, id, memory);
            }
        }
        self.drop_unlisted(id);
    }

    /// Drops a block that no page names any more.
    fn drop_unlisted(&mut self, id: BlockId) {
        self.make_unreachable(id);
        let Some(block) = self.blocks[id.0 as usize].take() else {
            return;
        };
        self.by_host.remove(&block.host);
        if block.retirements != 0 {
            self.forget_retired(&block.key, id);
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
        self.free_ids.push(id);
    }

    /// Cuts whatever leads to a block.
    fn make_unreachable(&mut self, id: BlockId) {
        let Some(block) = self.blocks[id.0 as usize].as_deref_mut() else {
            return;
        };
        self.generation += 1;
        if block.is_retired {
            return;
        }
        let incoming = std::mem::take(&mut block.incoming);
        let (key, host) = (block.key, block.host);
        self.by_key.remove(&key);
        for &incoming in &incoming {
            self.cut(incoming, id);
        }
        let table = self.modes.table(key.mode);
        let target = self.cache.address(host) as u64;
        self.links.forget_hash(key.rip, table, target);
        let mode = self.modes.get(key.mode);
        if mode.has_real_mode_segments()
            && let Some(pointer) = FarPointer::of(mode.code_base, key.rip)
        {
            self.links.forget_far(pointer, target);
        }
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
        list.retain(|part| part.id != id);
        if list.is_empty() {
            self.by_page.remove(&page);
            memory.code_mut().clear_page(page);
            return;
        }
        // Lines that no remaining block was made from are plain data again.
        let kept = list.iter().fold(0, |lines, part| lines | part.lines());
        let gone = memory.code().lines(page) & !kept;
        memory.code_mut().clear_lines(page, gone);
    }
}
