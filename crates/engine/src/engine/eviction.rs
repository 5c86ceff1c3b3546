//! How room is made in the code cache: blocks whose pages were used lately stay, others are
//! dropped.
//!
//! The cache is filled segment by segment, in a ring. Before a segment is filled again, its blocks
//! are examined. Those whose [code page](crate::blocks::code_pages) was used since the segment was
//! last examined move to the segment's start, one after the other, and the rest is dropped:
//!
//! ```text
//! before    kernel | dead process | dead process | libc | dead process | kernel
//! after     kernel | libc | kernel | free
//! ```
//!
//! Emitted code does not note that it runs, which would cost time. Instead all pages are made
//! inactive when a segment is examined: each page that is used afterwards is looked up once, and
//! the look-up notes the use. So the kernel's code and that of live programs stays, and that of
//! processes that have ended goes first.
//!
//! A segment never stays as full as it was: if too much of it was used, the blocks that were used
//! last stay.
//!
//! This can be tens of thousands of blocks and take milliseconds, so eviction stops for requests.
//! Blocks are examined in the order of the cache. Where the work stops, those before that place are
//! gone or lie next to each other at the segment's start, and those after it are as they were. No
//! block is placed in the meantime: the next caller that needs room resumes the eviction first.

use super::Engine;
use crate::abi::sites::BlockId;
use crate::blocks::code_cache::{ALIGNMENT, SEGMENTS};
use std::ops::Range;
use tollgate_memory::GuestMemory;

/// How many blocks are examined between two checkpoints.
const BETWEEN_CHECKPOINTS: usize = 32;

/// The state of making room in a segment.
pub(super) struct Eviction {
    /// The blocks that were in the segment at the start, in the order of the cache. Some may have
    /// been dropped since.
    ids: Vec<BlockId>,
    segment: Range<u32>,
    /// How many of the blocks have been examined for their ages, which is the first pass.
    counted: usize,
    bytes_by_age: [usize; SEGMENTS + 1],
    /// The oldest age that may stay; known when the first pass is complete. The second pass moves
    /// or drops the blocks.
    oldest: Option<usize>,
    done: usize,
    /// How many bytes of further blocks may stay.
    room: usize,
    /// Where the next block that stays will lie.
    end: u32,
}

/// The part of a segment that may stay: this number of [`PARTS`] parts.
const KEPT_PARTS: usize = 3;
const PARTS: usize = 4;

impl Engine {
    /// Begins to make room for a block of `bytes` bytes in a segment, which is given by its
    /// offsets.
    pub(super) fn begin_eviction(&mut self, segment: Range<u32>, bytes: usize) {
        let room = segment.len() / PARTS * KEPT_PARTS;
        // A block that needs more than the part that is always freed gets the whole segment.
        let room = match bytes > segment.len() - room {
            true => 0,
            false => room,
        };
        self.eviction = Some(Eviction {
            ids: self.blocks.ids_within(segment.clone()).collect(),
            counted: 0,
            bytes_by_age: [0; SEGMENTS + 1],
            oldest: None,
            done: 0,
            room,
            end: segment.start,
            segment,
        });
    }

    /// Resumes making room. Returns false if the work has stopped for a request and must be resumed
    /// later.
    pub(super) fn go_on_with_eviction(&mut self, memory: &mut GuestMemory) -> bool {
        let Some(mut eviction) = self.eviction.take() else {
            return true;
        };
        while self.evict_some(&mut eviction, memory) {
            if self.translator.stops() {
                self.eviction = Some(eviction);
                return false;
            }
        }
        self.cache.go_on_at(eviction.end);
        true
    }

    /// Examines the next few blocks. Returns false if there are no more.
    fn evict_some(&mut self, eviction: &mut Eviction, memory: &mut GuestMemory) -> bool {
        let some = |from: usize| from..(from + BETWEEN_CHECKPOINTS).min(eviction.ids.len());
        if eviction.counted < eviction.ids.len() {
            let ids = &eviction.ids[some(eviction.counted)];
            for &id in ids {
                let age = self.age(id, &eviction.segment);
                if let Some(bytes) = age.and_then(|age| eviction.bytes_by_age.get_mut(age)) {
                    *bytes += self.space_of(id);
                }
            }
            eviction.counted += ids.len();
            return true;
        }
        let oldest = *eviction.oldest.get_or_insert_with(|| {
            self.links.watch_use();
            oldest_kept(&eviction.bytes_by_age, eviction.room)
        });
        let ids = &eviction.ids[some(eviction.done)];
        if ids.is_empty() {
            return false;
        }
        eviction.done += ids.len();
        let here = ids
            .iter()
            .filter(|&&id| self.is_within(id, &eviction.segment));
        let room = &mut eviction.room;
        let (staying, leaving): (Vec<BlockId>, Vec<BlockId>) = here.partition(|&&id| {
            let bytes = self.space_of(id);
            let is_young = self
                .age(id, &eviction.segment)
                .is_some_and(|age| age <= oldest);
            let stays = is_young && bytes <= *room;
            if stays {
                *room -= bytes;
            }
            stays
        });
        self.evict(&leaving, memory);
        for id in staying {
            self.move_block(id, eviction.end);
            eviction.end += self.space_of(id) as u32;
        }
        true
    }

    /// Whether a block lives and lies in the segment.
    fn is_within(&self, id: BlockId, segment: &Range<u32>) -> bool {
        let block = self.block(id);
        block.is_some_and(|block| segment.contains(&block.host))
    }

    /// How many segments were examined since a block's page was last used; `None` if that is
    /// unknown, or nothing leads to the block any more.
    fn age(&self, id: BlockId, segment: &Range<u32>) -> Option<usize> {
        let block = self
            .block(id)
            .filter(|block| !block.is_retired() && segment.contains(&block.host))?;
        Some(self.links.age(block.code_page()?) as usize)
    }

    /// The bytes of the cache that a block occupies.
    fn space_of(&self, id: BlockId) -> usize {
        let bytes = self.block(id).map_or(0, |block| block.host_length);
        (bytes as usize).next_multiple_of(ALIGNMENT)
    }

    /// Moves a block's code to another offset, which must not be greater than the present one.
    /// Links from and to the block are cut.
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

/// The greatest age such that all blocks of that age or younger fit into the room, or 0.
/// `bytes_by_age` has the bytes of blocks by age.
fn oldest_kept(bytes_by_age: &[usize], room: usize) -> usize {
    let mut sum = 0;
    let fitting = bytes_by_age.iter().take_while(|&&bytes| {
        sum += bytes;
        sum <= room
    });
    fitting.count().saturating_sub(1)
}
