//! Tests hard disks that boot FreeDOS: they are made from the floppy disk with a program of ours,
//! filled by DOS, booted alone, and checked with the host's tools.

use crate::support::cd::made;
use crate::support::dos::{Dos, freedos, get, program};
use crate::support::folder::Folder;
use crate::support::grub::grub_disk;
use crate::support::guests::fetched;
use crate::support::linux::READY;
use crate::support::pc::Pc;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The checking program of the package dosfstools, in a folder that is not in an ordinary user's
/// PATH.
const FSCK: &str = "/usr/sbin/fsck.fat";
const SECTOR: usize = 512;
/// The offset of the first partition's entry in the master boot record.
const ENTRY: usize = 446;
const MIB: u64 = 1 << 20;

/// A kind of disk, and what DOS must make of it.
struct Kind {
    bytes: u64,
    /// The options of HARDDISK.COM.
    options: &'static str,
    file_system: &'static str,
    /// The partition's type.
    partition: u8,
    /// The number of heads that the BIOS shows; the disk has 16.
    heads: u16,
    sectors_per_cluster: u8,
}

fn drive(disk: &Path) -> String {
    format!("file={},format=raw,if=ide", disk.display())
}

fn sector_at(disk: &Path, byte: u64) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    let disk = File::open(disk).unwrap();
    disk.read_exact_at(&mut sector, byte).unwrap();
    sector
}

/// The type of the first partition, and its start and length in bytes.
fn partition(disk: &Path) -> (u8, u64, u64) {
    let sector = sector_at(disk, 0);
    let number = |at: usize| {
        let bytes = sector[ENTRY + at..][..4].try_into().unwrap();
        u64::from(u32::from_le_bytes(bytes)) * SECTOR as u64
    };
    (sector[ENTRY + 4], number(8), number(12))
}

/// The name by which mtools address a disk's first partition.
fn file_system(disk: &Path) -> PathBuf {
    format!("{}@@{}", disk.display(), partition(disk).1).into()
}

/// Expects that `fsck.fat` finds no defect in the file system.
#[track_caller]
fn check(folder: &Folder, disk: &Path) {
    let (_, start, length) = partition(disk);
    let copy = folder.path("partition.img");
    let mut extract = Command::new("dd");
    extract.args(["bs=512", "conv=sparse", "status=none"]);
    extract.arg(format!("if={}", disk.display()));
    extract.arg(format!("of={}", copy.display()));
    extract.arg(format!("skip={}", start / SECTOR as u64));
    extract.arg(format!("count={}", length / SECTOR as u64));
    made(&mut extract);
    made(Command::new(FSCK).args(["-n", "-v"]).arg(&copy));
    std::fs::remove_file(copy).unwrap();
}

/// Whether a file's clusters are in several pieces, according to `mshowfat`.
fn is_in_pieces(disk: &Path, name: &str) -> bool {
    let mut show = Command::new("mshowfat");
    show.arg("-i").arg(file_system(disk));
    let output = show.arg(format!("::{name}")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout)
        .unwrap()
        .matches('<')
        .count()
        > 1
}

/// Lets DOS make a disk with DOS on it.
fn install(folder: &Folder, kind: &Kind) -> Option<PathBuf> {
    let disk = folder.sparse_file("c.img", kind.bytes);
    let drive = drive(&disk);
    let dos = Dos::with(folder, &["harddisk", "mode"], &["--drive", &drive])?;
    let command = format!("harddisk{}", kind.options);
    let answer = dos.command(&command);
    let expected = format!(
        "C: is ready, with an empty {} file system",
        kind.file_system
    );
    assert!(answer.contains(&expected), "{answer}");
    // A second installation by mistake is refused.
    assert!(
        dos.command("harddisk")
            .contains("HARDDISK /Y gives them up")
    );
    dos.pc.quit();
    check(folder, &disk);

    // DOS searches for disks only when it starts.
    let floppy = dos.image.to_str().unwrap().to_owned();
    let dos = Dos::boot(folder, dos.image, &["--floppy", &floppy, "--drive", &drive]);
    for line in [
        "copy mode.com c:\\",
        "copy command.com c:\\",
        "del c:\\mode.com",
        // The first cluster takes the place of MODE.COM, the others follow COMMAND.COM.
        "copy kernel.sys c:\\",
        "copy mode.com c:\\",
        "echo lastdrive=z>c:\\config.sys",
        "echo set disk=hard>c:\\autoexec.bat",
    ] {
        dos.command(line);
    }
    dos.pc.quit();
    Some(disk)
}

