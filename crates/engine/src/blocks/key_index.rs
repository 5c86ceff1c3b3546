//! An index of blocks by a hash of what they translate.
//!
//! Open addressing with linear probing. An entry is eight bytes, the hash and the number of a
//! block, so that eight share a cache line and the table of many blocks stays small. The keys
//! themselves stay with the blocks: the caller compares them, and is asked only for entries
//! whose hash is the same. The index grows without asking for a key.

use crate::abi::sites::BlockId;

/// One place of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    /// The key's hash. Those that differ in the low [`TOGETHER`] bits alone would like to be in
    /// the same place, and those that differ in few bits above them beside it.
    hash: u32,
    /// The number of the block plus one, or zero: the place is free.
    block: u32,
}

impl Entry {
    /// Where the entry would like to be.
    fn wish(self, mask: usize) -> usize {
        wish(self.hash, mask)
    }
}

/// See [`Entry::hash`].
const TOGETHER: u32 = 4;

fn wish(hash: u32, mask: usize) -> usize {
    (hash >> TOGETHER) as usize & mask
}

const FREE: Entry = Entry { hash: 0, block: 0 };

/// Places of an empty index; a power of two, as all its sizes are.
const FEWEST: usize = 64;

/// Blocks by hash.
#[derive(Debug)]
pub struct KeyIndex {
    entries: Box<[Entry]>,
    /// Places that are taken: at most half of all.
    count: usize,
}

impl Default for KeyIndex {
    fn default() -> Self {
        Self {
            entries: vec![FREE; FEWEST].into_boxed_slice(),
            count: 0,
        }
    }
}

impl KeyIndex {
    /// The block with this hash for which `is_it` holds.
    pub fn find(&self, hash: u32, is_it: impl Fn(BlockId) -> bool) -> Option<BlockId> {
        let at = self.position(hash, is_it)?;
        Some(BlockId(self.entries[at].block - 1))
    }

    /// Enters a block in place of the one with this hash for which `is_it` holds, if there is
    /// one.
    pub fn insert(&mut self, hash: u32, block: BlockId, is_it: impl Fn(BlockId) -> bool) {
        let entry = Entry {
            hash,
            block: block.0 + 1,
        };
        if let Some(at) = self.position(hash, is_it) {
            self.entries[at] = entry;
            return;
        }
        if (self.count + 1) * 2 > self.entries.len() {
            self.grow();
        }
        self.place(entry);
        self.count += 1;
    }

    /// Takes out the block with this hash for which `is_it` holds.
    pub fn remove(&mut self, hash: u32, is_it: impl Fn(BlockId) -> bool) {
        let Some(mut gap) = self.position(hash, is_it) else {
            return;
        };
        self.count -= 1;
        // What stands behind without a free place between must stay in reach of where it
        // would like to be.
        let mask = self.mask();
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let entry = self.entries[at];
            if entry.block == 0 {
                break;
            }
            let wish = entry.wish(mask);
            if (at.wrapping_sub(wish) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.entries[gap] = entry;
                gap = at;
            }
        }
        self.entries[gap] = FREE;
    }

    fn mask(&self) -> usize {
        self.entries.len() - 1
    }

    fn position(&self, hash: u32, is_it: impl Fn(BlockId) -> bool) -> Option<usize> {
        let mask = self.mask();
        let mut at = wish(hash, mask);
        loop {
            let entry = self.entries[at];
            if entry.block == 0 {
                return None;
            }
            if entry.hash == hash && is_it(BlockId(entry.block - 1)) {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    /// Puts an entry into the first free place.
    fn place(&mut self, entry: Entry) {
        let mask = self.mask();
        let mut at = entry.wish(mask);
        while self.entries[at].block != 0 {
            at = (at + 1) & mask;
        }
        self.entries[at] = entry;
    }

    #[cold]
    fn grow(&mut self) {
        let larger = vec![FREE; self.entries.len() * 2].into_boxed_slice();
        let entries = std::mem::replace(&mut self.entries, larger);
        for &entry in entries.iter().filter(|entry| entry.block != 0) {
            self.place(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use tollgate_test_support::Random;

    #[test]
    fn it_is_a_map() {
        let mut random = Random::new(17);
        for hashes in [3, 40, 100_000] {
            let mut index = KeyIndex::default();
            // Keys are numbers of three digits; a block's key is its number without the fourth.
            let mut model: HashMap<u32, u32> = HashMap::new();
            let hash_of = |key: u32| key % hashes * 0x10_0001;
            for _ in 0..20_000 {
                let key = random.below(1000) as u32;
                let block = key + 1000 * random.below(4) as u32;
                let is_it = |block: BlockId| block.0 % 1000 == key;
                let expected = model.get(&key).copied().map(BlockId);
                assert_eq!(index.find(hash_of(key), is_it), expected);
                if random.below(2) == 0 {
                    index.insert(hash_of(key), BlockId(block), is_it);
                    model.insert(key, block);
                } else {
                    index.remove(hash_of(key), is_it);
                    model.remove(&key);
                }
                assert_eq!(index.count, model.len());
            }
            for (&key, &block) in &model {
                let found = index.find(hash_of(key), |block| block.0 % 1000 == key);
                assert_eq!(found, Some(BlockId(block)));
            }
        }
    }
}
