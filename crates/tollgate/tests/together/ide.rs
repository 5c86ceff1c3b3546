//! Tests ATA disks of machines that start from SeaBIOS, which the package `seabios` provides.

use crate::support::folder::Folder;
use crate::support::{PATIENCE, finish, tollgate};

/// Reads the second sector of the first disk by INT 13h, writes its text to the serial port, and writes
/// it to the seventh sector. Ends with 2Ah, or 0Bh if something fails.
#[rustfmt::skip]
const SECTOR: [u8; 67] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, // xor ax, ax; mov ds, ax; mov es, ax; mov ss, ax
    0xbc, 0x00, 0x7c, // mov sp, 7C00h
    0xb8, 0x01, 0x02, 0xb9, 0x02, 0x00, // mov ax, 0201h; mov cx, 2
    0xba, 0x80, 0x00, 0xbb, 0x00, 0x7e, // mov dx, 80h; mov bx, 7E00h
    0xcd, 0x13, 0x72, 0x22, // int 13h; jc fail
    0xbe, 0x00, 0x7e, 0xba, 0xf8, 0x03, // mov si, 7E00h; mov dx, 3F8h
    0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, // lodsb; test al, al; jz; out dx, al; jmp
    0xb8, 0x01, 0x03, 0xb9, 0x07, 0x00, // mov ax, 0301h; mov cx, 7
    0xba, 0x80, 0x00, 0xbb, 0x00, 0x7e, // mov dx, 80h; mov bx, 7E00h
    0xcd, 0x13, 0x72, 0x04, // int 13h; jc fail
    0xb0, 0x2a, 0xe6, 0xf4, // mov al, 2Ah; out F4h, al
    0xb0, 0x0b, 0xe6, 0xf4, 0xeb, 0xfa, // fail: mov al, 0Bh; out F4h, al; jmp fail
];
const GOOD: Option<i32> = Some(0x2a << 1 | 1);

pub fn disk() -> Vec<u8> {
    let mut disk = vec![0; 4 << 20];
    disk[..SECTOR.len()].copy_from_slice(&SECTOR);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[512..][..9].copy_from_slice(b"from ATA\n");
    disk
}

fn boot(arguments: &[&str]) -> (String, Option<i32>) {
    let mut command = tollgate();
    command.arg("run").args(arguments);
    let output = finish(&mut command, PATIENCE);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (text, output.status.code())
}

#[test]
fn a_disk_boots_and_is_read_and_written_by_firmware() {
    let folder = Folder::new();
    let before = disk();
    let image = folder.file("disk.img", &before);
    let drive = format!("file={},format=raw,if=ide", image.display());
    assert_eq!(boot(&["--drive", &drive]), ("from ATA\n".into(), GOOD));
    let after = std::fs::read(&image).unwrap();
    assert_eq!(after[6 * 512..7 * 512], before[512..1024]);
    assert!(after[..6 * 512] == before[..6 * 512]);
    assert!(after[7 * 512..] == before[7 * 512..]);
}

#[test]
fn images_stay_as_they_are_if_all_disks_are_snapshots() {
    let folder = Folder::new();
    let before = disk();
    let image = folder.file("disk.img", &before);
    let drive = format!("file={},format=raw,if=ide", image.display());
    let run = boot(&["--snapshot", "--drive", &drive]);
    assert_eq!(run, ("from ATA\n".into(), GOOD));
    assert!(std::fs::read(&image).unwrap() == before);
    // An image that cannot be written may be used.
    let read_only = format!("{drive},readonly=on");
    let (_, code) = boot(&["--snapshot", "--drive", &read_only]);
    assert_eq!(code, Some(0x0b << 1 | 1), "the write fails");
}

