//! The configuration of one machine: plain data that the command line, the control socket or a test
//! fills in.

mod hot_plug;
mod ide_drives;
mod images;
mod scsi_drives;
mod slots;

use crate::cpu::{self, Cpu, ModelError};
pub use crate::devices::debug_ports::{DebugPlaces, PortRange};
use crate::devices::flash;
use crate::devices::floppy::Floppy;
use crate::devices::fw_cfg::{self, FwCfgError, FwCfgFile};
use crate::devices::ide::pci::IdeFunction;
use crate::devices::pci::MAX_FUNCTIONS;
pub use crate::devices::rtc::{BootDevice, RtcBase};
pub use crate::devices::virtio::console::ports::{OnLoss, PortOptions, PortTarget};
pub use crate::smbios::{Labels, Smbios};
pub use hot_plug::{FunctionKind, HotPlug, PluggedFunction};
pub use ide_drives::{DiskGeometry, IdeDrive, IdePlaces};
pub use scsi_drives::{ScsiAddress, ScsiDrive, ScsiKind};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

pub use crate::devices::boot_timer::BootTimerOptions;
pub use crate::devices::virtio::balloon::control::BalloonOptions;
pub use tollgate_disk::{Backing, Cache, DriveOptions, Format};
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_engine::policy::virtual_interrupts::VirtualInterrupts;
pub use tollgate_engine::preemption::Interruptible;
use tollgate_memory::MemoryBacking;
pub use tollgate_memory::ram::secret_memory_is_offered;
pub use tollgate_monitor::access_policy::{MemoryAccess, Places, UserCode};
pub use tollgate_monitor::instruction_cache::InstructionSource;
pub use tollgate_monitor::shadow_tables::{DoubleInvalidation, Invalidation, ShadowChoices};
pub use tollgate_monitor::space_switch::SpaceSwitch;
pub use tollgate_network::refusals::Protocol;
pub use tollgate_network::{
    AdapterModel, HostForward, MacAddress, NetworkBoot, NetworkKind, NetworkOptions, RefusalLines,
    Refused, RefusedList, Rule, Rules, Transport, UserOptions, VsockOptions,
};
pub use tollgate_share::{SecurityModel, ShareOptions, ShareProtocol};
pub use tollgate_x86::Paravirtual;

/// The number of bytes in a mebibyte.
pub const MIB: u64 = 1 << 20;

/// The minimum RAM of a machine: enough for a flat guest at 1 MiB.
pub const MIN_MEMORY_BYTES: u64 = 2 * MIB;

/// The maximum RAM of a machine.
pub const MAX_MEMORY_BYTES: u64 = tollgate_memory::ram::MAX_RAM_BYTES;

/// The smallest code cache that the translator can work with.
pub const MIN_CODE_CACHE_BYTES: u64 = MIB;

/// The largest code cache. Addresses inside it must fit 31-bit displacements.
pub const MAX_CODE_CACHE_BYTES: u64 = 1024 * MIB;

/// The maximum number of virtio devices: one device number of the PCI bus is the host bridge's.
pub const MAX_VIRTIO_DEVICES: usize = MAX_FUNCTIONS - 1;

/// Where guest registers are held while guest code runs. Results do not depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RegisterMapChoice {
    /// Host registers hold all registers of 32-bit guests.
    #[default]
    Legacy,
    /// Memory holds as many registers as possible, to test that case.
    Spilled,
}

impl RegisterMapChoice {
    /// Returns the register map of this choice.
    pub fn map(self) -> &'static RegisterMap {
        match self {
            Self::Legacy => &RegisterMap::LEGACY,
            Self::Spilled => &RegisterMap::SPILLED,
        }
    }
}

/// What happens at a triple fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TripleFaultAction {
    /// The machine stops and shows the processor's registers.
    #[default]
    Stop,
    /// The machine is reset, as a PC's chip set does at the shutdown cycle. Some systems reset
    /// themselves in this way.
    Reset,
}

