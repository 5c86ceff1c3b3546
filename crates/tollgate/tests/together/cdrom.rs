//! Tests CD-ROMs of machines that start from SeaBIOS, which the package `seabios` provides.

use std::path::Path;
use std::process::Command;

use crate::support::cd::{bootable, made, of_folder};
use crate::support::folder::Folder;
use crate::support::pc::Pc;
use crate::support::{GUEST_PATIENCE, finish, tollgate};

/// Reads the sector with the text by INT 13h and writes it to the serial port. Ends with 2Ah, or 0Bh if
/// that fails.
#[rustfmt::skip]
const READ: [u8; 60] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, // xor ax, ax; mov ds, ax; mov es, ax; mov ss, ax
    0xbc, 0x00, 0x7c, 0xbe, 0x2c, 0x7c, // mov sp, 7C00h; mov si, 7C2Ch
    0xb4, 0x42, 0xcd, 0x13, 0x72, 0x12, // mov ah, 42h; int 13h; jc: fail
    0xbe, 0x00, 0x90, 0xba, 0xf8, 0x03, // mov si, 9000h; mov dx, 3F8h
    0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, // lodsb; test al, al; jz; out dx, al; jmp
    0xb0, 0x2a, 0xe6, 0xf4, // mov al, 2Ah; out F4h, al
    0xb0, 0x0b, 0xe6, 0xf4, 0xeb, 0xfa, // fail: mov al, 0Bh; out F4h, al; jmp fail
    0x10, 0, 1, 0, 0, 0x90, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, // one sector, to 9000h, the 24th
];
const GOOD: Option<i32> = Some(0x2a << 1 | 1);

/// Waits for a key, reads the sector with the text by INT 13h until that succeeds, shows the text,
/// and starts again.
#[rustfmt::skip]
const SHOW: [u8; 60] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, // xor ax, ax; mov ds, ax; mov es, ax; mov ss, ax
    0xbc, 0x00, 0x7c, // mov sp, 7C00h
    0xb4, 0x00, 0xcd, 0x16, // mov ah, 0; int 16h
    0xc7, 0x06, 0x2e, 0x7c, 0x01, 0x00, // mov word [7C2Eh], 1
    0xbe, 0x2c, 0x7c, 0xb4, 0x42, 0xcd, 0x13, 0x72, 0xf1, // mov si, 7C2Ch; mov ah, 42h; int 13h; jc
    0xbe, 0x00, 0x90, 0xac, 0x84, 0xc0, 0x74, 0xe5, // mov si, 9000h; lodsb; test al, al; jz
    0xb4, 0x0e, 0xcd, 0x10, 0xeb, 0xf5, // mov ah, 0Eh; int 10h; jmp
    0x10, 0, 1, 0, 0, 0x90, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, // one sector, to 9000h, the 24th
];

