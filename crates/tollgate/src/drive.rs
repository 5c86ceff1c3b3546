//! `--drive`: parses the description of a disk, in QEMU's words.

use tollgate_machine::comma_list;
use tollgate_machine::config::{Backing, Cache, DiskGeometry, DriveOptions, Format};

/// The form of a drive, for messages.
const FORM: &str = "file=PATH[,format=raw|qcow2][,readonly=on|off][,snapshot=on|off]\
    [,cache=writeback|none|unsafe][,discard=unmap|ignore][,backing=any|same-dir|none]\
    [,serial=TEXT][,if=virtio|ide|scsi][,media=disk|cdrom][,cyls=N,heads=N,secs=N]";

/// A disk and the controller that it is attached to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriveArgument {
    /// The options of the disk.
    pub options: DriveOptions,
    /// What the disk is attached to.
    pub interface: Interface,
    /// Whether the disk is a CD-ROM.
    pub is_cd_rom: bool,
    /// The geometry, if it was given.
    pub geometry: Option<DiskGeometry>,
}

/// What a disk is attached to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interface {
    /// A virtio device of its own.
    Virtio,
    /// The IDE function.
    Ide,
    /// The virtio SCSI controller.
    Scsi,
}

/// The parts of a geometry that were given.
#[derive(Default)]
struct GeometryParts {
    cylinders: Option<u16>,
    heads: Option<u8>,
    sectors: Option<u8>,
}

impl GeometryParts {
    /// Stores a part; returns false if the key names no part.
    ///
    /// # Errors
    ///
    /// The value is out of range.
    fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        let most = match key {
            "cyls" => DiskGeometry::MOST_CYLINDERS,
            "heads" => DiskGeometry::MOST_HEADS.into(),
            "secs" => DiskGeometry::MOST_SECTORS.into(),
            _ => return Ok(false),
        };
        let number = value
            .parse()
            .ok()
            .filter(|number| (1..=most).contains(number));
        let Some(number) = number else {
            return Err(format!("{key}={value}: expected a number from 1 to {most}"));
        };
        match key {
            "cyls" => self.cylinders = Some(number),
            "heads" => self.heads = Some(number as u8),
            _ => self.sectors = Some(number as u8),
        }
        Ok(true)
    }

    /// The geometry, if any part of it was given.
    ///
    /// # Errors
    ///
    /// A part is missing.
    fn whole(&self) -> Result<Option<DiskGeometry>, String> {
        match (self.cylinders, self.heads, self.sectors) {
            (Some(cylinders), Some(heads), Some(sectors)) => Ok(Some(DiskGeometry {
                cylinders,
                heads,
                sectors,
            })),
            (None, None, None) => Ok(None),
            _ => Err("cyls, heads and secs belong together: give all three or none".into()),
        }
    }
}

/// Parses a drive: keys and values between commas. A doubled comma is one that belongs to a value.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse(text: &str) -> Result<DriveArgument, String> {
    let mut drive = DriveArgument {
        options: DriveOptions::new(""),
        interface: Interface::Virtio,
        is_cd_rom: false,
        geometry: None,
    };
    let mut parts = GeometryParts::default();
    let mut seen = Vec::new();
    for part in comma_list::split(text) {
        let Some((key, value)) = part.split_once('=') else {
            return Err(format!("'{part}' has no value; expected {FORM}"));
        };
        if seen.iter().any(|known| known == key) {
            return Err(format!("'{key}' is given twice"));
        }
        seen.push(key.to_owned());
        if !parts.set(key, value)? {
            set(&mut drive, key, value)?;
        }
    }
    drive.geometry = parts.whole()?;
    if drive.geometry.is_some() && (drive.interface != Interface::Ide || drive.is_cd_rom) {
        return Err("cyls, heads and secs are for a disk with if=ide".into());
    }
    if drive.is_cd_rom && drive.interface == Interface::Virtio {
        return Err(
            "media=cdrom: a CD-ROM drive is an IDE or SCSI drive: if=ide or if=scsi is missing"
                .into(),
        );
    }
    if drive.options.path.as_os_str().is_empty() {
        return Err(format!("it names no file; expected {FORM}"));
    }
    Ok(drive)
}