/// A device that a machine has only on request (`--device`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptionalDevice {
    /// QEMU's `pc-testdev`: interrupt lines and registers for test kernels.
    PcTestdev,
    /// A virtio device that supplies random bytes from the host.
    VirtioRng,
    /// A virtio device that takes free pages back from the guest.
    VirtioBalloon,
    /// A watchdog on the PCI bus, Intel's 6300ESB.
    Watchdog,
}

impl OptionalDevice {
    /// All optional devices.
    pub const ALL: [Self; 4] = [
        Self::PcTestdev,
        Self::VirtioRng,
        Self::VirtioBalloon,
        Self::Watchdog,
    ];

    /// Whether this is a virtio device.
    pub const fn is_virtio(self) -> bool {
        matches!(self, Self::VirtioRng | Self::VirtioBalloon)
    }

    /// The name that requests this device, which is QEMU's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PcTestdev => "pc-testdev",
            Self::VirtioRng => "virtio-rng",
            Self::VirtioBalloon => "virtio-balloon",
            Self::Watchdog => "i6300esb",
        }
    }

    /// Describes this device in one line.
    pub const fn description(self) -> &'static str {
        match self {
            Self::PcTestdev => {
                "interrupt lines (ports 2000h-2017h), registers (E0h-EBh) and memory (FF000000h) for test kernels"
            }
            Self::VirtioRng => "random bytes of the host, for /dev/hwrng",
            Self::Watchdog => {
                "a watchdog, which resets a guest that stops reloading it (needs the PCI bus)"
            }
            Self::VirtioBalloon => "gives the host back what the guest frees (free page reporting)",
        }
    }
}

/// What holds guest RAM.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryBackingChoice {
    /// Anonymous memory of the host.
    #[default]
    Anonymous,
    /// Anonymous memory of the host, locked.
    Resident,
    /// An unnamed file in the folder for temporary files (TMPDIR, or /var/tmp).
    Pageable,
    /// Memory that no other process and not even the host's kernel maps.
    Secret,
}

impl MemoryBackingChoice {
    /// Returns what this choice means on this host.
    pub fn backing(self) -> MemoryBacking {
        match self {
            Self::Anonymous => MemoryBacking::Anonymous,
            Self::Resident => MemoryBacking::Resident,
            Self::Secret => MemoryBacking::Secret,
            Self::Pageable => {
                let folder = std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty());
                MemoryBacking::Pageable(folder.map_or_else(|| "/var/tmp".into(), PathBuf::from))
            }
        }
    }
}

/// What happens to the guest's clocks after a pause, and to its time of day after a restore from a
/// snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Realtime {
    /// After a pause they jump forward by its length, so that the guest's time of day is right.
    /// After a restore the clocks that show the time of day, from which a guest takes it, show the
    /// host's; the others continue.
    #[default]
    Step,
    /// They continue from where they stopped. The guest notices nothing, but its time of day is
    /// late.
    Keep,
}

