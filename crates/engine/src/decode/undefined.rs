//! How much of an undefined instruction the processor fetches before it raises #UD.
//!
//! A processor finds the length of an instruction before it looks at whether it knows it:
//! a ModRM byte, what belongs to that, and immediates follow the opcode by the place in
//! the opcode maps (SDM volume 2, appendix A), also where nothing is defined. So an
//! undefined instruction that goes on into a page that is missing is a page fault. A few
//! opcodes are refused at once. The manual does not list them: this is what Intel's
//! processors do (`crates/oracle/tests/page_end.rs`).

use iced_x86::{Decoder, DecoderError, DecoderOptions};
use tollgate_x86::prefix::is_prefix;

/// The maps, by the bytes before the opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Map {
    One,
    /// 0F.
    Two,
    /// 0F 38, 39, 3C, 3D.
    Three,
    /// 0F 3A, 3B, 3E, 3F.
    ThreeWithByte,
    /// That of 0F, but behind a VEX prefix.
    Vex,
}

/// What of an instruction is read so far.
struct Reader<'a> {
    bytes: &'a [u8],
    bits: u32,
    narrow_operand: bool,
    other_address: bool,
}

impl<'a> Reader<'a> {
    fn new(bits: u32, bytes: &'a [u8]) -> Self {
        let mut reader = Self {
            bytes,
            bits,
            narrow_operand: bits == 16,
            other_address: false,
        };
        while let Some(&byte) = reader.bytes.first() {
            match byte {
                0x66 => reader.narrow_operand = bits != 16,
                0x67 => reader.other_address = true,
                _ if is_prefix(byte, bits == 64) => {}
                _ => break,
            }
            reader.bytes = &reader.bytes[1..];
        }
        reader
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(byte)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.bytes = self.bytes.get(count..)?;
        Some(())
    }

    /// The opcode and its map.
    fn opcode(&mut self) -> Option<(Map, u8)> {
        let first = self.byte()?;
        match first {
            0x0f => {}
            0xc4 | 0xc5 if self.bits == 64 || self.bytes.first().is_some_and(|&b| b >= 0xc0) => {
                return self.vex(first == 0xc5);
            }
            _ => return Some((Map::One, first)),
        }
        let second = self.byte()?;
        match second {
            0x38 | 0x39 | 0x3c | 0x3d => Some((Map::Three, self.byte()?)),
            0x3a | 0x3b | 0x3e | 0x3f => Some((Map::ThreeWithByte, self.byte()?)),
            _ => Some((Map::Two, second)),
        }
    }

    fn vex(&mut self, short: bool) -> Option<(Map, u8)> {
        let map = if short { 1 } else { self.byte()? & 0x1f };
        self.skip(1)?;
        let opcode = self.byte()?;
        match map {
            1 => Some((Map::Vex, opcode)),
            2 => Some((Map::Three, opcode)),
            _ => Some((Map::ThreeWithByte, opcode)),
        }
    }

    /// Skips what follows the ModRM byte that it reads; its middle field.
    fn modrm(&mut self) -> Option<u8> {
        let byte = self.byte()?;
        let (kind, base) = (byte >> 6, byte & 7);
        let narrow = (self.bits == 16) != (self.other_address && self.bits != 64);
        let displacement = match (kind, narrow) {
            (3, _) => 0,
            (1, _) => 1,
            (2, true) => 2,
            (2, false) => 4,
            (_, true) if base == 6 => 2,
            (_, false) if base == 5 => 4,
            _ => 0,
        };
        let mut more = displacement;
        if kind != 3 && !narrow && base == 4 {
            let index = self.byte()?;
            if kind == 0 && index & 7 == 5 {
                more = 4;
            }
        }
        self.skip(more)?;
        Some(byte >> 3 & 7)
    }

    /// Bytes of an operand of 16 or 32 bits.
    fn word(&self) -> usize {
        if self.narrow_operand { 2 } else { 4 }
    }
}

/// Undefined opcodes of the one-byte map without anything behind them.
fn is_bare_in_first_map(bits: u32, opcode: u8) -> bool {
    let only_32_bits = matches!(
        opcode,
        0x06 | 0x07
            | 0x0e
            | 0x16
            | 0x17
            | 0x1e
            | 0x1f
            | 0x27
            | 0x2f
            | 0x37
            | 0x3f
            | 0x60
            | 0x61
            | 0xce
    );
    opcode == 0xd6 || bits == 64 && only_32_bits
}

/// Undefined opcodes of the two-byte map without anything behind them.
const fn is_bare_in_second_map(opcode: u8) -> bool {
    matches!(
        opcode,
        0x04 | 0x0a | 0x0c | 0x0f | 0x24..=0x27 | 0x36 | 0x37 | 0x77
    )
}

/// Opcodes behind a VEX prefix that nothing follows: those to which nothing belongs in the
/// two-byte map, and its escapes.
const fn is_bare_behind_vex(opcode: u8) -> bool {
    let defined = matches!(
        opcode,
        0x05..=0x09 | 0x0b | 0x0e | 0x30..=0x35 | 0x38..=0x3f | 0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf
    );
    defined || is_bare_in_second_map(opcode)
}

