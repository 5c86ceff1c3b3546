//! Options about disks, discs and directories.

use super::row::Row;
use super::row::Treatment::{Done, NoDifference, Partly, Refused};
use super::row::row;

pub const BLOCKS: &[Row] = &[
    row("fda", &[], "file", Done, ""),
    row("fdb", &[], "file", Done, ""),
    row("hda", &[], "file", Done, "also a word that is no option"),
    row("hdb", &[], "file", Done, ""),
    row("hdc", &[], "file", Done, ""),
    row("hdd", &[], "file", Done, ""),
    row("cdrom", &[], "file", Done, ""),
    row(
        "blockdev",
        &[],
        "driver,node-name=n...",
        Partly,
        "raw and qcow2 over file; read-only, discard, cache.direct, cache.no-flush; as JSON too",
    ),
    row(
        "drive",
        &[],
        "file=file[,if=type]...",
        Partly,
        "if=virtio, ide, scsi, floppy and none; raw and qcow2; snapshot, cache, discard, readonly, serial, media, index, bus, unit, id; throttling is refused; aio, werror, rerror, detect-zeroes, copy-on-read make no difference",
    ),
    row(
        "mtdblock",
        &[],
        "file",
        Refused,
        "a PC has no such flash memory",
    ),
    row("sd", &[], "file", Refused, "there is no SD card"),
    row("snapshot", &[], "", Done, ""),
    row(
        "iscsi",
        &[],
        "...",
        NoDifference,
        "an image at an iSCSI address is refused",
    ),
];

pub const DIRECTORIES: &[Row] = &[
    row(
        "fsdev",
        &[],
        "local,id=id,path=path...",
        Partly,
        "local; security_model none, passthrough and mapped-xattr; readonly; multidevs and writeout make no difference; fmode and dmode are refused",
    ),
    row(
        "virtfs",
        &[],
        "local,path=path...",
        Partly,
        "as -fsdev, with mount_tag",
    ),
    row("virtfs_synth", &[], "", Refused, "QEMU has removed it"),
];
