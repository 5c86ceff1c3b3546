//! `tollgate type`: types on the keyboard of a running machine, and moves its mouse.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tollgate_machine::board::input::Key;
use tollgate_machine::devices::i8042::us_layout::{presses, stroke};
use tollgate_machine::vm_handle::VmHandle;

use super::client::{exit_code_of, talk};
use super::command::Name;
use super::mouse;
use crate::exit_code;
use crate::failure::Failure;

/// How long to wait for a guest that reads no key.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait before keys are offered again.
const RETRY: Duration = Duration::from_millis(20);
/// The maximum number of characters in one request, whose length is limited.
const PIECE: usize = 500;

/// The arguments of `tollgate type`.
#[derive(Args, Debug)]
#[command(after_help = "\
Characters are those of a US keyboard; in TEXT \\n is Enter, \\t Tab, \\e Escape, \\\\ a backslash.
Keys: letters, digits, the characters of a US keyboard, and
  enter esc tab space backspace insert delete home end pageup pagedown up down left right
  f1 to f12, ctrl rctrl shift rshift alt altgr win menu capslock numlock scrolllock print
  pause minus, and kp0 to kp9 kpenter kpplus kpminus kpmultiply kpdivide kpdot
What the mouse does:
  move:RIGHT,DOWN  by so many counts, negative ones to the left and up; how far the pointer goes
                   is the guest's to decide
  click[:BUTTON]   press and release left (if none is named), right or middle
  press[:BUTTON], release[:BUTTON]
  wheel:STEPS      turn the wheel towards you, which scrolls down, or with -STEPS away from you
Exit codes: 0 done, 1 the guest reads no keys, 2 no such key or nothing answers at PATH.
Examples:
    tollgate type vm.sock 'dir /w\\n'
    tollgate type vm.sock --keys ctrl-alt-delete
    tollgate type vm.sock --keys alt-f4 --keys enter
    tollgate type vm.sock --mouse move:40,-10 --mouse click --mouse wheel:3")]
pub struct TypeArguments {
    /// The path given to tollgate run --control
    #[arg(value_name = "PATH")]
    pub socket: PathBuf,

    /// What to type
    #[arg(value_name = "TEXT", required_unless_present_any = ["keys", "mouse"])]
    pub text: Option<String>,

    /// Keys that are pressed together, by their names; may be repeated, and come after TEXT
    #[arg(long, value_name = "KEY-KEY...")]
    pub keys: Vec<String>,

    /// What to do with the mouse: move:RIGHT,DOWN, click[:BUTTON], press[:BUTTON],
    /// release[:BUTTON] or wheel:STEPS; may be repeated, and comes last
    #[arg(long, value_name = "ACTION")]
    pub mouse: Vec<String>,
}

/// Runs `tollgate type` and returns its exit code.
pub fn run(arguments: &TypeArguments) -> u8 {
    type_all(arguments).unwrap_or_else(|failure| failure.report())
}

fn type_all(arguments: &TypeArguments) -> Result<u8, Failure> {
    let text = unescaped(arguments.text.as_deref().unwrap_or("")).map_err(Failure::usage)?;
    check(&text).map_err(Failure::usage)?;
    for keys in &arguments.keys {
        chord(keys).map_err(Failure::usage)?;
    }
    for action in &arguments.mouse {
        mouse::check(action).map_err(Failure::usage)?;
    }
    let characters: Vec<char> = text.chars().collect();
    let mut rest = &characters[..];
    let mut patient_until = Instant::now() + PATIENCE;
    while !rest.is_empty() {
        let piece: String = rest[..rest.len().min(PIECE)].iter().collect();
        let request = json!({"command": Name::Type, "text": piece});
        let answer = talk(&arguments.socket, &request)?;
        let Some(typed) = answer["typed"].as_u64() else {
            return Ok(exit_code_of(&answer));
        };
        rest = &rest[(typed as usize).min(rest.len())..];
        if typed > 0 {
            patient_until = Instant::now() + PATIENCE;
        } else {
            wait(patient_until)?;
        }
    }
    let keys = arguments.keys.iter().map(|keys| ("keys", keys));
    let actions = arguments.mouse.iter().map(|action| ("mouse", action));
    for (what, value) in keys.chain(actions) {
        let patient_until = Instant::now() + PATIENCE;
        loop {
            let request = json!({"command": Name::Type, what: value});
            let answer = talk(&arguments.socket, &request)?;
            match answer["typed"].as_u64() {
                None => return Ok(exit_code_of(&answer)),
                Some(0) => wait(patient_until)?,
                Some(_) => break,
            }
        }
    }
    Ok(exit_code::SUCCESS)
}

