//! Translates what a terminal sends for a key into strokes of a US keyboard.

use std::collections::VecDeque;

use tollgate_machine::board::input::Key;
use tollgate_machine::devices::i8042::us_layout::stroke;
use tollgate_machine::vm_handle::VmHandle;

use crate::control::typing::named;

/// The number of waiting strokes from which on no more are read from the terminal, which then holds
/// back what is typed or pasted.
const MOST: usize = 256;

/// Keys that are pressed together and then released.
type Stroke = Vec<Key>;

/// Strokes that wait for the guest.
#[derive(Default)]
pub struct Strokes(VecDeque<Stroke>);

impl Strokes {
    /// Whether more should be read from the terminal.
    pub fn has_room(&self) -> bool {
        self.0.len() < MOST
    }

    /// Takes the bytes that a terminal has sent. A sequence arrives in one piece; Escape alone is
    /// the key.
    pub fn take(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (stroke, length) = first(rest);
            self.0.extend(stroke);
            rest = &rest[length..];
        }
    }

    /// Presses the named keys together.
    pub fn take_named(&mut self, names: &[&str]) {
        self.0
            .push_back(names.iter().filter_map(|name| named(name)).collect());
    }

    /// Passes on as many strokes as the guest has room for.
    pub fn offer(&mut self, handle: &VmHandle) {
        while let Some(keys) = self.0.front() {
            let down = keys.iter().map(|key| (*key, true));
            let up = keys.iter().rev().map(|key| (*key, false));
            if !handle.keys(&down.chain(up).collect::<Vec<_>>()) {
                return;
            }
            self.0.pop_front();
        }
    }
}

/// The stroke at the beginning of these bytes, if they stand for one, and how many bytes it takes.
fn first(bytes: &[u8]) -> (Option<Stroke>, usize) {
    const ESCAPE: u8 = 0x1b;
    match bytes {
        [ESCAPE, b'[', rest @ ..] => {
            let length = rest.iter().position(|byte| (0x40..0x7f).contains(byte));
            let Some(length) = length else {
                return (None, bytes.len());
            };
            (sequence(&rest[..=length]), 3 + length)
        }
        [ESCAPE, b'O', last, ..] => (key_of_letter(*last).map(|key| vec![key]), 3),
        [ESCAPE, byte, ..] if *byte != ESCAPE => {
            let with_alt = plain(*byte).map(|mut keys| {
                keys.insert(0, Key::LEFT_ALT);
                keys
            });
            (with_alt, 2)
        }
        [byte, ..] => (plain(*byte), 1),
        [] => (None, 0),
    }
}

/// The stroke for a byte that does not follow Escape.
fn plain(byte: u8) -> Option<Stroke> {
    let (key, shifted) = match byte {
        // Ctrl with a letter sends these, except for codes that other keys send too.
        0x01..=0x07 | 0x0b | 0x0c | 0x0e..=0x1a => {
            let (key, _) = stroke(char::from(byte + 0x60))?;
            return Some(vec![Key::LEFT_CONTROL, key]);
        }
        0x00 => return Some(vec![Key::LEFT_CONTROL, named("space")?]),
        0x1c..=0x1f => {
            let (key, _) = stroke(char::from(b"\\]6-"[usize::from(byte - 0x1c)]))?;
            return Some(vec![Key::LEFT_CONTROL, key]);
        }
        0x7f => stroke('\x08')?,
        _ => stroke(char::from(byte))?,
    };
    Some(match shifted {
        true => vec![Key::LEFT_SHIFT, key],
        false => vec![key],
    })
}

/// The stroke for the bytes that follow "ESC [", with their last byte.
fn sequence(bytes: &[u8]) -> Option<Stroke> {
    let (last, numbers) = bytes.split_last()?;
    let mut numbers = std::str::from_utf8(numbers).ok()?.split(';');
    let number = numbers.next().and_then(|text| text.parse::<u8>().ok());
    let modifiers = numbers.next().and_then(|text| text.parse::<u8>().ok());
    let key = match last {
        b'~' => named(match number? {
            1 | 7 => "home",
            2 => "insert",
            3 => "delete",
            4 | 8 => "end",
            5 => "pageup",
            6 => "pagedown",
            11 => "f1",
            12 => "f2",
            13 => "f3",
            14 => "f4",
            15 => "f5",
            17 => "f6",
            18 => "f7",
            19 => "f8",
            20 => "f9",
            21 => "f10",
            23 => "f11",
            24 => "f12",
            _ => return None,
        })?,
        b'Z' => return Some(vec![Key::LEFT_SHIFT, named("tab")?]),
        letter => key_of_letter(*letter)?,
    };
    // The number is one more than a mask with a bit each for Shift, Alt and Ctrl.
    let bits = modifiers.unwrap_or(1).wrapping_sub(1);
    let names = [
        (1, Key::LEFT_SHIFT),
        (2, Key::LEFT_ALT),
        (4, Key::LEFT_CONTROL),
    ];
    let held = names
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, key)| *key);
    Some(held.chain([key]).collect())
}

fn key_of_letter(letter: u8) -> Option<Key> {
    named(match letter {
        b'A' => "up",
        b'B' => "down",
        b'C' => "right",
        b'D' => "left",
        b'H' => "home",
        b'F' => "end",
        b'P' => "f1",
        b'Q' => "f2",
        b'R' => "f3",
        b'S' => "f4",
        b'M' => "kpenter",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strokes(bytes: &[u8]) -> Vec<Vec<Key>> {
        let mut strokes = Strokes::default();
        strokes.take(bytes);
        strokes.0.into()
    }

    fn keys(names: &str) -> Vec<Key> {
        names.split('-').map(|name| named(name).unwrap()).collect()
    }

    #[test]
    fn characters_and_control_characters_are_keys() {
        let expected = [
            "a",
            "shift-a",
            "enter",
            "tab",
            "backspace",
            "ctrl-c",
            "ctrl-]",
        ];
        assert_eq!(strokes(b"aA\r\t\x7f\x03\x1d"), expected.map(keys));
    }

    #[test]
    fn sequences_are_the_keys_that_send_them() {
        assert_eq!(
            strokes(b"\x1b[A\x1bOP\x1b[3~\x1b[24~"),
            ["up", "f1", "delete", "f12"].map(keys)
        );
        assert_eq!(
            strokes(b"\x1b[1;5D\x1b[Z\x1bx"),
            ["ctrl-left", "shift-tab", "alt-x"].map(keys)
        );
        assert_eq!(strokes(b"\x1b"), [keys("esc")]);
        assert_eq!(strokes(b"\x1b\x1b[B"), ["esc", "down"].map(keys));
    }

    #[test]
    fn nothing_that_was_read_is_lost() {
        let mut strokes = Strokes::default();
        assert!(strokes.has_room());
        strokes.take(&[b'x'; 1000]);
        assert_eq!(strokes.0.len(), 1000);
        assert!(!strokes.has_room());
    }

    #[test]
    fn what_no_key_sends_is_dropped() {
        for bytes in [
            &b"\x1b["[..],
            b"\x1b[99~",
            b"\x1b[999999;9999~",
            b"\xc3\xa4",
            b"\x1bO\x01",
        ] {
            assert_eq!(strokes(bytes), Vec::<Vec<Key>>::new(), "{bytes:x?}");
        }
    }
}
