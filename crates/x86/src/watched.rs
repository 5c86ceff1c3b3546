//! Words of guest memory from which a result was computed, and which are compared before the result
//! is used again.

/// Eight bytes of guest memory, and the value that some of their bits must have for a result to be
/// valid. Assembly reads this record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Watched {
    /// The linear address of the first byte.
    pub place: u64,
    /// The bits that are compared. Zero if the record is vacant.
    pub mask: u64,
    /// The value of those bits, gathered as by PEXT: translated code compares them in this way,
    /// because PEXT leaves the flags alone.
    pub value: u64,
}

impl Watched {
    /// A vacant record, which any memory matches.
    pub const NONE: Self = Self {
        place: 0,
        mask: 0,
        value: 0,
    };

    /// A record that no memory matches.
    pub const NEVER: Self = Self {
        place: 0,
        mask: 0,
        value: 1,
    };

    /// The bits in `mask` of a word.
    pub const fn of(place: u64, mask: u64, word: u64) -> Self {
        Self {
            place,
            mask,
            value: gather(word, mask),
        }
    }

    /// All bits of a word.
    pub const fn all(place: u64, value: u64) -> Self {
        Self {
            place,
            mask: u64::MAX,
            value,
        }
    }

    /// Whether a word that was read at the place has the expected value.
    #[inline]
    pub const fn matches(&self, word: u64) -> bool {
        gather(word, self.mask) == self.value
    }
}

/// The bits of a word that are set in a mask, next to each other from bit 0 on.
#[inline]
const fn gather(word: u64, mask: u64) -> u64 {
    if mask == u64::MAX {
        return word;
    }
    let (mut word, mut mask) = (word, mask);
    let (mut gathered, mut used) = (0, 0);
    while mask != 0 {
        let gap = mask.trailing_zeros();
        (word, mask) = (word >> gap, mask >> gap);
        let run = mask.trailing_ones();
        gathered |= (word & ((1 << run) - 1)) << used;
        (word, mask, used) = (word >> run, mask >> run, used + run);
    }
    gathered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_of_a_mask_are_gathered_from_the_lowest_on() {
        assert_eq!(
            gather(0x1234_5678_9abc_def0, u64::MAX),
            0x1234_5678_9abc_def0
        );
        assert_eq!(gather(0x1234_5678_9abc_def0, 0), 0);
        assert_eq!(gather(0x1234_5678_9abc_def0, 0xffff_ffff), 0x9abc_def0);
        assert_eq!(gather(0x1234_5678_9abc_def0, 0xffff << 48), 0x1234);
        assert_eq!(gather(0x00af_9b00_0000_ffff, 0xf0ff << 40), 0xa9b);
    }

    #[test]
    fn words_match_if_the_bits_of_the_mask_have_the_value() {
        let word = 0x00af_9b00_0000_ffff;
        let rights = Watched::of(8, 0xf0ff << 40, word);
        assert!(rights.matches(word) && rights.matches(word | 0xffff << 16));
        assert!(!rights.matches(word ^ 1 << 40));
        assert!(Watched::all(8, word).matches(word));
        assert!(!Watched::all(8, word).matches(word ^ 1));
        assert!(Watched::NONE.matches(word) && !Watched::NEVER.matches(word));
    }
}
