//! The engine: the façade that owns all blocks, the cache that holds their code, and their links.
//!
//! All its functions run on the vCPU's thread while guest code does not run. Signal handlers read
//! the table of blocks ([`crate::position`]) only when they interrupted guest code, and the engine
//! changes nothing during that time.

mod breakpoints;
mod bring_stored;
mod bringing;
pub mod device_page;
mod eviction;
mod known_device_page;
mod linking;
pub mod out_of_line;
pub mod run;
mod spaces;
mod store;
mod translation;
mod verified;
pub mod written_code;

use crate::abi::context::{Context, NO_PAGE};
use crate::abi::link_layout::{BranchTable, FamilyId, ModeId, ModeTable};
use crate::abi::memos::device_access::DeviceAccess;
use crate::abi::register_map::RegisterMap;
use crate::abi::sites::{BlockId, Site};
use crate::blocks::block::{Block, BlockKey};
use crate::blocks::code_cache::CodeCache;
use crate::blocks::link_pages::{FetchedPage, LinkPages};
use crate::blocks::links::LinkTables;
use crate::blocks::pages::PageParts;
use crate::blocks::signal_readable::SignalReadable;
use crate::blocks::table::BlockTable;
use crate::policy::access::AccessUnavailable;
use crate::policy::allow_list::Features;
use crate::policy::instruction_kind::Helper;
use crate::policy::mode::{Mode, Modes};
use crate::policy::virtual_interrupts::VirtualInterrupts;
use crate::position;
use crate::requests::Requests;
use crate::stored::StoredTranslations;
use crate::translate::Translator;
use bringing::Bringing;
use eviction::Eviction;
use known_device_page::DevicePage;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io;
use std::sync::Arc;
use tollgate_memory::GuestMemory;

/// How many modes are kept apart at most; a guest with more can only make them up.
const MAX_MODES: usize = 1 << 14;

/// Counts of what the engine has done so far.
#[derive(Clone, Copy, Default, Debug)]
pub struct EngineCounts {
    /// Blocks that were translated.
    pub translations: u64,
    /// Bytes of guest code that were translated.
    pub guest_bytes: u64,
    /// Bytes of host code that were emitted.
    pub host_bytes: u64,
    /// Blocks that were dropped or retired because their code was written.
    pub invalidated: u64,
    /// Retired blocks that were taken back because their code was there again.
    pub revived: u64,
    /// Blocks that were taken from stored translations.
    pub brought: u64,
    /// Blocks that were dropped to make room.
    pub evicted: u64,
    /// Links that were made.
    pub links: u64,
    /// Instructions that were decoded at an exit, because they had not been executed out of line
    /// before.
    pub decoded_at_exits: u64,
}

/// The size and use of the code cache.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct CodeCacheUse {
    /// The size of the cache in bytes.
    pub size_bytes: u64,
    /// Bytes of the code of the blocks that are in the cache.
    pub used_bytes: u64,
    /// The number of blocks in the cache.
    pub blocks: u64,
    /// The number of blocks translated since the start.
    pub translated: u64,
    /// The number of blocks dropped since the start to make room for others.
    pub evicted: u64,
}

/// The result of looking for the block of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookUp {
    /// The active block.
    Block(BlockId),
    /// The first instruction continues in the next page: the caller must call again with that
    /// page's number.
    NeedsNextPage,
    /// No code can be emitted for the mode's way to access memory.
    Unavailable(AccessUnavailable),
    /// A [request](Engine::stop_for) came before the block was made, or while room was made for it:
    /// the caller must call again after the request has been served.
    Stopped,
}

/// Where the code of one block lies, for profilers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TranslatedBlock {
    /// The host address at which the code runs.
    pub host: u64,
    /// The length of the code in bytes.
    pub bytes: u32,
    /// The guest linear address of the first instruction.
    pub linear: u64,
}

/// The guest addresses of code that is going to run.
#[derive(Clone, Copy, Debug)]
pub struct CodeAddress {
    /// The physical address of the first byte.
    pub physical: u64,
    /// The number of the physical page to which the next linear page leads, if known.
    pub next_page: Option<u64>,
    /// The instruction pointer.
    pub rip: u64,
    /// The linear address of the first byte.
    pub linear: u64,
    /// Whether the page's translation survives a switch of the address space.
    pub global: bool,
    /// The link address of `rip`, if the block shall be relocatable (see [`Engine::link_address`]).
    pub link_address: Option<u64>,
}

impl CodeAddress {
    /// The key of the block that is wanted here.
    fn key(&self, second_page: u64, mode: ModeId) -> BlockKey {
        BlockKey {
            physical: self.physical,
            second_page,
            rip: self.link_address.unwrap_or(self.rip),
            relocates: self.link_address.is_some(),
            mode,
        }
    }
}

