//! Makes the machine's configuration of QEMU's words.

use std::path::{Path, PathBuf};

use tollgate_host_facts::file_words::reading;
use tollgate_machine::boot::firmware;
use tollgate_machine::config::{
    AdapterModel, Cache, DebugPlaces, DriveOptions, Format, FunctionKind, HostForward, HotPlug,
    IdeDrive, MacAddress, MemoryBackingChoice, NetworkBoot, NetworkKind, NetworkOptions,
    OptionalDevice, Paravirtual, PluggedFunction, PortRange, RtcBase, ScsiAddress, ScsiDrive,
    ScsiKind, SecurityModel, ShareOptions, ShareProtocol, Transport, TripleFaultAction,
    UserOptions, VmConfig,
};
use tollgate_machine::devices::fw_cfg::FwCfgFile;
use tollgate_machine::vm_handle::RemovableDrive;
use tollgate_qemu_words::{
    self as words, Configuration, Drive, DriveFormat, FirmwareText, Interface, MachineKind,
    Plugged, PluggedKind,
};

use super::exit_code::failed;
use super::smbios::smbios;
use super::{boot_order, processor};
use crate::failure::{Failure, say};
use crate::{files, flags};

/// The maximum size of a file for the guest in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// The machine that the words describe. Its ports of virtio consoles are added later.
///
/// # Errors
/// One line that says what is wrong.
pub fn configuration(config: &Configuration) -> Result<VmConfig, Failure> {
    let chosen = processor::chosen(config);
    for warning in config.warnings.iter().chain(&chosen.warnings) {
        say(&format!("warning: {warning}"));
    }
    let ide = ide_places(config)?;
    let mut machine = VmConfig {
        memory_bytes: config.memory_bytes,
        memory_backing: match config.locked_memory {
            true => MemoryBackingChoice::Resident,
            false => MemoryBackingChoice::Anonymous,
        },
        kernel: config.kernel.clone().unwrap_or_default(),
        firmware: firmware(config)?,
        flash: flash(config)?,
        initrd: config.initrd.clone(),
        append: config.append.clone(),
        cpu: chosen.cpu,
        paravirtual: match chosen.kvm {
            true => Paravirtual::Kvm,
            false => Paravirtual::None,
        },
        triple_fault: TripleFaultAction::Reset,
        acpi: config.acpi,
        hpet: config.hpet,
        boot_order: boot_order::kinds(config),
        ide_drives: ide.clone().map(|place| place.map(|(drive, _)| drive)),
        drives: of_kind(config, Interface::Virtio).map(options).collect(),
        scsi_controller: config.scsi_controller,
        scsi_drives: scsi_drives(config)?,
        floppies: floppies(config)?,
        networks: config
            .networks
            .iter()
            .map(network)
            .collect::<Result<_, _>>()?,
        shares: config.shares.iter().map(share).collect(),
        rtc_base: match config.rtc {
            words::RtcBase::Utc => RtcBase::Universal,
            words::RtcBase::Local => RtcBase::Local,
        },
        second_serial: matches!(config.serial.get(1), Some(Some(_))),
        parallel: config.parallel.is_some(),
        smbios: Some(smbios(config)?),
        debug_ports: debug_ports(config),
        ..VmConfig::default()
    };
    flags::set_knobs(&mut machine);
    if machine.firmware.is_none() {
        // These machines have no PCI bus; firmware needs one.
        machine.pci = !matches!(config.machine, MachineKind::Microvm | MachineKind::Isapc);
    }
    for (is_there, device) in [
        (config.rng, OptionalDevice::VirtioRng),
        (config.balloon, OptionalDevice::VirtioBalloon),
        (config.watchdog, OptionalDevice::Watchdog),
    ] {
        if is_there {
            machine.devices.push(device);
        }
    }
    for file in &config.firmware_files {
        let content = match &file.content {
            FirmwareText::Text(text) => text.clone().into_bytes(),
            FirmwareText::File(path) => files::read(path, "-fw_cfg", MOST_BYTES)?,
        };
        machine.fw_cfg_files.push(FwCfgFile {
            name: file.name.clone(),
            content,
        });
    }
    if machine.firmware.is_some() {
        machine.fw_cfg_files.extend(firmware::find_video());
        let names = ide.map(|place| place.map(|(_, id)| id));
        machine
            .fw_cfg_files
            .extend(boot_order::file(config, &names, &machine.scsi_drives));
    }
    // ACPI reports to the guest what comes and goes.
    machine.hot_plug = (machine.pci && machine.acpi).then(HotPlug::default);
    if config.kernel.is_some() {
        check_readable(&machine.kernel, "-kernel")?;
    }
    Ok(machine)
}

