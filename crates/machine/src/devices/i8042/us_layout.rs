//! The keys of a US keyboard for each character.

use crate::board::input::Key;

/// Rows of the keyboard: the code of the first key, and the characters without and with Shift.
const ROWS: [(u8, &str, &str); 6] = [
    (0x02, "1234567890-=", "!@#$%^&*()_+"),
    (0x10, "qwertyuiop[]", "QWERTYUIOP{}"),
    (0x1e, "asdfghjkl;'`", "ASDFGHJKL:\"~"),
    (0x2b, "\\zxcvbnm,./", "|ZXCVBNM<>?"),
    (0x39, " ", " "),
    (0x0e, "\x08\t", "\x08\t"),
];

/// Returns the key of a character, and whether Shift must be held.
pub fn stroke(character: char) -> Option<(Key, bool)> {
    match character {
        '\n' | '\r' => return Some((Key::ENTER, false)),
        '\x1b' => return Some((Key::ESCAPE, false)),
        _ => {}
    }
    ROWS.iter().find_map(|(first, plain, shifted)| {
        let find = |row: &str| row.chars().position(|other| other == character);
        let key = |place: usize| Key::new(first + place as u8);
        let plain = find(plain).map(|place| (key(place), false));
        plain.or_else(|| find(shifted).map(|place| (key(place), true)))
    })
}

/// Returns what must be pressed and released for a character, in order. Returns `None` if the
/// character is not on the keyboard.
pub fn presses(character: char) -> Option<Vec<(Key, bool)>> {
    let (key, is_shifted) = stroke(character)?;
    let keys = match is_shifted {
        true => vec![Key::LEFT_SHIFT, key],
        false => vec![key],
    };
    let down = keys.iter().map(|key| (*key, true));
    let up = keys.iter().rev().map(|key| (*key, false));
    Some(down.chain(up).collect())
}
