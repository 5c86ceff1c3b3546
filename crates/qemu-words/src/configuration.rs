//! The machine and its surroundings that a command line describes: plain data.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

/// The kind of machine. Tollgate has one PC, which takes the place of all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MachineKind {
    /// A PC with the 440FX chip set.
    #[default]
    Pc,
    /// A PC with the Q35 chip set.
    Q35,
    /// A machine without firmware tables whose virtio devices are not on PCI.
    Microvm,
    /// A PC without PCI.
    Isapc,
}

/// A feature of the processor that was added or removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuFeature {
    /// The feature's name.
    pub name: String,
    /// Whether the guest is shown it.
    pub is_on: bool,
}

/// The processor's model and features.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Processor {
    /// The model's name; `max` if none was given.
    pub model: String,
    /// Added and removed features, in their order.
    pub features: Vec<CpuFeature>,
}

/// The format of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DriveFormat {
    /// The bytes of the disk.
    Raw,
    /// QEMU's format.
    Qcow2,
}

/// What happens to writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cache {
    /// They are safe after a flush.
    #[default]
    Writeback,
    /// They also bypass the host's page cache.
    None,
    /// Flushes have no effect.
    Unsafe,
}

/// How the guest reaches a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interface {
    /// A virtio disk.
    Virtio,
    /// A disk at the IDE function.
    IdeDisk,
    /// A CD-ROM drive at the IDE function.
    IdeCdRom,
    /// A disk at the SCSI controller.
    ScsiDisk,
    /// A CD-ROM drive at the SCSI controller.
    ScsiCdRom,
    /// A floppy drive.
    Floppy,
    /// A chip of flash memory.
    Flash,
}

impl Interface {
    /// Whether it is a drive for CD-ROMs.
    pub const fn is_cd_rom(self) -> bool {
        matches!(self, Self::IdeCdRom | Self::ScsiCdRom)
    }

    /// Whether it is at the SCSI controller.
    pub const fn is_scsi(self) -> bool {
        matches!(self, Self::ScsiDisk | Self::ScsiCdRom)
    }
}

/// A drive with its image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drive {
    /// The drive's name, for monitors.
    pub id: String,
    /// How the guest reaches it.
    pub interface: Interface,
    /// Its place among the drives of its interface, if one was named: for IDE two for each channel; for
    /// SCSI the number of the target.
    pub place: Option<usize>,
    /// For SCSI the number of the unit in the target.
    pub unit: u16,
    /// The image. `None` is an empty drive.
    pub file: Option<PathBuf>,
    /// The image's format. `None`: it is found out.
    pub format: Option<DriveFormat>,
    /// Whether the guest cannot write.
    pub readonly: bool,
    /// Whether the guest's writes are discarded at the end.
    pub snapshot: bool,
    /// What happens to writes.
    pub cache: Cache,
    /// Whether the host gets back what the guest discards.
    pub discard: bool,
    /// The serial number that the guest reads.
    pub serial: String,
    /// The place in the order in which firmware boots.
    pub boot_index: Option<u64>,
    /// The name of the device that uses it, if it has one.
    pub device: Option<String>,
    /// Whether -blockdev or blockdev-add has made it, so that it stays without a device.
    pub is_node: bool,
    /// The slot of the PCI bus into which it was plugged. `None`: it was there from the start, or is
    /// somewhere else.
    pub slot: Option<u8>,
}

impl Drive {
    /// A drive without an image.
    pub const fn empty(interface: Interface) -> Self {
        Self {
            id: String::new(),
            interface,
            place: None,
            unit: 0,
            file: None,
            format: None,
            readonly: interface.is_cd_rom(),
            snapshot: false,
            cache: Cache::Writeback,
            discard: false,
            serial: String::new(),
            boot_index: None,
            device: None,
            is_node: false,
            slot: None,
        }
    }
}

/// A forwarded port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forward {
    /// Whether it is one of UDP.
    pub is_udp: bool,
    /// The host's address. `None`: all addresses.
    pub host: Option<IpAddr>,
    /// The host's port.
    pub host_port: u16,
    /// The guest's address. `None`: the one that it gets by DHCP.
    pub guest: Option<Ipv4Addr>,
    /// The guest's port.
    pub guest_port: u16,
}

