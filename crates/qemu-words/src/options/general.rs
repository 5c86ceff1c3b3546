//! Options of the machine itself: processor, memory, what it boots, its tables.

use super::row::Row;
use super::row::Treatment::{Done, NoDifference, Partly, Refused};
use super::row::row;

pub const STANDARD: &[Row] = &[
    row("h", &["help"], "", Done, ""),
    row("version", &[], "", Done, ""),
    row(
        "machine",
        &["M"],
        "[type=]name[,prop=value...]",
        Partly,
        "pc, q35, isapc, microvm and their versions are Tollgate's one PC; acpi, hpet; accel and what makes no difference are accepted; other properties that are switched on are refused",
    ),
    row(
        "cpu",
        &[],
        "model[,+feature][,-feature]",
        Partly,
        "max, host and base: the host's processor as far as Tollgate has it; named models that Tollgate lacks: the psABI level nearest below them, if the host has it; features that cannot be added or removed: a warning",
    ),
    row(
        "accel",
        &[],
        "name[,prop=value...]",
        Partly,
        "tcg and kvm are accepted, kvm with a warning: Tollgate is its own accelerator",
    ),
    row(
        "smp",
        &[],
        "[cpus=]n[,maxcpus=n]...",
        Partly,
        "all forms; the guest has one processor, and a warning says so",
    ),
    row(
        "numa",
        &[],
        "node...",
        Partly,
        "one node is accepted; several are refused, because the guest has one processor",
    ),
    row(
        "add-fd",
        &[],
        "fd=fd,set=set",
        Refused,
        "there are no sets of descriptors",
    ),
    row("set", &[], "group.id.key=value", Done, ""),
    row(
        "global",
        &[],
        "driver.property=value",
        Partly,
        "applied to devices of this kind; what names no device of the machine makes no difference",
    ),
    row(
        "boot",
        &[],
        "[order=drives][,menu=on|off]...",
        Partly,
        "order, once (as order); menu, splash, reboot-timeout and strict make no difference",
    ),
    row(
        "m",
        &[],
        "[size=]megs[,slots=n,maxmem=size]",
        Done,
        "slots and maxmem make no difference: memory is not plugged in later",
    ),
    row(
        "mem-path",
        &[],
        "path",
        NoDifference,
        "guest RAM is the host's memory",
    ),
    row(
        "mem-prealloc",
        &[],
        "",
        NoDifference,
        "guest RAM is taken as it is used",
    ),
    row(
        "k",
        &[],
        "language",
        NoDifference,
        "keys are those of a US keyboard",
    ),
    row("audio-help", &[], "", Refused, "there is no sound"),
    row(
        "audio",
        &[],
        "driver...",
        Partly,
        "none is accepted; there is no sound",
    ),
    row(
        "audiodev",
        &[],
        "driver,id=id...",
        NoDifference,
        "there is no sound, and a sound device is refused",
    ),
    row("soundhw", &[], "name", Refused, "there is no sound"),
    row(
        "device",
        &[],
        "driver[,prop=value...]",
        Partly,
        "the devices that `-device help` lists; others are refused by name",
    ),
    row("name", &[], "[guest=]name...", Done, ""),
    row("uuid", &[], "uuid", Done, ""),
];

pub const X86: &[Row] = &[
    row(
        "win2k-hack",
        &[],
        "",
        NoDifference,
        "the disk is always as slow as that system needs",
    ),
    row(
        "no-fd-bootchk",
        &[],
        "",
        NoDifference,
        "firmware checks the signature",
    ),
    row("no-acpi", &[], "", Done, ""),
    row("no-hpet", &[], "", Done, ""),
    row(
        "acpitable",
        &[],
        "sig=str...",
        Refused,
        "tables cannot be added",
    ),
    row(
        "smbios",
        &[],
        "type=n...",
        Partly,
        "types 0, 1, 2, 3, 4, 11 and 17; file= and other types are refused; bank, speeds, release and families make no difference",
    ),
];

pub const BOOT: &[Row] = &[
    row(
        "bios",
        &[],
        "file",
        Done,
        "microvm's own firmware is replaced by the PC's",
    ),
    row(
        "pflash",
        &[],
        "file",
        Refused,
        "there is no flash memory; a ROM image is -bios",
    ),
    row(
        "kernel",
        &[],
        "bzImage",
        Done,
        "bzImage, vmlinux, PVH and multiboot, without firmware",
    ),
    row("append", &[], "cmdline", Done, ""),
    row("initrd", &[], "file", Done, ""),
    row("dtb", &[], "file", Refused, "a PC has no device tree"),
    row("shim", &[], "file", Refused, "there is no UEFI"),
    row("fw_cfg", &[], "[name=]name,file=file|string=text", Done, ""),
    row(
        "option-rom",
        &[],
        "rom",
        Refused,
        "option ROMs cannot be added",
    ),
];
