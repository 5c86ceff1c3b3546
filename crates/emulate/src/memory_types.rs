//! The MSRs of the memory-type range registers (SDM volume 3, 12.11; APM volume 2, 7.7). They only
//! hold what is written: guest memory is always cached.

use tollgate_x86::memory_types::{
    ENABLED, FIXED_ENABLED, MemoryTypeRanges, RANGE_VALID, VARIABLE_RANGES, memory_type,
};
use tollgate_x86::paging::PHYSICAL_ADDRESS_BITS;

/// IA32_MTRRCAP, which cannot be written.
const CAPABILITIES: u32 = 0xfe;
/// IA32_MTRR_PHYSBASE0. The mask of a range has the next number after its base, and the base of the
/// next range the number after that.
const FIRST_VARIABLE: u32 = 0x200;
const LAST_VARIABLE: u32 = FIRST_VARIABLE + 2 * VARIABLE_RANGES as u32 - 1;
/// The MSR number of IA32_MTRR_FIX64K_00000.
const FIXED_64_KIB: u32 = 0x250;
/// IA32_MTRR_FIX16K_80000 and IA32_MTRR_FIX16K_A0000.
const FIXED_16_KIB: u32 = 0x258;
/// IA32_MTRR_FIX4K_C0000 to IA32_MTRR_FIX4K_F8000.
const FIRST_FIXED_4_KIB: u32 = 0x268;
const LAST_FIXED_4_KIB: u32 = 0x26f;
/// The MSR number of IA32_MTRR_DEF_TYPE.
const DEFAULT_TYPE: u32 = 0x2ff;

/// The value of IA32_MTRRCAP: the number of variable ranges, fixed ranges (bit 8), the memory type
/// write combining (bit 10).
const OFFERED: u64 = VARIABLE_RANGES as u64 | 1 << 8 | 1 << 10;

/// The bits of a physical address that form its page number.
const PAGE_NUMBER: u64 = (1 << PHYSICAL_ADDRESS_BITS) - 0x1000;
/// The bits that form a memory type.
const TYPE: u64 = 0xff;

/// One of the memory-type range registers.
enum Register {
    Capabilities,
    DefaultType,
    Base(usize),
    Mask(usize),
    Fixed(usize),
}

/// The register with this MSR number; `None` if it is not an MTRR.
fn register(msr: u32) -> Option<Register> {
    Some(match msr {
        CAPABILITIES => Register::Capabilities,
        DEFAULT_TYPE => Register::DefaultType,
        FIRST_VARIABLE..=LAST_VARIABLE => {
            let index = (msr - FIRST_VARIABLE) as usize;
            match index % 2 {
                0 => Register::Base(index / 2),
                _ => Register::Mask(index / 2),
            }
        }
        FIXED_64_KIB => Register::Fixed(0),
        FIXED_16_KIB => Register::Fixed(1),
        0x259 => Register::Fixed(2),
        FIRST_FIXED_4_KIB..=LAST_FIXED_4_KIB => {
            Register::Fixed(3 + (msr - FIRST_FIXED_4_KIB) as usize)
        }
        _ => return None,
    })
}

/// Whether this is a memory type that MTRRs accept (SDM volume 3, table 12-8).
fn is_memory_type(kind: u64) -> bool {
    use memory_type::{UNCACHEABLE, WRITE_BACK, WRITE_COMBINING, WRITE_PROTECTED, WRITE_THROUGH};
    matches!(
        kind,
        UNCACHEABLE | WRITE_COMBINING | WRITE_THROUGH | WRITE_PROTECTED | WRITE_BACK
    )
}

/// Whether a register accepts this value: reserved bits are clear and its memory types exist.
fn is_valid(register: &Register, value: u64) -> bool {
    match register {
        Register::Capabilities => false,
        Register::DefaultType => {
            value & !(TYPE | FIXED_ENABLED | ENABLED) == 0 && is_memory_type(value & TYPE)
        }
        Register::Base(_) => value & !(TYPE | PAGE_NUMBER) == 0 && is_memory_type(value & TYPE),
        Register::Mask(_) => value & !(RANGE_VALID | PAGE_NUMBER) == 0,
        Register::Fixed(_) => value
            .to_le_bytes()
            .iter()
            .all(|&kind| is_memory_type(kind.into())),
    }
}

