//! Tests floppy disks of machines that start from SeaBIOS, which the package `seabios` provides.

use std::path::Path;

use crate::support::folder::Folder;
use crate::support::{self, PATIENCE, finish, tollgate};

/// Reads the second sector by INT 13h, and the fifth sector of the other side by a DMA program of
/// its own; writes their texts to the serial port. Writes the second text to the next sector by
/// DMA, and the first text to the sector after that by INT 13h. Ends with 2Ah, or 0Bh if something
/// fails.
#[rustfmt::skip]
const SECTOR: [u8; 196] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, // xor ax,ax; mov ds,ax; mov es,ax; mov ss,ax
    0xbc, 0x00, 0x7c, 0xb8, 0x01, 0x02, 0xb9, 0x02, 0x00, // mov sp,0x7c00; mov ax,0x201; mov cx,0x2
    0x31, 0xd2, 0xbb, 0x00, 0x7e, 0xcd, 0x13, 0x72, 0x35, // xor dx,dx; mov bx,0x7e00; int 0x13; jb 0x4f
    0xbe, 0x00, 0x7e, 0xe8, 0x35, 0x00, 0xfa, 0xb0, 0x46, // mov si,0x7e00; call 0x55; cli; mov al,0x46
    0xbe, 0xb2, 0x7c, 0xbb, 0x00, 0x80, 0xe8, 0x35, 0x00, // mov si,0x7cb2; mov bx,0x8000; call 0x61
    0xbe, 0x00, 0x80, 0xe8, 0x23, 0x00, 0xb0, 0x4a, // mov si,0x8000; call 0x55; mov al,0x4a
    0xbe, 0xbb, 0x7c, 0xe8, 0x27, 0x00, 0xfb, 0xb8, 0x01, 0x03, // mov si,0x7cbb; call 0x61; sti; mov ax,0x301
    0xb9, 0x07, 0x00, 0xba, 0x00, 0x01, 0xbb, 0x00, 0x7e, // mov cx,0x7; mov dx,0x100; mov bx,0x7e00
    0xcd, 0x13, 0x72, 0x04, 0xb0, 0x2a, 0xe6, 0xf4, 0xb0, 0x0b, // int 0x13; jb 0x4f; mov al,0x2a; out 0xf4,al; mov al,0xb
    0xe6, 0xf4, 0xeb, 0xfa, 0xba, 0xf8, 0x03, 0xac, 0x84, 0xc0, // out 0xf4,al; jmp 0x4f; mov dx,0x3f8; lods al,BYTE PTR ds:[si]; test al,al
    0x74, 0x03, 0xee, 0xeb, 0xf8, 0xc3, 0x50, 0xb0, 0x06, // je 0x60; out dx,al; jmp 0x58; ret; push ax; mov al,0x6
    0xe6, 0x0a, 0xe6, 0x0c, 0x58, 0xe6, 0x0b, 0x30, 0xc0, // out 0xa,al; out 0xc,al; pop ax; out 0xb,al; xor al,al
    0xe6, 0x04, 0xe6, 0x81, 0xb0, 0x80, 0xe6, 0x04, 0xb0, 0xff, // out 0x4,al; out 0x81,al; mov al,0x80; out 0x4,al; mov al,0xff
    0xe6, 0x05, 0xb0, 0x01, 0xe6, 0x05, 0xb0, 0x02, 0xe6, 0x0a, // out 0x5,al; mov al,0x1; out 0x5,al; mov al,0x2; out 0xa,al
    0xba, 0xf2, 0x03, 0xb0, 0x1c, 0xee, 0xb9, 0x09, 0x00, // mov dx,0x3f2; mov al,0x1c; out dx,al; mov cx,0x9
    0xba, 0xf4, 0x03, 0xec, 0xa8, 0x80, 0x74, 0xfb, 0xac, 0x42, // mov dx,0x3f4; in al,dx; test al,0x80; je 0x8d; lods al,BYTE PTR ds:[si]; inc dx
    0xee, 0xe2, 0xf3, 0xb9, 0x07, 0x00, 0xba, 0xf4, 0x03, 0xec, // out dx,al; loop 0x8a; mov cx,0x7; mov dx,0x3f4; in al,dx
    0x24, 0xc0, 0x3c, 0xc0, 0x75, 0xf9, 0x42, 0xec, // and al,0xc0; cmp al,0xc0; jne 0x9d; inc dx; in al,dx
    0x83, 0xf9, 0x07, 0x75, 0x04, 0xa8, 0xc0, 0x75, 0xa0, // cmp cx,0x7; jne 0xaf; test al,0xc0; jne 0x4f
    0xe2, 0xe9, 0xc3, // loop 0x9a; ret
    0xe6, 0x04, 0x00, 0x01, 0x05, 0x02, 0x12, 0x1b, 0xff, // the command that reads
    0xc5, 0x04, 0x00, 0x01, 0x06, 0x02, 0x12, 0x1b, 0xff, // the one that writes
];

