//! The save area of the x87, SSE, AVX and AVX-512 registers (SDM volume 1, 13.4 and 13.5).
//!
//! [`VectorState`] has the compacted format with every component in it, so each component lies at
//! the same offset on any processor; in the standard format, the processor chooses the offsets.
//! XCOMP_BV is zero in [`VectorState`]: it is set only while the area is loaded and saved.

use crate::state::VectorState;

/// State components as XCR0 and XSTATE_BV number them.
pub mod component {
    /// x87 and MMX.
    pub const X87: u64 = 1 << 0;
    /// XMM0 to XMM15, and MXCSR.
    pub const SSE: u64 = 1 << 1;
    /// The upper halves of YMM0 to YMM15.
    pub const AVX: u64 = 1 << 2;
    /// The mask registers K0 to K7.
    pub const OPMASK: u64 = 1 << 5;
    /// The upper halves of ZMM0 to ZMM15.
    pub const ZMM_HIGH: u64 = 1 << 6;
    /// ZMM16 to ZMM31.
    pub const ZMM_16_TO_31: u64 = 1 << 7;
    /// The components that AVX-512 adds. XCR0 enables all three or none.
    pub const AVX_512: u64 = OPMASK | ZMM_HIGH | ZMM_16_TO_31;
    /// PKRU, which is not a vector register: [`VectorState`](crate::state::VectorState) does not
    /// contain it.
    pub const PKRU: u64 = 1 << 9;
    /// The components with vector registers that a guest may have.
    pub const ALL: u64 = X87 | SSE | AVX | AVX_512;
}

/// Offset of the header: XSTATE_BV, XCOMP_BV, and 48 reserved bytes.
pub const HEADER: usize = 512;
/// Offset of XCOMP_BV.
pub const XCOMP_BV: usize = HEADER + 8;
/// Offset of the first byte after the header, where the extended region begins.
pub const EXTENDED_REGION: usize = 576;
/// Bit of XCOMP_BV: the area has the compacted format.
pub const COMPACTED: u64 = 1 << 63;

/// A component of the extended region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extended {
    /// The component's bit in XSTATE_BV.
    pub bit: u64,
    /// The component's offset in [`VectorState`].
    pub start: usize,
    /// The component's size in bytes, in both formats.
    pub size: usize,
}

impl Extended {
    /// The component's bytes in [`VectorState`].
    pub const fn range(self) -> std::ops::Range<usize> {
        self.start..self.start + self.size
    }
}

const fn extended(bit: u64, start: usize, size: usize) -> Extended {
    Extended { bit, start, size }
}

/// The upper halves of YMM0 to YMM15.
pub const AVX: Extended = extended(component::AVX, EXTENDED_REGION, 16 * 16);
/// The mask registers K0 to K7.
pub const OPMASK: Extended = extended(component::OPMASK, AVX.start + AVX.size, 8 * 8);
/// The upper halves of ZMM0 to ZMM15.
pub const ZMM_HIGH: Extended = extended(component::ZMM_HIGH, OPMASK.start + OPMASK.size, 16 * 32);
/// ZMM16 to ZMM31.
pub const ZMM_16_TO_31: Extended = extended(
    component::ZMM_16_TO_31,
    ZMM_HIGH.start + ZMM_HIGH.size,
    16 * 64,
);
/// All components of the extended region, in the order of their numbers.
pub const EXTENDED: [Extended; 4] = [AVX, OPMASK, ZMM_HIGH, ZMM_16_TO_31];

/// Size of the area in bytes.
pub const XSAVE_SIZE: usize = ZMM_16_TO_31.start + ZMM_16_TO_31.size;

impl VectorState {
    /// XSTATE_BV: the components that may differ from their initial state.
    pub fn in_use(&self) -> u64 {
        u64::from(self.0[HEADER])
    }

    /// Gives components their initial contents, like the function [`initialize`].
    pub fn initialize(&mut self, components: u64) {
        initialize(&mut self.0, components);
    }
}

/// Offset in the area of one byte of a ZMM register; `number` is below 32 and `byte` below 64.
pub const fn vector_byte(number: usize, byte: usize) -> usize {
    match (number & 16, byte) {
        (0, 0..16) => 160 + number * 16 + byte,
        (0, 16..32) => AVX.start + number * 16 + byte - 16,
        (0, _) => ZMM_HIGH.start + number * 32 + byte - 32,
        _ => ZMM_16_TO_31.start + (number & 15) * 64 + byte,
    }
}

/// Gives components their initial contents (SDM volume 1, 13.6), except MXCSR.
pub fn initialize(area: &mut [u8; XSAVE_SIZE], components: u64) {
    if components & component::X87 != 0 {
        area[..24].fill(0);
        area[32..160].fill(0);
        area[0..2].copy_from_slice(&0x037fu16.to_le_bytes());
    }
    if components & component::SSE != 0 {
        area[160..416].fill(0);
    }
    for part in EXTENDED {
        if components & part.bit != 0 {
            area[part.start..part.start + part.size].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_lie_where_the_compacted_format_puts_them() {
        let places = EXTENDED.map(|part| (part.bit, part.start, part.size));
        assert_eq!(
            places,
            [
                (1 << 2, 576, 256),
                (1 << 5, 832, 64),
                (1 << 6, 896, 512),
                (1 << 7, 1408, 1024)
            ]
        );
        assert_eq!(XSAVE_SIZE, 2432);
    }

    #[test]
    fn only_the_named_components_become_initial() {
        let mut state = VectorState([0xaa; XSAVE_SIZE]);
        state.initialize(component::X87 | component::OPMASK);
        assert_eq!(state.0[..4], [0x7f, 3, 0, 0]);
        assert_eq!(state.0[24..32], [0xaa; 8], "MXCSR");
        assert!(state.0[32..160].iter().all(|&byte| byte == 0));
        assert!(state.0[160..832].iter().all(|&byte| byte == 0xaa));
        assert!(state.0[832..896].iter().all(|&byte| byte == 0));
        assert!(state.0[896..].iter().all(|&byte| byte == 0xaa));
    }
}