/// Everything that defines a virtual machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VmConfig {
    /// The size of guest RAM in bytes: a multiple of 4096 from [`MIN_MEMORY_BYTES`] to
    /// [`MAX_MEMORY_BYTES`].
    pub memory_bytes: u64,
    /// What holds guest RAM.
    pub memory_backing: MemoryBackingChoice,
    /// The file to boot: a Linux bzImage or vmlinux, a multiboot kernel, a boot sector or a flat
    /// image.
    pub kernel: PathBuf,
    /// The firmware that starts the machine. UEFI firmware then loads the kernel, if there is one.
    pub firmware: Option<PathBuf>,
    /// The flash memory from which the machine starts, the chip with the reset vector first. Its
    /// image is also named by `firmware`. Without it, firmware is in a ROM.
    pub flash: Vec<DriveOptions>,
    /// The initial RAM disk, or the multiboot modules: `FILE[ ARGUMENTS][,FILE[ ARGUMENTS]...]`. A
    /// comma that belongs to a name or an argument is doubled. Linux takes one file.
    pub initrd: Option<String>,
    /// An initial RAM disk for Linux that the caller has made in memory, instead of `initrd`.
    #[serde(skip)]
    pub initramfs: Option<Arc<[u8]>>,
    /// The kernel's command line.
    pub append: String,
    /// The processor's model and added features.
    pub cpu: Cpu,
    /// The paravirtual interface that the guest is offered.
    pub paravirtual: Paravirtual,
    /// What happens to the guest's clocks after a pause or a restore.
    pub realtime: Realtime,
    /// Whether a reset by the guest restarts the machine instead of ending it.
    pub reboot: bool,
    /// What happens at a triple fault.
    pub triple_fault: TripleFaultAction,
    /// The size of the code cache in bytes.
    pub code_cache_bytes: u64,
    /// Whether a second decoder verifies all emitted code.
    pub verify_code: bool,
    /// Whether cached translations are checked against what a processor may have cached.
    pub verify_shadow: bool,
    /// Where guest registers are held (for developers).
    pub register_map: RegisterMapChoice,
    /// How programs of 64-bit guests access guest memory.
    pub memory_access: MemoryAccess,
    /// Whether programs of 64-bit guests that access memory directly reach the most used parts of
    /// it through the anchor of their address space (`tollgate_tlb::shadow_windows::anchors`).
    pub anchors: bool,
    /// How 64-bit programs run.
    pub user_code: UserCode,
    /// How the instructions that read or change the interrupt flag are executed.
    pub virtual_interrupts: VirtualInterrupts,
    /// How a load of CR3 switches to an address space whose translations were kept.
    pub space_switch: SpaceSwitch,
    /// What is kept of the data derived from the guest's page tables, and how it is invalidated.
    pub shadow: ShadowChoices,
    /// Where the monitor gets the instructions that it emulates.
    pub instruction_source: InstructionSource,
    /// Whether long pieces of the monitor's work stop for interrupts.
    pub interruptible: Interruptible,
    /// Whether guest instructions are counted, which slows the guest down.
    pub count_instructions: bool,
    /// Whether the guest is offered ACPI tables.
    pub acpi: bool,
    /// Whether the machine has a PCI bus.
    pub pci: bool,
    /// What comes and goes on the PCI bus while the machine runs. `None`: nothing does. ACPI must be
    /// there for the guest to notice it.
    pub hot_plug: Option<HotPlug>,
    /// Whether the machine has a high-precision event timer.
    pub hpet: bool,
    /// Whether the machine has a generation ID, which tells its guest that it was restored from a
    /// snapshot. ACPI must be there for the guest to find it.
    pub generation_id: bool,
    /// The virtio disks, in the order in which the guest finds them.
    pub drives: Vec<DriveOptions>,
    /// The drives at the places of the IDE function.
    pub ide_drives: IdePlaces,
    /// Whether the machine has a virtio SCSI controller even without drives.
    pub scsi_controller: bool,
    /// The drives of the virtio SCSI controller, which is there if it has any.
    pub scsi_drives: Vec<ScsiDrive>,
    /// The floppy drives (at most two) with their disks. `None` is an empty drive.
    pub floppies: Vec<Option<DriveOptions>>,
    /// The drives that firmware boots from, the first choice first, each at most once.
    pub boot_order: Vec<BootDevice>,
    /// The shared directories of the host, each with a tag of its own.
    pub shares: Vec<ShareOptions>,
    /// The networks, each with an adapter, in the order in which the guest finds them.
    pub networks: Vec<NetworkOptions>,
    /// Sockets between guest and host.
    pub vsock: Option<VsockOptions>,
    /// Byte streams between guest and host, each with a name of its own.
    pub ports: Vec<PortOptions>,
    /// The time that the real-time clock shows.
    pub rtc_base: RtcBase,
    /// The devices in addition to those of every machine, each at most once.
    pub devices: Vec<OptionalDevice>,
    /// Whether there is a second serial port.
    pub second_serial: bool,
    /// Whether there is a parallel port, with a printer.
    pub parallel: bool,
    /// The SMBIOS tables, if there are any.
    pub smbios: Option<Smbios>,
    /// The ports for debugging.
    pub debug_ports: DebugPlaces,
    /// What the balloon offers if it does more than take free pages back.
    pub balloon: Option<BalloonOptions>,
    /// The device at which the guest says that it has started.
    pub boot_timer: Option<BootTimerOptions>,
    /// The files that the guest finds through fw_cfg.
    pub fw_cfg_files: Vec<FwCfgFile>,
}

