//! `-device`: one match over the devices that there are.

use crate::build::Builder;
use crate::configuration::{AdapterModel, DebugConsole, Drive, ExitPort, Interface, Network, Port};
use crate::key_values::KeyValues;
use crate::numbers;
use crate::properties::{self, OF_ANY_DEVICE};
use crate::refusal::Refusal;

/// The reason for network adapters that are not there.
const ADAPTERS: &str = "the network adapters are virtio-net-pci and e1000";

/// Reasons for devices that are not there, by the beginnings of their names.
const MISSING: &[(&str, &str)] = &[
    ("scsi-block", "devices of the host are not passed on"),
    ("scsi-generic", "devices of the host are not passed on"),
    ("lsi", "the SCSI controller is virtio-scsi-pci"),
    ("megasas", "the SCSI controller is virtio-scsi-pci"),
    ("mptsas", "the SCSI controller is virtio-scsi-pci"),
    ("pvscsi", "the SCSI controller is virtio-scsi-pci"),
    ("am53c974", "the SCSI controller is virtio-scsi-pci"),
    ("dc390", "the SCSI controller is virtio-scsi-pci"),
    ("vhost-user", "devices in other processes are not there"),
    (
        "vhost-vsock",
        "sockets between guest and host need a path: 'tollgate run --vsock'",
    ),
    ("virtio-gpu", "there is no virtio display adapter"),
    ("virtio-vga", "there is no virtio display adapter"),
    ("usb-", "there is no USB"),
    ("e1000", ADAPTERS),
    ("i8255", ADAPTERS),
    ("igb", ADAPTERS),
    ("rtl8139", ADAPTERS),
    ("ne2k", ADAPTERS),
    ("pcnet", ADAPTERS),
    ("tulip", ADAPTERS),
    ("vmxnet3", ADAPTERS),
    ("ib700", "the watchdog is i6300esb"),
    ("vfio-", "devices of the host are not passed on"),
    ("nvme", "disks are virtio-blk-pci or IDE"),
    ("tpm", "there is no TPM"),
];

impl Builder {
    /// Notes a device until all other options are known.
    pub fn device(&mut self, value: &str, list: KeyValues) -> Result<(), Refusal> {
        let driver = list.peek("driver").ok_or("Parameter 'driver' is missing")?;
        if properties::find_device(driver).is_none() {
            let reason = MISSING.iter().find(|(name, _)| driver.starts_with(name));
            return Err(match reason {
                Some((_, reason)) => format!("{driver}: {reason}").into(),
                None => {
                    format!("'{driver}' is not a device that Tollgate has; see -device help").into()
                }
            });
        }
        self.devices.push((format!("-device {value}"), list));
        Ok(())
    }

    /// Adds a device to the configuration.
    pub fn add_device(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        let driver = list.required("driver")?;
        let known = properties::find_device(&driver).ok_or("no such device")?;
        for (global, property, value) in &self.globals {
            if known.names.contains(&&**global) {
                list.set_default(property, value);
            }
        }
        list.ignore(OF_ANY_DEVICE);
        list.ignore(known.indifferent);
        list.ignore_where(|key, _| key.starts_with("x-") || key.starts_with("bus."));
        match known.names[0] {
            "virtio-blk-pci" => {
                let drive = self.drive_for_device(&mut list)?;
                let drive = drive.ok_or("drive property not set")?;
                self.add_disk(drive, Interface::Virtio, &mut list)?;
            }
            "ide-hd" | "ide-cd" => {
                let interface = match known.names[0] {
                    "ide-hd" => Interface::IdeDisk,
                    _ => Interface::IdeCdRom,
                };
                list.ignore(&["model", "ver", "wwn", "rotation_rate"]);
                let place = ide_place(&list, list.number_of("unit")?);
                let drive = self.drive_for_device(&mut list)?;
                let mut drive = match (drive, interface) {
                    (Some(drive), _) => drive,
                    (None, Interface::IdeCdRom) => Drive::empty(interface),
                    (None, _) => return Err("No drive specified".into()),
                };
                drive.place = place;
                list.ignore(&["unit"]);
                self.add_disk(drive, interface, &mut list)?;
            }
            "scsi-hd" | "scsi-cd" => {
                let interface = match known.names[0] {
                    "scsi-hd" => Interface::ScsiDisk,
                    _ => Interface::ScsiCdRom,
                };
                let (place, unit) = self.scsi_place(&mut list)?;
                let drive = self.drive_for_device(&mut list)?;
                let mut drive = match (drive, interface) {
                    (Some(drive), _) => drive,
                    (None, Interface::ScsiCdRom) => Drive::empty(interface),
                    (None, _) => return Err("drive property not set".into()),
                };
                drive.place = place;
                drive.unit = unit;
                self.add_disk(drive, interface, &mut list)?;
            }
            "floppy" => {
                let unit = list.number("unit")?;
                let drive = self.drive_for_device(&mut list)?;
                let mut drive = drive.unwrap_or_else(|| Drive::empty(Interface::Floppy));
                drive.place = unit.map(|unit| usize::try_from(unit).unwrap_or(usize::MAX));
                self.add_disk(drive, Interface::Floppy, &mut list)?;
            }
            "virtio-net-pci" | "e1000" => {
                let model = match known.names[0] {
                    "e1000" => AdapterModel::E1000,
                    _ => AdapterModel::Virtio,
                };
                let mac = list
                    .take("mac")
                    .map(|text| super::networks::mac(&text))
                    .transpose()?;
                match list.take("netdev") {
                    None => self.warn(format!("{driver} has no network and is left out")),
                    Some(id) => {
                        let kind = self.take_netdev(&id).ok_or_else(|| {
                            Refusal(format!("Property 'netdev' can't find value '{id}'"))
                        })?;
                        let netdev = Some(id);
                        (self.config.networks).push(Network {
                            kind,
                            mac,
                            model,
                            netdev,
                        });
                    }
                }
            }
            "virtconsole" | "virtserialport" => {
                let is_console = known.names[0] == "virtconsole";
                let number = self.config.ports.len();
                let name = list.take("name");
                let character = list.take("chardev");
                if name.is_none() && !is_console {
                    self.warn("a port without a name is found by its number only");
                }
                self.config.ports.push(Port {
                    name: name.unwrap_or_else(|| format!("port{number}")),
                    is_console,
                    character,
                });
            }
            "isa-serial" => {
                let id = list.required("chardev")?;
                self.serial.push(format!("chardev:{id}"));
            }
            "virtio-rng-pci" => {
                let rng = list.peek("rng").map(str::to_owned);
                if let Some(id) = rng.filter(|id| !self.objects.contains(id)) {
                    return Err(format!("Property 'rng' can't find value '{id}'").into());
                }
                self.config.rng = true;
            }
            "virtio-balloon-pci" => self.config.balloon = true,
            "virtio-scsi-pci" => self.config.scsi_controller = true,
            "i6300esb" => self.config.watchdog = true,
            "virtio-9p-pci" => self.share_device(&mut list)?,
            "isa-debug-exit" => {
                let port = |key: &str, value: Option<u64>, default: u16| {
                    let value = value.unwrap_or(default.into());
                    u16::try_from(value).map_err(|_| Refusal(format!("{key} is a 16-bit number")))
                };
                let count = port("iosize", list.number("iosize")?, 2)?;
                let port = port("iobase", list.number("iobase")?, 0x501)?;
                if count == 0 || port.checked_add(count - 1).is_none() {
                    return Err("iobase and iosize name no ports".into());
                }
                self.config.exit_port = Some(ExitPort { port, count });
            }
            "isa-debugcon" => {
                let port = list.number("iobase")?.unwrap_or(0xe9);
                let port = u16::try_from(port).map_err(|_| "iobase is a 16-bit number")?;
                let character = list.required("chardev")?;
                self.add_debug_console(port, character)?;
            }
            "pvpanic" => self.config.panic_device = true,
            "vmgenid" => match list.take("guid").as_deref() {
                None | Some("auto") => {}
                Some(_) => return Err("guid: the generation ID is chosen by chance".into()),
            },
            // Bridges, controllers and clocks need nothing.
            _ => {}
        }
        match list.rest().next() {
            Some((key, _)) => Err(format!("Property '{driver}.{key}' not found").into()),
            None => Ok(()),
        }
    }

