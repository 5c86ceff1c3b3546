//! The prefix bytes of instructions (SDM volume 2, 2.1.1 and 2.2.1).

/// Whether the byte is a legacy prefix: a segment override, operand or address size, LOCK,
/// REPNE or REP.
pub const fn is_legacy_prefix(byte: u8) -> bool {
    matches!(
        byte,
        0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3
    )
}

/// Whether the byte is a legacy prefix or, in 64-bit code, REX. A REX that another prefix follows
/// only lengthens the instruction.
pub const fn is_prefix(byte: u8, is_64_bit: bool) -> bool {
    is_legacy_prefix(byte) || is_64_bit && byte & 0xf0 == 0x40
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_eleven_legacy_prefixes_and_in_64_bit_code_sixteen_more() {
        let count = |is_64_bit| (0..=255).filter(|&byte| is_prefix(byte, is_64_bit)).count();
        assert_eq!((count(false), count(true)), (11, 27));
        assert!(!is_prefix(0x0f, true));
        assert!(!is_prefix(0x48, false));
    }
}
