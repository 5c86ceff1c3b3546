//! Which block's code lies where in the code cache.
//!
//! One word for each [`ALIGNMENT`] bytes of the cache names the block whose code begins there.
//! So a block is entered and taken out in one step, and the block of any address is found by
//! going back from it over a block's length. The words of parts of the cache that were never
//! used are never touched.

use crate::abi::sites::BlockId;
use crate::blocks::code_cache::ALIGNMENT;
use std::ops::Range;

/// The blocks of a code cache by the offsets of their code.
pub struct HostOrder {
    /// The number of the block that begins there, plus one, or zero.
    first: Vec<u32>,
    /// How many blocks there are.
    count: usize,
}

fn unit(offset: u32) -> usize {
    offset as usize / ALIGNMENT
}

impl HostOrder {
    /// No blocks in a cache of `size` bytes.
    pub fn new(size: usize) -> Self {
        Self {
            first: vec![0; size.div_ceil(ALIGNMENT)],
            count: 0,
        }
    }

    /// Blocks in all.
    pub fn count(&self) -> usize {
        self.count
    }

    /// A block's code begins at `offset`, a multiple of [`ALIGNMENT`] inside the cache, where
    /// no other's does.
    pub fn insert(&mut self, offset: u32, id: BlockId) {
        self.first[unit(offset)] = id.0 + 1;
        self.count += 1;
    }

    /// No block's code begins at `offset` any more.
    pub fn remove(&mut self, offset: u32) {
        if std::mem::take(&mut self.first[unit(offset)]) != 0 {
            self.count -= 1;
        }
    }

    /// The last block whose code begins at `offset` or before, and where.
    pub fn at(&self, offset: u32) -> Option<(u32, BlockId)> {
        let before = self.first.get(..=unit(offset))?;
        let unit = before.iter().rposition(|&word| word != 0)?;
        Some(((unit * ALIGNMENT) as u32, BlockId(before[unit] - 1)))
    }

    /// The blocks whose code begins at one of these offsets, in order.
    pub fn within(&self, offsets: Range<u32>) -> impl Iterator<Item = BlockId> {
        let first = (offsets.start as usize).div_ceil(ALIGNMENT);
        let end = (offsets.end as usize).div_ceil(ALIGNMENT);
        let end = end.min(self.first.len());
        let words = self.first.get(first..end).unwrap_or_default();
        words
            .iter()
            .filter(|&&word| word != 0)
            .map(|&word| BlockId(word - 1))
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
        let mut order = HostOrder::new(0x1000);
        let mut model = BTreeMap::new();
        for round in 0..2000 {
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