    /// Adds the debug console, of which there is one.
    pub fn add_debug_console(&mut self, port: u16, character: String) -> Result<(), Refusal> {
        if self.config.debug_console.is_some() {
            return Err("there is one debug console".into());
        }
        self.config.debug_console = Some(DebugConsole { port, character });
        Ok(())
    }

    /// The target and the unit of a SCSI drive, which `scsi-id=` and `lun=` name. All controllers are
    /// one: a drive whose place a drive of another controller has gets a free place.
    fn scsi_place(&mut self, list: &mut KeyValues) -> Result<(Option<usize>, u16), Refusal> {
        if list.number("channel")?.unwrap_or(0) != 0 {
            return Err("channel: a controller has one channel, 0".into());
        }
        let unit = list.number("lun")?.unwrap_or(0);
        let unit = u16::try_from(unit).map_err(|_| "lun: at most 16383")?;
        let Some(target) = list.number("scsi-id")? else {
            return Ok((None, unit));
        };
        let target = u8::try_from(target).map_err(|_| "scsi-id: at most 255")?;
        let bus = list.peek("bus").unwrap_or_default().to_owned();
        let mut others = self.scsi_places.iter();
        let is_taken = others.any(|(other, target_of_other, unit_of_other)| {
            *other != bus && (*target_of_other, *unit_of_other) == (target, unit)
        });
        self.scsi_places.push((bus, target, unit));
        Ok(((!is_taken).then_some(target.into()), unit))
    }

    fn add_disk(
        &mut self,
        mut drive: Drive,
        interface: Interface,
        list: &mut KeyValues,
    ) -> Result<(), Refusal> {
        drive.interface = interface;
        drive.readonly |= interface.is_cd_rom();
        if let Some(serial) = list.take("serial") {
            drive.serial = serial;
        }
        drive.boot_index = list.number("bootindex")?;
        drive.device = list.peek("id").map(str::to_owned);
        for key in ["logical_block_size", "block_size"] {
            if let Some(size) = list.take(key)
                && numbers::size(key, &size, 1)? != 512
            {
                return Err(format!("{key}: blocks have 512 bytes").into());
            }
        }
        if drive.id.is_empty() {
            drive.id = format!("drive{}", self.config.drives.len());
        }
        self.config.drives.push(drive);
        Ok(())
    }
}

/// The place that `bus=ide.0,unit=1` names.
fn ide_place(list: &KeyValues, unit: Option<u64>) -> Option<usize> {
    let bus = list
        .peek("bus")?
        .rsplit_once('.')?
        .1
        .parse::<usize>()
        .ok()?;
    let is_ide = list.peek("bus")?.starts_with("ide.");
    let unit = unit
        .and_then(|unit| usize::try_from(unit).ok())
        .unwrap_or(0);
    // With AHCI, as on q35, each bus has one place.
    is_ide.then_some(match (bus, unit) {
        (0..=1, _) => 2 * bus + unit,
        (bus, _) => bus,
    })
}
