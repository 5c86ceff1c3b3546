//! The texts of `-help`, `-version` and of `help` as the value of an option.

use crate::command_line::Given;
use crate::models::MODELS;
use crate::options::{OPTIONS, Treatment};
use crate::properties::DEVICES;
use std::fmt::Write;

/// The version of QEMU whose command line this is, for programs that ask.
pub const VERSION: (u32, u32, u32) = (9, 2, 0);

/// The first line of help, and the answer to `-version`. Programs look for `version N.N`.
fn version() -> String {
    let (major, minor, micro) = VERSION;
    format!(
        "QEMU emulator version {major}.{minor}.{micro} (Tollgate {})\n\
         This is not QEMU: Tollgate takes QEMU's command line\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// The answer to options that ask for a text.
pub fn answer(name: &str, given: &[Given]) -> Option<String> {
    given.iter().find_map(|option| match (option.row.name, option.value.as_str()) {
        ("h", _) => Some(help(name)),
        ("version", _) => Some(version()),
        ("machine", "help" | "?" | "type=help") => Some(MACHINES.to_owned()),
        ("cpu", "help" | "?") => Some(models()),
        ("accel", "help" | "?") => Some(ACCELERATORS.to_owned()),
        ("device", "help" | "?") => Some(devices()),
        ("display", "help" | "?") => Some(DISPLAYS.to_owned()),
        ("netdev" | "nic" | "net", "help" | "?") => Some(NETWORKS.to_owned()),
        ("chardev", "help" | "?") => Some(CHARACTERS.to_owned()),
        ("vga", "help" | "?") => Some("none                 no graphic card\nstd                  standard VGA (default)\n".to_owned()),
        ("d", "help" | "?") => Some(LOG_ITEMS.to_owned()),
        ("object", "help" | "?") => Some(OBJECTS.to_owned()),
        ("device", value) => properties_of(value.strip_suffix(",help")?),
        _ => None,
    })
}

const MACHINES: &str = "\
Supported machines are:
microvm              microvm (i386)
pc                   Standard PC (i440FX + PIIX, 1996) (alias of pc-i440fx-9.2)
pc-i440fx-9.2        Standard PC (i440FX + PIIX, 1996) (default)
q35                  Standard PC (Q35 + ICH9, 2009) (alias of pc-q35-9.2)
pc-q35-9.2           Standard PC (Q35 + ICH9, 2009)
isapc                ISA-only PC
";

const ACCELERATORS: &str = "Accelerators supported in QEMU binary:\ntcg\n";

const DISPLAYS: &str = "Available display backend types:\nnone\ncurses\nvnc\n";

const NETWORKS: &str = "Available netdev backend types:\nsocket\nstream\ntap\nuser\n";

const CHARACTERS: &str = "\
Available chardev backend types:
  stdio
  ringbuf
  pipe
  null
  socket
  vc
  file
  serial
  pty
";

const LOG_ITEMS: &str = "\
Log items (comma separated):
guest_errors    log when the guest OS does something invalid (accepted; nothing is written)
unimp           log unimplemented functionality (accepted; nothing is written)
";

const OBJECTS: &str = "\
List of user creatable objects:
  iothread
  memory-backend-file
  memory-backend-memfd
  memory-backend-ram
  monitor-hmp
  monitor-qmp
  rng-builtin
  rng-random
  secret
";

fn models() -> String {
    let mut text = String::from("Available CPUs:\n");
    for (name, _) in MODELS {
        let _ = writeln!(text, "x86 {name}");
    }
    text + "\nRecognized CPUID flags:\n  smap pku pks\n"
}

fn devices() -> String {
    let mut text = String::new();
    let mut group = "";
    for device in DEVICES {
        if device.group != group {
            let gap = if group.is_empty() { "" } else { "\n" };
            group = device.group;
            let _ = writeln!(text, "{gap}{group} devices:");
        }
        for name in device.names {
            let _ = writeln!(
                text,
                "name \"{name}\", bus {}, desc \"{}\"",
                device.bus, device.what
            );
        }
    }
    text
}

/// The properties of a device that make a difference.
pub fn own_properties(name: &str) -> &'static [&'static str] {
    match name {
        "virtio-blk-pci" | "ide-hd" | "ide-cd" => &["drive", "serial", "bootindex"],
        "scsi-hd" | "scsi-cd" => &["drive", "scsi-id", "lun", "serial", "bootindex"],
        "virtio-net-pci" | "e1000" => &["netdev", "mac"],
        "virtconsole" | "virtserialport" => &["chardev", "name"],
        "isa-debug-exit" => &["iobase", "iosize"],
        "isa-debugcon" => &["iobase", "chardev"],
        "isa-serial" => &["chardev"],
        "floppy" => &["drive", "unit"],
        "vmgenid" => &["guid"],
        _ => &[],
    }
}

/// The properties of one device.
fn properties_of(name: &str) -> Option<String> {
    let device = crate::properties::find_device(name)?;
    let mut text = format!("{name} options:\n");
    let own = own_properties(device.names[0]);
    for property in own.iter().chain(device.indifferent) {
        let _ = writeln!(text, "  {property}=<value>");
    }
    Some(text)
}

fn help(name: &str) -> String {
    let mut text = version();
    let _ = write!(
        text,
        "usage: {name} [options] [disk_image]\n\n\
         'disk_image' is a raw hard disk image for IDE hard disk 0\n"
    );
    for (heading, rows) in OPTIONS {
        let _ = writeln!(text, "\n{heading}:");
        for row in rows
            .iter()
            .filter(|row| row.treatment != Treatment::Refused)
        {
            let head = match row.form {
                "" => format!("-{}", row.name),
                form => format!("-{} {form}", row.name),
            };
            let what = match (row.treatment, row.note) {
                (Treatment::NoDifference, _) => "accepted, makes no difference",
                (_, note) => note,
            };
            match head.len() {
                ..15 => _ = writeln!(text, "{}", format!("{head:<15} {what}").trim_end()),
                _ if what.is_empty() => _ = writeln!(text, "{head}"),
                _ => _ = writeln!(text, "{head}\n                {what}"),
            }
        }
    }
    let refused = OPTIONS.iter().flat_map(|(_, rows)| rows.iter());
    let refused = refused.filter(|row| row.treatment == Treatment::Refused);
    let refused: Vec<String> = refused.map(|row| format!("-{}", row.name)).collect();
    let _ = writeln!(text, "\nRefused: {}", refused.join(" "));
    text
}
