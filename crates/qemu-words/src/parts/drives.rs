//! Drives: `-drive`, `-blockdev`, `-hda` and their like, and where each is found by the guest.

use crate::build::Builder;
use crate::configuration::{Cache, Drive, DriveFormat, Interface};
use crate::key_values::KeyValues;
use crate::numbers;
use crate::refusal::Refusal;

/// A drive and who uses it.
#[derive(Clone, Debug)]
pub struct DriveEntry {
    /// What is known about it.
    pub drive: Drive,
    /// Whether a device has to name it, and none has yet.
    pub is_waiting: bool,
}

/// Keys of `-drive` that make no difference.
const INDIFFERENT: &[&str] = &[
    "aio",
    "werror",
    "rerror",
    "detect-zeroes",
    "copy-on-read",
    "cyls",
    "heads",
    "secs",
    "trans",
    "addr",
    "locking",
    "file.locking",
    "file.aio",
    "l2-cache-size",
    "cache-size",
    "refcount-cache-size",
    "cache-clean-interval",
    "lazy-refcounts",
    "auto-read-only",
    "file.auto-read-only",
    "auto-detach",
];

/// The options of an image that `-drive` and `-blockdev` have in common.
fn image_of(list: &mut KeyValues, drive: &mut Drive) -> Result<(), Refusal> {
    for key in ["file", "filename", "file.filename", "file.file.filename"] {
        if let Some(file) = list.take(key).filter(|file| !file.is_empty()) {
            drive.file = Some(path(&file)?.into());
        }
    }
    for key in ["readonly", "read-only"] {
        if let Some(is_on) = list.switch(key).or_else(|why| auto(list, key, why))? {
            drive.readonly = is_on;
        }
    }
    match list.take("discard").as_deref() {
        None => {}
        Some("unmap" | "on") => drive.discard = true,
        Some("ignore" | "off") => drive.discard = false,
        Some(_) => return Err("discard is unmap or ignore".into()),
    }
    for (key, cache) in [
        ("cache.direct", Cache::None),
        ("cache.no-flush", Cache::Unsafe),
    ] {
        if list.switch(key)? == Some(true) {
            drive.cache = cache;
        }
    }
    list.ignore(&["cache.writeback"]);
    list.ignore(INDIFFERENT);
    Ok(())
}

/// `readonly=auto` is a third value of a switch.
fn auto(list: &KeyValues, key: &str, why: Refusal) -> Result<Option<bool>, Refusal> {
    match list.peek(key) {
        Some("auto") => Ok(None),
        _ => Err(why),
    }
}

/// The path of an image. Protocols are refused, so that none is taken for a file's name.
fn path(text: &str) -> Result<&str, Refusal> {
    if let Some(path) = text.strip_prefix("file:") {
        return Ok(path);
    }
    let protocol = text.split(':').next().unwrap_or_default();
    const OTHERS: [&str; 14] = [
        "nbd", "http", "https", "ftp", "ftps", "ssh", "iscsi", "rbd", "gluster", "nfs", "fat",
        "json", "blkdebug", "nvme",
    ];
    match OTHERS.contains(&protocol) && text.len() > protocol.len() {
        true => Err(format!("'{protocol}:' images are not there; give a file").into()),
        false => Ok(text),
    }
}

fn format(name: &str) -> Result<DriveFormat, Refusal> {
    match name {
        "raw" | "host_device" | "file" => Ok(DriveFormat::Raw),
        "qcow2" => Ok(DriveFormat::Qcow2),
        _ => Err(format!("format {name} is not there; expected raw or qcow2").into()),
    }
}

impl Builder {
    fn empty_drive(&self, interface: Interface) -> Drive {
        Drive {
            snapshot: self.snapshot,
            ..Drive::empty(interface)
        }
    }

    /// `-hda` and its like.
    pub fn image(&mut self, name: &str, file: &str) -> Result<(), Refusal> {
        let (interface, place) = match name {
            "fda" => (Interface::Floppy, 0),
            "fdb" => (Interface::Floppy, 1),
            "pflash" => (Interface::Flash, self.flash_chips()),
            "hda" => (Interface::IdeDisk, 0),
            "hdb" => (Interface::IdeDisk, 1),
            "hdc" => (Interface::IdeDisk, 2),
            "hdd" => (Interface::IdeDisk, 3),
            _ => (Interface::IdeCdRom, 2),
        };
        let mut drive = self.empty_drive(interface);
        drive.place = Some(place);
        drive.file = match file {
            "" => None,
            file => Some(path(file)?.into()),
        };
        self.add_drive(drive, false);
        Ok(())
    }