fn wait(until: Instant) -> Result<(), Failure> {
    if Instant::now() >= until {
        return Err(Failure::host("the guest does not read what is typed"));
    }
    std::thread::sleep(RETRY);
    Ok(())
}

/// Replaces the escapes in TEXT.
fn unescaped(text: &str) -> Result<String, String> {
    let mut plain = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            plain.push(character);
            continue;
        }
        plain.push(match characters.next() {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('e') => '\x1b',
            Some('b') => '\x08',
            Some('\\') => '\\',
            other => {
                let what = other.map_or("nothing".into(), |other| format!("'{other}'"));
                return Err(format!(
                    "after a backslash: {what}; expected n, t, e, b or a backslash"
                ));
            }
        });
    }
    Ok(plain)
}

fn check(text: &str) -> Result<(), String> {
    match text.chars().find(|character| stroke(*character).is_none()) {
        Some(other) => Err(format!("'{other}' is not on a US keyboard")),
        None => Ok(()),
    }
}

/// Types as many characters as there is room for, and returns their number.
///
/// # Errors
///
/// A character is not on the keyboard, and nothing was typed.
pub fn type_text(text: &str, handle: &VmHandle) -> Result<usize, String> {
    check(text)?;
    let mut typed = 0;
    for keys in text.chars().filter_map(presses) {
        if !handle.keys(&keys) {
            break;
        }
        typed += 1;
    }
    Ok(typed)
}

/// Presses the named keys together; returns false if there is no room now.
///
/// # Errors
///
/// No key has one of the names, and nothing was typed.
pub fn type_keys(keys: &str, handle: &VmHandle) -> Result<bool, String> {
    Ok(press(&chord(keys)?, handle))
}

/// Presses keys in order and releases them in the opposite order; presses none if there is no room
/// for all.
fn press(keys: &[Key], handle: &VmHandle) -> bool {
    let down = keys.iter().map(|key| (*key, true));
    let up = keys.iter().rev().map(|key| (*key, false));
    handle.keys(&down.chain(up).collect::<Vec<_>>())
}

/// The keys to press together.
fn chord(names: &str) -> Result<Vec<Key>, String> {
    // A "-" separates two names.
    let names = names.split('-');
    let keys: Result<Vec<Key>, String> = names
        .map(|name| {
            named(name).ok_or_else(|| format!("no key '{name}' (tollgate type --help lists them)"))
        })
        .collect();
    keys.and_then(|keys| match keys.len() {
        0..=8 => Ok(keys),
        count => Err(format!("{count} keys at once: at most 8")),
    })
}