fn of_kind(config: &Configuration, interface: Interface) -> impl Iterator<Item = &Drive> {
    let drives = config.drives.iter();
    drives.filter(move |drive| drive.interface == interface)
}

/// Where a drive is, for changes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DrivePlace {
    /// A virtio disk with this number.
    Virtio(usize),
    /// A unit of the SCSI controller.
    Scsi(ScsiAddress),
    /// A floppy drive, or a CD-ROM drive at the IDE function.
    Removable(RemovableDrive),
}

impl DrivePlace {
    /// The address at the SCSI controller.
    pub const fn scsi(&self) -> Option<ScsiAddress> {
        match self {
            Self::Scsi(address) => Some(*address),
            Self::Virtio(_) | Self::Removable(_) => None,
        }
    }
}

/// Where the drives that can be changed are, in the order of all drives.
pub fn drive_places(config: &Configuration) -> Vec<Option<DrivePlace>> {
    let (mut disks, mut scsi) = (0.., scsi_drives(config).unwrap_or_default().into_iter());
    let places = ide_places(config).unwrap_or_default();
    let discs = places.iter().flatten();
    let discs = discs.filter(|(drive, _)| matches!(drive, IdeDrive::CdRom(_)));
    let discs: Vec<&String> = discs.map(|(_, id)| id).collect();
    let mut floppies = 0..;
    let drives = config.drives.iter().map(|drive| match drive.interface {
        Interface::IdeCdRom => {
            let number = discs.iter().position(|id| **id == drive.id)?;
            let drive = RemovableDrive::CdRom(number as u8);
            Some(DrivePlace::Removable(drive))
        }
        Interface::Floppy => {
            let next = floppies.next();
            let number = drive.place.or(next)?;
            let drive = RemovableDrive::Floppy(u8::try_from(number).ok()?);
            Some(DrivePlace::Removable(drive))
        }
        Interface::Virtio => disks.next().map(DrivePlace::Virtio),
        Interface::ScsiDisk | Interface::ScsiCdRom => {
            scsi.next().map(|drive| DrivePlace::Scsi(drive.address))
        }
        Interface::IdeDisk | Interface::Flash => None,
    });
    drives.collect()
}

/// A SCSI drive that is plugged in next to those at the `taken` addresses. Its target becomes a named
/// one.
///
/// # Errors
/// Its address is taken, or a disk has no image.
pub fn scsi_drive(drive: &mut Drive, taken: &[ScsiAddress]) -> Result<ScsiDrive, String> {
    let lun = drive.unit;
    let is_free = |target: &u8| {
        !taken.contains(&ScsiAddress {
            target: *target,
            lun,
        })
    };
    let target = match drive.place {
        Some(place) => u8::try_from(place).ok().filter(is_free),
        // Units of one target belong together, so another drive gets a target of its own.
        None => (0..=u8::MAX).find(|target| taken.iter().all(|it| it.target != *target)),
    };
    let target = target.ok_or("its SCSI address is not free")?;
    drive.place = Some(target.into());
    let kind = match (&drive.file, drive.interface.is_cd_rom()) {
        (Some(_), false) => ScsiKind::Disk(options(drive)),
        (None, false) => return Err(format!("drive {}: it has no image", drive.id)),
        (file, true) => ScsiKind::CdRom(file.as_ref().map(|_| options(drive))),
    };
    Ok(ScsiDrive {
        address: ScsiAddress { target, lun },
        kind,
    })
}

