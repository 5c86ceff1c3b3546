//! Names of marks: moments of a run that a user or the guest names, so that statistics can be
//! counted between them.

use std::fmt;
use std::str::FromStr;

/// Maximum length of a name in bytes.
pub const LONGEST: usize = 32;

/// A mark's name: 1 to 32 letters, digits, and the signs `.`, `_`, `-`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MarkName {
    bytes: [u8; LONGEST],
    length: u8,
}

impl MarkName {
    /// Makes a name of these bytes, if they are a valid one.
    pub fn of(name: &[u8]) -> Option<Self> {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        if !(1..=LONGEST).contains(&name.len()) || !name.iter().all(is_plain) {
            return None;
        }
        let mut bytes = [0; LONGEST];
        bytes[..name.len()].copy_from_slice(name);
        Some(Self {
            bytes,
            length: name.len() as u8,
        })
    }

    /// Reads a name from registers: each holds four characters, the first in the lowest byte; zeros
    /// pad the name.
    pub fn of_registers(registers: [u32; 4]) -> Option<Self> {
        let bytes: Vec<u8> = registers.iter().flat_map(|it| it.to_le_bytes()).collect();
        let length = bytes.iter().position(|byte| *byte == 0);
        let (name, rest) = bytes.split_at(length.unwrap_or(bytes.len()));
        let is_filled_up = rest.iter().all(|byte| *byte == 0);
        is_filled_up.then(|| Self::of(name)).flatten()
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl FromStr for MarkName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected up to 32 letters, digits, '.', '_' and '-'";
        Self::of(text.as_bytes()).ok_or_else(|| format!("not a valid name of a mark; {expected}"))
    }
}

impl fmt::Display for MarkName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl fmt::Debug for MarkName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_letters_digits_and_three_signs() {
        assert_eq!(
            "begin-2.a_B".parse::<MarkName>().unwrap().as_str(),
            "begin-2.a_B"
        );
        for bad in ["", "a b", "ä", "a\n", &"x".repeat(LONGEST + 1)] {
            assert!(bad.parse::<MarkName>().is_err(), "{bad}");
        }
        assert!("x".repeat(LONGEST).parse::<MarkName>().is_ok());
    }

    #[test]
    fn registers_hold_sixteen_characters() {
        let of = |text: &[u8; 16]| {
            let word = |at: usize| u32::from_le_bytes(text[at..at + 4].try_into().unwrap());
            MarkName::of_registers([word(0), word(4), word(8), word(12)])
        };
        let name = |text| of(text).map(|name| name.as_str().to_owned());
        assert_eq!(
            name(b"begin\0\0\0\0\0\0\0\0\0\0\0").as_deref(),
            Some("begin")
        );
        assert_eq!(
            name(b"0123456789abcdef").as_deref(),
            Some("0123456789abcdef")
        );
        for bad in [
            b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            b"a\0b\0\0\0\0\0\0\0\0\0\0\0\0\0",
        ] {
            assert_eq!(of(bad), None);
        }
    }
}