/// How control has reached a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReachedBy {
    /// A direct branch at this site of a block led there.
    Link(BlockId, usize),
    /// Control has reached it in any other way.
    Other,
}

/// All translations and everything that belongs to them.
pub struct Engine {
    cache: CodeCache,
    blocks: SignalReadable<BlockTable>,
    pages: PageParts,
    link_pages: LinkPages,
    /// Blocks whose code was written, by the key of what they translated, the oldest first.
    retired: FxHashMap<BlockKey, Vec<BlockId>>,
    /// Room for the list of blocks whose code is being written. Otherwise the list is empty and
    /// only keeps its allocation.
    doomed: Vec<BlockId>,
    /// The state of making room in the cache, while that is unfinished.
    eviction: Option<Eviction>,
    modes: Modes,
    translator: Translator,
    links: LinkTables,
    verify_code: bool,
    counts: EngineCounts,
    /// Link slots for the next block, by kind: those of all other code, and those of programs.
    slots: [Vec<u32>; 2],
    /// Room in which the packed tables of a block are assembled.
    packed: Vec<u8>,
    generation: u64,
    mode_epoch: u64,
    device_page: DevicePage,
    /// What instructions do that access the device page or display memory, by site; valid for the
    /// generation that the context names.
    device_accesses: FxHashMap<u32, DeviceAccess>,
    /// The value of `DeviceState::display_window`.
    display_window: u64,
    /// The value of `DeviceState::display_by_tables`.
    display_by_tables: u64,
    /// The value of `DeviceState::display_known`.
    display_known: u64,
    /// The guest registers that live in slots of the context in code that is not 64-bit code.
    slot_mask: u16,
    /// Stored translations, if they are used.
    bringing: Option<Box<Bringing>>,
    /// All stored translations that were used: blocks have their tables there.
    kept_stored: Vec<Arc<StoredTranslations>>,
}

impl Engine {
    /// Makes an engine with a code cache of about `cache_bytes`. With `verify_code` every block
    /// passes the verifier before it can run.
    ///
    /// # Errors
    /// Fails if the host refuses memory.
    pub fn new(cache_bytes: usize, features: Features, verify_code: bool) -> io::Result<Self> {
        let cache = CodeCache::new(cache_bytes)?;
        Ok(Self {
            blocks: SignalReadable::new(BlockTable::new(cache.executable_range())),
            cache,
            pages: PageParts::default(),
            link_pages: LinkPages::default(),
            retired: FxHashMap::default(),
            doomed: Vec::new(),
            eviction: None,
            modes: Modes::default(),
            translator: Translator::new(features),
            links: LinkTables::new()?,
            verify_code,
            counts: EngineCounts::default(),
            slots: Default::default(),
            packed: Vec::new(),
            generation: 0,
            device_page: DevicePage::NONE,
            device_accesses: FxHashMap::default(),
            display_window: NO_PAGE,
            display_by_tables: 0,
            display_known: 0,
            mode_epoch: 0,
            slot_mask: 0,
            bringing: None,
            kept_stored: Vec::new(),
        })
    }

    /// Lets emitted code that runs on `context` find its tables, and signal handlers that interrupt
    /// this code find the blocks (see [`crate::position`]), until this engine is dropped.
    pub fn attach(&self, context: &mut Context) {
        context.blocks = self.blocks.address().cast();
        self.tell_links(context);
    }

    /// Lets emitted code that runs on `context` find the link tables of the space that is loaded
    /// now.
    pub fn tell_links(&self, context: &mut Context) {
        context.hot.links = self.links.base();
    }

