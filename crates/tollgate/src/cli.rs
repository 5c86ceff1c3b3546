//! What a person can type: subcommands, flags, and the help that teaches them.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, ValueEnum};

use tollgate_machine::config::{
    MemoryBackingChoice, OptionalDevice, PortOptions, PortTarget, VsockOptions,
};
use tollgate_machine::cpu::Cpu;

use crate::exit_on::{self, ExitOn};
use crate::floppy::{BootOrder, FloppyArgument};
use crate::fw_cfg::{self, FwCfgArgument};
use crate::machine_flags::MachineArguments;
use crate::port;
use crate::share::{self, ShareArgument};
use crate::standard_output::print_and_end;
use crate::statistics::StatisticsArguments;
use crate::vnc::options::VncOptions;
use crate::{
    control, cpu_models, devices, documents, drive, exit_code, floppy, foreign_words, help_text,
    host, net, size, terminal_keys, usage, vsock,
};

/// Runs x86 virtual machines in an ordinary process.
#[derive(Parser, Debug)]
#[command(
    name = "tollgate",
    version,
    max_term_width = 100,
    about = "Runs x86 virtual machines in an ordinary process: no KVM, no root, no kernel module",
    after_help = "Try 'tollgate run --help' for flags, keys, examples and exit codes."
)]
struct Cli {
    #[command(subcommand)]
    subcommand: Subcommand,
}

/// What to do.
#[derive(clap::Subcommand, Debug)]
pub enum Subcommand {
    /// Run a command in a virtual machine, with this host's files
    Exec(Box<crate::exec::ExecArguments>),
    /// Boot a kernel in a virtual machine
    Run(Box<RunArguments>),
    /// Say whether this host can run virtual machines, and what is missing
    Doctor(DoctorArguments),
    /// Send a command to a running virtual machine
    Control(ControlArguments),
    /// Show or turn the knobs of a running virtual machine
    Set(control::set::SetArguments),
    /// Change the disk in a drive of a running virtual machine
    Medium(control::medium::MediumArguments),
    /// Show the screen of a running virtual machine, or write it to a picture
    Screen(control::screen::ScreenArguments),
    /// Type on the keyboard of a running virtual machine, or move its mouse
    Type(control::typing::TypeArguments),
    /// Measure what each kind of exit costs on this host
    Cost(crate::cost::CostArguments),
    /// Run an experiment: settings of one machine compared on the same work
    Lab(crate::lab::LabArguments),
    /// Make, show, check or copy disk images
    Image(crate::image::ImageArguments),
    /// Show the exits of a running virtual machine, and where its time goes
    Stats(control::stats::StatsArguments),
    /// Set a mark in the statistics of a running virtual machine, or list the marks
    Mark(control::mark::MarkArguments),
    /// Watch where the time of running virtual machines goes, on the whole terminal
    Top(crate::top::TopArguments),
    /// Write manual pages and shell completions (for packages)
    #[command(hide = true)]
    Documents(documents::DocumentsArguments),
}

/// The definition itself.
pub fn definition() -> clap::Command {
    use clap::CommandFactory;
    Cli::command()
}