/// The key with this name.
pub fn named(name: &str) -> Option<Key> {
    let name = name.to_ascii_lowercase();
    let mut characters = name.chars();
    if let (Some(character), None) = (characters.next(), characters.next()) {
        return stroke(character)
            .filter(|(_, shifted)| !shifted)
            .map(|(key, _)| key);
    }
    if let Some(number) = name.strip_prefix('f').and_then(|n| n.parse::<u8>().ok()) {
        return match number {
            1..=10 => Some(Key::new(0x3a + number)),
            11..=12 => Some(Key::new(0x57 + number - 11)),
            _ => None,
        };
    }
    let (extended, code) = match name.as_str() {
        "esc" | "escape" => (false, 0x01),
        "minus" => (false, 0x0c),
        "backspace" => (false, 0x0e),
        "tab" => (false, 0x0f),
        "enter" | "return" => (false, 0x1c),
        "ctrl" | "control" => (false, 0x1d),
        "shift" => (false, 0x2a),
        "rshift" => (false, 0x36),
        "kpmultiply" => (false, 0x37),
        "alt" => (false, 0x38),
        "space" => (false, 0x39),
        "capslock" => (false, 0x3a),
        "numlock" => (false, 0x45),
        "scrolllock" => (false, 0x46),
        "kp7" => (false, 0x47),
        "kp8" => (false, 0x48),
        "kp9" => (false, 0x49),
        "kpminus" => (false, 0x4a),
        "kp4" => (false, 0x4b),
        "kp5" => (false, 0x4c),
        "kp6" => (false, 0x4d),
        "kpplus" => (false, 0x4e),
        "kp1" => (false, 0x4f),
        "kp2" => (false, 0x50),
        "kp3" => (false, 0x51),
        "kp0" => (false, 0x52),
        "kpdot" => (false, 0x53),
        "kpenter" => (true, 0x1c),
        "rctrl" => (true, 0x1d),
        "kpdivide" => (true, 0x35),
        "print" => (true, 0x37),
        "altgr" | "ralt" => (true, 0x38),
        "pause" => (true, 0x45),
        "home" => (true, 0x47),
        "up" => (true, 0x48),
        "pageup" => (true, 0x49),
        "left" => (true, 0x4b),
        "right" => (true, 0x4d),
        "end" => (true, 0x4f),
        "down" => (true, 0x50),
        "pagedown" => (true, 0x51),
        "insert" => (true, 0x52),
        "delete" | "del" => (true, 0x53),
        "win" => (true, 0x5b),
        "menu" => (true, 0x5d),
        _ => return None,
    };
    Some(match extended {
        true => Key::extended(code),
        false => Key::new(code),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(handle: &VmHandle) -> Vec<(Key, bool)> {
        let commands = handle.commands();
        std::iter::from_fn(|| commands.take_key()).collect()
    }

    #[test]
    fn every_printable_character_has_a_key() {
        let text: String = (b' '..=b'~').map(char::from).collect();
        assert_eq!(check(&text), Ok(()));
        assert!(check("ä").is_err());
        assert_eq!(stroke('A'), Some((Key::A, true)));
        assert_eq!(stroke('/'), Some((Key::new(0x35), false)));
        assert_eq!(stroke('|'), Some((Key::new(0x2b), true)));
    }

    #[test]
    fn text_is_keys_that_go_down_and_up() {
        let handle = VmHandle::new();
        assert_eq!(type_text("aA", &handle), Ok(2));
        let (a, shift) = (Key::A, Key::LEFT_SHIFT);
        let expected = [
            (a, true),
            (a, false),
            (shift, true),
            (a, true),
            (a, false),
            (shift, false),
        ];
        assert_eq!(typed(&handle), expected);
        let long = "x".repeat(1000);
        let count = type_text(&long, &handle).unwrap();
        assert!((1..1000).contains(&count), "{count}");
        assert_eq!(typed(&handle).len(), 2 * count);
    }

    #[test]
    fn keys_are_pressed_together_by_their_names() {
        let handle = VmHandle::new();
        assert_eq!(type_keys("ctrl-alt-delete", &handle), Ok(true));
        let keys = [Key::LEFT_CONTROL, Key::LEFT_ALT, Key::DELETE];
        let down = keys.map(|key| (key, true));
        let up = [keys[2], keys[1], keys[0]].map(|key| (key, false));
        assert_eq!(typed(&handle), [down, up].concat());
        assert_eq!(named("f12"), Some(Key::new(0x58)));
        for bad in ["", "ctrl-", "f13", "hyper", "1-2-3-4-5-6-7-8-9"] {
            assert!(type_keys(bad, &handle).is_err(), "{bad}");
        }
    }

    #[test]
    fn escapes_are_few_and_others_are_refused() {
        assert_eq!(unescaped(r"a\n\t\\\e"), Ok("a\n\t\\\x1b".into()));
        assert!(unescaped(r"a\q").is_err() && unescaped("\\").is_err());
    }
}
