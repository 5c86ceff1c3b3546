//! `--serial` and `--debug-console`: the places that a console of the guest can write to, and the
//! parser of these flags.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The place that a console writes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SerialTarget {
    /// This process's standard input and output, often a terminal.
    Stdio,
    /// The output goes to a file.
    File(PathBuf),
    /// The console gets a new pseudo-terminal.
    Pty,
    /// The output is dropped.
    Null,
}

/// Parses `stdio`, `file:PATH`, `pty` and `null`.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse(text: OsString) -> Result<SerialTarget, String> {
    if text == "pty" {
        return Ok(SerialTarget::Pty);
    }
    output(text).ok_or_else(|| "expected stdio, file:PATH, pty or null".into())
}

/// Parses the targets of a console that has no input.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
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