/// `tollgate run`.
#[derive(Args, Debug)]
#[command(after_long_help = run_help())]
pub struct RunArguments {
    /// What to boot: Linux (bzImage or vmlinux), a multiboot 1 or 2 kernel, a boot sector, a flat image
    ///
    /// Which of them it is, is found out from the file. Without it the machine starts from
    /// firmware (--bios), which boots a disk.
    #[arg(
        long,
        value_name = "PATH",
        alias = "kernel-image-path",
        required_unless_present_any = ["bios", "drive", "floppy", "cdrom"]
    )]
    pub kernel: Option<PathBuf>,

    /// Start from firmware: a BIOS image, which appears below 1 MiB and below 4 GiB
    ///
    /// Without it and without --kernel, SeaBIOS from the package 'seabios' is started, which boots
    /// a floppy disk (--floppy), a disk (--drive) or a CD-ROM (--cdrom). What firmware writes to port
    /// 402h goes to --debug-console.
    #[arg(
        long,
        value_name = "PATH",
        conflicts_with_all = ["kernel", "initrd", "append"],
        verbatim_doc_comment
    )]
    pub bios: Option<PathBuf>,

    /// Initial RAM disk, or a multiboot module and its arguments: 'PATH ARGUMENTS'
    ///
    /// Linux takes one file. Multiboot modules are given by repeating the flag, or with
    /// commas between them; a comma that belongs to a name is then doubled.
    #[arg(
        long,
        value_name = "PATH",
        visible_alias = "module",
        verbatim_doc_comment
    )]
    pub initrd: Vec<String>,

    /// The kernel's command line
    #[arg(
        long,
        value_name = "STRING",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true,
        aliases = ["cmdline", "boot-args"]
    )]
    pub append: String,

    /// Guest RAM, such as 512M or 1G; a bare number counts MiB
    #[arg(
        short,
        long,
        value_name = "SIZE",
        default_value = "256M",
        value_parser = size::parse,
        alias = "mem"
    )]
    pub memory: u64,

    /// The processor, by the name of its model; 'help' lists them with their features
    ///
    /// host: the host's own, without what is not implemented. The others are the same on
    /// every host that has their features. Appended to a model: ,+smap for supervisor-mode access
    /// prevention, ,+pku and ,+pks for protection keys of programs' and the supervisor's pages,
    /// which make the guest slower.
    #[arg(
        long,
        value_name = "MODEL",
        default_value = "host",
        value_parser = cpu_models::parse,
        verbatim_doc_comment
    )]
    pub cpu: Cpu,

    /// Where the first serial port goes: stdio, file:PATH, pty or null
    ///
    /// stdio: this terminal, which is switched to raw mode and restored at the end. If
    /// standard input is not a terminal its bytes reach the guest unchanged, and its end
    /// does not end the virtual machine. If standard output is a pipe that nobody empties,
    /// the guest waits.
    /// file:PATH: output is written there, an existing file is replaced; no input.
    /// pty: a new pseudo-terminal, whose name is shown on standard error; output that
    /// nobody reads is dropped once its buffer is full.
    /// null: no output, no input.
    #[arg(
        long,
        value_name = "WHERE",
        default_value = "stdio",
        value_parser = OsStringValueParser::new().try_map(serial_target),
        verbatim_doc_comment
    )]
    pub serial: SerialTarget,

    /// Where bytes written to ports E9h and 402h go: stdio, file:PATH or null
    #[arg(
        long,
        value_name = "WHERE",
        default_value = "null",
        value_parser = OsStringValueParser::new().try_map(debug_target)
    )]
    pub debug_console: SerialTarget,

    /// Where the screen of a machine with firmware is shown: none, text or png:DIR
    ///
    /// text: in this terminal, with colours and line characters; what is typed goes to the
    /// guest's keyboard, Ctrl-A d is Ctrl-Alt-Delete. The first serial port then goes nowhere,
    /// unless --serial says file or pty. Pictures are told of by their size.
    /// png:DIR: pictures in this folder, 000001.png and so on, one for each that differs from the one
    /// before, four a second and 10000 in all at most.
    /// vnc=unix:PATH: for a VNC viewer at this socket, which only you can reach.
    /// vnc=ADDR[:PORT],password=FILE: the same at an address of this host, port 5900 unless named,
    /// for those who know the password: the first line of FILE, 8 characters at most. Nothing is
    /// encrypted. A viewer has keyboard and mouse too.
    /// none: nowhere; 'tollgate screen' shows it.
    #[arg(
        long,
        value_name = "WHERE",
        value_parser = OsStringValueParser::new().try_map(display),
        default_value = "none",
        conflicts_with = "kernel",
        verbatim_doc_comment
    )]
    pub display: Display,

    /// Open a control socket at this path (see tollgate control)
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,

    /// Start the virtual machine again when the guest resets it
    #[arg(long)]
    pub reboot: bool,

    /// What ends the run, with which exit code: panic[=CODE] or reset[=CODE]. May be repeated
    ///
    /// panic: a panic that the guest's kernel reports ends the machine at once. Without this the
    /// guest goes on, to its last messages and its reset, and the exit code is 5 all the same.
    /// reset: a reset ends it with code 6, or CODE, instead of 0.
    /// Linux reports panics once it has loaded pvpanic-mmio, which udev does.
    #[arg(
        long,
        value_name = "EVENT",
        value_parser = exit_on::parse,
        verbatim_doc_comment
    )]
    pub exit_on: Vec<ExitOn>,

    /// A device beside those that every machine has; 'help' lists them. May be repeated
    #[arg(long, value_name = "NAME", value_parser = devices::parse)]
    pub device: Vec<OptionalDevice>,

    /// A disk: file=PATH and, between commas, how it is used. May be repeated
    ///
    /// format=raw|qcow2      default: as the file's name ends; nothing else is taken for qcow2
    /// readonly=on|off       the guest cannot write; others may read the image meanwhile
    /// snapshot=on|off       what the guest writes goes to a temporary file and is forgotten
    /// cache=writeback       writes are safe once the guest has flushed them (default)
    /// cache=none            the same past the host's page cache (O_DIRECT)
    /// cache=unsafe          flushes do nothing: fast, for images that may be lost
    /// discard=unmap|ignore  whether the host gets back what the guest discards
    /// backing=any           an image may name any file as its backing file or data file (default)
    /// backing=same-dir|none only files in its own folder, or none: for images of strangers
    /// serial=TEXT           what the guest reads as serial number, at most 20 characters
    /// if=virtio|ide         a virtio device (default), or with firmware an ATA disk behind a PIIX3
    /// media=disk|cdrom      with if=ide: a disk (default), or a CD-ROM in a drive of its own
    /// cyls=N,heads=N,secs=N with if=ide: the disk's geometry, else guessed from its partitions
    /// The guest finds virtio ones as /dev/vda, /dev/vdb ..., with the drivers virtio_pci and
    /// virtio_blk. An image that is written belongs to one machine at a time.
    #[arg(
        long,
        value_name = "DRIVE",
        value_parser = drive::parse,
        verbatim_doc_comment
    )]
    pub drive: Vec<drive::DriveArgument>,

    /// A disk in a floppy drive: FILE[,readonly=on][,snapshot=on], or none for an empty drive. Up to
    /// two times
    ///
    /// The image's size says what disk it is: 160, 180, 320, 360, 720, 1200, 1440 or 2880 KiB, or
    /// one of those that hold more than they should, such as 1680. A comma that belongs to the
    /// name is doubled. 'tollgate medium' changes the disk of a running machine.
    #[arg(
        long,
        value_name = "DISK",
        value_parser = floppy::parse,
        verbatim_doc_comment
    )]
    pub floppy: Vec<FloppyArgument>,

    /// A CD-ROM: an image, mostly of ISO 9660, or none for an empty drive
    ///
    /// The drive is the second IDE channel's master. More drives are --drive if=ide,media=cdrom,file=PATH.
    /// 'tollgate medium' changes the disc of a running machine.
    #[arg(
        long,
        value_name = "FILE",
        value_parser = floppy::parse_cd_rom,
        verbatim_doc_comment
    )]
    pub cdrom: Option<FloppyArgument>,

    /// Leave the images of all disks and floppy disks as they are, as snapshot=on does for one
    ///
    /// What the guest writes goes to temporary files and is forgotten at the end. Disks that
    /// 'tollgate medium' puts in later are not meant.
    #[arg(long, verbatim_doc_comment)]
    pub snapshot: bool,

    /// What firmware boots: a (floppy disk), c (disk), d (CD-ROM), or several in their order
    ///
    /// What is not named comes last. The default is acd.
    #[arg(
        long,
        value_name = "ORDER",
        value_parser = floppy::parse_order,
        conflicts_with = "kernel",
        verbatim_doc_comment
    )]
    pub boot: Option<BootOrder>,

    /// A directory of the host that the guest can mount: DIR[:TAG][,ro][,cache=SECONDS]. May be
    /// repeated
    ///
    /// TAG            the name to mount it by, default share0 for the first, share1 ...
    /// ro             the guest cannot change anything; rw is the default
    /// cache=SECONDS  how long the guest may believe what it knows of names and attributes,
    ///                default 1; 0: it always asks
    /// owners=host    files of your user have your user's number, not root's
    /// The guest needs the drivers virtio_pci, fuse and virtiofs:
    ///     mount -t virtiofs share0 /mnt
    /// A comma that belongs to the name is doubled. Files of your user, and those that the
    /// guest creates, belong to root in the guest.
    #[arg(
        long,
        value_name = "SHARE",
        value_parser = share::parse,
        verbatim_doc_comment
    )]
    pub share: Vec<ShareArgument>,

    /// A stream of bytes between guest and host: NAME=WHERE. May be repeated
    ///
    /// WHERE: stdio, stdin, stdout, stderr     of tollgate itself
    ///        file:PATH                        what the guest writes; replaces a file
    ///        socket:PATH                      a Unix socket, one client at a time
    ///        fd:N                             a descriptor that tollgate was started with
    /// The guest finds them as /dev/vportNp1, /dev/vportNp2 ..., with the drivers virtio_pci and
    /// virtio_console; N counts the virtio devices before the console, 0 if there are none.
    /// /sys/class/virtio-ports/vportNp1/name says which is which, and udev makes
    /// /dev/virtio-ports/NAME.
    #[arg(
        long,
        value_name = "PORT",
        value_parser = OsStringValueParser::new().try_map(|text| port::parse(&text)),
        verbatim_doc_comment
    )]
    pub port: Vec<PortOptions>,

    /// A console on such a stream (virtio-console), which Linux has as hvc0, hvc1 ...
    ///
    /// WHERE is that of --port; the guest's command line then says console=hvc0. The guest needs
    /// the drivers virtio_pci and virtio_console: as modules they come after the first messages.
    /// May be repeated.
    #[arg(
        long,
        value_name = "WHERE",
        value_parser = OsStringValueParser::new().try_map(|text| port::parse_console(&text)),
        verbatim_doc_comment
    )]
    pub hvc: Vec<PortTarget>,

    /// A network: user, passt, socket=PATH, tap=NAME, fd=N or none, and how it is used. May be repeated
    ///
    /// user                  a network in this process, without privilege: the guest gets
    ///                       10.0.2.15 by DHCP; 10.0.2.2 is the host's loopback address,
    ///                       10.0.2.3 its name server, all else the world as the host sees it
    /// hostfwd=tcp|udp:[ADDR]:PORT-[GUEST]:PORT
    ///                       (user) a port of the host that leads to one of the guest, as in
    ///                       hostfwd=tcp:127.0.0.1:2222-:22. May be repeated. Without ADDR
    ///                       every host that reaches this one can connect
    /// restrict=on|off       (user) on: the guest reaches nothing outside; hostfwd works
    /// passt                 the program passt, from PATH, which is started and ended with the
    ///                       machine; it needs user namespaces
    /// socket=PATH           a stream socket that carries frames, each behind its length in
    ///                       four bytes, as QEMU's -netdev stream and passt have it
    /// tap=NAME              a tap interface of this host, which its owner and root may use
    /// fd=N                  a tap that whoever starts tollgate has opened, or a socket that keeps
    ///                       frames apart (SOCK_SEQPACKET, SOCK_DGRAM)
    /// mac=XX:XX:XX:XX:XX:XX the adapter's address, default 52:54:00:12:34:56 and so on
    /// none                  no network, which is the default
    /// The guest finds adapters as eth0, eth1 ..., with the drivers virtio_pci and virtio_net.
    #[arg(
        long,
        value_name = "NETWORK",
        value_parser = net::parse,
        verbatim_doc_comment
    )]
    pub net: Vec<net::Network>,

    /// Sockets between guest and host (AF_VSOCK): cid=N,path=SOCKET
    ///
    /// A program of the host that connects to the Unix socket SOCKET and writes "CONNECT PORT" and a
    /// newline reaches that port of the guest, whose number is N; the answer is "OK" and a port. The
    /// guest reaches, at port P of the host (number 2), who listens at the Unix socket SOCKET_P.
    /// As in Firecracker. The guest's driver is vmw_vsock_virtio_transport.
    #[arg(
        long,
        value_name = "VSOCK",
        value_parser = vsock::parse,
        verbatim_doc_comment
    )]
    pub vsock: Option<VsockOptions>,

    /// Whether the machine has a PCI bus
    #[arg(long, value_name = "SWITCH", value_enum, default_value_t = Switch::On)]
    pub pci: Switch,

    /// A file that the guest finds by QEMU's fw_cfg device: NAME,file=PATH or NAME,string=TEXT
    ///
    /// Names should begin with opt/ and a domain, as in opt/org.example/key. A comma that
    /// belongs to a name, path or text is doubled. May be repeated.
    #[arg(
        long,
        value_name = "FILE",
        value_parser = fw_cfg::parse,
        alias = "fw_cfg",
        verbatim_doc_comment
    )]
    pub fw_cfg: Vec<FwCfgArgument>,

    /// Handlers in the guest that are there before any program, as an option ROM
    ///
    /// dos: INT 10h, 13h, 16h and 1Ah. They do quickly what DOS programs ask for most, have DOS wait
    /// for keys in HLT instead of polling, and hand all else on to the BIOS. Hooks of
    /// programs run first.
    #[arg(
        long,
        value_name = "SYSTEM",
        value_enum,
        conflicts_with = "kernel",
        verbatim_doc_comment
    )]
    pub guest_hooks: Option<GuestHooksFor>,

    /// What the guest is told of the hypervisor
    ///
    /// kvm: the part of KVM's interface that helps here: a clock, so that the guest need not
    /// measure its time-stamp counter, and that ports need no delay. none: no interface that a
    /// system looks for.
    #[arg(
        long,
        value_name = "INTERFACE",
        value_enum,
        default_value_t = Paravirt::Kvm,
        verbatim_doc_comment
    )]
    pub paravirt: Paravirt,

    /// What becomes of the guest's clocks when the machine resumes after a pause
    ///
    /// step: they jump by the pause, so that the guest's time of day stays right; what waits
    /// for a moment in the pause happens at the resumption. keep: they continue from where they
    /// stopped, so that the guest notices nothing, and its time of day is late from then on.
    #[arg(
        long,
        value_name = "CHOICE",
        value_enum,
        default_value_t = RealtimeChoice::Step,
        verbatim_doc_comment
    )]
    pub realtime: RealtimeChoice,

    /// What a triple fault does: stop, with exit code 3 and the registers, or reset
    ///
    /// reset: as if the guest had reset the machine, for systems that reset themselves that
    /// way (Linux with reboot=t): the end, with exit code 0, or with --reboot a new start. With
    /// firmware it is a reset of the processor alone, which goes on in the firmware. The default
    /// is stop with --kernel, reset with firmware.
    #[arg(long, value_name = "ACTION", value_enum, verbatim_doc_comment)]
    pub triple_fault: Option<TripleFault>,

    /// Where guest registers live while guest code runs (for developers)
    #[arg(
        long,
        value_name = "MAP",
        value_enum,
        default_value_t = RegisterMapName::Legacy,
        hide = true
    )]
    pub register_map: RegisterMapName,

    /// The machine itself.
    #[command(flatten)]
    pub machine: MachineArguments,

    /// Statistics.
    #[command(flatten)]
    pub statistics: StatisticsArguments,
}

