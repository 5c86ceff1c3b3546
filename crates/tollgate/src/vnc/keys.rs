//! Translates a VNC viewer's keys into those of the guest's keyboard.
//!
//! A viewer names the meaning of a key (its keysym) by the layout of its user's keyboard, and the
//! guest has the keys of a US keyboard. A character is typed with the key and Shift that it needs
//! there. A viewer that knows QEMU's messages sends the places of keys, which need no layout.

use tollgate_machine::board::input::Key;
use tollgate_machine::devices::i8042::us_layout::stroke;

use crate::control::typing::named;

/// A key and whether it goes down (true) or up.
pub type KeyEvent = (Key, bool);

/// The keys that a viewer holds down.
#[derive(Default)]
pub struct Keys {
    held: Vec<Key>,
    /// Whether this viewer has switched Caps Lock on.
    has_caps_lock: bool,
}

const RIGHT_SHIFT: Key = Key::new(0x36);
const CAPS_LOCK: u32 = 0xffe5;

impl Keys {
    /// The key events for a key with this keysym; empty if the keyboard lacks it.
    pub fn meant(&mut self, keysym: u32, is_down: bool) -> Vec<KeyEvent> {
        let Some((key, wants_shift)) = key_of(keysym) else {
            return Vec::new();
        };
        if keysym == CAPS_LOCK && is_down {
            self.has_caps_lock = !self.has_caps_lock;
        }
        let Some(wants_shift) = wants_shift.filter(|_| is_down) else {
            return self.press(key, is_down);
        };
        let is_letter = char::from_u32(keysym).is_some_and(|it| it.is_ascii_alphabetic());
        let wants_shift = wants_shift != (is_letter && self.has_caps_lock);
        let shifts: Vec<Key> = [Key::LEFT_SHIFT, RIGHT_SHIFT]
            .into_iter()
            .filter(|shift| self.held.contains(shift))
            .collect();
        // A change of Shift for this key is reversed after it.
        let (before, after): (Vec<KeyEvent>, Vec<KeyEvent>) = match (wants_shift, &*shifts) {
            (true, []) => (
                vec![(Key::LEFT_SHIFT, true)],
                vec![(Key::LEFT_SHIFT, false)],
            ),
            (false, [_, ..]) => (
                shifts.iter().map(|shift| (*shift, false)).collect(),
                shifts.iter().map(|shift| (*shift, true)).collect(),
            ),
            _ => (Vec::new(), Vec::new()),
        };
        let pressed = self.press(key, true);
        before.into_iter().chain(pressed).chain(after).collect()
    }

    /// The key events for a scancode of set 1; 80h is added if E0h precedes it.
    pub fn placed(&mut self, scancode: u32, is_down: bool) -> Vec<KeyEvent> {
        const PAUSE: u32 = 0xc6;
        let key = match scancode {
            PAUSE => Key::PAUSE,
            1..0x80 => Key::new(scancode as u8),
            0x80..0x100 => Key::extended(scancode as u8),
            _ => return Vec::new(),
        };
        self.press(key, is_down)
    }

    /// Releases all keys that are held, because the viewer has disconnected.
    pub fn release_all(&mut self) -> Vec<KeyEvent> {
        let held = std::mem::take(&mut self.held).into_iter();
        held.rev().map(|key| (key, false)).collect()
    }

    fn press(&mut self, key: Key, is_down: bool) -> Vec<KeyEvent> {
        self.held.retain(|held| *held != key);
        if is_down {
            self.held.push(key);
        }
        vec![(key, is_down)]
    }
}

