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
    /// The value of those bits; the other bits are zero.
    pub value: u64,
}

impl Watched {
    /// A vacant record, which any memory matches.
    pub const NONE: Self = Self {
        place: 0,
        mask: 0,
        value: 0,
    };

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
        word & self.mask == self.value
    }
}