/// Asks INT 13h for the geometry of the first disk and writes CL, CH and DH, which hold it, to the
/// serial port; then writes the first four bytes of the first sector of cylinder 1 there. Ends with
/// 2Ah, or 0Bh if something fails.
#[rustfmt::skip]
const GEOMETRY: [u8; 71] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, // xor ax, ax; mov ds, ax; mov ss, ax; mov sp, 7C00h
    0xb4, 0x08, 0xb2, 0x80, 0xcd, 0x13, 0x72, 0x30, // mov ah, 8; mov dl, 80h; int 13h; jc fail
    0x88, 0xf3, 0xba, 0xf8, 0x03, // mov bl, dh; mov dx, 3F8h
    0x88, 0xc8, 0xee, 0x88, 0xe8, 0xee, 0x88, 0xd8, 0xee, // mov al, cl; out dx, al; and so CH, BL
    0x31, 0xc0, 0x8e, 0xc0, // xor ax, ax; mov es, ax
    0xb8, 0x01, 0x02, 0xb9, 0x01, 0x01, // mov ax, 0201h; mov cx, 0101h
    0xba, 0x80, 0x00, 0xbb, 0x00, 0x7e, // mov dx, 80h; mov bx, 7E00h
    0xcd, 0x13, 0x72, 0x0e, // int 13h; jc fail
    0xba, 0xf8, 0x03, 0x89, 0xde, 0xb9, 0x04, 0x00, // mov dx, 3F8h; mov si, bx; mov cx, 4
    0xf3, 0x6e, // rep outsb
    0xb0, 0x2a, 0xe6, 0xf4, // mov al, 2Ah; out F4h, al
    0xb0, 0x0b, 0xe6, 0xf4, 0xeb, 0xfa, // fail: mov al, 0Bh; out F4h, al; jmp fail
];

/// The BIOS shows an old disk with the geometry with which it was partitioned, which the end of the
/// first partition gives.
#[test]
fn the_bios_takes_the_geometry_from_the_partition_table_or_the_drive_s_options() {
    let folder = Folder::new();
    for (cylinders, heads, sectors) in [(615u32, 4, 17), (900, 15, 17), (306, 8, 26)] {
        let count = cylinders * heads * sectors;
        let last = cylinders - 1;
        let mut disk = vec![0; count as usize * 512];
        disk[..GEOMETRY.len()].copy_from_slice(&GEOMETRY);
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
        let bits = |cylinder: u32, sector: u32| (sector | cylinder >> 2 & 0xc0) as u8;
        let partition = &mut disk[446..462];
        partition[..8].copy_from_slice(&[
            0x80,
            1,
            1,
            0,
            4,
            heads as u8 - 1,
            bits(last, sectors),
            last as u8,
        ]);
        partition[8..12].copy_from_slice(&sectors.to_le_bytes());
        partition[12..].copy_from_slice(&(count - sectors).to_le_bytes());
        for (number, sector) in (0..).zip(disk.chunks_mut(512)).skip(1) {
            sector[..4].copy_from_slice(&u32::to_be_bytes(number));
        }
        let image = folder.file("disk.img", &disk);
        let drive = format!("file={},format=raw,if=ide,snapshot=on", image.display());
        let told = |drive: &str| {
            let mut command = tollgate();
            command.args(["run", "--boot", "c", "--drive", drive]);
            let output = finish(&mut command, PATIENCE);
            assert_eq!(output.status.code(), GOOD, "{output:?}");
            output.stdout
        };
        let expected = |cylinders: u32, heads: u32, sectors: u32| {
            // SeaBIOS reserves one cylinder, as old BIOSes do for diagnostics.
            let highest = cylinders - 2;
            let geometry = [bits(highest, sectors), highest as u8, heads as u8 - 1];
            [&geometry[..], &u32::to_be_bytes(heads * sectors)].concat()
        };
        assert_eq!(told(&drive), expected(cylinders, heads, sectors));
        let chosen = format!("{drive},heads=2,secs=13,cyls=300");
        assert_eq!(told(&chosen), expected(300, 2, 13));
    }
}

#[test]
fn a_machine_without_a_bus_has_no_such_disks() {
    let folder = Folder::new();
    let image = folder.file("disk.img", &disk());
    let drive = format!("file={},format=raw,if=ide", image.display());
    let kernel = folder.boot_sector(&SECTOR);
    let mut command = tollgate();
    command
        .args(["run", "--pci", "off", "--drive", &drive, "--kernel"])
        .arg(kernel);
    let output = finish(&mut command, PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("if=ide"), "{errors}");
}