/// The key of a keysym (X11/keysymdef.h) and, if it is a character, whether it needs Shift.
fn key_of(keysym: u32) -> Option<(Key, Option<bool>)> {
    if let Some(character) = char::from_u32(keysym).filter(|it| matches!(it, ' '..='~')) {
        return stroke(character).map(|(key, shifted)| (key, Some(shifted)));
    }
    let name = match keysym {
        0xff08 => "backspace",
        0xff09 | 0xff89 | 0xfe20 => "tab",
        0xff0d => "enter",
        0xff8d => "kpenter",
        0xff13 | 0xff6b => "pause",
        0xff14 => "scrolllock",
        0xff15 | 0xff61 => "print",
        0xff1b => "esc",
        0xff50 => "home",
        0xff51 => "left",
        0xff52 => "up",
        0xff53 => "right",
        0xff54 => "down",
        0xff55 => "pageup",
        0xff56 => "pagedown",
        0xff57 => "end",
        0xff63 => "insert",
        0xff67 => "menu",
        0xff7f => "numlock",
        0xff95 | 0xffb7 => "kp7",
        0xff96 | 0xffb4 => "kp4",
        0xff97 | 0xffb8 => "kp8",
        0xff98 | 0xffb6 => "kp6",
        0xff99 | 0xffb2 => "kp2",
        0xff9a | 0xffb9 => "kp9",
        0xff9b | 0xffb3 => "kp3",
        0xff9c | 0xffb1 => "kp1",
        0xff9d | 0xffb5 => "kp5",
        0xff9e | 0xffb0 => "kp0",
        0xff9f | 0xffae => "kpdot",
        0xffaa => "kpmultiply",
        0xffab => "kpplus",
        0xffad => "kpminus",
        0xffaf => "kpdivide",
        0xffe1 => "shift",
        0xffe2 => "rshift",
        0xffe3 => "ctrl",
        0xffe4 => "rctrl",
        CAPS_LOCK => "capslock",
        0xffe7 | 0xffe9 => "alt",
        0xffe8 | 0xffea | 0xfe03 => "altgr",
        0xffeb | 0xffec => "win",
        0xffff => "delete",
        0xffbe..=0xffc9 => return named(&format!("f{}", keysym - 0xffbd)).map(|key| (key, None)),
        _ => return None,
    };
    named(name).map(|key| (key, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u32 = 'A' as u32;
    const SMALL_A: u32 = 'a' as u32;
    const SHIFT: u32 = 0xffe1;

    const fn shift(is_down: bool) -> KeyEvent {
        (Key::LEFT_SHIFT, is_down)
    }

    #[test]
    fn a_character_is_typed_with_the_shift_that_it_needs() {
        let mut keys = Keys::default();
        assert_eq!(keys.meant(SMALL_A, true), [(Key::A, true)]);
        assert_eq!(keys.meant(SMALL_A, false), [(Key::A, false)]);
        let shifted = [shift(true), (Key::A, true), shift(false)];
        assert_eq!(keys.meant(A, true), shifted);
        assert_eq!(keys.meant(A, false), [(Key::A, false)]);
        assert_eq!(keys.meant(SHIFT, true), [shift(true)]);
        assert_eq!(keys.meant(A, true), [(Key::A, true)]);
        // The viewer's layout has this character with Shift, a US keyboard without.
        let plain = [shift(false), (Key::new(0x35), true), shift(true)];
        assert_eq!(keys.meant('/' as u32, true), plain);
        let held = [(Key::new(0x35), false), (Key::A, false), shift(false)];
        assert_eq!(keys.release_all(), held);
    }

    #[test]
    fn caps_lock_takes_the_place_of_shift_for_letters() {
        let mut keys = Keys::default();
        keys.meant(CAPS_LOCK, true);
        keys.meant(CAPS_LOCK, false);
        assert_eq!(keys.meant(A, true), [(Key::A, true)]);
        assert_eq!(keys.meant('1' as u32, true), [(Key::new(0x02), true)]);
        assert_eq!(keys.meant(SMALL_A, true).len(), 3);
    }

    #[test]
    fn other_keys_have_their_names() {
        let mut keys = Keys::default();
        assert_eq!(keys.meant(0xffbe, true), [(Key::new(0x3b), true)]);
        assert_eq!(keys.meant(0xffc9, true), [(Key::new(0x58), true)]);
        assert_eq!(keys.meant(0xffff, true), [(Key::DELETE, true)]);
        assert_eq!(keys.meant(0x1_0000, true), []);
        let named = (0xfe00..=0xffff).filter_map(key_of).count();
        assert!(named > 70, "{named}");
    }

    #[test]
    fn places_are_scancodes() {
        let mut keys = Keys::default();
        assert_eq!(keys.placed(0x1e, true), [(Key::A, true)]);
        assert_eq!(keys.placed(0xd3, true), [(Key::DELETE, true)]);
        assert_eq!(keys.placed(0xc6, true), [(Key::PAUSE, true)]);
        assert_eq!(keys.placed(0, true), []);
        assert_eq!(keys.placed(u32::MAX, true), []);
    }
}
