//! The memory-type range registers, MTRRs (SDM volume 3, 12.11; APM volume 2, 7.7), which say how
//! ranges of physical addresses are cached.
//!
//! Here they only hold values: guest memory is the host's memory and always cached. Operating
//! systems still read them, and derive from them how they may set up their page tables.

use serde::{Deserialize, Serialize};

/// The number of variable ranges.
pub const VARIABLE_RANGES: usize = 8;
/// The number of registers with eight fixed ranges each.
pub const FIXED_REGISTERS: usize = 11;

/// IA32_MTRR_DEF_TYPE: the fixed ranges are enabled.
pub const FIXED_ENABLED: u64 = 1 << 10;
/// IA32_MTRR_DEF_TYPE: the MTRRs are enabled.
pub const ENABLED: u64 = 1 << 11;
/// IA32_MTRR_PHYSMASKn: the range is valid.
pub const RANGE_VALID: u64 = 1 << 11;

/// Memory types, as MTRRs encode them (SDM volume 3, table 12-8).
pub mod memory_type {
    /// Uncacheable.
    pub const UNCACHEABLE: u64 = 0;
    /// Write combining.
    pub const WRITE_COMBINING: u64 = 1;
    /// Write through.
    pub const WRITE_THROUGH: u64 = 4;
    /// Write protected.
    pub const WRITE_PROTECTED: u64 = 5;
    /// Write back.
    pub const WRITE_BACK: u64 = 6;
}

/// A pair of registers that describe one range of any size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[repr(C)]
pub struct VariableRange {
    /// IA32_MTRR_PHYSBASEn: the start of the range, and its memory type.
    pub base: u64,
    /// IA32_MTRR_PHYSMASKn: which bits of an address are compared, and whether the range is valid.
    pub mask: u64,
}

/// All MTRRs of a processor.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[repr(C)]
pub struct MemoryTypeRanges {
    /// The register IA32_MTRR_DEF_TYPE.
    pub default_type: u64,
    /// The registers for the first MiB, in the order of their addresses: one for ranges of 64 KiB,
    /// two for ranges of 16 KiB, eight for ranges of 4 KiB. Each byte is the memory type of one
    /// range.
    pub fixed: [u64; FIXED_REGISTERS],
    /// The variable ranges.
    pub variable: [VariableRange; VARIABLE_RANGES],
}

/// The first address of the range below 4 GiB that firmware reserves for devices.
const DEVICES_START: u64 = 0xc000_0000;
/// The first address after the range for devices.
const DEVICES_END: u64 = 1 << 32;

impl MemoryTypeRanges {
    /// The registers as a PC's firmware leaves them: memory is write back, the display's window and
    /// the devices below 4 GiB are uncacheable, and possible ROM is write protected. An operating
    /// system that is started without firmware takes all zeros for a firmware error.
    pub fn as_firmware_leaves_them(physical_address_bits: u32) -> Self {
        use memory_type::{UNCACHEABLE, WRITE_BACK, WRITE_PROTECTED};
        let all_eight = |kind: u64| u64::from_le_bytes([kind as u8; 8]);
        let mut ranges = Self {
            default_type: ENABLED | FIXED_ENABLED | WRITE_BACK,
            ..Self::default()
        };
        for (index, register) in ranges.fixed.iter_mut().enumerate() {
            *register = all_eight(match index {
                // The fixed ranges up to 80000h, then up to A0000h.
                0 | 1 => WRITE_BACK,
                // The display's window, A0000h to BFFFFh.
                2 => UNCACHEABLE,
                _ => WRITE_PROTECTED,
            });
        }
        let addresses = (1u64 << physical_address_bits) - 1;
        ranges.variable[0] = VariableRange {
            base: DEVICES_START | UNCACHEABLE,
            mask: addresses & !(DEVICES_END - DEVICES_START - 1) | RANGE_VALID,
        };
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmware_leaves_memory_cached_and_devices_not() {
        let ranges = MemoryTypeRanges::as_firmware_leaves_them(40);
        assert_eq!(ranges.default_type, 0xc06);
        let (low, rom) = (0x0606_0606_0606_0606, 0x0505_0505_0505_0505);
        assert_eq!(ranges.fixed[..3], [low, low, 0]);
        assert_eq!(ranges.fixed[3..], [rom; 8]);
        let hole = ranges.variable[0];
        assert_eq!((hole.base, hole.mask), (0xc000_0000, 0xff_c000_0800));
        for address in [0xc000_0000u64, 0xfee0_0000, 0xffff_ffff] {
            assert_eq!((address ^ hole.base) & hole.mask & !0xfff, 0);
        }
        for address in [0xbfff_ffffu64, 1 << 32, 5 << 30] {
            assert_ne!((address ^ hole.base) & hole.mask & !0xfff, 0);
        }
    }
}