/// The slots of the PCI bus into which devices can be plugged.
pub fn slots(machine: &VmConfig) -> Vec<u8> {
    let slots = machine.hot_plug_slots();
    let is_one = |slot: &u8| slots >> slot & 1 != 0;
    (0..u32::BITS as u8).filter(is_one).collect()
}

/// A device that is plugged into the PCI bus.
///
/// # Errors
/// The address of an adapter is wrong.
pub fn function(device: &Plugged) -> Result<PluggedFunction, String> {
    let kind = match &device.kind {
        PluggedKind::Disk(drive) => FunctionKind::Disk(options(drive)),
        PluggedKind::Network(adapter) => {
            FunctionKind::Network(network(adapter).map_err(|failure| failure.message)?)
        }
        PluggedKind::Random => FunctionKind::Random,
    };
    Ok(PluggedFunction {
        slot: device.slot,
        kind,
    })
}

/// Another medium for a drive. Its format is found out.
pub fn medium(drive: &Drive, file: &str) -> DriveOptions {
    DriveOptions {
        path: file.into(),
        format: None,
        ..options(drive)
    }
}

/// The options of a drive with an image.
fn options(drive: &Drive) -> DriveOptions {
    DriveOptions {
        format: drive.format.map(|format| match format {
            DriveFormat::Raw => Format::Raw,
            DriveFormat::Qcow2 => Format::Qcow2,
        }),
        readonly: drive.readonly,
        snapshot: drive.snapshot,
        cache: match drive.cache {
            words::Cache::Writeback => Cache::Writeback,
            words::Cache::None => Cache::None,
            words::Cache::Unsafe => Cache::Unsafe,
        },
        discard: drive.discard,
        serial: drive.serial.clone(),
        ..DriveOptions::new(drive.file.clone().unwrap_or_default())
    }
}

/// A drive at the IDE function, and its name.
type NamedDrive = Option<(IdeDrive, String)>;

/// The drives at the IDE function, each with its name.
fn ide_places(config: &Configuration) -> Result<[NamedDrive; 4], Failure> {
    let mut places: [NamedDrive; 4] = Default::default();
    let is_ide =
        |drive: &&Drive| matches!(drive.interface, Interface::IdeDisk | Interface::IdeCdRom);
    // Drives with a place come first, so that the others fill what is left.
    let (placed, others): (Vec<_>, Vec<_>) = config
        .drives
        .iter()
        .filter(is_ide)
        .partition(|drive| drive.place.is_some());
    for drive in placed.into_iter().chain(others) {
        let is_disk = drive.interface == Interface::IdeDisk;
        let ide = match (&drive.file, is_disk) {
            (Some(_), true) => IdeDrive::Disk(options(drive), None),
            (None, true) => return Err(failed(format!("drive {}: it has no image", drive.id))),
            (Some(_), false) => IdeDrive::CdRom(Some(options(drive))),
            (None, false) => IdeDrive::CdRom(None),
        };
        let number = match drive.place {
            Some(number) => Some(number),
            // A disc has a channel of its own as long as there is room.
            None if !is_disk && places[2].is_none() => Some(2),
            None => places.iter().position(Option::is_none),
        };
        let place = number.and_then(|number| places.get_mut(number));
        let place = place.ok_or_else(|| failed("there is room for four IDE drives"))?;
        if place.replace((ide, drive.id.clone())).is_some() {
            let id = &drive.id;
            return Err(failed(format!("drive {id}: another drive is at its place")));
        }
    }
    Ok(places)
}