impl Default for VmConfig {
    fn default() -> Self {
        Self {
            memory_bytes: 256 * MIB,
            memory_backing: MemoryBackingChoice::default(),
            kernel: PathBuf::new(),
            firmware: None,
            flash: Vec::new(),
            initrd: None,
            initramfs: None,
            append: String::new(),
            cpu: Cpu::default(),
            paravirtual: Paravirtual::Kvm,
            realtime: Realtime::default(),
            reboot: false,
            triple_fault: TripleFaultAction::Stop,
            code_cache_bytes: 64 * MIB,
            verify_code: false,
            verify_shadow: false,
            register_map: RegisterMapChoice::default(),
            memory_access: MemoryAccess::Adaptive,
            anchors: true,
            user_code: UserCode::default(),
            virtual_interrupts: VirtualInterrupts::default(),
            space_switch: SpaceSwitch::default(),
            shadow: ShadowChoices::default(),
            instruction_source: InstructionSource::default(),
            interruptible: Interruptible::default(),
            count_instructions: false,
            acpi: true,
            pci: true,
            hot_plug: None,
            hpet: true,
            generation_id: true,
            drives: Vec::new(),
            ide_drives: IdePlaces::default(),
            scsi_controller: false,
            scsi_drives: Vec::new(),
            floppies: Vec::new(),
            boot_order: BootDevice::ALL.to_vec(),
            shares: Vec::new(),
            networks: Vec::new(),
            vsock: None,
            ports: Vec::new(),
            rtc_base: RtcBase::Universal,
            devices: Vec::new(),
            second_serial: false,
            parallel: false,
            smbios: None,
            debug_ports: DebugPlaces::default(),
            balloon: None,
            boot_timer: None,
            fw_cfg_files: Vec::new(),
        }
    }
}

