//! Far pointers of real and V86 mode, packed into 32 bits as they lie in memory.

/// A selector and an offset of 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FarPointer {
    /// The selector for CS.
    pub selector: u16,
    /// The offset in the segment.
    pub ip: u16,
}

impl FarPointer {
    /// Packs the pointer: the offset is in the low half, the selector in the high half.
    pub const fn packed(self) -> u32 {
        (self.selector as u32) << 16 | self.ip as u32
    }

    /// Unpacks a pointer from [`FarPointer::packed`].
    pub const fn unpack(packed: u32) -> Self {
        Self {
            selector: (packed >> 16) as u16,
            ip: packed as u16,
        }
    }

    /// The pointer to `rip` in a segment with this base, as real mode loads it. `None` if real mode
    /// has no such pointer.
    pub fn of(base: u32, rip: u64) -> Option<Self> {
        let selector = u16::try_from(base >> 4).ok()?;
        let ip = u16::try_from(rip).ok()?;
        base.is_multiple_of(16).then_some(Self { selector, ip })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bases_that_real_mode_can_load_have_selectors() {
        let pointer = FarPointer::of(0xf_fff0, 0xffff).unwrap();
        assert_eq!(pointer.packed(), u32::MAX);
        assert_eq!(FarPointer::unpack(0x1234_5678).selector, 0x1234);
        assert_eq!(FarPointer::unpack(0x1234_5678).ip, 0x5678);
        assert_eq!(FarPointer::of(0x10_0000, 0), None);
        assert_eq!(FarPointer::of(0x18, 0), None);
        assert_eq!(FarPointer::of(0, 0x1_0000), None);
    }
}