fn set(argument: &mut DriveArgument, key: &str, value: &str) -> Result<(), String> {
    let drive = &mut argument.options;
    let other = |expected: &str| Err(format!("{key}={value}: expected {expected}"));
    match (key, value) {
        ("file", path) => drive.path = path.into(),
        ("format", "raw") => drive.format = Some(Format::Raw),
        ("format", "qcow2") => drive.format = Some(Format::Qcow2),
        ("format", _) => return other("raw or qcow2"),
        ("readonly" | "snapshot", "on" | "off") => {
            let flag = if key == "readonly" {
                &mut drive.readonly
            } else {
                &mut drive.snapshot
            };
            *flag = value == "on";
        }
        ("readonly" | "snapshot", _) => return other("on or off"),
        ("cache", "writeback") => drive.cache = Cache::Writeback,
        ("cache", "none") => drive.cache = Cache::None,
        ("cache", "unsafe") => drive.cache = Cache::Unsafe,
        ("cache", _) => return other("writeback, none or unsafe"),
        ("discard", "unmap" | "on") => drive.discard = true,
        ("discard", "ignore" | "off") => drive.discard = false,
        ("discard", _) => return other("unmap or ignore"),
        ("backing", word) => match Backing::parse(word) {
            Some(backing) => drive.backing = backing,
            None => return other(Backing::NAMES),
        },
        ("serial", text) => {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
            if text.len() > DriveOptions::MAX_SERIAL_BYTES || !is_plain {
                return other("at most 20 ASCII characters without blanks");
            }
            text.clone_into(&mut drive.serial);
        }
        ("if", "virtio") => argument.interface = Interface::Virtio,
        ("if", "ide") => argument.interface = Interface::Ide,
        ("if", "scsi") => argument.interface = Interface::Scsi,
        ("media", "disk") => argument.is_cd_rom = false,
        ("media", "cdrom") => argument.is_cd_rom = true,
        ("media", _) => return other("disk or cdrom"),
        ("if", _) => return other("virtio, ide or scsi"),
        _ => return Err(format!("unknown key '{key}'; expected {FORM}")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_written_as_for_qemu() {
        let virtio = |options| {
            Ok(DriveArgument {
                options,
                interface: Interface::Virtio,
                is_cd_rom: false,
                geometry: None,
            })
        };
        assert_eq!(parse("file=a,,b.img"), virtio(DriveOptions::new("a,b.img")));
        let all = "if=virtio,file=d,format=qcow2,readonly=on,snapshot=on,cache=none,discard=unmap,serial=S1,backing=same-dir";
        let expected = DriveOptions {
            format: Some(Format::Qcow2),
            readonly: true,
            snapshot: true,
            cache: Cache::None,
            discard: true,
            serial: "S1".into(),
            backing: Backing::SameDir,
            ..DriveOptions::new("d")
        };
        assert_eq!(parse(all), virtio(expected));
        assert_eq!(parse("file=d,if=ide").unwrap().interface, Interface::Ide);
        let cd_rom = parse("file=d.iso,media=cdrom,if=ide").unwrap();
        assert!(cd_rom.interface == Interface::Ide && cd_rom.is_cd_rom);
        let cd_rom = parse("file=d.iso,media=cdrom,if=scsi").unwrap();
        assert!(cd_rom.interface == Interface::Scsi && cd_rom.is_cd_rom);
        let geometry = parse("file=d,if=ide,cyls=615,heads=4,secs=17")
            .unwrap()
            .geometry;
        let expected = DiskGeometry {
            cylinders: 615,
            heads: 4,
            sectors: 17,
        };
        assert_eq!(geometry, Some(expected));
        let off = "file=d,readonly=off,snapshot=off,cache=writeback,discard=ignore";
        assert_eq!(parse(off), virtio(DriveOptions::new("d")));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (argument, why) in [
            ("", "names no file"),
            ("disk.img", "'disk.img' has no value"),
            ("file=", "names no file"),
            ("file=a,file=b", "'file' is given twice"),
            ("file=a,format=vmdk", "expected raw or qcow2"),
            ("file=a,readonly=yes", "expected on or off"),
            ("file=a,cache=writethrough", "expected writeback"),
            ("file=a,discard=no", "expected unmap"),
            ("file=a,serial=123456789012345678901", "20 ASCII"),
            ("file=a,serial=a b", "20 ASCII"),
            ("file=a,backing=off", "expected any, same-dir or none"),
            ("file=a,if=nvme", "expected virtio, ide or scsi"),
            ("file=a,if=ide,media=dvd", "expected disk or cdrom"),
            ("file=a,media=cdrom", "if=ide or if=scsi is missing"),
            ("file=a,if=scsi,heads=4,cyls=1,secs=1", "with if=ide"),
            ("file=a,if=ide,heads=17,cyls=1,secs=1", "from 1 to 16"),
            ("file=a,if=ide,heads=0,cyls=1,secs=1", "from 1 to 16"),
            ("file=a,if=ide,cyls=99999,heads=1,secs=1", "from 1 to 16383"),
            ("file=a,if=ide,secs=x", "from 1 to 63"),
            ("file=a,if=ide,heads=4,secs=17", "all three or none"),
            ("file=a,cyls=615,heads=4,secs=17", "with if=ide"),
            ("file=a,bus=1", "unknown key 'bus'"),
        ] {
            let refusal = parse(argument).unwrap_err();
            assert!(refusal.contains(why), "{argument}: {refusal}");
        }
    }
}
