//! Canonical addresses (SDM volume 1, 3.3.7.1; APM volume 2, 1.1.3).
//!
//! In IA-32e mode a linear address has 64 bits, of which 4-level paging translates 48. The address
//! is canonical if its other bits repeat bit 47. An instruction that forms an address that is not
//! canonical gets #GP(0), or #SS(0) for an access through SS; the check precedes paging.

use crate::address::LINEAR_ADDRESS_BITS;

/// Whether bits 47 to 63 of a linear address are all equal.
pub const fn is_canonical(address: u64) -> bool {
    let unused = 64 - LINEAR_ADDRESS_BITS;
    ((address << unused) as i64 >> unused) as u64 == address
}

/// Whether all of `size` bytes (at most 2^47) at a linear address have canonical addresses. The
/// bytes may wrap from the last address to address zero: both are canonical.
pub const fn is_canonical_range(address: u64, size: u64) -> bool {
    is_canonical(address) && is_canonical(address.wrapping_add(size.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_addresses_repeat_bit_47() {
        for (address, canonical) in [
            (0, true),
            (0x7fff_ffff_ffff, true),
            (0x8000_0000_0000, false),
            (0xffff_7fff_ffff_ffff, false),
            (0xffff_8000_0000_0000, true),
            (u64::MAX, true),
            (0x8000_0000_0000_0000, false),
        ] {
            assert_eq!(is_canonical(address), canonical, "{address:#x}");
        }
    }

    #[test]
    fn a_range_is_canonical_if_each_of_its_bytes_is() {
        for (address, size, canonical) in [
            (0x7fff_ffff_fffc, 4, true),
            (0x7fff_ffff_fffc, 5, false),
            (0xffff_7fff_ffff_fffc, 4, false),
            (0xffff_7fff_ffff_fffc, 8, false),
            (0xffff_8000_0000_0000, 64, true),
            (0x8000_0000_0000, 1, false),
            // An empty range is canonical if its start is.
            (0x7fff_ffff_ffff, 0, true),
            (0x8000_0000_0000, 0, false),
        ] {
            let found = is_canonical_range(address, size);
            assert_eq!(found, canonical, "{size} bytes at {address:#x}");
        }
    }

    #[test]
    fn a_range_that_wraps_to_address_zero_is_canonical() {
        assert!(is_canonical_range(u64::MAX - 3, 4));
        assert!(is_canonical_range(u64::MAX - 3, 8));
    }
}
