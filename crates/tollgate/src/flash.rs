//! `--pflash`: parses the image of a flash chip, in QEMU's words.

use tollgate_machine::comma_list;
use tollgate_machine::config::{DriveOptions, Format};

/// The form of a chip, for messages.
const FORM: &str = "FILE[,readonly=on|off][,snapshot=on|off][,format=raw|qcow2]";

/// Parses a chip: an image and how it is used. A doubled comma is one that belongs to the name.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse(text: &str) -> Result<DriveOptions, String> {
    let mut parts = comma_list::split(text).into_iter();
    let path = parts.next().unwrap_or_default();
    let path = path.strip_prefix("file=").unwrap_or(&path);
    // Empty parts of the list are skipped, even the first one.
    let begins_with_comma = text.starts_with(',') && !text.starts_with(",,");
    if path.is_empty() || begins_with_comma {
        return Err(format!("it names no file; expected {FORM}"));
    }
    let mut chip = DriveOptions::new(path);
    for part in parts {
        match part.split_once('=').unwrap_or((&part, "on")) {
            ("readonly", "on") => chip.readonly = true,
            ("readonly", "off") => chip.readonly = false,
            ("snapshot", "on") => chip.snapshot = true,
            ("snapshot", "off") => chip.snapshot = false,
            ("readonly" | "snapshot", _) => return Err(format!("{part}: expected on or off")),
            ("format", "raw") => chip.format = Some(Format::Raw),
            ("format", "qcow2") => chip.format = Some(Format::Qcow2),
            ("format", _) => return Err(format!("{part}: expected raw or qcow2")),
            _ => return Err(format!("unknown word '{part}'; expected {FORM}")),
        }
    }
    Ok(chip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chip_is_a_file_and_how_it_is_used() {
        let chip = DriveOptions::new("a,b.fd");
        assert_eq!(parse("a,,b.fd"), Ok(chip.clone()));
        let read = DriveOptions {
            readonly: true,
            format: Some(Format::Raw),
            ..chip
        };
        assert_eq!(parse("file=a,,b.fd,readonly,format=raw"), Ok(read.clone()));
        assert_eq!(parse("a,,b.fd,format=raw,readonly=on"), Ok(read));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (argument, why) in [
            ("", "names no file"),
            (",readonly", "names no file"),
            ("a,readonly=yes", "expected on or off"),
            ("a,format=vmdk", "expected raw or qcow2"),
            ("a,unit=0", "unknown word 'unit=0'"),
        ] {
            let refusal = parse(argument).unwrap_err();
            assert!(refusal.contains(why), "{argument}: {refusal}");
        }
    }
}
