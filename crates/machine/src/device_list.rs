//! The only list of the devices of a machine.

use crate::acpi::{Hardware, loader};
use crate::boot::e820::{self, MemoryRange};
use crate::boot::{BootError, firmware};
use crate::bus::Device;
use crate::config::{
    FunctionKind, IdeDrive, NetworkOptions, OptionalDevice, Paravirtual, PluggedFunction, VmConfig,
};
use crate::devices::acpi_pm::AcpiPm;
use crate::devices::board_windows::{DmaPorts, FpuErrorPorts, IoApicPage, PicPorts};
use crate::devices::boot_timer::BootTimer;
use crate::devices::chipset::host_bridge::HostBridge440fx;
use crate::devices::chipset::isa_bridge::IsaBridge;
use crate::devices::chipset::power_management::PowerManagement;
use crate::devices::debug_ports::DebugPorts;
use crate::devices::e1000::E1000;
use crate::devices::flash::{Flash, FlashImage};
use crate::devices::floppy::format::DriveKind;
use crate::devices::floppy::{self, Drive, Floppy};
use crate::devices::fw_cfg::kernel::FirmwareKernel;
use crate::devices::fw_cfg::{FwCfg, FwCfgFile, own_file};
use crate::devices::generation_id::GenerationId;
use crate::devices::hpet::Hpet;
use crate::devices::i8042::I8042;
use crate::devices::ide::pci::{IdeFunction, unit_name};
use crate::devices::ide::{CdDrive, Disk as IdeDisk, Geometry, Unit};
use crate::devices::kvm_clock::KvmClock;
use crate::devices::parallel::Parallel;
use crate::devices::pc_testdev::PcTestdev;
use crate::devices::pci::Place;
use crate::devices::pci::function::PciFunction;
use crate::devices::pci::host::PciHost;
use crate::devices::pvpanic::PvPanic;
use crate::devices::reset_ports::ResetPorts;
use crate::devices::rtc::Rtc;
use crate::devices::serial::Serial;
use crate::devices::system_timer::SystemTimer;
use crate::devices::vga::Vga;
use crate::devices::vga::pci::VgaFunction;
use crate::devices::virtio::balloon::Balloon;
use crate::devices::virtio::block::Block;
use crate::devices::virtio::console::Console;
use crate::devices::virtio::console::ports::PortError;
use crate::devices::virtio::device::VirtioDevice;
use crate::devices::virtio::entropy::Entropy;
use crate::devices::virtio::mmio_transport::VirtioMmio;
use crate::devices::virtio::net::Net;
use crate::devices::virtio::pci_transport::VirtioPci;
use crate::devices::virtio::scsi::{Scsi, Unit as ScsiUnit};
use crate::devices::virtio::share::Share;
use crate::devices::virtio::vsock::Vsock;
use crate::devices::watchdog::Watchdog;
use std::fmt;
use std::io::Write;
use tollgate_disk::DiskError;
use tollgate_memory::PhysicalLayout;
use tollgate_network::{Adapter, AdapterModel, Backend, MacAddress, NetworkError};
use tollgate_share::ShareError;

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
    /// Firmware cannot load the kernel.
    Kernel(BootError),
}