/// A boot sector for `chainloader` or for an emulated floppy disk: it writes a text to the serial
/// port and ends with 2Ah.
fn telling(text: &str) -> Vec<u8> {
    #[rustfmt::skip]
    const TELL: [u8; 26] = [
        0x31, 0xc0, 0x8e, 0xd8, 0xbe, 0x80, 0x7c, // xor ax, ax; mov ds, ax; mov si, 7C80h
        0xba, 0xf8, 0x03, 0xac, 0x84, 0xc0, 0x74, 0x03, // mov dx, 3F8h; lodsb; test al, al; jz
        0xee, 0xeb, 0xf8, // out dx, al; jmp
        0xb0, 0x2a, 0xe6, 0xf4, 0xeb, 0xfe, 0, 0, // mov al, 2Ah; out F4h, al; jmp to itself
    ];
    let mut sector = vec![0; 512];
    sector[..TELL.len()].copy_from_slice(&TELL);
    sector[0x80..][..text.len()].copy_from_slice(text.as_bytes());
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

fn boot(arguments: &[&str]) -> (String, Option<i32>) {
    let mut command = tollgate();
    command.arg("run").args(arguments);
    let output = finish(&mut command, GUEST_PATIENCE);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (text, output.status.code())
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_cd_rom_boots_and_is_read_by_firmware_in_every_place() {
    let folder = Folder::new();
    let disc = folder.file("disc.iso", &bootable(&READ, "from the CD-ROM\n"));
    let mut hard = telling("from the disk\n");
    hard.resize(1 << 20, 0);
    let hard = folder.file("hard.img", &hard);
    let expected = ("from the CD-ROM\n".to_owned(), GOOD);
    assert_eq!(boot(&["--cdrom", name(&disc)]), expected);
    let drive = format!("file={},if=ide,media=cdrom", disc.display());
    assert_eq!(boot(&["--drive", &drive]), expected);
    // The drive is the second one on a channel that also has a disk.
    let hard = format!("file={},format=raw,if=ide", hard.display());
    let both = ["--drive", &hard, "--drive", &drive];
    assert_eq!(boot(&[&both[..], &["--boot", "d"]].concat()), expected);
    assert_eq!(boot(&both).0, "from the disk\n");
    let empty = ["--cdrom", "none", "--drive", &drive];
    assert_eq!(boot(&empty), expected);
}

#[test]
fn a_cd_rom_boots_as_the_floppy_disk_that_it_holds() {
    let folder = Folder::new();
    let files = folder.path("files");
    std::fs::create_dir(&files).unwrap();
    let mut floppy = telling("from a floppy disk on it\n");
    floppy.resize(1440 * 1024, 0);
    std::fs::write(files.join("floppy.img"), floppy).unwrap();
    let disc = of_folder(&folder, &files, &["-b", "floppy.img"]);
    let expected = "from a floppy disk on it\n";
    assert_eq!(boot(&["--cdrom", name(&disc)]).0, expected);
}

#[test]
fn the_disc_of_a_running_machine_is_changed() {
    let folder = Folder::new();
    let first = folder.file("first.iso", &bootable(&SHOW, "the first disc"));
    let second = folder.file("second.iso", &bootable(&SHOW, "the second disc"));
    let pc = Pc::start(&folder, &["--reboot", "--cdrom", name(&first)]);
    pc.screen_with("Booting from DVD/CD");
    pc.tell(&["type", "x"]);
    pc.screen_with("the first disc");
    pc.tell(&["medium", "d", "--eject"]);
    // There is one drive, and what is not a disc is refused.
    for (drive, medium) in [("e", name(&first)), ("d", "/nonexistent")] {
        let output = pc.ask(&["medium", drive, medium]);
        assert_eq!(output.status.code(), Some(1), "{drive}: {output:?}");
    }
    pc.tell(&["medium", "d", name(&second)]);
    pc.tell(&["type", "x"]);
    pc.screen_with("the second disc");
    // The disc stays in the drive across a restart.
    pc.tell(&["type", "--keys", "ctrl-alt-delete"]);
    pc.screen_that("a new start", |screen| {
        screen.contains("Booting from DVD/CD") && !screen.contains("disc")
    });
    pc.tell(&["type", "x"]);
    pc.screen_with("the second disc");
    pc.quit();
}

#[test]
fn isolinux_starts_what_its_configuration_names() {
    let folder = Folder::new();
    let files = folder.path("files");
    std::fs::create_dir(&files).unwrap();
    for file in [
        "/usr/lib/ISOLINUX/isolinux.bin",
        "/usr/lib/syslinux/modules/bios/ldlinux.c32",
    ] {
        let target = files.join(Path::new(file).file_name().unwrap());
        std::fs::copy(file, target)
            .unwrap_or_else(|error| panic!("{file} (scripts/install-dependencies): {error}"));
    }
    let text = "started by isolinux\n";
    std::fs::write(files.join("tell.bin"), telling(text)).unwrap();
    let configuration = "DEFAULT tell\nLABEL tell\nKERNEL /tell.bin\n";
    std::fs::write(files.join("isolinux.cfg"), configuration).unwrap();
    let disc = of_folder(
        &folder,
        &files,
        &[
            "-b",
            "isolinux.bin",
            "-c",
            "boot.cat",
            "-no-emul-boot",
            "-boot-load-size",
            "4",
            "-boot-info-table",
        ],
    );
    let (shown, code) = boot(&["--cdrom", name(&disc)]);
    assert_eq!((shown.as_str(), code), (text, GOOD));
}

#[test]
fn grub_shows_a_menu_and_starts_what_is_chosen() {
    let folder = Folder::new();
    let files = folder.path("files");
    std::fs::create_dir_all(files.join("boot/grub")).unwrap();
    let image = files.join("boot/grub/eltorito.img");
    let mut command = Command::new("grub-mkimage");
    command.args(["-O", "i386-pc-eltorito", "-p", "/boot/grub", "-o"]);
    command.arg(&image);
    made(command.args(["biosdisk", "iso9660", "normal", "chain", "halt", "echo"]));
    std::fs::write(files.join("tell.bin"), telling("chosen\n")).unwrap();
    let configuration = "set timeout=-1\n\
        menuentry 'Switch off' { halt }\n\
        menuentry 'Another loader' { chainloader /tell.bin }\n";
    std::fs::write(files.join("boot/grub/grub.cfg"), configuration).unwrap();
    let disc = of_folder(
        &folder,
        &files,
        &[
            "-b",
            "boot/grub/eltorito.img",
            "-no-emul-boot",
            "-boot-load-size",
            "4",
            "-boot-info-table",
        ],
    );
    let mut pc = Pc::start(&folder, &["--cdrom", name(&disc)]);
    pc.screen_with("Another loader");
    pc.tell(&["type", "--keys", "down"]);
    pc.tell(&["type", "\\n"]);
    assert_eq!(pc.ended(), GOOD);
}

/// The image at `path`, which a package provides.
fn packaged(path: &str) -> &str {
    assert!(
        Path::new(path).is_file(),
        "{path} is missing: scripts/install-dependencies installs it"
    );
    path
}

#[test]
fn memtest_tests_memory_from_its_cd_rom() {
    for bits in ["x64", "ia32"] {
        let folder = Folder::new();
        let disc = format!("/usr/lib/memtest86+/memtest86+{bits}.iso");
        let mut pc = Pc::start(&folder, &["--cdrom", packaged(&disc), "--memory", "16M"]);
        // The last test takes minutes; the others are too short to be seen.
        let screen = pc.screen_with("Test #10");
        assert!(screen.contains("Errors: 0"), "{screen}");
        pc.tell(&["type", "--keys", "esc"]);
        assert_eq!(pc.ended(), Some(0), "it resets the machine");
    }
}

#[test]
fn ipxe_gets_an_address_from_the_network() {
    let folder = Folder::new();
    let disc = packaged("/usr/lib/ipxe/ipxe.iso");
    let pc = Pc::start(&folder, &["--cdrom", disc, "--net", "user"]);
    pc.screen_with("net0: 10.0.2.15/255.255.255.0 gw 10.0.2.2");
    pc.quit();
}

#[test]
fn ipxe_starts_from_a_floppy_disk_by_syslinux() {
    let folder = Folder::new();
    let floppy = folder.file("ipxe.img", &vec![0; 1440 * 1024]);
    let configuration = folder.file("syslinux.cfg", b"DEFAULT IPXE\n");
    made(Command::new("mformat").args(["-f", "1440", "-i", name(&floppy), "::"]));
    for (file, target) in [
        (packaged("/boot/ipxe.lkrn"), "::IPXE"),
        (name(&configuration), "::syslinux.cfg"),
    ] {
        made(Command::new("mcopy").args(["-i", name(&floppy), file, target]));
    }
    made(Command::new("syslinux").args(["--install", name(&floppy)]));
    let pc = Pc::start(&folder, &["--floppy", name(&floppy), "--net", "user"]);
    pc.screen_with("net0: 10.0.2.15/255.255.255.0 gw 10.0.2.2");
    pc.quit();
}

#[test]
fn what_is_wrong_with_a_cd_rom_is_one_line() {
    let folder = Folder::new();
    let small = folder.file("small.iso", &[0; 512]);
    let drive = "file=a,media=cdrom";
    let many: Vec<&str> = (0..5)
        .flat_map(|_| ["--drive", "file=a,if=ide,media=cdrom"])
        .collect();
    for (arguments, expected) in [
        (
            &["--cdrom", name(&small)][..],
            "512 bytes is not the size of a CD-ROM",
        ),
        (&["--cdrom", "/nonexistent"], "no such file"),
        (&["--cdrom", ""], "names no file"),
        (&["--drive", drive], "if=ide or if=scsi is missing"),
        (&many, "5 IDE disks and CD-ROM drives: there is room for 4"),
    ] {
        let mut command = tollgate();
        command.arg("run").args(arguments);
        let output = finish(&mut command, GUEST_PATIENCE);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(expected), "{errors}");
    }
}