    /// The number of chips of flash memory so far.
    fn flash_chips(&self) -> usize {
        let drives = self.drives.iter().map(|entry| entry.drive.interface);
        drives.filter(|it| *it == Interface::Flash).count()
    }

    /// The property of machines that makes a node a chip of flash memory.
    fn flash_node(&mut self, place: usize, node: &str) -> Result<(), Refusal> {
        let mut entries = self.drives.iter_mut();
        let entry = entries.find(|entry| entry.drive.id == node && entry.is_waiting);
        let entry = entry.ok_or_else(|| {
            Refusal(format!(
                "Property 'machine.pflash{place}' can't find value '{node}'"
            ))
        })?;
        entry.is_waiting = false;
        entry.drive.interface = Interface::Flash;
        entry.drive.place = Some(place);
        Ok(())
    }

    /// `-drive`.
    pub fn drive(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        let mut drive = self.empty_drive(Interface::IdeDisk);
        let is_cd = match list.take("media").as_deref() {
            None | Some("disk") => false,
            Some("cdrom") => true,
            Some(media) => return Err(format!("'{media}' invalid media").into()),
        };
        let interface = list.take("if");
        let mut is_waiting = false;
        drive.interface = match interface.as_deref() {
            None | Some("ide") if is_cd => Interface::IdeCdRom,
            None | Some("ide") => Interface::IdeDisk,
            Some("virtio") => Interface::Virtio,
            Some("floppy") => Interface::Floppy,
            Some("none") => {
                is_waiting = true;
                match is_cd {
                    true => Interface::IdeCdRom,
                    false => Interface::Virtio,
                }
            }
            Some("pflash") => Interface::Flash,
            Some("scsi") if is_cd => Interface::ScsiCdRom,
            Some("scsi") => Interface::ScsiDisk,
            Some(other) => return Err(format!("unsupported bus type '{other}'").into()),
        };
        // microvm has no IDE: its default is virtio.
        if interface.is_none() && self.config.machine == crate::MachineKind::Microvm {
            drive.interface = Interface::Virtio;
        }
        drive.id = list.take("id").unwrap_or_default();
        let (bus, unit) = (list.number("bus")?, list.number("unit")?);
        let index = list.number("index")?;
        drive.place = match (bus, unit, index) {
            (None, None, index) => index,
            (bus, unit, None) => Some(2 * bus.unwrap_or(0) + unit.unwrap_or(0)),
            _ => return Err("index cannot be used with bus and unit".into()),
        }
        .map(|place| usize::try_from(place).unwrap_or(usize::MAX));
        for key in ["format", "driver"] {
            if let Some(name) = list.take(key) {
                drive.format = Some(format(&name)?);
            }
        }
        list.ignore_where(|key, value| {
            key == "file.driver" && matches!(value, "file" | "host_device")
        });
        if let Some(name) = list.take("cache") {
            drive.cache = match name.as_str() {
                "writeback" | "writethrough" => Cache::Writeback,
                "none" | "directsync" => Cache::None,
                "unsafe" => Cache::Unsafe,
                _ => return Err("invalid cache option".into()),
            };
        }
        if let Some(serial) = list.take("serial") {
            drive.serial = serial;
        }
        if let Some(is_on) = list.switch("snapshot")? {
            drive.snapshot |= is_on;
        }
        image_of(&mut list, &mut drive)?;
        drive.readonly |= drive.interface.is_cd_rom();
        if drive.interface.is_scsi() {
            // Here the bus is another controller, which there is not, and the unit a target.
            drive.place = drive
                .place
                .filter(|_| bus.is_none())
                .or(unit.map(|it| it as usize));
        }
        if drive.interface == Interface::Flash && drive.place.is_none() {
            drive.place = Some(self.flash_chips());
        }
        refuse_limits(&mut list)?;
        list.end()?;
        if drive.file.is_none() && drive.interface == Interface::Virtio && !is_waiting {
            return Err("Device needs media, but drive is empty".into());
        }
        if drive.interface != Interface::Virtio || is_waiting {
            self.add_drive(drive, is_waiting);
            return Ok(());
        }
        // The guest finds virtio disks in the order of options, whichever kind of option it is.
        let id = self.add_drive(drive, true);
        let mut device = KeyValues::default();
        device.push("driver", "virtio-blk-pci");
        device.push("drive", &id);
        self.devices.push((format!("-drive {id}"), device));
        Ok(())
    }

