//! QEMU's names for keys.

use tollgate_machine::board::input::Key;

use crate::control::typing::named;

/// QEMU's names that differ from Tollgate's.
const NAMES: &[(&str, &str)] = &[
    ("ret", "enter"),
    ("spc", "space"),
    ("ctrl_r", "rctrl"),
    ("shift_r", "rshift"),
    ("alt_r", "altgr"),
    ("meta_l", "win"),
    ("pgup", "pageup"),
    ("pgdn", "pagedown"),
    ("caps_lock", "capslock"),
    ("num_lock", "numlock"),
    ("scroll_lock", "scrolllock"),
    ("sysrq", "print"),
    ("kp_multiply", "kpmultiply"),
    ("kp_subtract", "kpminus"),
    ("kp_add", "kpplus"),
    ("kp_decimal", "kpdot"),
    ("kp_divide", "kpdivide"),
    ("kp_enter", "kpenter"),
    ("equal", "="),
    ("comma", ","),
    ("dot", "."),
    ("slash", "/"),
    ("semicolon", ";"),
    ("apostrophe", "'"),
    ("grave_accent", "`"),
    ("bracket_left", "["),
    ("bracket_right", "]"),
    ("backslash", "\\"),
];

/// The key with this name.
///
/// # Errors
/// There is none.
pub fn find(name: &str) -> Result<Key, String> {
    let renamed = NAMES.iter().find(|(theirs, _)| *theirs == name);
    let digit = name.strip_prefix("kp_").filter(|digit| digit.len() == 1);
    let ours = match (renamed, digit) {
        (Some((_, ours)), _) => (*ours).to_owned(),
        (None, Some(digit)) => format!("kp{digit}"),
        (None, None) => name.to_owned(),
    };
    named(&ours).ok_or_else(|| format!("Parameter 'data' does not accept value '{name}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_a_key() {
        for (name, _) in NAMES {
            assert!(find(name).is_ok(), "{name}");
        }
        assert_eq!(find("kp_5"), Ok(Key::new(0x4c)));
        assert_eq!(find("a"), Ok(Key::A));
        assert_eq!(find("f12"), Ok(Key::new(0x58)));
        assert!(find("hyper").is_err() && find("kp_").is_err());
    }
}