/// The drives at the SCSI controller. A drive without a target gets the next free one.
fn scsi_drives(config: &Configuration) -> Result<Vec<ScsiDrive>, Failure> {
    let mut placed: Vec<ScsiDrive> = Vec::new();
    for drive in config
        .drives
        .iter()
        .filter(|drive| drive.interface.is_scsi())
    {
        let id = &drive.id;
        let kind = match (&drive.file, drive.interface.is_cd_rom()) {
            (Some(_), false) => ScsiKind::Disk(options(drive)),
            (None, false) => return Err(failed(format!("drive {id}: it has no image"))),
            (file, true) => ScsiKind::CdRom(file.as_ref().map(|_| options(drive))),
        };
        let is_named = |target: u8| {
            let mut others = config.drives.iter().filter(|it| it.interface.is_scsi());
            others.any(|other| other.place == Some(target.into()))
        };
        let is_placed = |address: &ScsiAddress| placed.iter().any(|it| it.address == *address);
        let lun = drive.unit;
        let mut addresses = (0..=u8::MAX).map(|target| ScsiAddress { target, lun });
        let address = match drive.place {
            Some(place) => addresses.find(|it| usize::from(it.target) == place && !is_placed(it)),
            None => addresses.find(|it| !is_named(it.target) && !is_placed(it)),
        };
        let address =
            address.ok_or_else(|| failed(format!("drive {id}: another drive is at its target")))?;
        placed.push(ScsiDrive { address, kind });
    }
    Ok(placed)
}

/// The ports for debugging: those that were asked for. Firmware looks for a console at its own port.
fn debug_ports(config: &Configuration) -> DebugPlaces {
    let console = config.debug_console.as_ref();
    DebugPlaces {
        consoles: console.map(|console| console.port).into_iter().collect(),
        exit: config.exit_port.map(|ports| PortRange {
            first: ports.port,
            last: ports.port.saturating_add(ports.count - 1),
        }),
    }
}

fn floppies(config: &Configuration) -> Result<Vec<Option<DriveOptions>>, Failure> {
    let mut floppies: Vec<Option<DriveOptions>> = Vec::new();
    let mut is_used = [false; 2];
    for drive in of_kind(config, Interface::Floppy) {
        let free = is_used.iter().position(|is_used| !is_used);
        let number = drive.place.or(free).filter(|number| *number < 2);
        let number = number.ok_or_else(|| failed("there is room for two floppy drives"))?;
        is_used[number] = true;
        floppies.resize(floppies.len().max(number + 1), None);
        floppies[number] = drive.file.as_ref().map(|_| options(drive));
    }
    Ok(floppies)
}

fn network(network: &words::Network) -> Result<NetworkOptions, Failure> {
    let kind = match &network.kind {
        words::NetworkKind::User {
            forwards,
            restrict,
            boot,
        } => {
            let forwards = forwards.iter().map(|forward| HostForward {
                transport: match forward.is_udp {
                    true => Transport::Udp,
                    false => Transport::Tcp,
                },
                host: (forward.host.unwrap_or([0; 4].into()), forward.host_port).into(),
                guest_address: forward.guest,
                guest_port: forward.guest_port,
            });
            NetworkKind::User(UserOptions {
                forwards: forwards.collect(),
                restrict: *restrict,
                boot: NetworkBoot {
                    tftp: boot.tftp.clone(),
                    file: boot.file.clone(),
                    server_name: boot.server_name.clone(),
                },
                ..UserOptions::default()
            })
        }
        words::NetworkKind::Socket(path) => NetworkKind::Socket(path.clone()),
        words::NetworkKind::Tap(name) => NetworkKind::Tap(name.clone()),
        words::NetworkKind::Descriptor(number) => NetworkKind::Descriptor(*number),
    };
    let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    let mac = network.mac.map(|mac| text(mac).parse::<MacAddress>());
    let mac = mac
        .transpose()
        .map_err(|why| failed(format!("mac: {why}")))?;
    let model = match network.model {
        words::AdapterModel::E1000 => AdapterModel::E1000,
        words::AdapterModel::OfBoard | words::AdapterModel::Virtio => AdapterModel::Virtio,
    };
    Ok(NetworkOptions {
        mac,
        model,
        ..NetworkOptions::new(kind)
    })
}