    /// `-blockdev`: a node. A format's node may name the node of its file.
    pub fn blockdev(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        let mut drive = self.empty_drive(Interface::Virtio);
        drive.is_node = true;
        let driver = list.required("driver")?;
        drive.id = list.required("node-name")?;
        if !matches!(driver.as_str(), "file" | "host_device") {
            drive.format = Some(format(&driver)?);
        }
        let file = list.peek("file").map(str::to_owned);
        let node = file.and_then(|file| {
            let mut entries = self.drives.iter();
            entries.position(|entry| entry.drive.id == file)
        });
        if let Some(node) = node {
            list.ignore(&["file"]);
            let below = self.drives.remove(node).drive;
            drive.file = below.file;
            drive.readonly = below.readonly;
            drive.cache = below.cache;
            drive.discard = below.discard;
        } else if let Some(name) = list.peek("file").filter(|_| driver != "file") {
            return Err(format!("Cannot find device='' nor node-name='{name}'").into());
        }
        list.ignore_where(|key, value| {
            key == "file.driver" && matches!(value, "file" | "host_device")
        });
        list.ignore(&[
            "force-share",
            "pr-manager",
            "drop-cache",
            "x-check-cache-dropped",
        ]);
        image_of(&mut list, &mut drive)?;
        list.end()?;
        if drive.file.is_none() {
            return Err("Parameter 'filename' is missing".into());
        }
        self.add_drive(drive, true);
        Ok(())
    }

    /// Adds a drive and returns its name.
    fn add_drive(&mut self, mut drive: Drive, is_waiting: bool) -> String {
        if drive.id.is_empty() {
            let name = match drive.interface {
                Interface::Virtio => "virtio",
                Interface::IdeDisk => "ide0-hd",
                Interface::IdeCdRom => "ide1-cd",
                Interface::ScsiDisk => "scsi0-hd",
                Interface::ScsiCdRom => "scsi0-cd",
                Interface::Floppy => "floppy",
                Interface::Flash => "pflash",
            };
            let of_kind = self
                .drives
                .iter()
                .filter(|it| it.drive.interface == drive.interface);
            let number = drive.place.unwrap_or_else(|| of_kind.count());
            drive.id = format!("{name}{number}");
        }
        let id = drive.id.clone();
        self.drives.push(DriveEntry { drive, is_waiting });
        id
    }

    /// The drive that a device names.
    pub fn drive_for_device(&mut self, list: &mut KeyValues) -> Result<Option<Drive>, Refusal> {
        let Some(name) = list.take("drive") else {
            return Ok(None);
        };
        let mut entries = self.drives.iter();
        let index = entries.position(|entry| entry.drive.id == name);
        let index =
            index.ok_or_else(|| Refusal(format!("Property 'drive' can't find value '{name}'")))?;
        if !self.drives[index].is_waiting {
            return Err(format!("Drive '{name}' is already in use by another device").into());
        }
        Ok(Some(self.drives.remove(index).drive))
    }

    /// Moves the drives to the configuration, in the order in which the guest finds them.
    pub fn place_drives(&mut self) -> Result<(), Refusal> {
        for (place, node) in std::mem::take(&mut self.flash_nodes) {
            self.flash_node(place, &node)?;
        }
        for entry in std::mem::take(&mut self.drives) {
            let mut drive = entry.drive;
            // -snapshot also applies to options that precede it.
            drive.snapshot |= self.snapshot;
            if drive.readonly {
                drive.snapshot = false;
            }
            if entry.is_waiting {
                let line = format!("drive {} is not used by a device", drive.id);
                self.warn(line);
                self.config.spare.drives.push(drive);
                continue;
            }
            self.config.drives.push(drive);
        }
        for drive in &mut self.config.drives {
            drive.snapshot |= self.snapshot && !drive.readonly;
        }
        let virtio = |drive: &&Drive| drive.interface == Interface::Virtio && drive.file.is_none();
        match self.config.drives.iter().find(virtio) {
            Some(drive) => Err(format!("drive {}: the disk has no image", drive.id).into()),
            None => Ok(()),
        }
    }
}

/// Refuses limits of rates that limit something.
fn refuse_limits(list: &mut KeyValues) -> Result<(), Refusal> {
    let is_limit = |key: &str| {
        ["throttling.", "bps", "iops"]
            .iter()
            .any(|it| key.starts_with(it))
            || key == "group"
    };
    list.ignore_where(|key, value| is_limit(key) && numbers::number(key, value) == Ok(0));
    match list.rest().find(|(key, _)| is_limit(key)) {
        Some((key, _)) => Err(format!("{key}: rates are not limited here").into()),
        None => Ok(()),
    }
}
