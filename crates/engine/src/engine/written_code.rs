//! Blocks whose guest code was written: they are retired, and revived when the same code is back.
//!
//! No key, no link and no page leads to a retired block. Its code stays in the cache, and its links
//! to other blocks stay. A later look-up of the same key compares the guest's bytes with those that
//! the retired blocks were made from. If the bytes are the same, or differ only in immediate
//! operands that were copied unchanged, the block becomes active again, with the new operands
//! written into its code.
//!
//! So a routine that is patched before each call, or that alternates between a few contents, is
//! translated only a few times.

use super::Engine;
use crate::abi::immediate::Immediate;
use crate::abi::link_layout::ModeId;
use crate::abi::sites::BlockId;
use crate::blocks::block::{Block, BlockKey};
use crate::engine::CodeAddress;
use crate::translate::Translator;
use tollgate_memory::GuestMemory;
use tollgate_memory::gate::CodeWrite;
use tollgate_x86::PhysicalAddress;

/// How many retired blocks with the same key are kept at most; the oldest is dropped for a new one.
const MAX_VERSIONS: usize = 4;

/// A block that was retired this often is linked only when a link is asked for a second time.
const MANY_RETIREMENTS: u8 = 4;

/// When [`Engine::code_written`] is called for a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The old bytes are still in memory.
    Before,
    /// The new bytes are already in memory.
    After,
}

impl Engine {
    /// Makes all blocks unreachable that were made from any of the bytes that are written. Returns
    /// how many blocks there were.
    pub fn code_written(
        &mut self,
        write: CodeWrite,
        moment: Moment,
        memory: &mut GuestMemory,
    ) -> usize {
        let mut doomed = std::mem::take(&mut self.doomed);
        self.pages.take_written(write, &mut doomed, memory);
        if let Some(bringing) = &mut self.bringing {
            bringing.forget(write.page);
        }
        let count = doomed.len();
        self.counts.invalidated += count as u64;
        for id in doomed.drain(..) {
            self.retire(id, write.page, moment, memory);
        }
        self.doomed = doomed;
        count
    }

    /// Makes the instruction at this physical address look its operand up from now on, in code
    /// whose other accesses are direct. Drops the block if it has such code with this instruction.
    pub fn look_up_always(&mut self, id: BlockId, physical: u64, memory: &mut GuestMemory) {
        self.translator.looked_up.note(physical);
        self.drop_direct(id, physical, memory);
    }

    /// Makes the instruction at this physical address reach its operand by the slide of the
    /// operand's part from now on, since the operand lies in none of the common parts. Drops the
    /// block if it has direct accesses and contains the instruction.
    pub fn reach_by_part(&mut self, id: BlockId, physical: u64, memory: &mut GuestMemory) {
        self.translator.by_part.note(physical);
        self.drop_direct(id, physical, memory);
    }

    /// Drops a block of direct accesses that contains the instruction at this physical address.
    fn drop_direct(&mut self, id: BlockId, physical: u64, memory: &mut GuestMemory) {
        let Some(block) = self.block(id) else { return };
        let key = block.key();
        let end = key.physical + u64::from(block.guest_length);
        let holds = (key.physical..end).contains(&physical);
        if holds && self.mode(key.mode).access.is_direct() {
            for page in [key.physical >> 12, key.second_page] {
                self.pages.forget(page, id, memory);
            }
            self.drop_unlisted(id);
        }
    }

    /// Clears the code marks of those lines of a page that no active block was made from.
    pub fn clear_lines_without_code(&mut self, page: u64, memory: &mut GuestMemory) {
        self.pages.clear_lines(page, memory);
    }

    /// Makes stores to a page with code be tested byte by byte from now on, because a store has hit
    /// a line with code without touching the code.
    pub fn tell_bytes_apart(&self, page: u64, memory: &GuestMemory) {
        self.pages.describe_bytes(page, memory);
    }

    /// Whether a block is active.
    pub fn is_active(&self, id: BlockId) -> bool {
        self.block(id).is_some_and(|block| !block.is_retired())
    }

