//! Scancodes: the bytes that a key sends in the keyboard's three sets, and the controller's
//! translation from set 2 to set 1.

use crate::board::input::Key;
use serde::{Deserialize, Serialize};

impl Key {
    /// Returns the bytes of set 1, which programs see, when the key goes down or up.
    pub fn scancodes(self, down: bool) -> Vec<u8> {
        ScancodeSet::One.sequence(self, down)
    }
}

/// Prefix of the keys that the 101-key keyboard added.
const EXTENDED: u8 = 0xE0;
/// Prefix of a break code in sets 2 and 3.
pub(super) const BREAK: u8 = 0xF0;
/// Bit that makes a set 1 code a break code.
const SET_1_BREAK: u8 = 0x80;

/// A keyboard's scancode set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum ScancodeSet {
    One,
    Two,
    Three,
}

impl ScancodeSet {
    /// Returns the number that the keyboard reports for the set.
    pub(super) const fn number(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Three => 3,
        }
    }

    /// Returns the bytes that the keyboard sends when `key` goes down or up.
    pub(super) fn sequence(self, key: Key, down: bool) -> Vec<u8> {
        match (self, key) {
            (Self::One, Key::PAUSE) if down => vec![0xE1, 0x1D, 0x45, 0xE1, 0x9D, 0xC5],
            (Self::Two, Key::PAUSE) if down => {
                vec![0xE1, 0x14, 0x77, 0xE1, BREAK, 0x14, BREAK, 0x77]
            }
            (Self::One | Self::Two, Key::PAUSE) => Vec::new(),
            // Print Screen sends a shift of its own.
            (Self::One | Self::Two, Key::PRINT_SCREEN) => {
                let shift = Key::extended(0x2A);
                let keys = if down { [shift, key] } else { [key, shift] };
                keys.into_iter()
                    .flat_map(|key| self.plain_sequence(key, down))
                    .collect()
            }
            _ => self.plain_sequence(key, down),
        }
    }

    fn plain_sequence(self, key: Key, down: bool) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(3);
        if key.extended && self != Self::Three {
            bytes.push(EXTENDED);
        }
        match self {
            Self::One if down => bytes.push(key.code),
            Self::One => bytes.push(key.code | SET_1_BREAK),
            Self::Two | Self::Three => {
                if !down {
                    bytes.push(BREAK);
                }
                let set_2 = set_2_of(key.code);
                bytes.push(if self == Self::Two {
                    set_2
                } else {
                    set_3_of(key.extended, set_2)
                });
            }
        }
        bytes
    }
}

/// The set 1 code for each set 2 code below 80h, as the controller translates.
const SET_1_OF_SET_2: [u8; 128] = [
    0xFF, 0x43, 0x41, 0x3F, 0x3D, 0x3B, 0x3C, 0x58, 0x64, 0x44, 0x42, 0x40, 0x3E, 0x0F, 0x29, 0x59,
    0x65, 0x38, 0x2A, 0x70, 0x1D, 0x10, 0x02, 0x5A, 0x66, 0x71, 0x2C, 0x1F, 0x1E, 0x11, 0x03, 0x5B,
    0x67, 0x2E, 0x2D, 0x20, 0x12, 0x05, 0x04, 0x5C, 0x68, 0x39, 0x2F, 0x21, 0x14, 0x13, 0x06, 0x5D,
    0x69, 0x31, 0x30, 0x23, 0x22, 0x15, 0x07, 0x5E, 0x6A, 0x72, 0x32, 0x24, 0x16, 0x08, 0x09, 0x5F,
    0x6B, 0x33, 0x25, 0x17, 0x18, 0x0B, 0x0A, 0x60, 0x6C, 0x34, 0x35, 0x26, 0x27, 0x19, 0x0C, 0x61,
    0x6D, 0x73, 0x28, 0x74, 0x1A, 0x0D, 0x62, 0x6E, 0x3A, 0x36, 0x1C, 0x1B, 0x75, 0x2B, 0x63, 0x76,
    0x55, 0x56, 0x77, 0x78, 0x79, 0x7A, 0x0E, 0x7B, 0x7C, 0x4F, 0x7D, 0x4B, 0x47, 0x7E, 0x7F, 0x6F,
    0x52, 0x53, 0x50, 0x4C, 0x4D, 0x48, 0x01, 0x45, 0x57, 0x4E, 0x51, 0x4A, 0x37, 0x49, 0x46, 0x54,
];

/// The two keys whose set 2 codes are above 7Fh: F7 and Alt-SysRq.
const F7: (u8, u8) = (0x83, 0x41);
const SYSTEM_REQUEST: (u8, u8) = (0x84, 0x54);

/// Translates a byte of the keyboard from set 2 to set 1. Bytes from 80h up that are not keys, such
/// as acknowledges and prefixes, stay unchanged.
pub(super) fn translate(byte: u8) -> u8 {
    match byte {
        _ if byte == F7.0 => F7.1,
        _ if byte == SYSTEM_REQUEST.0 => SYSTEM_REQUEST.1,
        0x80.. => byte,
        _ => SET_1_OF_SET_2[usize::from(byte)],
    }
}

