//! The table of all blocks, which finds a block by its number, by its key, or by the host address
//! of its code.

use crate::abi::register_map::RegisterMap;
use crate::abi::sites::{BlockId, MAX_BLOCKS, Site, unpack_site};
use crate::blocks::block::{Block, BlockKey, PackedKey};
use crate::blocks::host_offset_index::HostOffsetIndex;
use crate::blocks::key_index::KeyIndex;
use crate::blocks::made_links::MadeLinks;
use crate::blocks::recent_sites::RecentSites;
use std::cell::Cell;
use std::ops::Range;

/// Number of recently found blocks that are remembered.
const RECENT: usize = 1 << 12;

/// A hash of a block's key, for [`KeyIndex`]: the low seven bits of the physical address, and above
/// them 25 bits that depend on everything else. So blocks of the same 128 bytes, which are made and
/// looked up together, share a cache line of the host. If the hash kept more bits of the address,
/// blocks would stand so close together that look-ups pass many of them.
fn hash(key: &BlockKey) -> u32 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    const NEIGHBOURS: u64 = 128;
    let offset = key.physical % NEIGHBOURS;
    let form = u64::from(key.mode.0) << 1 | u64::from(key.relocates);
    let mut mixed = (key.physical / NEIGHBOURS).wrapping_mul(ODD);
    for part in [key.rip.wrapping_sub(offset), key.second_page, form] {
        mixed = (mixed.rotate_left(23) ^ part).wrapping_mul(ODD);
    }
    ((mixed >> 32) / NEIGHBOURS * NEIGHBOURS + offset) as u32
}

/// Whether a block of the table is active and translates `key`.
fn active<'a>(blocks: &'a Numbered, key: &'a BlockKey) -> impl Fn(BlockId) -> bool + Copy + 'a {
    let packed = PackedKey::new(key);
    move |id| {
        let block = blocks.get(id);
        block.is_some_and(|block| block.translates(key, packed) && !block.is_retired())
    }
}

/// The place where a block with this hash is remembered. The high bits are mixed in because the low
/// bits alone are those of an address, and functions begin at multiples of 16.
fn recent(hash: u32) -> usize {
    (hash ^ hash >> 16) as usize % RECENT
}

/// Number of blocks that share an allocation.
const CHUNK: usize = 1 << 7;

/// Blocks by number, stored in chunks: so a block is written once, is never moved, and needs no
/// allocation of its own.
#[derive(Default)]
struct Numbered {
    chunks: Vec<Vec<Option<Block>>>,
    /// Count of the numbers that were given out so far.
    count: usize,
    /// Numbers below this one are reserved: no block gets one in turn.
    reserved: usize,
}

impl Numbered {
    fn get(&self, id: BlockId) -> Option<&Block> {
        let index = id.0 as usize;
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)?.as_ref()
    }

    fn place(&mut self, id: BlockId) -> Option<&mut Option<Block>> {
        let index = id.0 as usize;
        self.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK)
    }

    /// Reserves all numbers below `count`, whose blocks take no memory before they are inserted. No
    /// number may have been given out yet.
    fn reserve(&mut self, count: usize) {
        self.count = count.next_multiple_of(CHUNK);
        self.chunks = (0..self.count / CHUNK).map(|_| Vec::new()).collect();
        self.reserved = self.count;
    }

    /// The place of a number's block, whose chunk gets memory now.
    fn make_place(&mut self, id: BlockId) -> Option<&mut Option<Block>> {
        let chunk = self.chunks.get_mut(id.0 as usize / CHUNK)?;
        if chunk.is_empty() {
            chunk.resize_with(CHUNK, || None);
        }
        self.place(id)
    }

    /// Makes one more number, which no block has yet.
    fn push(&mut self) -> BlockId {
        if self.count.is_multiple_of(CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let last = self.chunks.last_mut().expect("the last chunk has room");
        last.push(None);
        self.count += 1;
        BlockId(self.count as u32 - 1)
    }
}

