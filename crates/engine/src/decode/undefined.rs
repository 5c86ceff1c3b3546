//! How many bytes of an undefined instruction the processor fetches before it raises #UD.
//!
//! A processor finds the length of an instruction before it knows whether the instruction is
//! defined. Whether a ModRM byte (with SIB and displacement) and immediates follow the opcode
//! depends on the opcode's place in the opcode maps (SDM volume 2, appendix A), even where no
//! instruction is defined. So an undefined instruction that continues in a missing page causes a
//! page fault, and one that would be longer than 15 bytes causes #GP(0) (SDM volume 2, 2.3.11; APM
//! volume 2, 8.2.14). The bytes after the fifteenth are not fetched. A few opcodes are refused
//! immediately. The manual does not list these opcodes: the code follows what Intel's processors do
//! (`crates/oracle/tests/together/page_end.rs`) and, for instructions of more than 15 bytes, what
//! AMD's processors do (`crates/oracle/tests/together/overlong.rs`).

use crate::decode::intel_amd_differences::Decoding;
use crate::decode::length::MAX_INSTRUCTION_LENGTH;
use iced_x86::{Decoder, DecoderError, DecoderOptions};
use tollgate_x86::prefix::is_prefix;

/// The reason why bytes do not decode to an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Undecoded {
    /// All bytes of an undefined instruction are present: #UD.
    Undefined,
    /// The instruction has more than 15 bytes: #GP(0).
    TooLong,
    /// The processor needs more bytes than are present to decide.
    CutOff,
}

/// What determines the length of an instruction in addition to its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    /// The size of the code: 16, 32 or 64 bits.
    pub bits: u32,
    /// The maker whose processor the bytes are decoded for.
    pub decoding: Decoding,
    /// Whether byte 62h begins instructions of AVX-512. Otherwise it is BOUND, or an undefined
    /// opcode with a ModRM byte.
    pub has_evex: bool,
}

/// The opcode maps, by the bytes before the opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Map {
    One,
    /// After 0F.
    Two,
    /// After 0F 38, 39, 3C or 3D.
    Three,
    /// After 0F 3A, 3B, 3E or 3F.
    ThreeWithByte,
    /// The map of 0F after a VEX prefix.
    Vex,
}

/// Reads an instruction's bytes, beginning with the opcode.
struct Reader<'a> {
    bytes: &'a [u8],
    bits: u32,
    narrow_operand: bool,
    other_address: bool,
}

impl<'a> Reader<'a> {
    /// A reader of the bytes that follow `prefixes`.
    fn new(bits: u32, prefixes: &[u8], bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            bits,
            narrow_operand: (bits == 16) != prefixes.contains(&0x66),
            other_address: prefixes.contains(&0x67),
        }
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

