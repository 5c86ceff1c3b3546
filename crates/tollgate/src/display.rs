//! `--display`: the places where the guest's screen can be shown, and the parser of the flag.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::vnc::options::VncOptions;

/// The place where the guest's screen is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Display {
    /// The screen is shown nowhere.
    None,
    /// This terminal shows the screen.
    Text,
    /// Pictures of the screen go to a folder.
    Png(PathBuf),
    /// VNC viewers show the screen.
    Vnc(VncOptions),
}

/// Parses `none`, `text`, `png:DIR` and `vnc=WHERE`.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse(text: OsString) -> Result<Display, String> {
    if let Some(vnc) = text.as_bytes().strip_prefix(b"vnc=") {
        return VncOptions::parse(OsStr::from_bytes(vnc)).map(Display::Vnc);
    }
    match text.as_bytes() {
        b"none" => Ok(Display::None),
        b"text" => Ok(Display::Text),
        bytes => match bytes.strip_prefix(b"png:") {
            None | Some([]) => Err("expected none, text, png:DIR or vnc=WHERE".into()),
            Some(folder) => Ok(Display::Png(OsString::from_vec(folder.to_vec()).into())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_shown_nowhere_in_the_terminal_or_as_pictures() {
        assert_eq!(parse("none".into()), Ok(Display::None));
        assert_eq!(parse("text".into()), Ok(Display::Text));
        assert_eq!(parse("png:a".into()), Ok(Display::Png("a".into())));
        for bad in ["", "png:", "gtk", "vnc="] {
            assert!(parse(bad.into()).is_err(), "{bad}");
        }
    }
}