    /// Where guest registers live in code that is not 64-bit code; [`RegisterMap::LEGACY`] at
    /// first.
    pub fn register_map(&self) -> &'static RegisterMap {
        self.translator.register_map()
    }

    /// Moves guest registers to the homes that `map` gives them, except in 64-bit code, which has a
    /// map of its own. Drops all blocks, unless the map is the present one.
    pub fn set_register_map(&mut self, map: &'static RegisterMap, memory: &mut GuestMemory) {
        if std::ptr::eq(map, self.translator.register_map()) {
            return;
        }
        self.flush(memory);
        self.translator.set_register_map(map);
        self.blocks.set_legacy_map(map);
        self.slot_mask = map.slot_mask();
    }

    /// How the sensitive instructions are run.
    pub fn virtual_interrupts(&self) -> VirtualInterrupts {
        self.translator.virtual_interrupts
    }

    /// Changes how the sensitive instructions are run. Drops all blocks.
    pub fn set_virtual_interrupts(&mut self, choice: VirtualInterrupts, memory: &mut GuestMemory) {
        self.flush(memory);
        self.translator.set_virtual_interrupts(choice);
    }

    /// Whether instructions that the monitor would execute have fast paths where possible.
    pub fn has_fast_paths(&self) -> bool {
        self.translator.has_fast_paths
    }

    /// Sets whether instructions that the monitor would execute have fast paths where possible,
    /// which is the default, or always exit: CPUID, IN and OUT, and those of system registers.
    /// Drops all blocks.
    pub fn set_fast_paths(&mut self, does: bool, memory: &mut GuestMemory) {
        self.flush(memory);
        self.translator.has_fast_paths = does;
    }

    /// Sets whether each guest instruction counts itself in
    /// [`Counters::instructions`](crate::abi::context::groups::Counters::instructions), and the
    /// host instructions that stand for it in the fields after that. Drops all blocks.
    pub fn set_counts_instructions(&mut self, counts: bool, memory: &mut GuestMemory) {
        self.flush(memory);
        self.translator.counts_instructions = counts;
    }

    /// Lets a translation end early from now on if a [request](Requests::stops) waits.
    pub fn stop_for(&mut self, requests: Arc<Requests>) {
        self.translator.requests = Some(requests);
    }

    /// Whether guest instructions count themselves.
    pub fn counts_instructions(&self) -> bool {
        self.translator.counts_instructions
    }

    /// Counts of what the engine has done.
    pub fn counts(&self) -> EngineCounts {
        self.counts
    }

    /// How full the code cache is.
    pub fn code_cache(&self) -> CodeCacheUse {
        CodeCacheUse {
            size_bytes: self.cache.size() as u64,
            used_bytes: self.blocks.code_bytes(),
            blocks: self.blocks.len() as u64,
            translated: self.counts.translations,
            evicted: self.counts.evicted,
        }
    }

    /// A number that changes whenever a block dies: positions in blocks that were noted before are
    /// then invalid.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The number of live blocks, including retired ones.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// All live blocks, by host address.
    pub fn blocks(&self) -> impl Iterator<Item = TranslatedBlock> {
        self.blocks.ids().filter_map(|id| {
            let block = self.block(id)?;
            Some(TranslatedBlock {
                host: self.cache.address(block.host) as u64,
                bytes: block.host_length,
                linear: self.mode(block.key().mode).linear(self.last_rip(block)),
            })
        })
    }

    /// The EIP at which a block was last run, or is going to be run.
    fn last_rip(&self, block: &Block) -> u64 {
        let (physical, link_address) = (block.key().physical, block.rip());
        let slide = self
            .link_pages
            .last_slide(physical >> 12, link_address >> 12);
        block.relocation(slide.unwrap_or(0)).rip(link_address)
    }

    /// The host addresses at which guest code runs.
    pub fn code_range(&self) -> std::ops::Range<u64> {
        self.cache.executable_range()
    }

    /// The features that the guest is offered.
    pub fn features(&self) -> &Features {
        self.translator.features()
    }

    /// A number that changes whenever mode numbers are assigned again: old mode numbers are then
    /// invalid.
    pub fn mode_epoch(&self) -> u64 {
        self.mode_epoch
    }

    /// Where the guest's registers live in code of a mode.
    pub fn map_of(&self, mode: &Mode) -> &'static RegisterMap {
        self.translator.map_of(mode)
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

    /// A mode with the table in which its indirect branches find their targets.
    pub fn mode_table(&self, mode: ModeId) -> ModeTable {
        let table = self.modes.table(mode);
        ModeTable { mode, table }
    }

    /// The family that a mode belongs to.
    pub fn family(&self, id: ModeId) -> FamilyId {
        self.modes.family(id)
    }

    /// The mode that has this number.
    pub fn mode(&self, id: ModeId) -> &Mode {
        self.modes.get(id)
    }

    /// The links that were made from a live block: the site of each and where it leads. A slot may
    /// have been emptied since.
    pub fn links_of(&self, id: BlockId) -> impl Iterator<Item = (u16, BlockId)> {
        self.blocks.links.outgoing(id)
    }

    /// The links that were made to a live block: the source block and the site of each.
    pub fn links_to(&self, id: BlockId) -> impl Iterator<Item = (BlockId, u16)> {
        self.blocks.links.incoming(id)
    }

    /// The live block with this number.
    pub fn block(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id)
    }

    /// The site that an exit names, if its block still lives; the context's slide is `code_slide`.
    pub fn site(&self, packed: u32, code_slide: u64) -> Option<(BlockId, usize, Site)> {
        let (id, _, index, site) = self.blocks.site(packed, code_slide)?;
        Some((id, index, site))
    }

    /// The mode that the branches of a mode's code lead to: the mode itself, or for a mode without
    /// shared look-ups the mode with them.
    pub fn mode_of_branches(&self, mode: ModeId) -> ModeId {
        self.modes.of_branches(mode)
    }

    /// An instruction that a block leaves to the monitor, as the block's site names it; the
    /// context's slide is `code_slide`.
    pub fn helper(&self, block: BlockId, index: u16, code_slide: u64) -> Option<Helper> {
        let block = self.block(block)?;
        let mut helper = *block.helpers().get(usize::from(index))?;
        if block.relocates() {
            let relocation = block.relocation(code_slide);
            helper.instruction = relocation.instruction(&helper.instruction);
        }
        Some(helper)
    }

    /// The slide that the context must have for a block that is entered at the guest's EIP `rip`;
    /// `None` if the slide does not matter.
    pub fn code_slide(&self, block: BlockId, rip: u64) -> Option<u64> {
        let block = self.block(block)?;
        (block.relocates()).then(|| rip.wrapping_sub(block.rip()))
    }

    /// The link address of the code at a place, if the code shall be relocatable there. Blocks of
    /// this code must be found by that link address as long as the space's epoch lasts.
    pub fn link_address(
        &mut self,
        place: &CodeAddress,
        mode: ModeId,
        by: ReachedBy,
    ) -> Option<u64> {
        let mode = self.modes.get(mode);
        if !mode.is_relocatable_at(place.rip) {
            return None;
        }
        let wanted = match by {
            ReachedBy::Link(id, site) => {
                let block = self.blocks.get(id)?;
                if !block.relocates() {
                    // The branch is in code that is not relocatable, which knows no slide.
                    return None;
                }
                let target = block.site(site)?.rip;
                Some(place.rip.wrapping_sub(target))
            }
            ReachedBy::Other => None,
        };
        let page = FetchedPage {
            physical: place.physical >> 12,
            linear: place.linear >> 12,
        };
        let epoch = self.links.epoch();
        let code = spaces::Code {
            pages: &self.pages,
            links: &self.links,
        };
        let slide = self.link_pages.slide(epoch, page, wanted, &code)?;
        Some(place.rip.wrapping_sub(slide))
    }

    /// The site at which the current instruction at a host address may leave (see
    /// [`position::site_at`]).
    pub fn site_at(&self, pc: u64) -> Option<(BlockId, usize)> {
        position::site_at(&self.blocks, pc)
    }

    /// The host address of an offset in a block.
    pub fn address(&self, block: BlockId, offset: u32) -> Option<*const u8> {
        let block = self.block(block)?;
        (offset < block.host_length).then(|| self.cache.address(block.host + offset))
    }

    /// The bits of RSP that a block's stack adjustments change: 64, 32 or 16.
    pub fn stack_mask(&self, block: BlockId) -> u64 {
        let block = self.block(block);
        block.map_or(0xffff_ffff, Block::stack_mask)
    }

    /// Finds the block for a place and mode, without translating.
    pub fn find(&self, place: &CodeAddress, mode: ModeId) -> Option<BlockId> {
        let find = |place: &CodeAddress| {
            let found = self.blocks.find(&place.key(u64::MAX, mode));
            found.or_else(|| self.blocks.find(&place.key(place.next_page?, mode)))
        };
        find(place).or_else(|| {
            // Some code cannot be relocatable and is listed without a link address.
            place.link_address?;
            find(&CodeAddress {
                link_address: None,
                ..*place
            })
        })
    }

    /// Drops every block.
    pub fn flush(&mut self, memory: &mut GuestMemory) {
        self.bringing = None;
        // An engine that is new is flushed for each of its settings, and looking for blocks touches
        // two megabytes of their index.
        if !self.blocks.is_empty() {
            let all: Vec<BlockId> = self.blocks.ids().collect();
            self.evict(&all, memory);
        }
        self.eviction = None;
        self.cache.reset();
    }

    /// Drops blocks to make room.
    fn evict(&mut self, ids: &[BlockId], memory: &mut GuestMemory) {
        self.counts.evicted += ids.len() as u64;
        let active = ids.iter().filter_map(|&id| {
            let block = self.block(id).filter(|block| !block.is_retired())?;
            Some((id, block.key()))
        });
        let mut parts: Vec<(u64, BlockId)> = active
            .flat_map(|(id, key)| [(key.physical >> 12, id), (key.second_page, id)])
            .filter(|&(page, _)| page != u64::MAX)
            .collect();
        self.pages.forget_all(&mut parts, memory);
        for &id in ids {
            self.drop_unlisted(id);
        }
    }

    /// Drops a block that no page lists any more.
    fn drop_unlisted(&mut self, id: BlockId) {
        self.make_unreachable(id);
        let Some(block) = self.blocks.remove(id) else {
            return;
        };
        if block.retirements != 0 {
            self.forget_retired(&block.key(), id);
        }
        self.blocks.links.take_outgoing(id);
        for (slot, _) in block.sites().iter().filter_map(|site| site.slot_and_stub()) {
            self.links.release_slot(slot);
        }
        if let Some(page) = block.code_page() {
            self.links.remove_block(page);
        }
    }
}