    /// Retires a block that the page `listed` does not list any more.
    fn retire(&mut self, id: BlockId, listed: u64, moment: Moment, memory: &mut GuestMemory) {
        let Some(block) = self.blocks.get_mut(id) else {
            return;
        };
        let key = block.key();
        let length = usize::from(block.guest_length);
        // While the host fills the page, its bytes may already differ from those that the block was
        // made from.
        let is_same = moment == Moment::Before && !memory.is_being_filled(key.physical >> 12);
        if key.second_page == u64::MAX && block.code().len() != length && is_same {
            let mut bytes = [0; Translator::MOST_BYTES];
            let bytes = &mut bytes[..length];
            if memory.read(PhysicalAddress(key.physical), bytes) {
                block.keep_code(bytes);
            }
        }
        if key.second_page != u64::MAX || block.code().len() != length {
            for page in [key.physical >> 12, key.second_page] {
                if page != listed {
                    self.pages.forget(page, id, memory);
                }
            }
            self.drop_unlisted(id);
            return;
        }
        self.make_unreachable(id);
        if let Some(block) = self.blocks.get_mut(id) {
            block.retire();
        }
        let versions = self.retired.entry(key).or_default();
        versions.push(id);
        if versions.len() > MAX_VERSIONS {
            let oldest = versions[0];
            self.drop_unlisted(oldest);
        }
    }

    /// Whether a link to a block that is now asked for is likely to be used again. A link to a
    /// block that was retired repeatedly must be asked for twice.
    pub fn is_worth_linking(&mut self, id: BlockId) -> bool {
        let Some(block) = self.blocks.get_mut(id) else {
            return false;
        };
        block.retirements < MANY_RETIREMENTS || block.want_link()
    }

    pub(super) fn forget_retired(&mut self, key: &BlockKey, id: BlockId) {
        if let Some(versions) = self.retired.get_mut(key) {
            versions.retain(|&version| version != id);
            if versions.is_empty() {
                self.retired.remove(key);
            }
        }
    }

    /// Makes the retired block for a place and mode active again if its code is in memory, and
    /// returns it.
    ///
    /// The caller must do the same as after [`Engine::translate`].
    pub fn revive(
        &mut self,
        place: &CodeAddress,
        mode: ModeId,
        memory: &mut GuestMemory,
    ) -> Option<BlockId> {
        let key = place.key(u64::MAX, mode);
        let versions = self.retired.get(&key)?;
        let longest = versions
            .iter()
            .filter_map(|&id| self.block(id))
            .map(|block| block.code().len())
            .max()?;
        let mut bytes = [0; Translator::MOST_BYTES];
        let bytes = bytes.get_mut(..longest)?;
        if !memory.read(PhysicalAddress(key.physical), bytes) {
            return None;
        }
        let find = |matches: fn(&[u8], &Block) -> bool| {
            versions.iter().rposition(|&id| {
                self.block(id).is_some_and(|block| {
                    let now = &bytes[..block.code().len()];
                    matches(now, block)
                })
            })
        };
        let index = find(|now, block| now == block.code()).or_else(|| {
            find(|now, block| differ_in_immediates_only(now, block.code(), block.immediates()))
        })?;
        let id = versions[index];
        // An empty list is kept: the block will likely be retired again.
        self.retired.get_mut(&key)?.remove(index);
        let block = self.blocks.get_mut(id)?;
        block.revive();
        let length = u32::from(block.guest_length);
        for immediate in block.immediates() {
            let start = usize::from(immediate.guest);
            let range = start..start + usize::from(immediate.size);
            if block.code()[range.clone()] != bytes[range.clone()] {
                self.cache.write(block.host + immediate.host, &bytes[range]);
            }
        }
        let code = block.code_mut();
        code.copy_from_slice(&bytes[..code.len()]);
        self.blocks.restore_key(key, id);
        self.list(id, &key, length, memory);
        self.counts.revived += 1;
        self.verify_block(id);
        Some(id)
    }
}

/// Whether `now` and `then`, which have the same length, are equal except for immediate operands.
fn differ_in_immediates_only(
    now: &[u8],
    then: &[u8],
    immediates: impl Iterator<Item = Immediate>,
) -> bool {
    let mut start = 0;
    for immediate in immediates {
        let end = usize::from(immediate.guest);
        if now[start..end] != then[start..end] {
            return false;
        }
        start = end + usize::from(immediate.size);
    }
    now[start..] == then[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_immediates_may_differ() {
        let immediates = [(1, 4), (6, 1)].map(|(guest, size)| Immediate {
            guest,
            size,
            host: 0,
        });
        let then = [0xb8, 1, 2, 3, 4, 0x04, 5, 0xc3];
        let same_but = |at: usize| {
            let mut now = then;
            now[at] ^= 0x80;
            differ_in_immediates_only(&now, &then, immediates.into_iter())
        };
        assert!([1, 2, 3, 4, 6].into_iter().all(same_but));
        assert!(![0, 5, 7].into_iter().any(same_but));
    }
}