/// Installs DOS on a disk, boots it, works there, boots it again, and checks it on the host.
fn dos_lives_on(kind: &Kind) {
    let folder = Folder::new();
    let Some(disk) = install(&folder, kind) else {
        return;
    };
    let (partition_type, start, length) = partition(&disk);
    assert_eq!(partition_type, kind.partition);
    // The rest is the first track, and cylinders that the BIOS reserves or that are not complete.
    let cylinder = u64::from(kind.heads) * 63 * SECTOR as u64;
    assert!(start + length <= kind.bytes && length > kind.bytes - 4 * cylinder);
    let master = sector_at(&disk, 0);
    assert_eq!(master[ENTRY], 0x80, "it is the active one");
    assert_eq!(master[ENTRY + 16..510], [0; 48], "it is the only one");
    let sector = sector_at(&disk, start);
    assert_eq!(sector[13], kind.sectors_per_cluster);
    assert_eq!(u16::from_le_bytes([sector[26], sector[27]]), kind.heads);
    assert!(is_in_pieces(&disk, "kernel.sys"), "the chain is followed");

    let drive = drive(&disk);
    let flags = ["--drive", &drive, "--boot", "c"];
    let dos = Dos::boot(&folder, disk.clone(), &flags);
    assert!(dos.at_prompt().trim_end().ends_with("C:\\>"));
    assert_eq!(dos.command("mode"), "real mode");
    assert_eq!(dos.command("echo %disk%"), "hard");
    dos.command("md work");
    assert!(
        dos.command("copy command.com work\\other.com")
            .contains("=> ")
    );
    dos.command("copy /b kernel.sys+mode.com work\\both.bin");
    dos.command("echo written on C:>work\\note.txt");
    dos.command("del mode.com");
    dos.pc.quit();

    let dos = Dos::boot(&folder, disk.clone(), &flags);
    assert_eq!(dos.command("type work\\note.txt"), "written on C:");
    assert!(dos.command("mode").to_lowercase().contains("bad command"));
    dos.pc.quit();

    check(&folder, &disk);
    let on_disk = |name: &str| get(&folder, &file_system(&disk), name);
    let floppy = folder.path("freedos.img");
    let command = get(&folder, &floppy, "COMMAND.COM");
    assert!(on_disk("COMMAND.COM") == command);
    let mut both = on_disk("KERNEL.SYS");
    both.extend(std::fs::read(folder.path("mode.com")).unwrap());
    assert!(on_disk("WORK/OTHER.COM") == command);
    assert!(on_disk("WORK/BOTH.BIN") == both);
    assert_eq!(on_disk("WORK/NOTE.TXT"), b"written on C:\r\n");
}

#[test]
fn dos_is_installed_on_a_hard_disk_and_boots_from_it() {
    dos_lives_on(&Kind {
        bytes: 24 * MIB,
        options: "",
        file_system: "FAT16",
        partition: 0x04,
        heads: 16,
        sectors_per_cluster: 4,
    });
}

#[test]
fn a_disk_that_is_read_by_packets_boots_dos() {
    dos_lives_on(&Kind {
        bytes: 40 * MIB,
        options: " /p",
        file_system: "FAT16",
        partition: 0x0e,
        heads: 16,
        sectors_per_cluster: 4,
    });
}

#[test]
fn a_small_disk_has_12_bits_for_a_cluster() {
    dos_lives_on(&Kind {
        bytes: 6 * MIB,
        options: "",
        file_system: "FAT12",
        partition: 0x01,
        heads: 16,
        sectors_per_cluster: 4,
    });
}

#[test]
fn the_bios_translates_the_geometry_of_a_disk_beyond_504_mib() {
    dos_lives_on(&Kind {
        bytes: 700 * MIB,
        options: "",
        file_system: "FAT16",
        partition: 0x06,
        heads: 32,
        sectors_per_cluster: 32,
    });
}

#[test]
fn a_menu_of_grub_starts_dos_or_linux() {
    let folder = Folder::new();
    let Some(floppy) = freedos(&folder) else {
        return;
    };
    let menu = "menuentry 'DOS' { freedos /kernel.sys }\n\
        menuentry 'Linux' { linux /vmlinuz console=tty0; initrd /initrd.img }\n";
    let from_floppy = |name: &str| {
        get(&folder, &floppy, name);
        folder.path(&format!("from-{name}"))
    };
    let files = [
        (from_floppy("KERNEL.SYS"), "kernel.sys"),
        (from_floppy("COMMAND.COM"), "command.com"),
        (program(&folder, "mode"), "mode.com"),
        (
            folder.file("autoexec.bat", b"set disk=menu\r\n"),
            "autoexec.bat",
        ),
        (fetched("debian-686/vmlinuz"), "vmlinuz"),
        (fetched("initrd-i386.img"), "initrd.img"),
    ];
    let disk = grub_disk(&folder, 48, &files, menu);
    let drive = drive(&disk);

    let pc = Pc::start(&folder, &["--drive", &drive]);
    pc.screen_with("DOS");
    pc.tell(&["type", "\\n"]);
    let dos = Dos { pc, image: disk };
    dos.at_prompt();
    assert_eq!(dos.command("mode"), "real mode");
    assert_eq!(dos.command("echo %disk%"), "menu");
    dos.command("copy mode.com other.com");
    dos.pc.quit();
    let on_disk = |name: &str| get(&folder, &file_system(&dos.image), name);
    assert!(on_disk("OTHER.COM") == on_disk("MODE.COM"));

    let mut pc = Pc::start(&folder, &["--drive", &drive]);
    pc.screen_with("DOS");
    pc.tell(&["type", "--keys", "down"]);
    pc.tell(&["type", "\\n"]);
    pc.screen_with(READY);
    pc.screen_with("/root #");
    pc.tell(&["type", "exit\\n"]);
    assert_eq!(pc.ended(), Some(0));
}
