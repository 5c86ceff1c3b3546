//! How room is made in the code cache: what has run lately stays.
//!
//! The cache is filled segment by segment, in a ring. When a segment is to be filled again, its
//! blocks are looked at. Those whose [code page](crate::blocks::code_pages) was used since the
//! segment was last looked at move together at its start, and the rest is dropped:
//!
//! ```text
//! before    kernel | dead process | dead process | libc | dead process | kernel
//! behind    kernel | libc | kernel | free
//! ```
//!
//! Emitted code would have to note that it runs. Instead all pages are put out of force at that
//! moment: each that is used from then on is looked up once, which notes it. So the kernel's
//! code and that of live programs stays, and that of processes that have ended goes first.
//!
//! A segment never stays as full as it was: of much that was used, the latest stays.

use super::Engine;
use crate::abi::sites::BlockId;
use crate::blocks::code_cache::{ALIGNMENT, SEGMENTS};
use std::ops::Range;
use tollgate_memory::GuestMemory;

/// How much of a segment may stay: so many of [`PARTS`] parts.
const KEPT_PARTS: usize = 3;
const PARTS: usize = 4;

impl Engine {
    /// Makes room in a segment, whose offsets are given, for a block with so many bytes.
    pub(super) fn make_room(
        &mut self,
        segment: Range<u32>,
        bytes: usize,
        memory: &mut GuestMemory,
    ) {
        let ids: Vec<BlockId> = self.blocks.ids_within(segment.clone()).collect();
        let room = segment.len() / PARTS * KEPT_PARTS;
        // One that needs more than what is always freed gets all of it.
        let mut room = match bytes > segment.len() - room {
            true => 0,
            false => room,
        };
        let oldest = self.oldest_kept(&ids, room);
        self.links.watch_use();
        let (staying, leaving): (Vec<BlockId>, Vec<BlockId>) = ids.iter().partition(|&&id| {
            let bytes = self.space_of(id);
            let stays = self.age(id).is_some_and(|age| age <= oldest) && bytes <= room;
            if stays {
                room -= bytes;
            }
            stays
        });
        self.evict(&leaving, memory);
        let mut end = segment.start;
        for id in staying {
            self.move_block(id, end);
            end += self.space_of(id) as u32;
        }
        self.cache.go_on_at(end);
    }

    /// Of these blocks, all that are no older than this fit into the room; or it is 0.
    fn oldest_kept(&self, ids: &[BlockId], room: usize) -> usize {
        let mut bytes_by_age = [0; SEGMENTS + 1];
        for &id in ids {
            if let Some(bytes) = self.age(id).and_then(|age| bytes_by_age.get_mut(age)) {
                *bytes += self.space_of(id);
            }
        }
        let mut sum = 0;
        let fitting = bytes_by_age.iter().take_while(|&&bytes| {
            sum += bytes;
            sum <= room
        });
        fitting.count().saturating_sub(1)
    }

    /// How many segments were looked at since a block's page was last used; `None`: not known,
    /// or nothing leads to the block any more.
    fn age(&self, id: BlockId) -> Option<usize> {
        let block = self.block(id).filter(|block| !block.is_retired())?;
        Some(self.links.age(block.code_page()?) as usize)
    }

    /// Bytes of the cache that a block takes.
    fn space_of(&self, id: BlockId) -> usize {
        let bytes = self.block(id).map_or(0, |block| block.host_length);
        (bytes as usize).next_multiple_of(ALIGNMENT)
    }

    /// Moves a block's code to another offset, not behind the one that it has. Links from and
    /// to it are cut.
    fn move_block(&mut self, id: BlockId, to: u32) {
        let Some(block) = self.block(id) else { return };
        let (from, length) = (block.host, block.host_length);
        if from == to {
            return;
        }
        self.generation += 1;
        self.cut_off(id);
        self.cut_outgoing(id);
        self.cache.move_code(from..from + length, to);
        self.blocks.move_code(id, to);
        let sites = self.blocks.get(id).map(|block| block.sites().iter());
        let slots = sites.into_iter().flatten();
        for (slot, stub) in slots.filter_map(|site| site.slot_and_stub()) {
            let stub = self.cache.address(to + stub) as u64;
            self.links.set_stub(slot, stub);
        }
        self.verify_block(id);
    }

    /// Makes all links of a block lead to their stubs again.
    fn cut_outgoing(&mut self, id: BlockId) {
        let Some(block) = self.blocks.get(id) else {
            return;
        };
        let slots = block.sites().iter();
        for (slot, _) in slots.filter_map(|site| site.slot_and_stub()) {
            self.links.forget_slot(slot);
        }
        for site in self.blocks.links.take_outgoing(id) {
            self.lead_to_stub(id, site);
        }
    }
}