/// Where guest registers live while guest code runs.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegisterMapName {
    /// All in host registers
    Legacy,
    /// As many as can be in memory
    Spilled,
}

/// Where the screen is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Display {
    /// Nowhere.
    None,
    /// In this terminal.
    Text,
    /// As pictures in a folder.
    Png(PathBuf),
    /// For VNC viewers.
    Vnc(VncOptions),
}

impl RunArguments {
    /// Where the first serial port goes: nowhere if the terminal is the screen.
    pub fn serial(&self) -> &SerialTarget {
        match (&self.display, &self.serial) {
            (Display::Text, SerialTarget::Stdio) => &SerialTarget::Null,
            (_, target) => target,
        }
    }
}

/// Whether something is there.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    /// It is there
    On,
    /// It is not
    Off,
}

/// For which system there are hooks.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuestHooksFor {
    /// FreeDOS and its kin
    Dos,
}

/// What the guest is told of the hypervisor.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paravirt {
    /// A part of KVM's interface
    Kvm,
    /// No interface that a system looks for
    None,
}

/// What becomes of the guest's clocks after a pause.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum RealtimeChoice {
    /// They jump by the pause
    Step,
    /// They continue from where they stopped
    Keep,
}

/// What a triple fault does.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TripleFault {
    /// The guest's reset
    Reset,
    /// The end of the run, with the processor's registers
    Stop,
}