/// A disk that boots `code` and has texts in two sectors.
fn disk(bytes: usize, code: &[u8]) -> Vec<u8> {
    let mut disk = vec![0; bytes];
    disk[..code.len()].copy_from_slice(code);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    for (sector, text) in [(1, "read by INT 13h\n"), (18 + 4, "read by DMA\n")] {
        disk[sector * 512..][..text.len()].copy_from_slice(text.as_bytes());
    }
    disk
}

fn boot(arguments: &[&str]) -> (String, Option<i32>) {
    let mut command = tollgate();
    command.arg("run").args(arguments);
    let output = finish(&mut command, PATIENCE);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (text, output.status.code())
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_floppy_disk_boots_and_is_read_and_written_by_firmware_and_by_dma() {
    let folder = Folder::new();
    let before = disk(1440 * 1024, &SECTOR);
    let image = folder.file("disk.img", &before);
    let (text, code) = boot(&["--floppy", name(&image)]);
    assert_eq!(text, "read by INT 13h\nread by DMA\n");
    assert_eq!(code, Some(0x2a << 1 | 1));
    let after = std::fs::read(&image).unwrap();
    let sector = |number: usize| number * 512..(number + 1) * 512;
    assert_eq!(after[sector(18 + 5)], before[sector(18 + 4)]);
    assert_eq!(after[sector(18 + 6)], before[sector(1)]);
    assert_eq!(
        after[..sector(18 + 5).start],
        before[..sector(18 + 5).start]
    );
}

#[test]
fn a_disk_that_is_read_only_or_a_snapshot_stays_as_it_is() {
    let folder = Folder::new();
    let before = disk(1440 * 1024, &SECTOR);
    let image = folder.file("disk.img", &before);
    let read_only = format!("{},readonly=on", image.display());
    let (_, code) = boot(&["--floppy", &read_only]);
    assert_eq!(code, Some(0x0b << 1 | 1), "the write fails");
    let snapshot = format!("{},snapshot=on", image.display());
    let (_, code) = boot(&["--floppy", &snapshot]);
    assert_eq!(code, Some(0x2a << 1 | 1));
    assert!(std::fs::read(&image).unwrap() == before);
}

/// Writes the sector's last text to the serial port and ends with 2Ah.
const TELL: [u8; 26] = [
    0x31, 0xc0, 0x8e, 0xd8, 0xbe, 0x80, 0x7c, // xor ax, ax; mov ds, ax; mov si, 7C80h
    0xba, 0xf8, 0x03, 0xac, 0x84, 0xc0, 0x74, 0x03, // mov dx, 3F8h; lodsb; test al, al; jz
    0xee, 0xeb, 0xf8, // out dx, al; jmp
    0xb0, 0x2a, 0xe6, 0xf4, 0xeb, 0xfe, 0, 0, // mov al, 2Ah; out F4h, al; jmp to itself
];

fn telling(bytes: usize, text: &str) -> Vec<u8> {
    let mut disk = disk(bytes, &TELL);
    disk[0x80..0x80 + text.len()].copy_from_slice(text.as_bytes());
    disk
}

#[test]
fn the_boot_order_is_obeyed_and_what_it_does_not_name_comes_last() {
    let folder = Folder::new();
    let floppy = folder.file("floppy.img", &telling(1440 * 1024, "from the floppy\n"));
    let hard = folder.file("hard.img", &telling(1 << 20, "from the disk\n"));
    let empty = folder.file("empty.img", &vec![0; 1440 * 1024]);
    let drive = format!("file={},format=raw", hard.display());
    let machine = ["--floppy", name(&floppy), "--drive", &drive];
    for (order, expected) in [
        (&[][..], "from the floppy\n"),
        (&["--boot", "a"], "from the floppy\n"),
        (&["--boot", "c"], "from the disk\n"),
        (&["--boot", "ca"], "from the disk\n"),
        (&["--boot", "d"], "from the floppy\n"),
    ] {
        let arguments = [&machine, order].concat();
        assert_eq!(boot(&arguments).0, expected, "{order:?}");
    }
    // A disk that cannot be booted is skipped.
    let arguments = ["--floppy", name(&empty), "--drive", &drive];
    assert_eq!(boot(&arguments).0, "from the disk\n");
}

#[test]
fn disks_of_all_common_sizes_boot() {
    let folder = Folder::new();
    for kib in [160, 180, 320, 360, 720, 1200, 1440, 1680, 2880] {
        let text = format!("from {kib} KiB\n");
        let image = folder.file(&format!("{kib}.img"), &telling(kib * 1024, &text));
        assert_eq!(boot(&["--floppy", name(&image)]).0, text);
    }
}

/// In a loop, waits for a key, resets the first drive until its second sector can be read, and
/// shows the text there. Without the reset SeaBIOS does not look for another kind of disk.
const SHOW: [u8; 49] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, // xor ax, ax; mov ds, ax; mov es, ax
    0xb4, 0x00, 0xcd, 0x16, // mov ah, 0; int 16h
    0x31, 0xc0, 0x31, 0xd2, 0xcd, 0x13, // xor ax, ax; xor dx, dx; int 13h
    0xb8, 0x01, 0x02, 0xb9, 0x02, 0x00, // mov ax, 0201h; mov cx, 2
    0x31, 0xd2, 0xbb, 0x00, 0x7e, // xor dx, dx; mov bx, 7E00h
    0xcd, 0x13, 0x72, 0xeb, // int 13h; jc: reset
    0xbe, 0x00, 0x7e, 0xac, // mov si, 7E00h; lodsb
    0x84, 0xc0, 0x74, 0xdf, // test al, al; jz
    0x3c, 0x0a, 0x74, 0xdb, // cmp al, 0Ah; jz
    0xb4, 0x0e, 0xcd, 0x10, 0xeb, 0xf1, // mov ah, 0Eh; int 10h; jmp
];

