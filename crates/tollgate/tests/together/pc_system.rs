//! Tests whole Debian systems of 64 and 32 bits on IDE disks: SeaBIOS starts GRUB, GRUB starts the
//! kernel, and systemd reaches a login. `scripts/get-system amd64 i386` makes the disks; each test
//! prints which one it used. One test boots from a menu of several systems.

use std::path::PathBuf;
use std::time::Duration;

use crate::support::cd::of_folder;
use crate::support::folder::Folder;
use crate::support::grub::{grub_disk, write_second_partition};
use crate::support::guests::fetched;
use crate::support::linux::READY;
use crate::support::pc::Pc;
use crate::support::repository::serve_files;
use crate::support::session::Session;
use crate::support::system::{is_promised, log_in, overlay, power_off, system, turn};
use crate::support::{GUEST_PATIENCE, PATIENCE, finish, tollgate, within};
use tollgate_test_support::skip;

/// A CD-ROM with a file of 3,000,000 bytes that contains the disc's name.
fn disc(folder: &Folder, name: &str) -> PathBuf {
    let files = folder.path(name);
    std::fs::create_dir(&files).unwrap();
    let content: Vec<u8> = format!("{name} ").bytes().cycle().take(3_000_000).collect();
    std::fs::write(files.join("file"), content).unwrap();
    let disc = of_folder(folder, &files, &["-R", "-V", name]);
    let path = folder.path(&format!("{name}.iso"));
    std::fs::rename(disc, &path).unwrap();
    path
}

/// Opens the tray: O_NONBLOCK, CDROM_LOCKDOOR to undo udev's lock, CDROMEJECT.
const EJECT: &str = "perl -e 'sysopen F, \"/dev/sr0\", 2048; \
    ioctl F, 0x5329, 0; ioctl F, 0x5309, 0 or print \"$!\\n\"'";

fn boots_from_an_ide_disk(name: &str, machine: &str) {
    let _turn = turn();
    let Some(system) = system(name) else { return };
    let image = system.join("pc.img");
    if !image.is_file() {
        assert!(
            !is_promised(name),
            "TOLLGATE_TEST_SYSTEMS names the system {name}, which has no pc.img"
        );
        skip::missing("an older scripts/get-system has made the system");
        return;
    }
    let folder = Folder::new();
    let disk = overlay(&folder, &image);
    let (first, second) = (disc(&folder, "first"), disc(&folder, "second"));
    let socket = folder.path("vm.sock");
    let mut command = tollgate();
    command.args(["run", "-m", "512M", "--net", "user", "--control"]);
    command.arg(&socket).arg("--cdrom").arg(&first);
    let drive = format!("file={},if=ide", disk.display());
    let mut guest = Session::over_pipes({
        command.args(["--drive", &drive]);
        command
    });
    guest.wait_for("Debian, ");
    log_in(&mut guest);
    let state = guest.shell("systemctl is-system-running --wait; systemctl --failed --no-legend");
    assert_eq!(state, "running");
    assert_eq!(guest.shell("uname -m"), machine);
    assert_eq!(guest.shell("findmnt -no SOURCE,FSTYPE /"), "/dev/sda1 ext4");
    // The bus master transfers the data of both.
    let modes = guest.shell("cat /sys/class/ata_device/dev*/dma_mode");
    assert_eq!(modes.matches("XFER_MW_DMA_2").count(), 2, "{modes}");

    // A program that opens the drive must not close its tray.
    guest.shell("echo 0 >/proc/sys/dev/cdrom/autoclose");
    let medium = |medium: &str| {
        let mut command = tollgate();
        command.arg("medium").arg(&socket).args(["d", medium]);
        finish(&mut command, PATIENCE).status.code()
    };
    let sum = |name: &str| format!("yes '{name} ' | tr -d '\\n' | head -c 3000000 | md5sum");
    for name in ["first", "second"] {
        // The tray may still be moving.
        let mount = "until mount -t iso9660 -o ro /dev/sr0 /mnt 2>/dev/null; do sleep 1; done";
        assert_eq!(guest.shell(mount), "");
        let expected = guest.shell(&sum(name));
        assert_eq!(guest.shell("md5sum </mnt/file"), expected, "{name}");
        assert_eq!(guest.shell("umount /mnt"), "");
        if name == "first" {
            assert_eq!(guest.shell(EJECT), "");
            assert_eq!(medium(second.to_str().unwrap()), Some(0));
        }
    }
    // udev has locked the drive; when the disc is requested, udev opens the tray.
    within(GUEST_PATIENCE, "the disc", || {
        let is_done = medium("--eject") == Some(0);
        if !is_done {
            std::thread::sleep(Duration::from_secs(1));
        }
        is_done.then_some(())
    });
    // A few megabytes are written to the disk and read back.
    let copy = "cp -r /usr/lib/systemd /root/copy && sync && echo 3 >/proc/sys/vm/drop_caches && \
        diff -r /usr/lib/systemd /root/copy && echo same";
    assert_eq!(guest.shell(copy), "same");
    power_off(guest);
}