/// What holds guest RAM.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryBacking {
    /// The host's memory, which goes to its swap space if there is any
    Anonymous,
    /// The host's memory, all of it from the start and never paged out ('ulimit -l' permitting)
    Resident,
    /// A file without a name in $TMPDIR (or /var/tmp), to which the host may page out
    Pageable,
}

impl MemoryBacking {
    /// The machine's word for it.
    pub fn choice(self) -> MemoryBackingChoice {
        match self {
            Self::Anonymous => MemoryBackingChoice::Anonymous,
            Self::Resident => MemoryBackingChoice::Resident,
            Self::Pageable => MemoryBackingChoice::Pageable,
        }
    }
}

/// Where a console goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SerialTarget {
    /// The terminal, or whatever standard input and output are.
    Stdio,
    /// Output to a file.
    File(PathBuf),
    /// A new pseudo-terminal.
    Pty,
    /// Nowhere.
    Null,
}

/// `tollgate doctor`.
#[derive(Args, Debug)]
#[command(after_help = "Exit codes: 0 if tollgate can run here, 1 if not.")]
pub struct DoctorArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tollgate control`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 the machine did not do it, 2 nothing answers at PATH.
Examples:
  tollgate control vm.sock status
  tollgate control vm.sock power-button --wait=60")]
pub struct ControlArguments {
    /// The path given to tollgate run --control
    #[arg(value_name = "PATH")]
    pub socket: PathBuf,

    /// What to do
    #[arg(value_name = "COMMAND", value_enum)]
    pub command: control::protocol::Name,

    /// Print the machine's answer as JSON
    #[arg(long)]
    pub json: bool,

    /// With power-button: wait until the machine has ended, at most SECONDS (default 120)
    ///
    /// If it has not ended by then, the guest has ignored the button, or is still shutting
    /// down: one line says so, and the exit code is 1. The machine runs on.
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "120",
        value_parser = clap::value_parser!(u64).range(1..=86_400),
        verbatim_doc_comment
    )]
    pub wait: Option<u64>,
}

/// The subcommands that `words` name one below the other, such as `lab`, `vif`, and the
/// names that could come next.
pub fn subcommands(words: &[OsString]) -> (Vec<String>, Vec<String>) {
    let mut command = definition();
    let mut path = Vec::new();
    for word in words.iter().skip(1).filter_map(|word| word.to_str()) {
        if let Some(next) = command.find_subcommand(word).cloned() {
            path.push(word.to_owned());
            command = next;
        }
    }
    let names = command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set())
        .map(|sub| sub.get_name().to_owned());
    (path, names.collect())
}

/// The command line was answered already (help, version, an error); exit with this.
pub struct Answered(pub u8);

/// Understands a command line, whose first word is the program's own name.
///
/// # Errors
/// [`Answered`] if help, the version or an error message was printed instead.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Subcommand, Answered> {
    let mut words: Vec<OsString> = words.collect();
    if words.get(1).is_some_and(|word| word == "exec") {
        let rest = words.split_off(2);
        words.extend(crate::exec::join_networks(rest));
    }
    if cpu_models::are_asked_for(&words) {
        let code = print_and_end(&cpu_models::list(), exit_code::SUCCESS);
        return Err(Answered(code));
    }
    if devices::are_asked_for(&words) {
        let code = print_and_end(&devices::list(), exit_code::SUCCESS);
        return Err(Answered(code));
    }
    let words = crate::lab::with_show(words);
    if let Some(failure) = foreign_words::answer(&words) {
        return Err(Answered(code_of(&words, failure.report())));
    }
    match Cli::try_parse_from(&words) {
        Ok(cli) => Ok(cli.subcommand),
        Err(error) if error.use_stderr() => {
            let code = usage::explain(&error, &words).report();
            Err(Answered(code_of(&words, code)))
        }
        Err(help) => {
            let columns = host::window_size(std::io::stdout().as_fd()).map(|it| it.0);
            let named = || std::env::var("COLUMNS").ok()?.parse().ok();
            let columns = columns.or_else(named).unwrap_or(help_text::MOST_COLUMNS);
            let fitted = help_text::fit(definition(), columns).try_get_matches_from(&words);
            let help = fitted.err().unwrap_or(help);
            let code = print_and_end(&help.to_string(), exit_code::SUCCESS);
            Err(Answered(code))
        }
    }
}

/// The exit code of a wrong command line. Where the command's own codes begin at 0, none of them is
/// taken.
fn code_of(words: &[OsString], code: u8) -> u8 {
    match words.get(1).is_some_and(|word| word == "exec") {
        true => exit_code::EXEC_FAILED,
        false => code,
    }
}

fn serial_target(text: OsString) -> Result<SerialTarget, String> {
    if text == "pty" {
        return Ok(SerialTarget::Pty);
    }
    target(text).ok_or_else(|| "expected stdio, file:PATH, pty or null".into())
}

fn debug_target(text: OsString) -> Result<SerialTarget, String> {
    target(text).ok_or_else(|| "expected stdio, file:PATH or null".into())
}

fn display(text: OsString) -> Result<Display, String> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    if let Some(vnc) = text.as_bytes().strip_prefix(b"vnc=") {
        return VncOptions::parse(OsStr::from_bytes(vnc)).map(Display::Vnc);
    }
    match text.as_bytes() {
        b"none" => Ok(Display::None),
        b"text" => Ok(Display::Text),
        bytes => match bytes.strip_prefix(b"png:") {
            None | Some([]) => Err("expected none, text, png:DIR or vnc=WHERE".into()),
            Some(folder) => Ok(Display::Png(OsString::from_vec(folder.to_vec()).into())),
        },
    }
}

fn target(text: OsString) -> Option<SerialTarget> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    if text == "stdio" {
        return Some(SerialTarget::Stdio);
    }
    if text == "null" || text == "none" {
        return Some(SerialTarget::Null);
    }
    match text.as_bytes().strip_prefix(b"file:") {
        None | Some([]) => None,
        Some(path) => {
            let path = OsString::from_vec(path.to_vec());
            Some(SerialTarget::File(path.into()))
        }
    }
}

/// The last sections of `tollgate run --help`.
fn run_help() -> String {
    format!(
        "\
Examples:
  Boot Linux to a shell on this terminal:
    tollgate run --kernel vmlinuz --initrd initrd.img --append \"console=ttyS0\" -m 512M
  With a disk, which the guest finds as /dev/vda:
    tollgate run --kernel vmlinuz --initrd initrd.img --append \"console=ttyS0 root=/dev/vda1\" \\
        --drive file=debian.qcow2 -m 1G
  Boot a disk as a PC does, from the firmware of the package 'seabios':
    tollgate run --drive file=disk.img
  The same in this terminal, as at a PC:
    tollgate run --drive file=disk.img --display text
  With a directory of the host, for 'mount -t virtiofs share0 /mnt' in the guest:
    tollgate run --kernel vmlinuz --initrd initrd.img --append \"console=ttyS0\" --share .
  With a network, and a port of this host that leads to the guest's ssh:
    tollgate run --kernel vmlinuz --initrd initrd.img --append \"console=ttyS0 root=/dev/vda1\" \\
        --drive file=debian.qcow2 --net user,hostfwd=tcp:127.0.0.1:2222-:22 -m 1G
  Run unattended, keep the log, and look in from outside:
    tollgate run --kernel vmlinuz --initrd initrd.img --append \"console=ttyS0\" \\
        --serial file:boot.log --control vm.sock &
    tollgate control vm.sock status
  See which exits a guest spends its time on, and where they come from:
    tollgate run --kernel vmlinuz --initrd initrd.img --append \"console=ttyS0 nokaslr\" \\
        --stats --symbols System.map

{keys}
{codes}",
        keys = terminal_keys::help(),
        codes = exit_code::help(),
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn run_arguments(words: &[&str]) -> RunArguments {
        let words = ["tollgate", "run", "--kernel", "k"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().subcommand {
            Subcommand::Run(arguments) => *arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_need_only_a_kernel() {
        let arguments = run_arguments(&[]);
        assert_eq!(arguments.memory, 256 << 20);
        assert_eq!(arguments.serial, SerialTarget::Stdio);
        assert_eq!(arguments.debug_console, SerialTarget::Null);
        assert_eq!(arguments.append, "");
        assert!(!arguments.reboot && !arguments.machine.verify_code);
        assert!(!arguments.statistics.wants_report());
        assert_eq!(arguments.statistics.trace_limit, 64 << 20);
        assert_eq!(
            arguments.machine.knobs,
            crate::knob_flags::KnobArguments::default()
        );
    }

    #[test]
    fn each_knob_is_a_flag() {
        use tollgate_machine::config::VmConfig;
        use tollgate_machine::knobs::{KNOBS, Settings};
        for knob in KNOBS {
            for value in knob.values {
                let flag = format!("--{}", knob.name);
                let mut config = VmConfig::default();
                run_arguments(&[&flag, value]).machine.apply(&mut config);
                let settings = Settings::of(&config);
                assert!(settings.names().any(|name| name == (knob.name, *value)));
            }
            let bad = [
                "tollgate",
                "run",
                "--kernel",
                "k",
                &format!("--{}=x", knob.name),
            ];
            assert!(Cli::try_parse_from(bad).is_err());
        }
    }

    #[test]
    fn names_from_other_monitors_are_understood() {
        let arguments = run_arguments(&["--boot-args", "-x", "-m", "1G"]);
        assert_eq!(arguments.append, "-x");
        assert_eq!(arguments.memory, 1 << 30);
    }

    #[test]
    fn consoles_are_stdio_a_file_a_pty_or_null() {
        let file = SerialTarget::File("a:b".into());
        assert_eq!(run_arguments(&["--serial", "file:a:b"]).serial, file);
        assert_eq!(
            run_arguments(&["--serial", "pty"]).serial,
            SerialTarget::Pty
        );
        assert_eq!(serial_target("none".into()), Ok(SerialTarget::Null));
        for bad in ["", "file:", "telnet:1", "ptyx"] {
            assert!(serial_target(bad.into()).is_err(), "{bad}");
        }
        assert!(debug_target("pty".into()).is_err());
    }

    #[test]
    fn help_lines_fit_a_wide_terminal() {
        for line in run_help().lines() {
            assert!(line.chars().count() <= 96, "{line}");
        }
    }
}