#[test]
fn the_disk_of_a_running_machine_is_changed() {
    let folder = Folder::new();
    let first = folder.file("first.img", &disk(1440 * 1024, &SHOW));
    let mut content = disk(720 * 1024, &SHOW);
    content[512..][..15].copy_from_slice(b"the second disk");
    let second = folder.file("second.img", &content);
    let socket = folder.path("vm.sock");
    let mut command = tollgate();
    command
        .args(["run", "--serial", "null", "--floppy", name(&first)])
        .arg("--control")
        .arg(&socket);
    let mut child = command.spawn().unwrap();
    let ask = |arguments: &[&str]| {
        let mut command = tollgate();
        command.arg(arguments[0]).arg(&socket).args(&arguments[1..]);
        finish(&mut command, PATIENCE)
    };
    let screen_with = |text: &str| {
        support::eventually(text, || {
            let screen = String::from_utf8(ask(&["screen"]).stdout).unwrap();
            screen.contains(text).then_some(())
        });
    };
    screen_with("Booting from Floppy");
    assert_eq!(ask(&["type", "x"]).status.code(), Some(0));
    screen_with("read by INT 13h");
    // The file is released immediately, and locked again.
    let changed = ask(&["medium", "a", "--eject"]);
    assert_eq!(changed.status.code(), Some(0), "{changed:?}");
    for (medium, code) in [(name(&second), 0), (name(&first), 0), ("/nonexistent", 1)] {
        let changed = ask(&["medium", "a", medium]);
        assert_eq!(changed.status.code(), Some(code), "{medium}: {changed:?}");
    }
    let read_only = format!("{},readonly=on", second.display());
    assert_eq!(ask(&["medium", "a", &read_only]).status.code(), Some(0));
    assert_eq!(ask(&["type", "x"]).status.code(), Some(0));
    screen_with("the second disk");
    assert_eq!(ask(&["medium", "b", "--eject"]).status.code(), Some(1));
    assert_eq!(ask(&["medium", "x", "--eject"]).status.code(), Some(1));
    assert_eq!(ask(&["control", "quit"]).status.code(), Some(0));
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_is_wrong_with_a_disk_is_one_line() {
    let folder = Folder::new();
    let odd = folder.file("odd.img", &[0; 1000]);
    let good = folder.file("good.img", &vec![0; 360 * 1024]);
    let twice = ["--floppy", name(&good), "--floppy", name(&good)];
    for (arguments, expected) in [
        (
            &["--floppy", name(&odd)][..],
            "1000 bytes is not the size of a floppy disk",
        ),
        (&["--floppy", "/nonexistent"], "no such file"),
        (&["--floppy", ""], "names no file"),
        (&["--floppy", "none", "--boot", "x"], "expected a, c or d"),
        (&twice, "another virtual machine uses it"),
        (
            &["--floppy", "none", "--floppy", "none", "--floppy", "none"],
            "3 floppy drives: there is room for 2",
        ),
    ] {
        let mut command = tollgate();
        command.arg("run").args(arguments);
        let output = finish(&mut command, PATIENCE);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(expected), "{errors}");
    }
}
