//! The description that a chip shows after the command for it: the common flash interface (JEDEC
//! JESD68.01), with the values of QEMU's pflash_cfi01.

/// The maximum number of bytes of a buffered write, as a power of two.
const BUFFER_POWER: u8 = 8;

/// The maximum number of bytes of a buffered write.
pub const BUFFER_BYTES: usize = 1 << BUFFER_POWER;

/// The size in bytes of a block, the unit of erasing.
pub const BLOCK_BYTES: u64 = 4096;

/// Returns the byte at an offset, of which the lowest eight bits count, for a chip of this size.
pub fn byte(offset: u64, chip_bytes: u64) -> u8 {
    let blocks = (chip_bytes / BLOCK_BYTES).saturating_sub(1);
    match offset as u8 {
        0x10..=0x12 => b"QRY"[(offset as u8 - 0x10) as usize],
        // The command set is Intel's; its extended table is at 31h.
        0x13 => 1,
        0x15 => 0x31,
        // Supply voltage from 4.5 to 5.5 volts.
        0x1b => 0x45,
        0x1c => 0x55,
        // Typical times of programming, of buffered programming and of erasing a block.
        0x1f | 0x20 => 7,
        0x21 => 10,
        // The longest ones, as multiples.
        0x23..=0x25 => 4,
        0x27 => chip_bytes.trailing_zeros() as u8,
        // Accesses of 8 and 16 bits.
        0x28 => 2,
        0x2a => BUFFER_POWER,
        // One kind of blocks: their number less one, and their size in units of 256 bytes.
        0x2c => 1,
        0x2d => blocks as u8,
        0x2e => (blocks >> 8) as u8,
        0x2f => (BLOCK_BYTES >> 8) as u8,
        0x30 => (BLOCK_BYTES >> 16) as u8,
        0x31..=0x35 => b"PRI10"[(offset as u8 - 0x31) as usize],
        // The number of protection fields.
        0x3f => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_describes_the_size_and_the_blocks() {
        let text: Vec<u8> = (0x10..0x13).map(|at| byte(at, 4 << 20)).collect();
        assert_eq!(text, b"QRY");
        assert_eq!(byte(0x27, 4 << 20), 22);
        let blocks = [byte(0x2d, 0x8_4000), byte(0x2e, 0x8_4000)];
        assert_eq!(u16::from_le_bytes(blocks), 0x83);
        assert_eq!(u16::from_le_bytes([byte(0x2f, 1), byte(0x30, 1)]), 16);
        assert_eq!(byte(0x110, 1), b'Q');
    }
}
