//! The only list of the devices of a machine.

use super::acpi_pm::AcpiPm;
use super::chipset::host_bridge::HostBridge440fx;
use super::chipset::isa_bridge::IsaBridge;
use super::debug_ports::DebugPorts;
use super::dma::ports::DmaPorts;
use super::floppy::format::DriveKind;
use super::floppy::{self, Drive, Floppy};
use super::fpu_error::FpuErrorPorts;
use super::fw_cfg::FwCfg;
use super::hpet::Hpet;
use super::i8042::I8042;
use super::ide::pci::{IdeFunction, unit_name};
use super::ide::{CdDrive, Disk as IdeDisk, Unit};
use super::interrupt_windows::{IoApicPage, PicPorts};
use super::kvm_clock::KvmClock;
use super::pc_testdev::PcTestdev;
use super::pci::Place;
use super::pci::function::PciFunction;
use super::pci::host::PciHost;
use super::pvpanic::PvPanic;
use super::reset_ports::ResetPorts;
use super::rtc::Rtc;
use super::serial::Serial;
use super::system_timer::SystemTimer;
use super::vga::Vga;
use super::vga::pci::VgaFunction;
use super::virtio::balloon::Balloon;
use super::virtio::block::Block;
use super::virtio::console::Console;
use super::virtio::console::ports::PortError;
use super::virtio::device::VirtioDevice;
use super::virtio::entropy::Entropy;
use super::virtio::mmio_transport::VirtioMmio;
use super::virtio::net::Net;
use super::virtio::pci_transport::VirtioPci;
use super::virtio::share::Share;
use super::virtio::vsock::Vsock;
use crate::bus::Device;
use crate::config::{IdeDrive, OptionalDevice, Paravirtual, VmConfig};
use std::fmt;
use std::io::Write;
use tollgate_disk::DiskError;
use tollgate_network::{Backend, MacAddress, NetworkError};
use tollgate_share::{Server, ShareError};

/// A resource of the host that a device needs cannot be used. Prints as one line.
#[derive(Debug)]
pub enum BackEndError {
    /// A disk image cannot be used.
    Disk(DiskError),
    /// A network cannot be used.
    Network(NetworkError),
    /// A shared directory cannot be used.
    Share(ShareError),
    /// The other end of a port cannot be used.
    Port(PortError),
}