/// What a user network offers to firmware that boots from it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NetworkBoot {
    /// The folder that is served by TFTP.
    pub tftp: Option<PathBuf>,
    /// The name of the file that firmware loads.
    pub file: Option<String>,
    /// The name of the TFTP server, if it is not the gateway.
    pub server_name: Option<String>,
}

/// The other end of an adapter's cable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NetworkKind {
    /// A network in this process.
    User {
        /// The ports of the host that lead to ports of the guest.
        forwards: Vec<Forward>,
        /// Whether the guest reaches nothing outside.
        restrict: bool,
        /// What firmware finds to load.
        boot: NetworkBoot,
    },
    /// A stream socket at a path that carries frames.
    Socket(PathBuf),
    /// An interface of the host.
    Tap(String),
    /// An open descriptor.
    Descriptor(i32),
}

/// Where owners that the guest sets are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Security {
    /// In an attribute of the host's file.
    Mapped,
    /// In the host's file, as far as the host permits it.
    None,
    /// In the host's file, or the guest gets an error.
    Passthrough,
}

/// A shared directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    /// The path of the directory.
    pub path: PathBuf,
    /// The name by which the guest mounts it.
    pub tag: String,
    /// Whether the guest cannot change anything.
    pub readonly: bool,
    /// Where owners are kept.
    pub security: Security,
}

/// A network adapter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Network {
    /// The other end of its cable.
    pub kind: NetworkKind,
    /// The adapter's address.
    pub mac: Option<[u8; 6]>,
    /// Which adapter the guest finds.
    pub model: AdapterModel,
    /// The name of the other end, if it has one.
    pub netdev: Option<String>,
}

/// What no device uses, and devices that are plugged in may.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Spare {
    /// Disk images that are in no drive.
    pub drives: Vec<Drive>,
    /// The other ends of adapters' cables, with their names.
    pub networks: Vec<(String, NetworkKind)>,
    /// The names of objects, such as sources of random bytes.
    pub objects: Vec<String>,
}

/// What a device is that is plugged into the PCI bus.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PluggedKind {
    /// A virtio disk.
    Disk(Drive),
    /// A network adapter.
    Network(Network),
    /// A virtio device of random bytes.
    Random,
}

/// A device that was plugged into the PCI bus while the machine ran.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plugged {
    /// The name of the device, if it has one.
    pub id: Option<String>,
    /// Its slot: the number of the device on the bus.
    pub slot: u8,
    /// What it is.
    pub kind: PluggedKind,
}

impl Network {
    /// Whether the adapter is a virtio device.
    pub fn is_virtio(&self) -> bool {
        self.model != AdapterModel::E1000
    }
}

/// The kind of a network adapter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AdapterModel {
    /// The one that the board has if nothing else is said: an E1000 on a PC, else virtio.
    #[default]
    OfBoard,
    /// A virtio device.
    Virtio,
    /// Intel's 82540EM.
    E1000,
}

impl AdapterModel {
    /// The name of the device in QEMU.
    pub const fn device(self) -> &'static str {
        match self {
            Self::OfBoard | Self::Virtio => "virtio-net-pci",
            Self::E1000 => "e1000",
        }
    }
}

/// A place of the host that characters come from and go to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Backend {
    /// They come from nowhere, and what is written is dropped.
    Null,
    /// Standard input and output.
    Stdio {
        /// Whether keys of the terminal send signals.
        signals: bool,
    },
    /// A file that output is written to.
    File {
        /// The path of the file.
        path: PathBuf,
        /// Whether its content stays.
        append: bool,
        /// The file that input comes from.
        input: Option<PathBuf>,
    },
    /// Two pipes, `PATH.in` and `PATH.out`, or one at the path itself.
    Pipe(PathBuf),
    /// A new pseudo-terminal.
    Pty,
    /// A terminal or another device of the host.
    Device(PathBuf),
    /// A buffer that keeps the last bytes.
    Ring(usize),
    /// A stream socket.
    Socket {
        /// The address of the socket.
        place: Place,
        /// Whether it waits for clients, instead of being one.
        server: bool,
        /// Whether the machine starts only when the first client has come.
        wait: bool,
        /// After how many seconds a client that lost its connection connects again.
        reconnect: Option<u64>,
        /// Whether the options of Telnet are answered.
        telnet: bool,
    },
}

/// The place of a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A path of the file system.
    Unix(PathBuf),
    /// A host and a port.
    Tcp(String, u16),
    /// An open descriptor.
    Descriptor(i32),
}