/// Why a configuration is invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// Neither a kernel nor firmware was given.
    NoKernel,
    /// The machine has more flash memory than there is room for, or flash memory and a ROM.
    Flash,
    /// The machine has firmware but no PCI bus, where firmware finds its devices.
    FirmwareWithoutPci,
    /// The RAM size is outside the allowed range or not a multiple of 4096 bytes.
    MemorySize(u64),
    /// The code cache size is outside the allowed range.
    CodeCacheSize(u64),
    /// A device was given twice.
    DeviceTwice(OptionalDevice),
    /// The SMBIOS tables are too large.
    SmbiosSize,
    /// A file cannot be offered through fw_cfg.
    FwCfg(FwCfgError),
    /// This host cannot supply the processor.
    Cpu(ModelError),
    /// Two shares have this tag.
    TagTwice(String),
    /// Two ports have this name.
    PortTwice(String),
    /// There are more ports than a machine can have.
    TooManyPorts(usize),
    /// There are more IDE disks and CD-ROM drives than the two channels have places.
    TooManyIdeDrives(usize),
    /// There are IDE drives, but no PCI bus for the IDE function.
    IdeWithoutPci,
    /// There is a network adapter that is a PCI function, but no PCI bus.
    AdapterWithoutPci,
    /// Two drives of the SCSI controller have this address, or it is too large.
    ScsiAddress(ScsiAddress),
    /// No function, or only one, can be plugged into this slot of the PCI bus.
    Slot(u8),
    /// There are more floppy drives than firmware supports.
    TooManyFloppies(usize),
    /// There are more virtio devices than the machine has room for.
    TooManyVirtioDevices(usize),
    /// Programs must be able to run natively, and guest RAM is secret.
    SecretPrograms,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKernel => write!(formatter, "no kernel given (--kernel FILE)"),
            Self::Flash => write!(
                formatter,
                "firmware is in one ROM (--bios) or in flash memory (--pflash, at most twice)"
            ),
            Self::FirmwareWithoutPci => {
                write!(formatter, "firmware (--bios) needs the PCI bus (--pci on)")
            }
            Self::MemorySize(bytes) => write!(
                formatter,
                "--memory: {bytes} bytes: must be a multiple of 4096 from {} MiB to {} MiB",
                MIN_MEMORY_BYTES / MIB,
                MAX_MEMORY_BYTES / MIB
            ),
            Self::CodeCacheSize(bytes) => write!(
                formatter,
                "--code-cache: {bytes} bytes: must be from {} MiB to {} MiB",
                MIN_CODE_CACHE_BYTES / MIB,
                MAX_CODE_CACHE_BYTES / MIB
            ),
            Self::DeviceTwice(device) => {
                write!(formatter, "device {} is given twice", device.name())
            }
            Self::TagTwice(tag) => write!(formatter, "two shares have the tag '{tag}'"),
            Self::SmbiosSize => write!(
                formatter,
                "SMBIOS: there is room for 255 texts, and for 32 KiB in all"
            ),
            Self::FwCfg(error) => error.fmt(formatter),
            Self::Cpu(error) => error.fmt(formatter),
            Self::PortTwice(name) => write!(formatter, "two ports have the name '{name}'"),
            Self::TooManyPorts(count) => write!(
                formatter,
                "{count} ports: there is room for {}",
                PortOptions::MAX_PORTS
            ),
            Self::TooManyIdeDrives(count) => write!(
                formatter,
                "{count} IDE disks and CD-ROM drives: there is room for {}",
                IdeFunction::PLACES
            ),
            Self::IdeWithoutPci => write!(
                formatter,
                "IDE disks (if=ide) and CD-ROMs need the PCI bus (--pci on)"
            ),
            Self::AdapterWithoutPci => write!(
                formatter,
                "a network adapter of the model e1000 needs the PCI bus (--pci on)"
            ),
            Self::TooManyFloppies(count) => write!(
                formatter,
                "{count} floppy drives: there is room for {}",
                Floppy::MOST_DRIVES
            ),
            Self::Slot(slot) => write!(
                formatter,
                "no function, or only one, can be plugged into slot {slot} of the PCI bus"
            ),
            Self::ScsiAddress(ScsiAddress { target, lun }) => write!(
                formatter,
                "no drive, or only one, can be unit {lun} of SCSI target {target}"
            ),
            Self::TooManyVirtioDevices(count) => write!(
                formatter,
                "{count} drives, networks, shares and other virtio devices: there is room for {MAX_VIRTIO_DEVICES}"
            ),
            Self::SecretPrograms => write!(
                formatter,
                "the host executes no program from secret memory, so user-code can only be 'translated'"
            ),
        }
    }
}

impl std::error::Error for ConfigError {}

impl VmConfig {
    /// Returns the number of the machine's virtio devices.
    pub fn virtio_devices(&self) -> usize {
        let others = self.devices.iter().filter(|device| device.is_virtio());
        let is_listed = self.devices.contains(&OptionalDevice::VirtioBalloon);
        let balloon = usize::from(self.balloon.is_some() && !is_listed);
        let (drives, shares) = (&self.drives, &self.shares);
        let networks = self.adapters(AdapterModel::Virtio);
        let console = usize::from(!self.ports.is_empty());
        let vsock = usize::from(self.vsock.is_some());
        let scsi = usize::from(self.has_scsi());
        let own = drives.len() + networks + shares.len();
        own + console + vsock + scsi + balloon + others.count()
    }

    /// Returns the number of network adapters of this model.
    pub fn adapters(&self, model: AdapterModel) -> usize {
        let networks = self.networks.iter();
        networks.filter(|network| network.model == model).count()
    }

