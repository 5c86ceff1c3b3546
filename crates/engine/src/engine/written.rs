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
use tollgate_x86::PhysicalAddress;

/// Retired blocks with the same key at most; the oldest makes room.
const MAX_VERSIONS: usize = 4;

/// Links to a block that was retired so often are not made at once.
const MANY_RETIREMENTS: u8 = 4;

/// When [`Engine::code_written`] is told of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The old bytes are still there.
    Before,
    /// The new bytes are there.
    After,
}

impl Engine {
    /// Bytes `first..=last` of a physical page are written: no block that was made from
    /// any of them can be found any more. Returns how many there were.
    pub fn code_written(
        &mut self,
        page: u64,
        first: u16,
        last: u16,
        moment: Moment,
        memory: &mut GuestMemory,
    ) -> usize {
        let mut doomed = std::mem::take(&mut self.doomed);
        self.pages
            .take_written(page, (first, last), &mut doomed, memory);
        let count = doomed.len();
        self.counts.invalidated += count as u64;
        for id in doomed.drain(..) {
            self.retire(id, page, moment, memory);
        }
        self.doomed = doomed;
        count
    }

    /// From now on the operand of the instruction at this physical address is looked up, by code
    /// whose other accesses are direct; a block of such code that has it is dropped.
    pub fn look_up_always(&mut self, id: BlockId, physical: u64, memory: &mut GuestMemory) {
        self.translator.looked_up.note(physical);
        self.drop_direct(id, physical, memory);
    }

    /// From now on the operand of the instruction at this physical address is reached by the delta
    /// of its part, as it lies in none that is common; a block that has it is dropped.
    pub fn reach_by_part(&mut self, id: BlockId, physical: u64, memory: &mut GuestMemory) {
        self.translator.by_part.note(physical);
        self.drop_direct(id, physical, memory);
    }

    /// Drops a block of direct accesses that has the instruction at this physical address.
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

    /// Has lines of a page hold no code that no block in force was made from.
    pub fn clear_lines_without_code(&mut self, page: u64, memory: &mut GuestMemory) {
        self.pages.clear_lines(page, memory);
    }

    /// A line of a page with code was stored to beside the code: from now on stores there are
    /// told apart by their bytes.
    pub fn tell_bytes_apart(&self, page: u64, memory: &GuestMemory) {
        self.pages.describe_bytes(page, memory);
    }

    /// Whether a block is in force.
    pub fn is_in_force(&self, id: BlockId) -> bool {
        self.block(id).is_some_and(|block| !block.is_retired())
    }

    /// Puts away a block that `listed` does not name any more.
    fn retire(&mut self, id: BlockId, listed: u64, moment: Moment, memory: &mut GuestMemory) {
        let Some(block) = self.blocks.get_mut(id) else {
            return;
        };
        let key = block.key();
        let length = usize::from(block.guest_length);
        // What the host is filling may be other code already than the block was made from.
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

    /// Whether a link to a block, now asked for, is likely to be used again. One that was
    /// retired repeatedly must be asked for twice.
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

    /// The retired block for a place and mode whose code is there, in force again.
    ///
    /// The caller must do as after [`Engine::translate`].
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
        // An empty list stays: the block will likely come back to it.
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

/// `now` and `then`, which are of one length, are the same but for immediate operands.
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