/// The value of the MTRR with this MSR number; `None` for other MSRs.
pub fn read(ranges: &MemoryTypeRanges, msr: u32) -> Option<u64> {
    Some(match register(msr)? {
        Register::Capabilities => OFFERED,
        Register::DefaultType => ranges.default_type,
        Register::Base(index) => ranges.variable[index].base,
        Register::Mask(index) => ranges.variable[index].mask,
        Register::Fixed(index) => ranges.fixed[index],
    })
}

/// Writes the MTRR with this MSR number, and returns whether the value is accepted; `None` for
/// other MSRs.
pub fn write(ranges: &mut MemoryTypeRanges, msr: u32, value: u64) -> Option<bool> {
    let register = register(msr)?;
    if !is_valid(&register, value) {
        return Some(false);
    }
    match register {
        Register::Capabilities => {}
        Register::DefaultType => ranges.default_type = value,
        Register::Base(index) => ranges.variable[index].base = value,
        Register::Mask(index) => ranges.variable[index].mask = value,
        Register::Fixed(index) => ranges.fixed[index] = value,
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All MTRRs that can be written, each with a value that it accepts.
    fn writable() -> Vec<(u32, u64)> {
        let variable = (0..VARIABLE_RANGES as u32).flat_map(|range| {
            let base = 0xff_ffff_f006 - (u64::from(range) << 12);
            [
                (FIRST_VARIABLE + 2 * range, base),
                (FIRST_VARIABLE + 2 * range + 1, 0xff_c000_0800 | 1 << 20),
            ]
        });
        let fixed = [FIXED_64_KIB, FIXED_16_KIB, 0x259]
            .into_iter()
            .chain(FIRST_FIXED_4_KIB..=LAST_FIXED_4_KIB)
            .map(|msr| (msr, 0x0605_0401_0006_0504));
        variable
            .chain(fixed)
            .chain([(DEFAULT_TYPE, 0xc06)])
            .collect()
    }

    #[test]
    fn every_register_holds_what_is_written_and_is_its_own() {
        let mut ranges = MemoryTypeRanges::default();
        let registers = writable();
        assert_eq!(registers.len(), 28);
        for &(msr, value) in &registers {
            assert_eq!(read(&ranges, msr), Some(0), "{msr:#x}");
            assert_eq!(write(&mut ranges, msr, value), Some(true), "{msr:#x}");
        }
        for &(msr, value) in &registers {
            assert_eq!(read(&ranges, msr), Some(value), "{msr:#x}");
        }
    }

    #[test]
    fn the_capabilities_count_the_ranges_and_cannot_be_written() {
        let mut ranges = MemoryTypeRanges::default();
        assert_eq!(read(&ranges, CAPABILITIES), Some(0x508));
        assert_eq!(write(&mut ranges, CAPABILITIES, 0x508), Some(false));
    }

    #[test]
    fn reserved_bits_and_types_are_refused_and_change_nothing() {
        let mut ranges = MemoryTypeRanges::default();
        for (msr, value) in writable() {
            write(&mut ranges, msr, value);
        }
        let before = ranges.clone();
        let bases = (FIRST_VARIABLE..=LAST_VARIABLE).step_by(2);
        for msr in bases {
            for value in [2, 3, 7, 8, 0x100, 0x800, 1 << 40, 1 << 63] {
                assert_eq!(write(&mut ranges, msr, value), Some(false), "{value:#x}");
            }
            for value in [1, 0x400, 1 << 40, 1 << 63] {
                assert_eq!(
                    write(&mut ranges, msr + 1, value),
                    Some(false),
                    "{value:#x}"
                );
            }
        }
        for msr in [FIXED_64_KIB, FIXED_16_KIB, 0x259, 0x268, 0x26f] {
            for value in [2, 0x0300, 7 << 56, 0x1e << 32] {
                assert_eq!(write(&mut ranges, msr, value), Some(false), "{value:#x}");
            }
        }
        for value in [2, 7, 0x106, 0x206, 0x1006, 1 << 32] {
            assert_eq!(write(&mut ranges, DEFAULT_TYPE, value), Some(false));
        }
        assert_eq!(ranges, before);
    }

    #[test]
    fn numbers_between_them_are_no_mtrrs() {
        let mut ranges = MemoryTypeRanges::default();
        for msr in [
            0xfd, 0x1ff, 0x210, 0x24f, 0x251, 0x257, 0x25a, 0x267, 0x270, 0x300,
        ] {
            assert_eq!(read(&ranges, msr), None, "{msr:#x}");
            assert_eq!(write(&mut ranges, msr, 0), None, "{msr:#x}");
        }
    }
}