    /// Whether there is a virtio SCSI controller.
    pub fn has_scsi(&self) -> bool {
        self.scsi_controller || !self.scsi_drives.is_empty()
    }

    /// What the balloon offers, if there is one.
    pub fn balloon_options(&self) -> Option<BalloonOptions> {
        let is_listed = self.devices.contains(&OptionalDevice::VirtioBalloon);
        let listed = is_listed.then(|| BalloonOptions {
            page_reporting: true,
            ..BalloonOptions::default()
        });
        match (self.balloon, listed) {
            (Some(options), Some(_)) => Some(BalloonOptions {
                page_reporting: true,
                ..options
            }),
            (options, listed) => options.or(listed),
        }
    }

    /// Whether there are drives at the IDE function.
    pub fn has_ide_drives(&self) -> bool {
        self.ide_drives.iter().any(Option::is_some)
    }

    /// Whether there is a watchdog.
    pub fn has_watchdog(&self) -> bool {
        self.pci && self.devices.contains(&OptionalDevice::Watchdog)
    }

    /// Returns the maximum number of virtio devices of this machine.
    fn most_virtio_devices(&self) -> usize {
        MAX_VIRTIO_DEVICES.saturating_sub(self.other_functions())
    }

    /// Checks everything that can be checked without opening a file.
    ///
    /// # Errors
    /// The first [`ConfigError`] found.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match (self.kernel.as_os_str().is_empty(), &self.firmware) {
            (true, None) => return Err(ConfigError::NoKernel),
            (_, Some(_)) if !self.pci => return Err(ConfigError::FirmwareWithoutPci),
            _ => {}
        }
        let first = self.flash.first().map(|chip| &chip.path);
        if first.is_some()
            && (first != self.firmware.as_ref() || self.flash.len() > flash::MOST_UNITS)
        {
            return Err(ConfigError::Flash);
        }
        let memory = self.memory_bytes;
        if !(MIN_MEMORY_BYTES..=MAX_MEMORY_BYTES).contains(&memory) || !memory.is_multiple_of(4096)
        {
            return Err(ConfigError::MemorySize(memory));
        }
        let cache = self.code_cache_bytes;
        if !(MIN_CODE_CACHE_BYTES..=MAX_CODE_CACHE_BYTES).contains(&cache) {
            return Err(ConfigError::CodeCacheSize(cache));
        }
        let repeated = self.devices.iter().enumerate();
        if let Some((_, device)) = repeated
            .into_iter()
            .find(|(index, device)| self.devices[..*index].contains(device))
        {
            return Err(ConfigError::DeviceTwice(*device));
        }
        if let Some(tag) = repeated_name(self.shares.iter().map(|share| &share.tag)) {
            return Err(ConfigError::TagTwice(tag));
        }
        if let Some(name) = repeated_name(self.ports.iter().map(|port| &port.name)) {
            return Err(ConfigError::PortTwice(name));
        }
        if self.ports.len() > PortOptions::MAX_PORTS {
            return Err(ConfigError::TooManyPorts(self.ports.len()));
        }
        if !self.pci && self.has_ide_drives() {
            return Err(ConfigError::IdeWithoutPci);
        }
        if !self.pci && self.adapters(AdapterModel::E1000) != 0 {
            return Err(ConfigError::AdapterWithoutPci);
        }
        scsi_drives::check(&self.scsi_drives)?;
        if self.floppies.len() > Floppy::MOST_DRIVES {
            return Err(ConfigError::TooManyFloppies(self.floppies.len()));
        }
        if self.smbios.as_ref().is_some_and(|smbios| !smbios.fits()) {
            return Err(ConfigError::SmbiosSize);
        }
        fw_cfg::check(&self.fw_cfg_files).map_err(ConfigError::FwCfg)?;
        cpu::check(self.cpu.model).map_err(ConfigError::Cpu)?;
        if self.memory_backing == MemoryBackingChoice::Secret
            && self.user_code != UserCode::Translated
        {
            return Err(ConfigError::SecretPrograms);
        }
        let count = self.virtio_devices();
        if count > self.most_virtio_devices() {
            return Err(ConfigError::TooManyVirtioDevices(count));
        }
        match self.misused_slot() {
            Some(slot) => Err(ConfigError::Slot(slot)),
            None => Ok(()),
        }
    }
}