impl fmt::Display for BackEndError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(error) => error.fmt(formatter),
            Self::Network(error) => error.fmt(formatter),
            Self::Share(error) => error.fmt(formatter),
            Self::Port(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for BackEndError {}

/// The units of the IDE function, by their places.
pub type IdeUnits = [Option<Unit>; IdeFunction::PLACES];

/// The opened resources of devices on the host.
#[derive(Default)]
pub struct BackEnds {
    /// The virtio devices.
    pub virtio: Vec<Box<dyn VirtioDevice>>,
    /// The units of the IDE function.
    pub ide: IdeUnits,
    /// The drives of the floppy disk controller.
    pub floppies: Vec<Drive>,
}

impl BackEnds {
    /// Opens those of a machine with this configuration.
    ///
    /// # Errors
    /// A disk image, a network or a directory cannot be used.
    pub fn open(config: &VmConfig) -> Result<Self, BackEndError> {
        Ok(Self {
            virtio: virtio_devices(config)?,
            ide: ide_units(config).map_err(BackEndError::Disk)?,
            floppies: floppies(config).map_err(BackEndError::Disk)?,
        })
    }
}

/// Opens the units of the IDE function.
fn ide_units(config: &VmConfig) -> Result<IdeUnits, DiskError> {
    let mut units = IdeUnits::default();
    for (place, drive) in config.ide_drives.iter().enumerate() {
        units[place] = match drive {
            None => None,
            Some(IdeDrive::Disk(options, geometry)) => {
                let name = unit_name(place, Some(options));
                Some(Unit::Disk(IdeDisk::open(name, options, *geometry)?))
            }
            Some(IdeDrive::CdRom(disc)) => {
                let disc = disc.as_ref();
                Some(Unit::CdDrive(CdDrive::open(unit_name(place, disc), disc)?))
            }
        };
    }
    Ok(units)
}

/// Makes the drives of the floppy disk controller, with their disks.
fn floppies(config: &VmConfig) -> Result<Vec<Drive>, DiskError> {
    let drives = config.floppies.iter().enumerate();
    let drives = drives
        .map(|(index, image)| Drive::new(floppy::disk_name(index, image.as_ref()), image.as_ref()));
    drives.collect()
}

/// Makes the devices of a machine that has just been switched on, in their order on the bus: if two
/// claim the same address, the first gets it. Devices that are accessed often or drive the clock
/// tick come first.
///
/// The virtio devices get device numbers of the PCI bus in their order, or addresses of their own
/// if there is no bus.
pub fn devices(config: &VmConfig, back_ends: BackEnds) -> Vec<Box<dyn Device>> {
    let BackEnds {
        virtio,
        ide,
        floppies,
    } = back_ends;
    let kinds: Vec<DriveKind> = floppies.iter().map(Drive::kind).collect();
    let disks = ide.each_ref().map(|unit| unit.as_ref()?.geometry());
    let mut devices: Vec<Box<dyn Device>> = vec![
        Box::new(PicPorts),
        Box::new(IoApicPage),
        Box::new(SystemTimer::default()),
        Box::new(Rtc::of_machine(config, &kinds, &disks)),
        Box::new(I8042::new()),
        Box::new(Serial::new()),
        Box::new(AcpiPm::new()),
    ];
    // The PCI bus precedes the reset register, which otherwise would get accesses of four bytes
    // that no other device claims.
    let mut beside_pci: Vec<Box<dyn Device>> = Vec::new();
    if config.pci {
        let functions = virtio
            .into_iter()
            .map(|device| Box::new(VirtioPci::new(device)) as Box<dyn PciFunction>);
        let functions = functions.collect();
        devices.push(Box::new(match config.firmware {
            Some(_) => PciHost::with_chipset(chipset(ide), functions),
            None => PciHost::new(functions),
        }));
    } else {
        for (index, device) in (0..).zip(virtio) {
            beside_pci.push(Box::new(VirtioMmio::new(device, index)));
        }
    }
    devices.extend([
        Box::new(ResetPorts::default()) as Box<dyn Device>,
        Box::new(DebugPorts::default()),
        Box::new(DmaPorts {
            is_prepared: config.firmware.is_none(),
        }),
        Box::new(PvPanic),
        Box::new(FpuErrorPorts),
        Box::new(FwCfg::of_machine(config)),
    ]);
    if config.hpet {
        devices.push(Box::new(Hpet::default()));
    }
    if config.firmware.is_some() {
        devices.push(Box::new(Vga::default()));
    }
    if !floppies.is_empty() {
        devices.push(Box::new(Floppy::new(floppies)));
    }
    devices.extend(beside_pci);
    if config.paravirtual == Paravirtual::Kvm {
        devices.push(Box::new(KvmClock::default()));
    }
    devices.extend(config.devices.iter().filter_map(|device| optional(*device)));
    devices
}

/// The IDE function belongs to the same PCI device as the ISA bridge.
const PIIX_IDE: Place = Place {
    device: 1,
    function: 1,
};

/// Makes the functions of the chip set of a machine that starts from firmware.
fn chipset(ide: IdeUnits) -> Vec<(Place, Box<dyn PciFunction>)> {
    vec![
        (Place::device(0), Box::new(HostBridge440fx::default())),
        (Place::device(1), Box::new(IsaBridge::default())),
        (PIIX_IDE, Box::new(IdeFunction::new(ide, false))),
        (Place::device(2), Box::new(VgaFunction::default())),
    ]
}

/// Makes the virtio devices of a machine, and opens their resources on the host.
///
/// # Errors
/// A disk image, a network or a directory cannot be used.
pub fn virtio_devices(config: &VmConfig) -> Result<Vec<Box<dyn VirtioDevice>>, BackEndError> {
    let drives = config.drives.iter().enumerate();
    let mut devices = drives
        .map(|(index, drive)| {
            let image = tollgate_disk::open(drive)?;
            let name = format!("virtio-blk{index} ({})", drive.path.display());
            let block = Block::new(name, image, &drive.serial).map_err(|error| DiskError {
                path: drive.path.clone(),
                why: format!("no thread for it: {error}"),
            })?;
            Ok(Box::new(block) as Box<dyn VirtioDevice>)
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(BackEndError::Disk)?;
    for (index, options) in (0..).zip(&config.networks) {
        let name = format!("virtio-net{index}");
        let mac = options.mac.unwrap_or(MacAddress::of_adapter(index));
        let label = name.clone();
        let report = move |line| {
            let _ = writeln!(std::io::stderr(), "tollgate: {label}: {line}");
        };
        let (adapter, backend) =
            Backend::start(options, mac, report).map_err(BackEndError::Network)?;
        devices.push(Box::new(Net::new(name, mac, adapter, backend)));
    }
    if config.devices.contains(&OptionalDevice::VirtioRng) {
        devices.push(Box::new(Entropy));
    }
    if config.devices.contains(&OptionalDevice::VirtioBalloon) {
        devices.push(Box::new(Balloon));
    }
    for options in &config.shares {
        let server = Server::open(options).map_err(BackEndError::Share)?;
        let share = Share::new(&options.tag, server).map_err(|error| {
            BackEndError::Share(ShareError {
                path: options.path.clone(),
                why: format!("no threads for it: {error}"),
            })
        })?;
        devices.push(Box::new(share));
    }
    if !config.ports.is_empty() {
        let console = Console::new(&config.ports).map_err(BackEndError::Port)?;
        devices.push(Box::new(console));
    }
    if let Some(options) = &config.vsock {
        let vsock = Vsock::open(options).map_err(BackEndError::Network)?;
        devices.push(Box::new(vsock));
    }
    Ok(devices)
}

/// Makes a device that a machine has only if its configuration names it. Virtio devices are made
/// with their resources on the host instead.
fn optional(device: OptionalDevice) -> Option<Box<dyn Device>> {
    match device {
        OptionalDevice::PcTestdev => Some(Box::new(PcTestdev::default())),
        OptionalDevice::VirtioRng | OptionalDevice::VirtioBalloon => None,
    }
}