fn share(share: &words::Share) -> ShareOptions {
    let security = match share.security {
        words::Security::Mapped => SecurityModel::Mapped,
        words::Security::None => SecurityModel::None,
        words::Security::Passthrough => SecurityModel::Passthrough,
    };
    ShareOptions {
        readonly: share.readonly,
        protocol: ShareProtocol::NineP,
        security,
        keeps_owners: security != SecurityModel::Mapped,
        ..ShareOptions::new(&share.path, &share.tag)
    }
}

/// The chips of flash memory, in the order of their units.
fn flash(config: &Configuration) -> Result<Vec<DriveOptions>, Failure> {
    let mut chips: Vec<&Drive> = of_kind(config, Interface::Flash).collect();
    chips.sort_by_key(|chip| chip.place);
    let is_in_order = (chips.iter().enumerate()).all(|(unit, chip)| chip.place == Some(unit));
    if !is_in_order || chips.iter().any(|chip| chip.file.is_none()) {
        return Err(failed(
            "flash memory is one image for unit 0, or two for the units 0 and 1",
        ));
    }
    Ok(chips.into_iter().map(options).collect())
}

/// The firmware of a machine that starts from one. A machine with a kernel starts from that, unless
/// UEFI firmware is named, which then loads the kernel.
fn firmware(config: &Configuration) -> Result<Option<PathBuf>, Failure> {
    if let Some(code) = flash(config)?.into_iter().next() {
        return Ok(Some(code.path));
    }
    let rom = rom(config)?;
    Ok(rom.filter(|rom| config.kernel.is_none() || firmware::is_uefi(rom)))
}

fn rom(config: &Configuration) -> Result<Option<PathBuf>, Failure> {
    if config.kernel.is_some() && config.firmware.is_none() {
        return Ok(None);
    }
    let Some(name) = &config.firmware else {
        return firmware::find().map(Some).map_err(failed);
    };
    // A name alone is looked for where firmware is installed.
    let folders = config.firmware_folders.iter().map(PathBuf::as_path);
    let customary = [
        "",
        "/usr/share/seabios",
        "/usr/share/qemu",
        "/usr/share/ovmf",
    ]
    .map(Path::new);
    let mut places = folders.chain(customary).map(|folder| folder.join(name));
    let found = places.find(|place| place.is_file());
    match found {
        Some(place) if place.ends_with("bios-microvm.bin") => {
            firmware::find().map(Some).map_err(failed)
        }
        Some(place) => Ok(Some(place)),
        None => Err(failed(format!(
            "could not load PC BIOS '{}'",
            name.display()
        ))),
    }
}

fn check_readable(path: &Path, option: &str) -> Result<(), Failure> {
    let opened = std::fs::File::open(path);
    opened.map(|_| ()).map_err(|error| {
        let why = reading(&error);
        failed(format!("{option}: cannot read '{}': {why}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use tollgate_qemu_words::Request;

    use super::*;
    use crate::qemu::HostFiles;

    fn words(line: &str) -> Configuration {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        match tollgate_qemu_words::request("q", &words, &HostFiles).unwrap() {
            Request::Run(configuration) => *configuration,
            Request::Answer(text) => panic!("{text}"),
        }
    }

    fn places_of(config: &Configuration) -> Vec<Option<IdeDrive>> {
        let places = ide_places(config).unwrap();
        let drives = places
            .into_iter()
            .map(|place| place.map(|(drive, _)| drive));
        drives.collect()
    }

    #[test]
    fn a_disc_has_a_channel_of_its_own_and_named_places_count() {
        let places = places_of(&words("-hda a -cdrom c -drive file=b,format=raw"));
        assert!(matches!(&places[0], Some(IdeDrive::Disk(it, _)) if it.path == Path::new("a")));
        assert!(matches!(&places[1], Some(IdeDrive::Disk(it, _)) if it.path == Path::new("b")));
        assert!(matches!(&places[2], Some(IdeDrive::CdRom(Some(_)))));
        let twice = words("-hda a -drive file=b,index=0");
        assert!(
            ide_places(&twice)
                .unwrap_err()
                .message
                .contains("at its place")
        );
    }
}