/// All blocks of one engine.
pub struct BlockTable {
    blocks: Numbered,
    free_ids: Vec<BlockId>,
    /// Index of the active blocks by their keys.
    by_key: KeyIndex,
    /// Hashes and numbers of blocks that were found recently; a number may belong to another block
    /// now. Most look-ups are for one of these blocks, and a look-up in the index, which is large,
    /// costs a cache miss.
    recent: Box<[Cell<(u32, BlockId)>]>,
    recent_sites: RecentSites,
    /// Every block, active or retired, ordered by the offset of its code in the cache.
    by_host: HostOffsetIndex,
    /// The links that were made between blocks. The slot of a link may have been emptied since.
    pub links: MadeLinks,
    /// The host registers that hold the guest's registers in code that is not 64-bit code.
    legacy_map: &'static RegisterMap,
    /// Length of all blocks' code in bytes.
    code_bytes: u64,
    /// Host addresses of the code cache.
    code: Range<u64>,
}

impl BlockTable {
    /// Makes an empty table for blocks whose code will lie at these host addresses.
    pub fn new(code: Range<u64>) -> Self {
        Self {
            blocks: Numbered::default(),
            free_ids: Vec::new(),
            by_key: KeyIndex::default(),
            recent: vec![Cell::new((0, BlockId(0))); RECENT].into_boxed_slice(),
            recent_sites: RecentSites::default(),
            by_host: HostOffsetIndex::new((code.end - code.start) as usize),
            links: MadeLinks::default(),
            legacy_map: &RegisterMap::LEGACY,
            code_bytes: 0,
            code,
        }
    }

    /// Number of live blocks, including retired ones.
    pub fn len(&self) -> usize {
        self.by_host.count()
    }

    /// Length in bytes of the code of all live blocks.
    pub fn code_bytes(&self) -> u64 {
        self.code_bytes
    }

    /// Whether no block is alive.
    pub fn is_empty(&self) -> bool {
        self.by_host.count() == 0
    }

