//! `--floppy`, `--cdrom` and `--boot`: the disks of the floppy drives, the disc of the CD-ROM
//! drive, and the order in which firmware tries them.

use tollgate_machine::comma_list;
use tollgate_machine::config::{Backing, BootDevice, DriveOptions};

/// The form of a floppy disk, for messages.
const FORM: &str = "FILE[,readonly=on|off][,snapshot=on|off][,backing=any|same-dir|none], or none";

/// The form of a CD-ROM, for messages.
const CD_ROM_FORM: &str = "FILE[,backing=any|same-dir|none], or none";

/// A drive with a disk, or an empty one.
pub type FloppyArgument = Option<Box<DriveOptions>>;

/// Parses a drive's disk: an image and how it is used, or `none` for an empty drive. A doubled
/// comma is one that belongs to the name.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse(text: &str) -> Result<FloppyArgument, String> {
    if text == "none" {
        return Ok(None);
    }
    medium(text, FORM).map(|medium| Some(Box::new(medium)))
}

/// Parses the disc of a CD-ROM drive: an image, or `none` for an empty drive.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse_cd_rom(text: &str) -> Result<FloppyArgument, String> {
    if text == "none" {
        return Ok(None);
    }
    let disc = medium(text, CD_ROM_FORM)?;
    if disc.snapshot {
        return Err("snapshot=on: nothing is written to a CD-ROM".into());
    }
    Ok(Some(Box::new(disc)))
}

/// Parses a medium that can be put into a drive.
///
/// # Errors
///
/// The reason; `form` is the expected form.
pub fn medium(text: &str, form: &str) -> Result<DriveOptions, String> {
    let mut parts = comma_list::split(text).into_iter();
    let path = parts.next().unwrap_or_default();
    let path = path.strip_prefix("file=").unwrap_or(&path);
    // Empty parts of the list are skipped, even the first one.
    let begins_with_comma = text.starts_with(',') && !text.starts_with(",,");
    if path.is_empty() || begins_with_comma {
        return Err(format!("it names no file; expected {form}"));
    }
    let mut medium = DriveOptions::new(path);
    for part in parts {
        match part.split_once('=') {
            Some(("readonly", "on")) => medium.readonly = true,
            Some(("readonly", "off")) => medium.readonly = false,
            Some(("snapshot", "on")) => medium.snapshot = true,
            Some(("snapshot", "off")) => medium.snapshot = false,
            Some(("readonly" | "snapshot", _)) => {
                return Err(format!("{part}: expected on or off"));
            }
            Some(("backing", word)) => {
                medium.backing = Backing::parse(word)
                    .ok_or_else(|| format!("{part}: expected {}", Backing::NAMES))?;
            }
            _ => return Err(format!("unknown word '{part}'; expected {form}")),
        }
    }
    Ok(medium)
}

/// The devices that firmware tries to boot, the first choice first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BootOrder(pub Vec<BootDevice>);

/// Parses an order of boot devices: letters, each at most once.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse_order(text: &str) -> Result<BootOrder, String> {
    let mut order = Vec::new();
    for letter in text.chars() {
        let found = BootDevice::ALL.into_iter();
        let mut found = found.filter(|device| device.letter() == letter.to_ascii_lowercase());
        match found.next() {
            Some(device) if !order.contains(&device) => order.push(device),
            Some(_) => return Err(format!("'{letter}' is given twice")),
            None => return Err(format!("'{letter}': expected a, c or d, or some of them")),
        }
    }
    if order.is_empty() {
        return Err("expected a, c or d, or some of them".into());
    }
    Ok(BootOrder(order))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floppy_is_a_file_and_how_it_is_used() {
        assert_eq!(parse("none"), Ok(None));
        let plain = Some(Box::new(DriveOptions::new("a,b.img")));
        assert_eq!(parse("a,,b.img"), Ok(plain.clone()));
        assert_eq!(parse("file=a,,b.img,readonly=off"), Ok(plain));
        let options = parse("dos.img,readonly=on,snapshot=on").unwrap().unwrap();
        assert!(options.readonly && options.snapshot);
        for (argument, why) in [
            ("", "names no file"),
            (",readonly=on", "names no file"),
            ("a,readonly=yes", "expected on or off"),
            ("a,if=ide", "unknown word 'if=ide'"),
        ] {
            let refusal = parse(argument).unwrap_err();
            assert!(refusal.contains(why), "{argument}: {refusal}");
        }
    }

    #[test]
    fn a_cd_rom_is_a_file() {
        assert_eq!(parse_cd_rom("none"), Ok(None));
        let disc = Some(Box::new(DriveOptions::new("a.iso")));
        assert_eq!(parse_cd_rom("a.iso"), Ok(disc));
        assert!(parse_cd_rom("a.iso,snapshot=on").is_err());
        assert!(parse_cd_rom("").is_err());
    }

    #[test]
    fn a_boot_order_names_each_device_once() {
        use BootDevice::{CdRom, Disk, Floppy};
        assert_eq!(parse_order("c"), Ok(BootOrder(vec![Disk])));
        assert_eq!(parse_order("DCA"), Ok(BootOrder(vec![CdRom, Disk, Floppy])));
        for bad in ["", "x", "cc", "a,c"] {
            assert!(parse_order(bad).is_err(), "{bad}");
        }
    }
}
