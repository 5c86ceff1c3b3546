//! An index that finds blocks by a hash of their keys.
//!
//! The index is a table with open addressing and linear probing. An entry is eight bytes, a hash
//! and a block's number, so that eight entries share a cache line and the table of many blocks
//! stays small. The keys stay with the blocks: the caller compares them, and only for entries with
//! the same hash. The index grows without asking for a key.

use crate::abi::sites::BlockId;

/// One place of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    /// The hash of the block's key. Hashes that differ only in their low [`TOGETHER`] bits prefer
    /// the same place, and hashes that differ in few of the bits above prefer places close to each
    /// other.
    hash: u32,
    /// The block's number plus one, or zero if the place is free.
    block: u32,
}

impl Entry {
    /// The place that the entry prefers.
    fn wish(self, mask: usize) -> usize {
        wish(self.hash, mask)
    }
}

/// Number of low bits of a hash that do not influence the preferred place: see [`Entry::hash`].
const TOGETHER: u32 = 4;

fn wish(hash: u32, mask: usize) -> usize {
    (hash >> TOGETHER) as usize & mask
}

const FREE: Entry = Entry { hash: 0, block: 0 };

impl Entry {
    /// The entry as one number: zero if the place is free, so that a new table is memory which
    /// the host has cleared.
    fn packed(self) -> u64 {
        u64::from(self.hash) << 32 | u64::from(self.block)
    }

    fn unpacked(packed: u64) -> Self {
        Self {
            hash: (packed >> 32) as u32,
            block: packed as u32,
        }
    }
}

/// Number of places of an empty index. Like all later sizes it is a power of two.
const FEWEST: usize = 64;
/// Number of places up to which each table is four times as large as the last one. While a guest
/// starts, memory that is given up again costs as much as memory that is used.
const SMALL: usize = 1 << 15;

/// Blocks, found by the hash of their keys.
#[derive(Debug)]
pub struct KeyIndex {
    /// The places' entries, [packed](Entry::packed).
    entries: Box<[u64]>,
    /// Number of occupied places: at most half of all.
    count: usize,
}

impl Default for KeyIndex {
    fn default() -> Self {
        Self {
            entries: vec![0; FEWEST].into_boxed_slice(),
            count: 0,
        }
    }
}

impl KeyIndex {
    /// Finds the block that has this hash and for which `is_it` returns true.
    pub fn find(&self, hash: u32, is_it: impl Fn(BlockId) -> bool) -> Option<BlockId> {
        let at = self.position(hash, is_it)?;
        Some(BlockId(self.entry(at).block - 1))
    }

    /// Enters a block. It replaces the block that has this hash and for which `is_it` returns true,
    /// if there is one.
    pub fn insert(&mut self, hash: u32, block: BlockId, is_it: impl Fn(BlockId) -> bool) {
        let entry = Entry {
            hash,
            block: block.0 + 1,
        };
        if let Some(at) = self.position(hash, is_it) {
            self.entries[at] = entry.packed();
            return;
        }
        if (self.count + 1) * 2 > self.entries.len() {
            self.grow();
        }
        self.place(entry);
        self.count += 1;
    }

    /// Removes the block that has this hash and for which `is_it` returns true.
    pub fn remove(&mut self, hash: u32, is_it: impl Fn(BlockId) -> bool) {
        let Some(mut gap) = self.position(hash, is_it) else {
            return;
        };
        self.count -= 1;
        // Entries that follow without a free place in between must remain reachable from the places
        // that they prefer, so the gap is filled with an entry that may move there.
        let mask = self.mask();
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let entry = self.entry(at);
            if entry.block == 0 {
                break;
            }
            let wish = entry.wish(mask);
            if (at.wrapping_sub(wish) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.entries[gap] = entry.packed();
                gap = at;
            }
        }
        self.entries[gap] = FREE.packed();
    }

    fn entry(&self, at: usize) -> Entry {
        Entry::unpacked(self.entries[at])
    }

    fn mask(&self) -> usize {
        self.entries.len() - 1
    }

    fn position(&self, hash: u32, is_it: impl Fn(BlockId) -> bool) -> Option<usize> {
        let mask = self.mask();
        let mut at = wish(hash, mask);
        loop {
            let entry = self.entry(at);
            if entry.block == 0 {
                return None;
            }
            if entry.hash == hash && is_it(BlockId(entry.block - 1)) {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    /// Puts an entry into the first free place from the one that it prefers.
    fn place(&mut self, entry: Entry) {
        let mask = self.mask();
        let mut at = entry.wish(mask);
        while self.entry(at).block != 0 {
            at = (at + 1) & mask;
        }
        self.entries[at] = entry.packed();
    }

    #[cold]
    fn grow(&mut self) {
        let length = self.entries.len();
        let larger = length * if length < SMALL { 4 } else { 2 };
        let larger = vec![0; larger].into_boxed_slice();
        let entries = std::mem::replace(&mut self.entries, larger);
        let entries = entries.iter().map(|&packed| Entry::unpacked(packed));
        for entry in entries.filter(|entry| entry.block != 0) {
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
            // A key is a number of three digits, and a block's number is its key plus a fourth
            // digit.
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