impl fmt::Display for BackEndError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(error) => error.fmt(formatter),
            Self::Network(error) => error.fmt(formatter),
            Self::Share(error) => error.fmt(formatter),
            Self::Port(error) => error.fmt(formatter),
            Self::Kernel(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for BackEndError {}

/// The units of the IDE function, by their places.
pub type IdeUnits = [Option<Unit>; IdeFunction::PLACES];

/// A virtio device that was plugged in, with its slot of the PCI bus.
pub type PluggedDevice = (u8, Box<dyn VirtioDevice>);

/// The opened resources of devices on the host.
#[derive(Default)]
pub struct BackEnds {
    /// The virtio devices.
    pub virtio: Vec<Box<dyn VirtioDevice>>,
    /// The virtio devices that were plugged in.
    pub plugged: Vec<PluggedDevice>,
    /// The network adapters that are not virtio devices.
    pub adapters: Vec<E1000>,
    /// The units of the IDE function.
    pub ide: IdeUnits,
    /// The drives of the floppy disk controller.
    pub floppies: Vec<Drive>,
    /// The flash memory, the chip with the reset vector first.
    pub flash: Vec<FlashImage>,
    /// The kernel that firmware loads.
    pub kernel: Option<FirmwareKernel>,
}

impl BackEnds {
    /// Opens those of a machine with this configuration.
    ///
    /// # Errors
    /// A disk image, a network or a directory cannot be used.
    pub fn open(config: &VmConfig) -> Result<Self, BackEndError> {
        Ok(Self {
            virtio: virtio_devices(config)?,
            plugged: plugged_devices(config)?,
            adapters: adapters(config)?,
            ide: ide_units(config).map_err(BackEndError::Disk)?,
            floppies: floppies(config).map_err(BackEndError::Disk)?,
            flash: FlashImage::open_all(&config.flash).map_err(BackEndError::Disk)?,
            kernel: firmware::kernel(config).map_err(BackEndError::Kernel)?,
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
        plugged,
        adapters,
        ide,
        floppies,
        flash,
        kernel,
    } = back_ends;
    let kinds: Vec<DriveKind> = floppies.iter().map(Drive::kind).collect();
    let disks = ide.each_ref().map(|unit| unit.as_ref()?.geometry());
    let mut devices: Vec<Box<dyn Device>> = vec![
        Box::new(PicPorts),
        Box::new(IoApicPage),
        Box::new(SystemTimer::default()),
        Box::new(rtc(config, &kinds, &disks)),
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
        let mut functions: Vec<_> = functions.collect();
        // What is not virtio comes last, so that virtio devices have the same numbers with it.
        functions.extend(
            adapters
                .into_iter()
                .map(|it| Box::new(it) as Box<dyn PciFunction>),
        );
        if config.has_watchdog() {
            functions.push(Box::new(Watchdog::default()));
        }
        let host = match config.firmware {
            Some(_) => PciHost::with_chipset(chipset(ide), functions),
            None => {
                if config.has_ide_drives() {
                    functions.push(Box::new(IdeFunction::new(ide)));
                }
                PciHost::new(functions)
            }
        };
        let mut host = host.with_hot_plug(config.hot_plug_slots());
        for (slot, device) in plugged {
            let inserted = host.insert(slot, Box::new(VirtioPci::new(device)));
            // The configuration was checked for this.
            debug_assert_eq!(inserted, Ok(()));
        }
        devices.push(Box::new(host));
    } else {
        for (index, device) in (0..).zip(virtio) {
            beside_pci.push(Box::new(VirtioMmio::new(device, index)));
        }
    }
    devices.extend([
        Box::new(ResetPorts::default()) as Box<dyn Device>,
        Box::new(DebugPorts::new(config.debug_ports.clone())),
        Box::new(DmaPorts {
            is_prepared: config.firmware.is_none(),
        }),
        Box::new(PvPanic),
        Box::new(FpuErrorPorts),
        Box::new(fw_cfg(config, kernel)),
    ]);
    if config.second_serial {
        devices.push(Box::new(Serial::second()));
    }
    if config.parallel {
        devices.push(Box::new(Parallel::default()));
    }
    if config.hpet {
        devices.push(Box::new(Hpet::default()));
    }
    if config.generation_id {
        devices.push(Box::new(GenerationId::default()));
    }
    if config.firmware.is_some() {
        devices.push(Box::new(Vga::default()));
    }
    if !floppies.is_empty() {
        devices.push(Box::new(Floppy::new(floppies)));
    }
    if !flash.is_empty() {
        devices.push(Box::new(Flash::new(flash)));
    }
    devices.extend(beside_pci);
    if config.paravirtual == Paravirtual::Kvm {
        devices.push(Box::new(KvmClock::new(config.realtime)));
    }
    devices.extend(config.devices.iter().filter_map(|device| optional(*device)));
    if let Some(timer) = &config.boot_timer {
        devices.push(Box::new(BootTimer::new(timer.clone())));
    }
    devices
}

/// Makes the clock with the present time, the sizes of the machine's memory, its floppy drives and
/// IDE disks, and the boot order for firmware.
fn rtc(config: &VmConfig, floppies: &[DriveKind], disks: &[Option<Geometry>]) -> Rtc {
    let mut rtc = Rtc::at_present(config.rtc_base);
    rtc.set_floppies(floppies);
    rtc.set_disks(disks);
    rtc.set_boot_order(&config.boot_order);
    let layout = PhysicalLayout::new(config.memory_bytes);
    rtc.set_memory_sizes(layout.low_bytes(), layout.high_bytes());
    rtc
}

/// Makes the device with the memory map and the files of the configuration. Firmware gets a memory
/// map of all RAM, and the ACPI tables.
fn fw_cfg(config: &VmConfig, kernel: Option<FirmwareKernel>) -> FwCfg {
    let layout = PhysicalLayout::new(config.memory_bytes);
    let mut files = config.fw_cfg_files.clone();
    let map = match config.firmware {
        Some(_) => firmware::memory_map(&layout),
        None => e820::memory_map(&layout),
    };
    if config.firmware.is_some() && config.acpi {
        files.extend(loader::files(&Hardware::of(config)));
    }
    if let (Some(_), Some(smbios)) = (&config.firmware, &config.smbios) {
        files.extend(smbios.files(config.memory_bytes));
    }
    files.push(FwCfgFile {
        name: own_file::MEMORY_MAP.into(),
        content: map.into_iter().flat_map(MemoryRange::to_bytes).collect(),
    });
    FwCfg::new(layout.low_bytes() + layout.high_bytes(), files, kernel)
}

/// The IDE function belongs to the same PCI device as the ISA bridge.
const PIIX_IDE: Place = Place {
    device: 1,
    function: 1,
};
/// So does power management.
const PIIX_POWER_MANAGEMENT: Place = Place {
    device: 1,
    function: 3,
};

/// Makes the functions of the chip set of a machine that starts from firmware.
fn chipset(ide: IdeUnits) -> Vec<(Place, Box<dyn PciFunction>)> {
    vec![
        (Place::device(0), Box::new(HostBridge440fx::default())),
        (Place::device(1), Box::new(IsaBridge::default())),
        (PIIX_IDE, Box::new(IdeFunction::new(ide))),
        (PIIX_POWER_MANAGEMENT, Box::new(PowerManagement::default())),
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
            let block = Block::open(index, drive)?;
            Ok(Box::new(block) as Box<dyn VirtioDevice>)
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(BackEndError::Disk)?;
    for (index, options) in networks(config, AdapterModel::Virtio) {
        devices.push(Box::new(virtio_adapter(index, options)?));
    }
    if config.devices.contains(&OptionalDevice::VirtioRng) {
        devices.push(Box::new(Entropy::default()));
    }
    if let Some(options) = config.balloon_options() {
        devices.push(Box::new(Balloon::new(options)));
    }
    for options in &config.shares {
        let share = Share::open(options).map_err(BackEndError::Share)?;
        devices.push(Box::new(share));
    }
    if config.has_scsi() {
        let units = config.scsi_drives.iter().map(ScsiUnit::open);
        let units: Result<_, _> = units.collect();
        devices.push(Box::new(Scsi::new(units.map_err(BackEndError::Disk)?)));
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

/// The networks with an adapter of this model, with their numbers among all.
fn networks(config: &VmConfig, model: AdapterModel) -> impl Iterator<Item = (u8, &NetworkOptions)> {
    let all = (0..).zip(&config.networks);
    all.filter(move |(_, options)| options.model == model)
}

/// Starts the network of the adapter with this name and number, and returns the adapter's address and
/// its end of the cable.
fn plug_in(
    name: &str,
    index: u8,
    options: &NetworkOptions,
) -> Result<(MacAddress, Adapter, Backend), BackEndError> {
    let mac = options.mac.unwrap_or(MacAddress::of_adapter(index));
    let label = name.to_owned();
    let report = move |line| {
        let _ = writeln!(std::io::stderr(), "tollgate: {label}: {line}");
    };
    let (adapter, backend) = Backend::start(options, mac, report).map_err(BackEndError::Network)?;
    Ok((mac, adapter, backend))
}

/// Makes the virtio adapter with this number, and starts its network.
fn virtio_adapter(index: u8, options: &NetworkOptions) -> Result<Net, BackEndError> {
    let name = format!("virtio-net{index}");
    let (mac, adapter, backend) = plug_in(&name, index, options)?;
    Ok(Net::new(name, mac, adapter, backend))
}

/// Makes the network adapters that are not virtio devices, and starts their networks.
fn adapters(config: &VmConfig) -> Result<Vec<E1000>, BackEndError> {
    let networks = networks(config, AdapterModel::E1000);
    let adapters = networks.map(|(index, options)| {
        let name = format!("e1000-{index}");
        let (mac, adapter, backend) = plug_in(&name, index, options)?;
        Ok(E1000::new(name, mac, adapter, backend))
    });
    adapters.collect()
}

/// Makes the virtio devices that were plugged in, with their slots.
fn plugged_devices(config: &VmConfig) -> Result<Vec<PluggedDevice>, BackEndError> {
    let functions = config.plugged_functions().iter();
    let devices = functions.map(|function| Ok((function.slot, plugged_device(function)?)));
    devices.collect()
}

/// Makes a virtio device that is plugged in, and opens its resources on the host.
///
/// # Errors
/// A disk image or a network cannot be used.
pub fn plugged_device(function: &PluggedFunction) -> Result<Box<dyn VirtioDevice>, BackEndError> {
    let number = PluggedFunction::number(function.slot);
    Ok(match &function.kind {
        FunctionKind::Disk(image) => {
            let block = Block::open(number.into(), image).map_err(BackEndError::Disk)?;
            Box::new(block)
        }
        FunctionKind::Network(options) => Box::new(virtio_adapter(number, options)?),
        FunctionKind::Random => Box::new(Entropy::numbered(number)),
    })
}

/// Makes a device that a machine has only if its configuration names it. Virtio devices are made
/// with their resources on the host instead.
fn optional(device: OptionalDevice) -> Option<Box<dyn Device>> {
    match device {
        OptionalDevice::PcTestdev => Some(Box::new(PcTestdev::default())),
        OptionalDevice::VirtioRng | OptionalDevice::VirtioBalloon | OptionalDevice::Watchdog => {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::testing::Bench;

    #[test]
    fn the_memory_map_is_a_file() {
        let config = VmConfig::default();
        let mut device = fw_cfg(&config, None);
        let mut bench = Bench::new();
        let mut context = bench.context(0);
        // The only file, whose name the directory gives after its size and selector.
        let mut read = |selector: u32, length: usize| -> Vec<u8> {
            device.port_write(0x510, 2, selector, &mut context);
            let next = |_| device.port_read(0x511, 1, &mut context) as u8;
            (0..length).map(next).collect()
        };
        let directory = read(0x19, 4 + 8 + 8);
        assert_eq!(directory[..4], 1u32.to_be_bytes());
        assert_eq!(directory[12..], *b"etc/e820");
        let map = e820::memory_map(&PhysicalLayout::new(config.memory_bytes));
        let bytes: Vec<u8> = map.into_iter().flat_map(MemoryRange::to_bytes).collect();
        assert_eq!(directory[4..8], (bytes.len() as u32).to_be_bytes());
        assert_eq!(read(0x20, bytes.len()), bytes);
    }
}