/// A place for characters, with its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Character {
    /// The name by which ports and monitors refer to it.
    pub id: String,
    /// What it is connected to.
    pub backend: Backend,
    /// Whether several users share it, between which a key switches.
    pub mux: bool,
    /// A file that also gets the output.
    pub log: Option<(PathBuf, bool)>,
}

/// A port of a virtio console.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// The name by which the guest finds it.
    pub name: String,
    /// Whether the guest uses it as a console.
    pub is_console: bool,
    /// The name of its place for characters. `None`: nowhere.
    pub character: Option<String>,
}

/// A serial port: the name of its place for characters, or nothing at its other end.
pub type SerialPort = Option<String>;

/// A debug console: its port, and the name of its place for characters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DebugConsole {
    /// The port's number.
    pub port: u16,
    /// The name of its place for characters.
    pub character: String,
}

/// What a monitor understands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MonitorMode {
    /// Lines that a person types.
    Readline,
    /// JSON (QMP); true: in several lines.
    Control(bool),
}

/// A monitor and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Monitor {
    /// The name of its place for characters.
    pub character: String,
    /// What it understands.
    pub mode: MonitorMode,
}

/// The ports at which a write ends the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExitPort {
    /// The first port.
    pub port: u16,
    /// The number of ports.
    pub count: u16,
}

/// The content of a file for the guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FirmwareText {
    /// The characters of this text.
    Text(String),
    /// The content of a file of the host.
    File(PathBuf),
}

/// A file that the guest reads by fw_cfg.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FirmwareFile {
    /// The name by which the guest finds it.
    pub name: String,
    /// What the guest reads.
    pub content: FirmwareText,
}

/// What a part of the machine says of itself. An empty text is unknown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Labels {
    /// Who made it.
    pub manufacturer: String,
    /// The product, the number of a part, or the date of firmware.
    pub product: String,
    /// Which version of the product it is.
    pub version: String,
    /// The serial number.
    pub serial: String,
    /// The owner's number.
    pub asset: String,
    /// The number by which it is ordered.
    pub sku: String,
    /// The group of products.
    pub family: String,
    /// Where it is in the machine.
    pub location: String,
}

/// What the machine says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Smbios {
    /// What firmware says of itself.
    pub firmware: Labels,
    /// What the machine as a whole says of itself.
    pub system: Labels,
    /// The main board, if it is described.
    pub board: Option<Labels>,
    /// What encloses the machine.
    pub chassis: Labels,
    /// What the processor says of itself.
    pub processor: Labels,
    /// Each piece of memory.
    pub memory: Labels,
    /// Texts for the guest.
    pub strings: Vec<FirmwareText>,
}

/// The time that the clock shows at the start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum RtcBase {
    /// The present time, UTC.
    #[default]
    Utc,
    /// The present time of the host's time zone.
    Local,
}

/// What a machine continues from, instead of being switched on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Restore {
    /// A snapshot with this name.
    Tag(String),
    /// A file that `migrate` has written.
    File(PathBuf),
}

/// Where the screen is shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Display {
    /// It is shown nowhere.
    #[default]
    None,
    /// In this terminal.
    Curses,
    /// In VNC viewers: the value of `-vnc`.
    Vnc(String),
}

/// A drive that firmware boots from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BootDevice {
    /// A floppy disk.
    Floppy,
    /// The first disk.
    Disk,
    /// The first CD-ROM.
    CdRom,
    /// The network adapter's firmware.
    Network,
}

