//! Where a console of the guest goes, and the words for it.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Where a console goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SerialTarget {
    /// The terminal, or whatever standard input and output are.
    Stdio,
    /// Output to a file.
    File(PathBuf),
    /// A new pseudo-terminal.
    Pty,
    /// Nowhere.
    Null,
}

/// Understands `stdio`, `file:PATH`, `pty` and `null`.
///
/// # Errors
/// What is wrong with it, for a line that names the flag and the value.
pub fn parse(text: OsString) -> Result<SerialTarget, String> {
    if text == "pty" {
        return Ok(SerialTarget::Pty);
    }
    output(text).ok_or_else(|| "expected stdio, file:PATH, pty or null".into())
}

/// Understands the targets of a console that has no input.
///
/// # Errors
/// What is wrong with it, for a line that names the flag and the value.
pub fn parse_output(text: OsString) -> Result<SerialTarget, String> {
    output(text).ok_or_else(|| "expected stdio, file:PATH or null".into())
}

fn output(text: OsString) -> Option<SerialTarget> {
    if text == "stdio" {
        return Some(SerialTarget::Stdio);
    }
    if text == "null" || text == "none" {
        return Some(SerialTarget::Null);
    }
    match text.as_bytes().strip_prefix(b"file:") {
        None | Some([]) => None,
        Some(path) => {
            let path = OsString::from_vec(path.to_vec());
            Some(SerialTarget::File(path.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consoles_are_stdio_a_file_a_pty_or_null() {
        let file = SerialTarget::File("a:b".into());
        assert_eq!(parse("file:a:b".into()), Ok(file));
        assert_eq!(parse("stdio".into()), Ok(SerialTarget::Stdio));
        assert_eq!(parse("pty".into()), Ok(SerialTarget::Pty));
        assert_eq!(parse("null".into()), Ok(SerialTarget::Null));
        assert_eq!(parse("none".into()), Ok(SerialTarget::Null));
        for bad in ["", "file:", "telnet:1", "ptyx"] {
            assert!(parse(bad.into()).is_err(), "{bad}");
        }
        assert!(parse_output("pty".into()).is_err());
    }
}