    /// The live block with this number.
    pub fn get(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id)
    }

    /// The live block with this number, for changes.
    pub fn get_mut(&mut self, id: BlockId) -> Option<&mut Block> {
        self.blocks.place(id)?.as_mut()
    }

    /// The site that an exit names, with its number and its block. `None` if the block was removed.
    /// `code_slide` is the context's slide.
    pub fn site(&self, packed: u32, code_slide: u64) -> Option<(BlockId, &Block, usize, Site)> {
        let (id, index) = unpack_site(packed);
        let block = self.get(id)?;
        let mut site = self.recent_sites.get(packed, || block.site(index))?;
        site.rip = block.relocation(code_slide).rip(site.rip);
        Some((id, block, index, site))
    }

    /// Finds the active block that translates `key`.
    pub fn find(&self, key: &BlockKey) -> Option<BlockId> {
        let hash = hash(key);
        let recent = &self.recent[recent(hash)];
        let is_wanted = active(&self.blocks, key);
        let (known, id) = recent.get();
        if known == hash && is_wanted(id) {
            return Some(id);
        }
        let found = self.by_key.find(hash, is_wanted);
        if let Some(found) = found {
            recent.set((hash, found));
        }
        found
    }

    /// The last block whose code begins at a host address or before it, and the offset of the
    /// address in the block's code. The address may lie after the end of that code.
    pub fn at_host_address(&self, address: u64) -> Option<(BlockId, &Block, u32)> {
        if !self.code.contains(&address) {
            return None;
        }
        let offset = (address - self.code.start) as u32;
        let (start, id) = self.by_host.at(offset)?;
        Some((id, self.get(id)?, offset - start))
    }

    /// All live blocks, ordered by the offsets of their code.
    pub fn ids(&self) -> impl Iterator<Item = BlockId> {
        self.by_host.within(0..u32::MAX)
    }

    /// Live blocks whose code begins in this range of offsets.
    pub fn ids_within(&self, offsets: Range<u32>) -> impl Iterator<Item = BlockId> {
        self.by_host.within(offsets)
    }

    /// Takes a number for a new block; `None` if all numbers are taken.
    pub fn take_id(&mut self) -> Option<BlockId> {
        if let Some(id) = self.free_ids.pop() {
            return Some(id);
        }
        (self.blocks.count < MAX_BLOCKS).then(|| self.blocks.push())
    }

    /// Whether no number was taken yet.
    pub fn is_fresh(&self) -> bool {
        self.blocks.count == 0
    }

    /// Reserves the numbers below `count`, so that [`BlockTable::take_id`] never returns them. No
    /// number may have been taken yet.
    pub fn reserve(&mut self, count: u32) {
        self.blocks.reserve(count as usize);
    }

    /// Whether a number is reserved.
    pub fn is_reserved(&self, id: BlockId) -> bool {
        (id.0 as usize) < self.blocks.reserved
    }

    /// The first number that was never taken.
    pub fn numbers(&self) -> u32 {
        self.blocks.count as u32
    }

    /// Takes back a number for which no block was inserted.
    pub fn return_id(&mut self, id: BlockId) {
        self.free_ids.push(id);
    }

    /// The host registers that hold the guest's registers in a block's code.
    pub fn map_of(&self, block: &Block) -> &'static RegisterMap {
        match block.is_64_bit() {
            true => &RegisterMap::LONG,
            false => self.legacy_map,
        }
    }

    /// Sets the host registers that hold the guest's registers in all code that is not 64-bit code.
    /// No block may be alive.
    pub fn set_legacy_map(&mut self, map: &'static RegisterMap) {
        self.legacy_map = map;
    }

    /// Inserts an active block, under a number from [`BlockTable::take_id`].
    pub fn insert(&mut self, id: BlockId, block: Block) {
        let key = block.key();
        self.by_host.insert(block.host, id);
        self.code_bytes += u64::from(block.host_length);
        if let Some(place) = self.blocks.make_place(id) {
            *place = Some(block);
        }
        self.restore_key(key, id);
    }

    /// Makes a block findable by its key again, because the block is active again.
    pub fn restore_key(&mut self, key: BlockKey, id: BlockId) {
        let blocks = &self.blocks;
        self.by_key.insert(hash(&key), id, active(blocks, &key));
    }

    /// Makes the block that translates `key` unfindable by its key.
    pub fn forget_key(&mut self, key: &BlockKey) {
        let blocks = &self.blocks;
        self.by_key.remove(hash(key), active(blocks, key));
    }

    /// Notes that a block's code now lies at another offset of the cache.
    pub fn move_code(&mut self, id: BlockId, host: u32) {
        let Some(block) = self.blocks.place(id).and_then(Option::as_mut) else {
            return;
        };
        self.by_host.remove(block.host);
        self.by_host.insert(host, id);
        block.host = host;
    }

    /// Removes a block. Its number may be given out again from now on.
    pub fn remove(&mut self, id: BlockId) -> Option<Block> {
        let block = self.blocks.place(id)?.take()?;
        self.by_host.remove(block.host);
        self.recent_sites.forget(id);
        self.code_bytes -= u64::from(block.host_length);
        if !self.is_reserved(id) {
            self.free_ids.push(id);
        }
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::link_layout::ModeId;
    use std::collections::HashSet;

    #[test]
    fn functions_are_remembered_all_over() {
        let places: HashSet<usize> = (0..RECENT as u64)
            .map(|index| {
                let key = BlockKey {
                    physical: 0x123_4000 + index * 16,
                    second_page: u64::MAX,
                    rip: 0xffff_ffff_8123_4000 + index * 16,
                    relocates: false,
                    mode: ModeId(3),
                };
                recent(hash(&key))
            })
            .collect();
        // Of the same number of random places, 63 % would be different.
        assert!(places.len() > RECENT / 2, "{}", places.len());
    }
}