/// Returns the first name that occurs a second time.
fn repeated_name<'a>(names: impl Iterator<Item = &'a String>) -> Option<String> {
    let mut known = Vec::new();
    for name in names {
        if known.contains(&name) {
            return Some(name.clone());
        }
        known.push(name);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> VmConfig {
        VmConfig {
            kernel: "vmlinuz".into(),
            ..VmConfig::default()
        }
    }

    #[test]
    fn the_defaults_need_only_a_kernel() {
        assert_eq!(VmConfig::default().validate(), Err(ConfigError::NoKernel));
        assert_eq!(valid().validate(), Ok(()));
    }

    #[test]
    fn firmware_needs_the_pci_bus() {
        let mut config = VmConfig {
            firmware: Some("bios.bin".into()),
            ..VmConfig::default()
        };
        assert_eq!(config.validate(), Ok(()));
        config.pci = false;
        assert_eq!(config.validate(), Err(ConfigError::FirmwareWithoutPci));
    }

    #[test]
    fn firmware_is_in_a_rom_or_in_one_or_two_chips() {
        let mut config = VmConfig {
            firmware: Some("code.fd".into()),
            flash: vec![DriveOptions::new("code.fd"), DriveOptions::new("vars.fd")],
            ..VmConfig::default()
        };
        assert_eq!(config.validate(), Ok(()));
        config.flash.push(DriveOptions::new("more.fd"));
        assert_eq!(config.validate(), Err(ConfigError::Flash));
        config.flash = vec![DriveOptions::new("vars.fd")];
        assert_eq!(config.validate(), Err(ConfigError::Flash));
    }

    #[test]
    fn impossible_memory_sizes_are_refused() {
        for memory_bytes in [0, MIB, MIN_MEMORY_BYTES + 1, MAX_MEMORY_BYTES + 4096] {
            let config = VmConfig {
                memory_bytes,
                ..valid()
            };
            assert_eq!(
                config.validate(),
                Err(ConfigError::MemorySize(memory_bytes))
            );
        }
    }

    #[test]
    fn there_is_room_for_some_drives() {
        let mut config = valid();
        config.drives = vec![DriveOptions::new("disk.img"); MAX_VIRTIO_DEVICES];
        assert_eq!(config.validate(), Ok(()));
        config.devices.push(OptionalDevice::VirtioRng);
        let error = ConfigError::TooManyVirtioDevices(32);
        assert_eq!(config.validate(), Err(error));
    }

    #[test]
    fn a_device_may_be_named_once() {
        let mut config = valid();
        config.devices.push(OptionalDevice::PcTestdev);
        assert_eq!(config.validate(), Ok(()));
        config.devices.push(OptionalDevice::PcTestdev);
        let twice = ConfigError::DeviceTwice(OptionalDevice::PcTestdev);
        assert_eq!(config.validate(), Err(twice));
    }

    #[test]
    fn programs_in_secret_memory_are_translated() {
        let mut config = valid();
        config.memory_backing = MemoryBackingChoice::Secret;
        assert_eq!(config.validate(), Ok(()));
        for user_code in [UserCode::Native, UserCode::Adaptive] {
            config.user_code = user_code;
            assert_eq!(config.validate(), Err(ConfigError::SecretPrograms));
        }
    }

    #[test]
    fn impossible_code_cache_sizes_are_refused() {
        for code_cache_bytes in [0, MAX_CODE_CACHE_BYTES + 1] {
            let config = VmConfig {
                code_cache_bytes,
                ..valid()
            };
            assert_eq!(
                config.validate(),
                Err(ConfigError::CodeCacheSize(code_cache_bytes))
            );
        }
    }
}
