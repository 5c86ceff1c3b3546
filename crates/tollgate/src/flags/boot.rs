//! Flags about what the machine boots: kernel, firmware, initial RAM disk, command line.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tollgate_machine::config::DriveOptions;

use crate::flash;
use crate::floppy::{self, BootOrder};
use crate::fw_cfg::{self, FwCfgArgument};

/// Flags about what `tollgate run` boots.
#[derive(Args, Debug)]
#[command(next_help_heading = "What to boot")]
pub struct BootArguments {
    /// What to boot: Linux (bzImage or vmlinux), a multiboot 1 or 2 kernel, a boot sector, a flat image
    ///
    /// The type is detected from the file's content. Without this flag the machine starts from
    /// firmware (--bios, --pflash), which boots a disk. With UEFI firmware, the firmware loads the
    /// kernel, which must be a program for UEFI, as Linux with its EFI stub is.
    #[arg(
        long,
        value_name = "PATH",
        alias = "kernel-image-path",
        required_unless_present_any = ["bios", "pflash", "drive", "floppy", "cdrom", "restore"],
        verbatim_doc_comment
    )]
    pub kernel: Option<PathBuf>,

    /// Start from firmware: an image of a BIOS or of UEFI, mapped below 1 MiB and below 4 GiB
    ///
    /// Without this flag and without --kernel the machine starts SeaBIOS from the package
    /// 'seabios', which boots a floppy disk (--floppy), a disk (--drive) or a CD-ROM (--cdrom).
    /// What firmware writes to port 402h goes to --debug-console.
    #[arg(long, value_name = "PATH", verbatim_doc_comment)]
    pub bios: Option<PathBuf>,

    /// Start from firmware in flash memory: FILE[,readonly=on][,snapshot=on][,format=raw|qcow2]
    ///
    /// The first chip ends at 4 GiB and has the firmware's code. A second one lies below it, and
    /// has the variables, which the guest changes: give each machine a copy of its own. With the
    /// package 'ovmf':
    ///     cp /usr/share/OVMF/OVMF_VARS_4M.fd vars.fd
    ///     tollgate run --pflash /usr/share/OVMF/OVMF_CODE_4M.fd,readonly=on --pflash vars.fd
    /// Write a comma that belongs to the name twice.
    #[arg(
        long,
        value_name = "FLASH",
        value_parser = flash::parse,
        conflicts_with = "bios",
        verbatim_doc_comment
    )]
    pub pflash: Vec<DriveOptions>,

    /// Continue where a snapshot was taken (see tollgate snapshot)
    ///
    /// The machine is the one that was saved: its memory, devices, disks and networks come from the
    /// file. Flags for what lies outside the guest can be given too: consoles, display, statistics,
    /// knobs, --control.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "kernel", "bios", "pflash", "initrd", "append", "boot", "fw_cfg", "guest_hooks", "memory",
            "memory_backing", "cpu", "hpet", "no_hpet", "drive", "floppy", "cdrom", "snapshot",
            "share", "net", "vsock", "port", "hvc", "device", "pci", "paravirt",
        ],
        verbatim_doc_comment
    )]
    pub restore: Option<PathBuf>,

    /// With --restore: run next to other machines of this snapshot, with places of its own
    ///
    /// Nothing of the host is shared that two machines cannot share: what the guest writes to disks
    /// goes to temporary overlays, ports and vsock become files and sockets whose names begin with
    /// PREFIX (PREFIX.port-NAME, PREFIX.port-NAME.sock, PREFIX.vsock), and no ports of the host are
    /// forwarded. tollgate snapshot fork starts machines with this flag.
    #[arg(
        long,
        value_name = "PREFIX",
        requires = "restore",
        verbatim_doc_comment
    )]
    pub separate: Option<PathBuf>,

    /// Initial RAM disk, or a multiboot module and its arguments: 'PATH ARGUMENTS'
    ///
    /// Linux takes one file. To give several multiboot modules, repeat the flag or separate the
    /// modules with commas. Write a comma that belongs to a name twice.
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

    /// The order in which firmware tries to boot: a (floppy disk), c (disk), d (CD-ROM)
    ///
    /// Give one letter or several, such as dc. Those that you leave out come last. The default is
    /// acd.
    #[arg(
        long,
        value_name = "ORDER",
        value_parser = floppy::parse_order,
        conflicts_with = "kernel",
        verbatim_doc_comment
    )]
    pub boot: Option<BootOrder>,

    /// A file that the guest reads through QEMU's fw_cfg device: NAME,file=PATH or NAME,string=TEXT
    ///
    /// Names should begin with opt/ and a domain, as in opt/org.example/key. Write a comma that
    /// belongs to a name, path or text twice. May be repeated.
    #[arg(
        long,
        value_name = "FILE",
        value_parser = fw_cfg::parse,
        alias = "fw_cfg",
        verbatim_doc_comment
    )]
    pub fw_cfg: Vec<FwCfgArgument>,

    /// Install fast BIOS handlers in the guest before any program runs
    ///
    /// dos: handlers of INT 10h, 13h, 16h and 1Ah, in an option ROM. They do quickly what DOS programs
    /// request most often, let DOS wait for keys in HLT instead of polling, and pass all other
    /// requests to the BIOS. Handlers that programs install run first.
    #[arg(
        long,
        value_name = "SYSTEM",
        value_enum,
        conflicts_with = "kernel",
        verbatim_doc_comment
    )]
    pub guest_hooks: Option<GuestHooksFor>,
}

/// The system for which there are handlers.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuestHooksFor {
    /// FreeDOS and other kinds of DOS
    Dos,
}