#[test]
fn a_system_of_64_bits_boots_from_an_ide_disk_and_reads_cd_roms() {
    boots_from_an_ide_disk("amd64", "x86_64");
}

#[test]
fn a_system_of_32_bits_boots_from_an_ide_disk_and_reads_cd_roms() {
    boots_from_an_ide_disk("i386", "i686");
}

/// A boot sector of the kind that DOS has. It must be started with the number of its drive in DL
/// and, as by a master boot record, with its own entry of the partition table at DS:SI. It writes
/// its text to the serial port and ends with 2Ah, or 0Bh.
fn dos_boot_sector(text: &str) -> Vec<u8> {
    #[rustfmt::skip]
    const CODE: [u8; 39] = [
        0x80, 0xfa, 0x80, 0x75, 0x1c, // cmp dl, 80h; jne: fail
        0x80, 0x7c, 0x04, 0x0e, 0x75, 0x16, // cmp byte [si+4], 0Eh; jne: fail
        0x31, 0xc0, 0x8e, 0xd8, 0xbe, 0xc0, 0x7c, 0xba, 0xf8, 0x03, // xor ax, ax; mov ds, ax; mov si, 7CC0h; mov dx, 3F8h
        0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, // lodsb; test al, al; jz; out dx, al; jmp
        0xb0, 0x2a, 0xe6, 0xf4, // mov al, 2Ah; out F4h, al
        0xb0, 0x0b, 0xe6, 0xf4, 0xeb, 0xfa, // fail: mov al, 0Bh; out F4h, al; jmp fail
    ];
    let mut sector = vec![0; 512];
    // A jump skips the parameters of the file system, which begin with the maker's name.
    sector[..11].copy_from_slice(b"\xeb\x3e\x90MSWIN4.1");
    sector[0x40..][..CODE.len()].copy_from_slice(&CODE);
    sector[0xc0..][..text.len()].copy_from_slice(text.as_bytes());
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// A disk with a menu for Linux and for a partition with a boot sector of its own.
fn disk_with_a_menu(folder: &Folder, text: &str) -> PathBuf {
    let menu = "menuentry 'Linux' { linux /vmlinuz console=tty0; initrd /initrd.img }\n\
        menuentry 'Another system' { chainloader (hd0,msdos2)+1 }\n";
    let files = [
        (fetched("debian-686/vmlinuz"), "vmlinuz"),
        (fetched("initrd-i386.img"), "initrd.img"),
    ];
    let disk = grub_disk(folder, 48, &files, menu);
    write_second_partition(&disk, &dos_boot_sector(text));
    disk
}

#[test]
fn a_menu_starts_each_of_two_systems() {
    let folder = Folder::new();
    let disk = disk_with_a_menu(&folder, "as from a master boot record\n");
    let drive = format!("file={},format=raw,if=ide", disk.display());

    let mut pc = Pc::start(&folder, &["--drive", &drive]);
    pc.screen_with("Another system");
    pc.tell(&["type", "--keys", "down"]);
    pc.tell(&["type", "\\n"]);
    assert_eq!(pc.ended(), Some(0x2a << 1 | 1));

    let mut pc = Pc::start(&folder, &["--drive", &drive]);
    pc.screen_with("Another system");
    pc.tell(&["type", "\\n"]);
    pc.screen_with(READY);
    pc.screen_with("/root #");
    pc.tell(&["type", "exit\\n"]);
    assert_eq!(pc.ended(), Some(0));
}

#[test]
fn the_installer_of_debian_starts_from_a_disk_and_follows_a_file_from_the_network() {
    let _turn = turn();
    let folder = Folder::new();
    let served = folder.path("served");
    std::fs::create_dir(&served).unwrap();
    let answers = "d-i preseed/early_command string sync; poweroff -f\n";
    std::fs::write(served.join("answers"), answers).unwrap();
    let port = serve_files(served);
    // The prompts that come before it has the file are answered here.
    let menu = format!(
        "menuentry 'Install' {{\n\
        linux /linux nomodeset vga=normal fb=false auto=true priority=critical locale=en_US \
            keymap=us hostname=guest domain= url=http://10.0.2.2:{port}/answers\n\
        initrd /initrd.gz\n\
        }}\n"
    );
    let files = [
        (fetched("installer-amd64/linux"), "linux"),
        (fetched("installer-amd64/initrd.gz"), "initrd.gz"),
    ];
    let disk = grub_disk(&folder, 64, &files, &menu);
    let drive = format!("file={},format=raw,if=ide", disk.display());
    let network = "user,allow=any,host";
    let mut pc = Pc::start(&folder, &["-m", "1G", "--net", network, "--drive", &drive]);
    pc.screen_with("Install");
    pc.tell(&["type", "\\n"]);
    // By then it has loaded the network card's driver and has an address.
    assert_eq!(pc.ended(), Some(0));
}