fn set_2_of(set_1: u8) -> u8 {
    match set_1 {
        _ if set_1 == F7.1 => F7.0,
        _ if set_1 == SYSTEM_REQUEST.1 => SYSTEM_REQUEST.0,
        _ => SET_1_OF_SET_2
            .iter()
            .position(|&code| code == set_1)
            .map_or(0, |position| position as u8),
    }
}

/// Returns the set 3 code of a key. It is a single byte, for most keys the set 2 code without
/// prefix.
const fn set_3_of(extended: bool, set_2: u8) -> u8 {
    match (extended, set_2) {
        // Escape, F1 to F12.
        (false, 0x76) => 0x08,
        (false, 0x05) => 0x07,
        (false, 0x06) => 0x0F,
        (false, 0x04) => 0x17,
        (false, 0x0C) => 0x1F,
        (false, 0x03) => 0x27,
        (false, 0x0B) => 0x2F,
        (false, 0x83) => 0x37,
        (false, 0x0A) => 0x3F,
        (false, 0x01) => 0x47,
        (false, 0x09) => 0x4F,
        (false, 0x78) => 0x56,
        (false, 0x07) => 0x5E,
        // Print Screen (also as SysRq), Scroll Lock, Pause.
        (true, 0x7C) | (false, 0x84) => 0x57,
        (false, 0x7E) => 0x5F,
        (true, 0x77) => 0x62,
        // Caps Lock, backslash, and the key next to the left shift.
        (false, 0x58) => 0x14,
        (false, 0x5D) => 0x5C,
        (false, 0x61) => 0x13,
        // Control, Alt, the logo keys and menu.
        (false, 0x14) => 0x11,
        (true, 0x14) => 0x58,
        (false, 0x11) => 0x19,
        (true, 0x11) => 0x39,
        (true, 0x1F) => 0x8B,
        (true, 0x27) => 0x8C,
        (true, 0x2F) => 0x8D,
        // Insert, Home, Page Up, Delete, End, Page Down.
        (true, 0x70) => 0x67,
        (true, 0x6C) => 0x6E,
        (true, 0x7D) => 0x6F,
        (true, 0x71) => 0x64,
        (true, 0x69) => 0x65,
        (true, 0x7A) => 0x6D,
        // Up, left, down, right.
        (true, 0x75) => 0x63,
        (true, 0x6B) => 0x61,
        (true, 0x72) => 0x60,
        (true, 0x74) => 0x6A,
        // Num Lock and the keypad's /, *, -, + and Enter.
        (false, 0x77) => 0x76,
        (true, 0x4A) => 0x77,
        (false, 0x7C) => 0x7E,
        (false, 0x7B) => 0x84,
        (false, 0x79) => 0x7C,
        (true, 0x5A) => 0x79,
        (_, code) => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_2_make_code_translates_back_to_its_key() {
        for code in 1..0x80 {
            if let [set_2] = ScancodeSet::Two.sequence(Key::new(code), true)[..]
                && set_2 != 0
            {
                assert_eq!(translate(set_2), code);
            } else {
                panic!("key {code:#x} has no set 2 code");
            }
        }
    }

    #[test]
    fn keys_send_their_codes_in_each_set() {
        use ScancodeSet::{One, Three, Two};
        for (set, key, down, bytes) in [
            (One, Key::A, true, &[0x1E][..]),
            (One, Key::A, false, &[0x9E]),
            (Two, Key::A, true, &[0x1C]),
            (Two, Key::A, false, &[0xF0, 0x1C]),
            (Three, Key::A, false, &[0xF0, 0x1C]),
            (One, Key::DELETE, false, &[0xE0, 0xD3]),
            (Two, Key::DELETE, false, &[0xE0, 0xF0, 0x71]),
            (Three, Key::DELETE, true, &[0x64]),
            (Two, Key::new(0x41), true, &[0x83]),
            (Three, Key::LEFT_CONTROL, true, &[0x11]),
            (One, Key::PRINT_SCREEN, true, &[0xE0, 0x2A, 0xE0, 0x37]),
            (Two, Key::PRINT_SCREEN, true, &[0xE0, 0x12, 0xE0, 0x7C]),
            (Three, Key::PRINT_SCREEN, true, &[0x57]),
            (Two, Key::PAUSE, false, &[]),
            (Three, Key::PAUSE, true, &[0x62]),
        ] {
            assert_eq!(set.sequence(key, down), bytes, "{set:?} {key:?} {down}");
        }
    }

    #[test]
    fn acknowledges_are_not_translated() {
        for byte in [0xFA, 0xAA, 0xFE, 0xEE, 0xE0, 0xE1, 0xAB] {
            assert_eq!(translate(byte), byte);
        }
    }
}