/// Everything that a command line describes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Configuration {
    /// The machine's name.
    pub name: Option<String>,
    /// The machine's identifier.
    pub uuid: Option<String>,
    /// The kind of machine.
    pub machine: MachineKind,
    /// Guest RAM in bytes.
    pub memory_bytes: u64,
    /// The number of processors that was asked for.
    pub processors: u64,
    /// The processor's model and features.
    pub processor: Processor,
    /// The kernel's file.
    pub kernel: Option<PathBuf>,
    /// Its initial RAM disk, or multiboot modules.
    pub initrd: Option<String>,
    /// Its command line.
    pub append: String,
    /// The firmware's file.
    pub firmware: Option<PathBuf>,
    /// Folders in which firmware is looked for.
    pub firmware_folders: Vec<PathBuf>,
    /// Whether the guest is offered ACPI tables.
    pub acpi: bool,
    /// Whether the machine has a high-precision event timer.
    pub hpet: bool,
    /// Whether guest RAM is locked.
    pub locked_memory: bool,
    /// What the machine may take of the host, in Tollgate's words.
    pub limit: Option<String>,
    /// All drives, in their order.
    pub drives: Vec<Drive>,
    /// The drives that firmware boots from, in their order; empty: the customary order.
    pub boot_order: Vec<BootDevice>,
    /// The shared directories.
    pub shares: Vec<Share>,
    /// The network adapters.
    pub networks: Vec<Network>,
    /// Whether there is a virtio device of random bytes.
    pub rng: bool,
    /// What no device uses, which a device that is plugged in may.
    pub spare: Spare,
    /// The devices that were plugged into the PCI bus.
    pub plugged: Vec<Plugged>,
    /// Whether a SCSI controller was asked for, which may have no drives yet.
    pub scsi_controller: bool,
    /// Whether there is a virtio memory balloon.
    pub balloon: bool,
    /// Whether there is a watchdog.
    pub watchdog: bool,
    /// The places for characters.
    pub characters: Vec<Character>,
    /// The serial ports.
    pub serial: Vec<SerialPort>,
    /// The place of the printer at the parallel port.
    pub parallel: Option<String>,
    /// The debug console.
    pub debug_console: Option<DebugConsole>,
    /// The ports of virtio consoles.
    pub ports: Vec<Port>,
    /// Where a debugger connects.
    pub debugger: Option<Place>,
    /// All monitors, in their order.
    pub monitors: Vec<Monitor>,
    /// The ports at which a write ends the machine.
    pub exit_port: Option<ExitPort>,
    /// Whether a panic that the guest reports ends the machine.
    pub panic_device: bool,
    /// What the machine says of itself.
    pub smbios: Smbios,
    /// Files for the guest.
    pub firmware_files: Vec<FirmwareFile>,
    /// The time that the clock shows at the start.
    pub rtc: RtcBase,
    /// Where the screen is shown.
    pub display: Display,
    /// Whether a reset ends the machine.
    pub no_reboot: bool,
    /// Whether the machine stays, paused, when the guest has switched it off.
    pub no_shutdown: bool,
    /// Whether a panic of the guest ends the process with exit code 1.
    pub panic_fails: bool,
    /// What the machine continues from.
    pub restore: Option<Restore>,
    /// Whether the machine begins paused.
    pub paused: bool,
    /// The key that precedes commands to a shared terminal: the number of a character.
    pub escape: u8,
    /// Whether the process continues in the background.
    pub daemonize: bool,
    /// The file for the process's number.
    pub pid_file: Option<PathBuf>,
    /// The file for messages.
    pub log_file: Option<PathBuf>,
    /// What is worth knowing and wrong for none: lines to show.
    pub warnings: Vec<String>,
}

impl Configuration {
    /// Whether there is a SCSI controller.
    pub fn has_scsi(&self) -> bool {
        let mut drives = self.drives.iter();
        self.scsi_controller || drives.any(|drive| drive.interface.is_scsi())
    }
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            name: None,
            uuid: None,
            machine: MachineKind::Pc,
            memory_bytes: 128 << 20,
            processors: 1,
            processor: Processor {
                model: "max".into(),
                features: Vec::new(),
            },
            kernel: None,
            initrd: None,
            append: String::new(),
            firmware: None,
            firmware_folders: Vec::new(),
            acpi: true,
            hpet: true,
            locked_memory: false,
            limit: None,
            drives: Vec::new(),
            boot_order: Vec::new(),
            shares: Vec::new(),
            networks: Vec::new(),
            rng: false,
            spare: Spare::default(),
            plugged: Vec::new(),
            scsi_controller: false,
            balloon: false,
            watchdog: false,
            characters: Vec::new(),
            serial: Vec::new(),
            parallel: None,
            debug_console: None,
            ports: Vec::new(),
            debugger: None,
            monitors: Vec::new(),
            exit_port: None,
            panic_device: false,
            smbios: Smbios::default(),
            firmware_files: Vec::new(),
            rtc: RtcBase::Utc,
            display: Display::None,
            no_reboot: false,
            no_shutdown: false,
            panic_fails: false,
            restore: None,
            paused: false,
            escape: 1,
            daemonize: false,
            pid_file: None,
            log_file: None,
            warnings: Vec::new(),
        }
    }
}
