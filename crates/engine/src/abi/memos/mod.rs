//! Memos: what the monitor found out when it executed an instruction, so that a fast path can
//! execute the next instruction of that kind if a comparison shows that nothing has changed.
//!
//! Each kind of memo has a file with its record, which the assembly of the same name in
//! [`crate::gate`] reads. Records that are found by a key lie in a [`MemoTable`].

pub mod cpuid_answer;
pub mod delivery;
pub mod device_access;
pub mod known_code;
pub mod level_change;
pub mod segment_load;

use crate::abi::link_layout::{BranchTable, ModeId, indirect_tag, table_offset};

/// The multiplier of the hash that places memos (Fibonacci hashing): the product of this and a key
/// has the number of the key's first place in its high bits.
pub const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A record in a [`MemoTable`].
pub trait Memo: Copy {
    /// The contents of a vacant place.
    const NONE: Self;

    /// The key by which a fast path finds the record; `None` if the place is vacant.
    fn key(&self) -> Option<u64>;

    /// Makes the place vacant.
    fn clear(&mut self);
}

/// A table of memos in which each key has two neighbouring places. `N` is a power of two.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct MemoTable<M, const N: usize>(pub [M; N]);

impl<M: Memo, const N: usize> MemoTable<M, N> {
    /// A table in which all places are vacant.
    pub const NONE: Self = {
        assert!(N.is_power_of_two() && N > 1);
        Self([M::NONE; N])
    };

    /// The number of bits by which the product of a key and [`SPREAD`] is shifted right to get the
    /// number of the key's first place.
    pub const SHIFT: u32 = u64::BITS - N.ilog2();

    /// Puts a memo into the place that already has its key, otherwise into a vacant one of its two
    /// places, otherwise into the first, whose memo moves to the second.
    pub fn note(&mut self, memo: M) {
        let Some(key) = memo.key() else { return };
        let places = Self::places(key);
        let table = &mut self.0;
        let has_key = |&place: &usize| table[place].key() == Some(key);
        let is_vacant = |&place: &usize| table[place].key().is_none();
        let place = places.into_iter().find(has_key);
        match place.or_else(|| places.into_iter().find(is_vacant)) {
            Some(place) => table[place] = memo,
            None => {
                let [first, second] = places;
                table[second] = table[first];
                table[first] = memo;
            }
        }
    }

    /// The memo with this key.
    #[inline]
    pub fn find(&self, key: u64) -> Option<&M> {
        let [first, second] = Self::places(key);
        let known = |place: usize| Some(&self.0[place]).filter(|memo| memo.key() == Some(key));
        known(first).or_else(|| known(second))
    }

    /// The two places of a key.
    fn places(key: u64) -> [usize; 2] {
        let first = (key.wrapping_mul(SPREAD) >> Self::SHIFT) as usize;
        [first, first ^ 1]
    }

    /// Makes all places vacant.
    pub fn forget(&mut self) {
        for memo in &mut self.0 {
            memo.clear();
        }
    }
}

/// Where a fast path finds the code that follows its instruction, in a mode that the instruction
/// may have changed.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CodeAfter {
    /// Where indirect branches of that mode find their targets, in bytes from the start of the link
    /// tables divided by 8.
    pub table: u64,
    /// The number that, added to the target's RIP, gives the negative of the tag of its entry in
    /// that table.
    pub tag: u64,
}

impl CodeAfter {
    /// The value if nothing is known.
    pub const NONE: Self = Self { table: 0, tag: 0 };

    /// The value for code of `mode`, which uses `table` for its indirect branches.
    pub fn of(table: BranchTable, mode: ModeId) -> Self {
        Self {
            table: table_offset(table) as u64 / 8,
            tag: indirect_tag(table, mode),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A memo that consists of a key and a value.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Pair(u64, u32);

    impl Memo for Pair {
        const NONE: Self = Self(0, 0);

        fn key(&self) -> Option<u64> {
            (self.0 != 0).then_some(self.0)
        }

        fn clear(&mut self) {
            self.0 = 0;
        }
    }

    type Table = MemoTable<Pair, 8>;

    fn value(table: &Table, key: u64) -> Option<u32> {
        let found = table.0.iter().filter(|pair| pair.0 == key);
        let values: Vec<u32> = found.map(|pair| pair.1).collect();
        assert!(values.len() <= 1, "a key has one place");
        let value = values.first().copied();
        assert_eq!(table.find(key).map(|pair| pair.1), value);
        value
    }

    /// Keys that share both of their places.
    fn sharing() -> impl Iterator<Item = u64> {
        let place = |key: u64| key.wrapping_mul(SPREAD) >> Table::SHIFT;
        (1..).filter(move |&key| place(key) == place(1))
    }

    #[test]
    fn the_newest_two_of_keys_that_share_their_places_are_found() {
        let mut table = Table::NONE;
        let keys: Vec<u64> = sharing().take(3).collect();
        for (value, &key) in (0..).zip(&keys) {
            table.note(Pair(key, value));
        }
        let found: Vec<Option<u32>> = keys.iter().map(|&key| value(&table, key)).collect();
        // The second memo had taken the vacant place; the first one was displaced into it.
        assert_eq!(found, [Some(0), None, Some(2)]);
    }

    #[test]
    fn a_key_keeps_its_place_and_a_forgotten_table_is_vacant() {
        let mut table = Table::NONE;
        let keys: Vec<u64> = sharing().take(2).collect();
        for &key in &keys {
            table.note(Pair(key, 1));
        }
        table.note(Pair(keys[1], 5));
        assert_eq!(
            (value(&table, keys[0]), value(&table, keys[1])),
            (Some(1), Some(5))
        );
        table.forget();
        assert!(table.0.iter().all(|pair| pair.key().is_none()));
    }
}
