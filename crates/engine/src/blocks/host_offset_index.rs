//! An ordered index of blocks by the offset of their code in the code cache.
//!
//! Each unit of 128 bytes of the cache has one word. The word names the last block whose code
//! begins in the unit, and from that block a chain leads to the others, from the last to the first.
//! So a block is entered or removed in a step or two, and the block of any address is found by
//! searching backwards over the length of one block. Words of parts of the cache that were never
//! used are never touched.

use crate::abi::sites::{BlockId, MAX_BLOCKS};
use crate::blocks::code_cache::ALIGNMENT;
use std::ops::Range;

/// Bytes of the cache that share a word: half of a block's average length.
const UNIT: usize = 128;
/// Number of blocks that can begin in one unit.
const PLACES: usize = UNIT / ALIGNMENT;

/// One block in the chain of a unit. The low bits are the number of the next block in the chain
/// plus one, or zero at the end. The high bits are the position in the unit at which this block
/// begins, in multiples of [`ALIGNMENT`].
#[derive(Clone, Copy, Default)]
struct Node(u32);

/// Lowest bit of the position in a node. The bits below have room for a block's number plus one.
const PLACE_SHIFT: u32 = 28;
const _: () = assert!(MAX_BLOCKS < 1 << PLACE_SHIFT && PLACES <= 1 << (32 - PLACE_SHIFT));

impl Node {
    fn new(next: u32, place: usize) -> Self {
        Self(next | (place as u32) << PLACE_SHIFT)
    }

    fn next(self) -> u32 {
        self.0 & ((1 << PLACE_SHIFT) - 1)
    }

    fn place(self) -> usize {
        (self.0 >> PLACE_SHIFT) as usize
    }
}

/// The blocks of a code cache, ordered by the offsets of their code.
pub struct HostOffsetIndex {
    /// For each unit: the number of the last block that begins in it, plus one, or zero if none
    /// does.
    last: Vec<u32>,
    /// The chain's nodes, indexed by block number.
    nodes: Vec<Node>,
    /// Number of blocks in the index.
    count: usize,
}

/// The unit that contains an offset, and the position in that unit.
fn place_of(offset: u32) -> (usize, usize) {
    let offset = offset as usize;
    (offset / UNIT, offset % UNIT / ALIGNMENT)
}

impl HostOffsetIndex {
    /// Makes an empty index for a cache of `size` bytes.
    pub fn new(size: usize) -> Self {
        Self {
            last: vec![0; size.div_ceil(UNIT)],
            nodes: Vec::new(),
            count: 0,
        }
    }

    /// Number of blocks in the index.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Enters a block whose code begins at `offset`: a multiple of [`ALIGNMENT`] inside the cache,
    /// at which no other block's code begins.
    pub fn insert(&mut self, offset: u32, id: BlockId) {
        let (unit, place) = place_of(offset);
        let index = id.0 as usize;
        if self.nodes.len() <= index {
            self.nodes.resize(index + 1, Node::default());
        }
        // A chain runs backwards: a block that begins after `offset` comes before the new one.
        let behind = self.chain(unit).take_while(|it| it.1 > place).last();
        match behind {
            None => {
                let next = std::mem::replace(&mut self.last[unit], id.0 + 1);
                self.nodes[index] = Node::new(next, place);
            }
            Some((before, at)) => {
                let node = &mut self.nodes[before.0 as usize];
                let next = std::mem::replace(node, Node::new(id.0 + 1, at)).next();
                self.nodes[index] = Node::new(next, place);
            }
        }
        self.count += 1;
    }

    /// Removes the block whose code begins at `offset`.
    pub fn remove(&mut self, offset: u32) {
        let (unit, place) = place_of(offset);
        let mut before = None;
        let found = self.chain(unit).find(|&(id, at)| {
            let is_it = at == place;
            if !is_it {
                before = Some((id, at));
            }
            is_it
        });
        let Some((id, _)) = found else { return };
        let next = self.nodes[id.0 as usize].next();
        match before {
            None => self.last[unit] = next,
            Some((before, at)) => self.nodes[before.0 as usize] = Node::new(next, at),
        }
        self.count -= 1;
    }

    /// The blocks that begin in a unit, each with its position, from the last to the first.
    fn chain(&self, unit: usize) -> impl Iterator<Item = (BlockId, usize)> + '_ {
        let mut next = self.last.get(unit).copied().unwrap_or(0);
        std::iter::from_fn(move || {
            let id = next.checked_sub(1)?;
            let node = self.nodes.get(id as usize)?;
            next = node.next();
            Some((BlockId(id), node.place()))
        })
    }

    /// The last block whose code begins at `offset` or before, and the offset at which it begins.
    pub fn at(&self, offset: u32) -> Option<(u32, BlockId)> {
        let (unit, place) = place_of(offset);
        let before = self.last.get(..=unit)?;
        let found = |unit: usize, (id, place): (BlockId, usize)| {
            Some(((unit * UNIT + place * ALIGNMENT) as u32, id))
        };
        if let Some(first) = self.chain(unit).find(|it| it.1 <= place) {
            return found(unit, first);
        }
        let unit = before[..unit].iter().rposition(|&word| word != 0)?;
        found(unit, self.chain(unit).next()?)
    }

    /// The blocks whose code begins in a range of offsets, in order of their offsets.
    pub fn within(&self, offsets: Range<u32>) -> impl Iterator<Item = BlockId> {
        let first = offsets.start as usize / UNIT;
        // An empty index, as when a machine starts, is not searched.
        let end = match self.count {
            0 => first,
            _ => (offsets.end as usize).div_ceil(UNIT).min(self.last.len()),
        };
        (first..end).flat_map(move |unit| {
            let mut by_place = [None; PLACES];
            for (id, place) in self.chain(unit) {
                let offset = (unit * UNIT + place * ALIGNMENT) as u32;
                by_place[place] = Some(id).filter(|_| offsets.contains(&offset));
            }
            by_place.into_iter().flatten()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;
    use tollgate_test_support::Random;

    #[test]
    fn it_is_an_ordered_map_of_offsets() {
        let mut random = Random::new(5);
        let mut order = HostOffsetIndex::new(0x1000);
        let mut model = BTreeMap::new();
        for round in 0..20_000 {
            let offset = random.below(0x1000 / ALIGNMENT) as u32 * ALIGNMENT as u32;
            if random.below(3) == 0 {
                order.remove(offset);
                model.remove(&offset);
            } else if let Entry::Vacant(place) = model.entry(offset) {
                order.insert(offset, BlockId(round));
                place.insert(BlockId(round));
            }
            assert_eq!(order.count(), model.len());
            let anywhere = random.below(0x1000) as u32;
            let expected = model.range(..=anywhere).next_back();
            assert_eq!(order.at(anywhere), expected.map(|(&at, &id)| (at, id)));
            let end = anywhere + random.below(0x800) as u32;
            let found: Vec<BlockId> = order.within(anywhere..end).collect();
            let expected: Vec<BlockId> = model.range(anywhere..end).map(|(_, &id)| id).collect();
            assert_eq!(found, expected);
        }
        assert_eq!(order.within(0..u32::MAX).count(), model.len());
    }
}