/// Whether the bytes, of which the decoder wants more, are all of an undefined instruction.
pub(crate) fn is_complete(bits: u32, bytes: &[u8]) -> bool {
    let mut reader = Reader::new(bits, bytes);
    let Some((map, opcode)) = reader.opcode() else {
        return false;
    };
    let next = reader.bytes.first().copied();
    match (map, opcode) {
        // SWAPGS is of 64-bit code, FCOMPP is DED9h.
        (Map::Two, 0x01) => bits != 64 && next == Some(0xf8),
        (Map::One, 0xde) => next == Some(0xd8),
        // Not the prefix of AMD's XOP, but POP with a middle field other than zero.
        (Map::One, 0x8f) => next.is_some_and(|byte| byte & 0x1f >= 8) && reader.modrm().is_some(),
        (Map::One, _) => is_bare_in_first_map(bits, opcode),
        (Map::Two, _) => is_bare_in_second_map(opcode),
        (Map::Vex, 0x20..=0x23) => next.is_some(),
        (Map::Vex, _) => is_bare_behind_vex(opcode),
        _ => false,
    }
}

/// Whether an instruction that does not decode goes on behind the bytes.
pub(crate) fn is_cut_off(bits: u32, bytes: &[u8]) -> bool {
    // LOCK and the like, where only the operands forbid it, change no length.
    let mut decoder = Decoder::new(bits, bytes, DecoderOptions::NO_INVALID_CHECK);
    let _ = decoder.decode();
    match decoder.last_error() {
        DecoderError::None => false,
        DecoderError::NoMoreBytes => !is_complete(bits, bytes),
        _ => behind(bits, bytes).is_none(),
    }
}

/// Reads all of an undefined instruction; `None`: there is more.
fn behind(bits: u32, bytes: &[u8]) -> Option<()> {
    let mut reader = Reader::new(bits, bytes);
    match reader.opcode()? {
        (Map::One, opcode) if is_bare_in_first_map(bits, opcode) => Some(()),
        (Map::One, opcode) => match opcode {
            // Far pointers.
            0x9a | 0xea => reader.skip(reader.word() + 2),
            0xd4 | 0xd5 => reader.skip(1),
            0x82 | 0xc6 => reader.modrm().and_then(|_| reader.skip(1)),
            0xc7 => reader.modrm().and_then(|_| reader.skip(reader.word())),
            // Groups and memory-only forms: the other undefined opcodes of this map.
            _ => reader.modrm().map(|_| ()),
        },
        (Map::Two, opcode) if is_bare_in_second_map(opcode) => Some(()),
        (Map::Vex, opcode) if is_bare_behind_vex(opcode) => Some(()),
        // Long conditional branches, had they no prefix.
        (Map::Vex, 0x80..=0x8f) => reader.skip(if bits == 16 { 2 } else { 4 }),
        (Map::Vex, 0x20..=0x23) => reader.skip(1),
        (Map::Two | Map::Vex, 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6)
        | (Map::ThreeWithByte, _) => reader.modrm().and_then(|_| reader.skip(1)),
        (Map::Two | Map::Vex | Map::Three, _) => reader.modrm().map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modrm_and_what_belongs_to_it_is_part_of_an_undefined_instruction() {
        // 0F FF and 0F B9 with a register; with [rax+8]; with [rip+4 bytes].
        for bits in [16, 32, 64] {
            assert!(is_cut_off(bits, &[0x0f, 0xff]));
            assert!(!is_cut_off(bits, &[0x0f, 0xff, 0xc0]));
            assert!(is_cut_off(bits, &[0x0f, 0xb9, 0x40]));
            assert!(!is_cut_off(bits, &[0x0f, 0xb9, 0x40, 8]));
        }
        assert!(is_cut_off(64, &[0x0f, 0xb9, 0x05, 0, 0, 0]));
        assert!(!is_cut_off(64, &[0x0f, 0xb9, 0x05, 0, 0, 0, 0]));
        // [bp] has a displacement of two bytes; with 67h it is a SIB byte that follows 4.
        assert!(is_cut_off(16, &[0x0f, 0xff, 0x06, 0]));
        assert!(is_cut_off(16, &[0x67, 0x0f, 0xff, 0x04]));
        assert!(!is_cut_off(16, &[0x0f, 0xff, 0x04]));
    }

    #[test]
    fn immediates_count_by_the_map() {
        assert!(is_cut_off(32, &[0x0f, 0x3a, 0xff, 0xc0]));
        assert!(!is_cut_off(32, &[0x0f, 0x3a, 0xff, 0xc0, 0]));
        assert!(!is_cut_off(32, &[0x0f, 0x38, 0x0c, 0xc0]));
        assert!(is_cut_off(64, &[0xea, 0, 0, 0, 0, 0]));
        assert!(!is_cut_off(64, &[0x66, 0xea, 0, 0, 0, 0]));
    }

    #[test]
    fn some_opcodes_are_refused_at_once() {
        assert!(is_complete(64, &[0x06]) && !is_complete(32, &[0x06]));
        for bits in [16, 32, 64] {
            assert!(is_complete(bits, &[0x66, 0x0f, 0x04]) && is_complete(bits, &[0xd6]));
            assert!(!is_complete(bits, &[0x0f, 0xff]) && !is_complete(bits, &[0x0f]));
            assert!(!is_cut_off(bits, &[0xf0, 0x0f, 0x0b]));
        }
    }
}
