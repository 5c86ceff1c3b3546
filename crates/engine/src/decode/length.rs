//! The limit of 15 bytes on an instruction's length (SDM volume 2, 2.3.11).

use crate::decode::maker::Decoding;
use iced_x86::{Decoder, DecoderError};
use tollgate_x86::prefix::is_legacy_prefix;

/// Longest x86 instruction, in bytes.
pub(crate) const MAX_INSTRUCTION_LENGTH: usize = 15;

/// Whether the bytes from the first on, which do not decode, are an instruction that would
/// be longer than the limit: a processor raises #GP for it, and #UD for any other.
pub(crate) fn is_too_long(bitness: u32, decoding: Decoding, bytes: &[u8]) -> bool {
    let prefixes = bytes
        .iter()
        .take_while(|&&byte| is_legacy_prefix(byte))
        .count();
    if prefixes >= MAX_INSTRUCTION_LENGTH {
        return true;
    }
    // Repeated prefixes change nothing but the length: decode with each but once.
    let mut image = [0; 2 * MAX_INSTRUCTION_LENGTH];
    let mut length = 0;
    for (index, &byte) in bytes.iter().take(image.len()).enumerate() {
        if index >= prefixes || !bytes[index + 1..prefixes].contains(&byte) {
            image[length] = byte;
            length += 1;
        }
    }
    let removed = bytes.len().min(image.len()) - length;
    let mut decoder = Decoder::new(bitness, &image[..length], decoding.options());
    let instruction = decoder.decode();
    match decoder.last_error() {
        DecoderError::NoMoreBytes => removed + length >= MAX_INSTRUCTION_LENGTH,
        DecoderError::None => removed + instruction.len() > MAX_INSTRUCTION_LENGTH,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` prefixes 66h in front of `rest`, and room behind it.
    fn prefixed(count: usize, rest: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x66; count];
        bytes.extend_from_slice(rest);
        bytes.resize(bytes.len() + 16, 0x90);
        bytes
    }

    #[test]
    fn sixteen_bytes_are_too_long_and_fifteen_are_not() {
        const MOV_AX: [u8; 3] = [0xb8, 1, 2];
        assert!(is_too_long(32, Decoding::Intel, &prefixed(13, &MOV_AX)));
        assert!(!is_too_long(32, Decoding::Intel, &prefixed(12, &MOV_AX)));
        assert!(is_too_long(32, Decoding::Intel, &[0x66; 15]));
    }

    #[test]
    fn an_undefined_opcode_is_not_too_long_behind_fourteen_prefixes() {
        assert!(!is_too_long(
            32,
            Decoding::Intel,
            &prefixed(13, &[0x0f, 0x04])
        ));
        assert!(!is_too_long(
            32,
            Decoding::Intel,
            &prefixed(0, &[0xfe, 0xf8])
        ));
    }
}