    /// Reads the opcode and its map.
    fn opcode(&mut self) -> Option<(Map, u8)> {
        let first = self.byte()?;
        match first {
            0x0f => {}
            0xc4 | 0xc5 if self.bits == 64 || self.bytes.first().is_some_and(|&b| b >= 0xc0) => {
                return self.vex(first == 0xc5);
            }
            // XOP has the layout of VEX with three bytes, and maps of its own.
            0x8f if self.bytes.first().is_some_and(|&byte| byte & 0x1f >= 8) => {
                self.skip(2)?;
                return Some((Map::Three, self.byte()?));
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

    /// Reads a ModRM byte, skips the SIB byte and displacement that belong to it, and returns its
    /// middle field.
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

    /// Whether a ModRM byte and everything that belongs to it follow.
    fn has_modrm(&mut self) -> bool {
        self.modrm().is_some()
    }

    /// The number of bytes of an operand of 16 or 32 bits.
    fn word(&self) -> usize {
        if self.narrow_operand { 2 } else { 4 }
    }
}

/// Whether an opcode of the one-byte map is undefined and has no bytes after it.
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

/// Whether an opcode of the two-byte map is undefined and has no bytes after it.
const fn is_bare_in_second_map(opcode: u8) -> bool {
    matches!(
        opcode,
        0x04 | 0x0a | 0x0c | 0x0f | 0x24..=0x27 | 0x36 | 0x37 | 0x77
    )
}

/// Whether an opcode after a VEX prefix has no bytes after it: this is so for those that have none
/// in the two-byte map, and for that map's escapes.
const fn is_bare_behind_vex(opcode: u8) -> bool {
    let defined = matches!(
        opcode,
        0x05..=0x09 | 0x0b | 0x0e | 0x30..=0x35 | 0x38..=0x3f | 0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf
    );
    defined || is_bare_in_second_map(opcode)
}

/// Whether the bytes are a complete undefined instruction although the decoder expects more bytes.
fn is_complete(mut reader: Reader<'_>) -> bool {
    let bits = reader.bits;
    let Some((map, opcode)) = reader.opcode() else {
        return false;
    };
    let next = reader.bytes.first().copied();
    match (map, opcode) {
        // SWAPGS exists in 64-bit code only; FCOMPP is DED9h.
        (Map::Two, 0x01) => bits != 64 && next == Some(0xf8),
        (Map::One, 0xde) => next == Some(0xd8),
        (Map::One, _) => is_bare_in_first_map(bits, opcode),
        (Map::Two, _) => is_bare_in_second_map(opcode),
        (Map::Vex, 0x20..=0x23) => next.is_some(),
        (Map::Vex, _) => is_bare_behind_vex(opcode),
        _ => false,
    }
}

/// An instruction with each prefix that its length depends on only once, followed by its other
/// bytes.
#[derive(Default)]
struct Shortened {
    bytes: [u8; 4 + MAX_INSTRUCTION_LENGTH],
    length: usize,
}

impl Shortened {
    fn push(&mut self, bytes: &[u8]) {
        for (place, &byte) in self.bytes[self.length..].iter_mut().zip(bytes) {
            *place = byte;
            self.length += 1;
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Lengths {
    /// Classifies the bytes of an instruction that does not decode.
    pub(crate) fn classify(self, bytes: &[u8]) -> Undecoded {
        let fetched = &bytes[..bytes.len().min(MAX_INSTRUCTION_LENGTH)];
        if self.is_whole(fetched) {
            Undecoded::Undefined
        } else if fetched.len() == MAX_INSTRUCTION_LENGTH {
            Undecoded::TooLong
        } else {
            Undecoded::CutOff
        }
    }

    /// Whether a processor needs no more than these bytes of the instruction that they begin with.
    fn is_whole(self, bytes: &[u8]) -> bool {
        let is_64_bit = self.bits == 64;
        let count = bytes.iter().take_while(|&&byte| is_prefix(byte, is_64_bit));
        let (prefixes, rest) = bytes.split_at(count.count());
        let (Some(&first), second) = (rest.first(), rest.get(1)) else {
            return false;
        };
        // REX is a prefix only directly before the opcode.
        let rex = prefixes.last().filter(|&&byte| byte & 0xf0 == 0x40);
        let has_registers = second.is_some_and(|&byte| byte >= 0xc0);
        let is_xop_map = second.is_some_and(|&byte| byte & 0x1f >= 8);
        let is_encoding = match first {
            0xc4 | 0xc5 => is_64_bit || has_registers,
            0x62 => self.has_evex && (is_64_bit || has_registers),
            0x8f => self.decoding == Decoding::Amd && is_xop_map,
            _ => false,
        };
        let reader = Reader::new(self.bits, prefixes, rest);
        if is_encoding && rex.is_some() {
            // The instruction is refused after the byte that follows the first byte of VEX, EVEX or
            // XOP.
            return second.is_some();
        }
        if !is_encoding && (first == 0x62 || first == 0x8f && is_xop_map) {
            let mut reader = reader;
            return reader.skip(1).is_some() && reader.has_modrm();
        }
        let mut image = Shortened::default();
        if prefixes.contains(&0x67) {
            image.push(&[0x67]);
        }
        // Other prefixes make an instruction with VEX, EVEX or XOP undefined, but do not change its
        // length.
        if !is_encoding {
            if prefixes.contains(&0x66) {
                image.push(&[0x66]);
            }
            let repeat = prefixes.iter().rfind(|byte| matches!(byte, 0xf2 | 0xf3));
            for &byte in repeat.into_iter().chain(rex) {
                image.push(&[byte]);
            }
        }
        image.push(rest);
        let options = self.decoding.options() | DecoderOptions::NO_INVALID_CHECK;
        let mut decoder = Decoder::new(self.bits, image.bytes(), options);
        let _ = decoder.decode();
        match decoder.last_error() {
            DecoderError::None => true,
            DecoderError::NoMoreBytes => is_complete(reader),
            _ => behind(reader).is_some(),
        }
    }
}

/// Reads all of an undefined instruction; `None` if some of its bytes are missing.
fn behind(mut reader: Reader<'_>) -> Option<()> {
    let bits = reader.bits;
    match reader.opcode()? {
        (Map::One, opcode) if is_bare_in_first_map(bits, opcode) => Some(()),
        (Map::One, opcode) => match opcode {
            // These are far pointers.
            0x9a | 0xea => reader.skip(reader.word() + 2),
            0xd4 | 0xd5 => reader.skip(1),
            0x82 | 0xc6 => reader.modrm().and_then(|_| reader.skip(1)),
            0xc7 => reader.modrm().and_then(|_| reader.skip(reader.word())),
            // Groups and memory-only forms are the other undefined opcodes of this map.
            _ => reader.modrm().map(|_| ()),
        },
        (Map::Two, opcode) if is_bare_in_second_map(opcode) => Some(()),
        (Map::Vex, opcode) if is_bare_behind_vex(opcode) => Some(()),
        // Without the VEX prefix these would be long conditional branches.
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
    use Undecoded::*;

    fn of_maker(decoding: Decoding, bits: u32, bytes: &[u8]) -> Undecoded {
        let lengths = Lengths {
            bits,
            decoding,
            has_evex: false,
        };
        lengths.classify(bytes)
    }

    fn of(bits: u32, bytes: &[u8]) -> Undecoded {
        of_maker(Decoding::Intel, bits, bytes)
    }

    fn is_cut_off(bits: u32, bytes: &[u8]) -> bool {
        of(bits, bytes) == CutOff
    }

    /// `count` times `prefix`, then `rest`, and 16 bytes after it.
    fn prefixed(count: usize, prefix: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = vec![prefix; count];
        bytes.extend_from_slice(rest);
        bytes.resize(bytes.len() + 16, 0xc3);
        bytes
    }

    #[test]
    fn modrm_and_what_belongs_to_it_is_part_of_an_undefined_instruction() {
        // 0F FF and 0F B9: without an operand, with a register, with [rax+8] and with [rip+4
        // bytes].
        for bits in [16, 32, 64] {
            assert!(is_cut_off(bits, &[0x0f, 0xff]));
            assert!(!is_cut_off(bits, &[0x0f, 0xff, 0xc0]));
            assert!(is_cut_off(bits, &[0x0f, 0xb9, 0x40]));
            assert!(!is_cut_off(bits, &[0x0f, 0xb9, 0x40, 8]));
        }
        assert!(is_cut_off(64, &[0x0f, 0xb9, 0x05, 0, 0, 0]));
        assert!(!is_cut_off(64, &[0x0f, 0xb9, 0x05, 0, 0, 0, 0]));
        // [bp] has a displacement of two bytes; with 67h the ModRM byte 4 is followed by a SIB
        // byte.
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
        assert!(!is_cut_off(64, &[0x06]));
        for bits in [16, 32, 64] {
            assert!(!is_cut_off(bits, &[0x66, 0x0f, 0x04]) && !is_cut_off(bits, &[0xd6]));
            assert!(is_cut_off(bits, &[0x0f, 0xff]) && is_cut_off(bits, &[0x0f]));
            assert!(!is_cut_off(bits, &[0xf0, 0x0f, 0x0b]));
        }
    }

    #[test]
    fn sixteen_bytes_are_too_long_and_fifteen_are_not() {
        // MOV AX, an undefined opcode with a ModRM byte, one with an immediate, UD2, LOCK HLT.
        for (opcode, prefix) in [
            (&[0xb8, 1, 2][..], 0x66),
            (&[0x0f, 0xff, 0xc0], 0x2e),
            (&[0xc7, 0xf9, 0, 0], 0x66),
            (&[0x0f, 0x0b], 0xf3),
            (&[0xf4], 0xf0),
            (&[0x0f, 0x04], 0x66),
        ] {
            for bits in [32, 64] {
                let longest = 15 - opcode.len();
                assert_eq!(of(bits, &prefixed(longest, prefix, opcode)), Undefined);
                assert_eq!(of(bits, &prefixed(longest + 1, prefix, opcode)), TooLong);
            }
        }
        assert_eq!(of(32, &[0x66; 15]), TooLong);
        assert_eq!(of(32, &[0x66; 14]), CutOff);
    }

    #[test]
    fn surplus_rex_prefixes_count() {
        for rex in [0x40, 0x48] {
            for opcode in [&[0x06][..], &[0x0f, 0x0b], &[0x0f, 0x38, 0xff, 0xc0]] {
                let longest = 15 - opcode.len();
                assert_eq!(of(64, &prefixed(longest, rex, opcode)), Undefined);
                assert_eq!(of(64, &prefixed(longest + 1, rex, opcode)), TooLong);
            }
            // REX.W directly before the opcode gives MOV an immediate of eight bytes.
            let mut mov = vec![0x66, rex, 0x66, 0xb8, 0, 0];
            assert_eq!(of(64, &mov), Undefined);
            mov.swap(1, 2);
            assert_eq!(of(64, &mov) == CutOff, rex == 0x48);
        }
    }

    #[test]
    fn the_sixteenth_byte_is_not_fetched() {
        // 0F 38 FF needs a ModRM byte.
        let mut bytes = prefixed(12, 0x66, &[0x0f, 0x38, 0xff]);
        bytes.truncate(15);
        assert_eq!(of(64, &bytes), TooLong);
        assert_eq!(of(64, &bytes[1..]), CutOff);
    }

    #[test]
    fn vex_behind_rex_is_refused_with_its_second_byte() {
        let vex = [0xc5, 0xf8, 0x58, 0xc0];
        assert_eq!(of(64, &prefixed(13, 0x40, &vex)), Undefined);
        assert_eq!(of(64, &prefixed(14, 0x40, &vex)), TooLong);
        assert_eq!(of(64, &prefixed(11, 0x66, &vex)), Undefined);
        assert_eq!(of(64, &prefixed(12, 0x66, &vex)), TooLong);
    }

    #[test]
    fn evex_has_the_length_of_an_opcode_with_modrm_where_it_is_not_offered() {
        let evex = [0x62, 0xf1, 0x7c, 0x48, 0x58, 0xc0];
        let mut lengths = Lengths {
            bits: 64,
            decoding: Decoding::Amd,
            has_evex: false,
        };
        assert_eq!(lengths.classify(&prefixed(13, 0x66, &evex)), Undefined);
        assert_eq!(lengths.classify(&prefixed(14, 0x66, &evex)), TooLong);
        lengths.has_evex = true;
        assert_eq!(lengths.classify(&prefixed(9, 0x66, &evex)), Undefined);
        assert_eq!(lengths.classify(&prefixed(10, 0x66, &evex)), TooLong);
    }

    #[test]
    fn amd_has_xop_for_pop_with_a_map_number_and_no_modrm_byte_in_ud0() {
        for (count, opcode, expected) in [
            (10, [0x8f, 0xc8], [Undefined, Undefined]),
            (11, [0x8f, 0xc8], [Undefined, TooLong]),
            (13, [0x0f, 0xff], [TooLong, Undefined]),
            (14, [0x0f, 0xff], [TooLong, TooLong]),
        ] {
            let bytes = prefixed(count, 0x66, &opcode);
            let of = |decoding| of_maker(decoding, 64, &bytes);
            assert_eq!([of(Decoding::Intel), of(Decoding::Amd)], expected);
        }
    }
}
