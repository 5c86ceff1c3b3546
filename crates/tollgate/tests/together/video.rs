//! Tests graphics modes as programs of the PC set them: by INT 10h of the display adapter's
//! firmware from the package `seabios`. Their drawings are compared with pictures of the screen.

use crate::support::folder::Folder;
use crate::support::pc::Pc;
use crate::support::picture::Picture;
use crate::support::{GUEST_PATIENCE, finish, tollgate, within};

/// Sets the mode whose number is at 7D00h and lets the BIOS write a pixel of each line, as many as
/// the word at 7D02h says: of line Y at X = 7 Y mod 256, with colour Y mod 16; and reads it back.
/// Then waits for a key and ends with 2Ah, or 0Bh if a pixel was wrong.
#[rustfmt::skip]
const PIXELS: [u8; 64] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, // xor ax, ax; mov ds, ax; mov ss, ax; mov sp, 7C00h
    0xa0, 0x00, 0x7d, 0xcd, 0x10, 0x31, 0xd2, // mov al, 7D00h; int 10h; xor dx, dx
    0x6b, 0xca, 0x07, 0x81, 0xe1, 0xff, 0x00, 0x88, 0xd0, // imul cx, dx, 7; and cx, 0FFh; mov al, dl
    0x24, 0x0f, 0xb4, 0x0c, 0x31, 0xdb, 0x50, 0xcd, 0x10, // and al, 0Fh; mov ah, 0Ch; xor bx, bx; push ax; int 10h
    0xb4, 0x0d, 0xcd, 0x10, 0x5b, 0x38, 0xd8, 0x75, 0x0f, // mov ah, 0Dh; int 10h; pop bx; cmp al, bl; jne
    0x42, 0x3b, 0x16, 0x02, 0x7d, 0x72, 0xde, 0xb4, 0x00, // inc dx; cmp dx, WORD 7D02h; jb; mov ah, 0
    0xcd, 0x16, 0xb0, 0x2a, 0xe6, 0xf4, 0xb0, 0x0b, // int 16h; mov al, 2Ah; out 0F4h, al; mov al, 0Bh
    0xe6, 0xf4, 0xeb, 0xfa, // out 0F4h, al; jmp
];

/// Sets VESA mode 101h and stores a byte in each of the first four banks, at 1000h: 1, 2, 3, 4.
/// Ends like [`PIXELS`].
#[rustfmt::skip]
const BANKS: [u8; 61] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, // xor ax, ax; mov ds, ax; mov ss, ax; mov sp, 7C00h
    0xb8, 0x02, 0x4f, 0xbb, 0x01, 0x01, 0xcd, 0x10, // mov ax, 4F02h; mov bx, 101h; int 10h
    0x83, 0xf8, 0x4f, 0x75, 0x21, 0xb8, 0x00, 0xa0, // cmp ax, 4Fh; jne; mov ax, 0A000h
    0x8e, 0xc0, 0x31, 0xd2, 0xb8, 0x05, 0x4f, 0x31, 0xdb, // mov es, ax; xor dx, dx; mov ax, 4F05h; xor bx, bx
    0xcd, 0x10, 0x42, 0x26, 0x88, 0x16, 0x00, 0x10, // int 10h; inc dx; mov BYTE es:1000h, dl
    0x83, 0xfa, 0x04, 0x72, 0xee, 0xb4, 0x00, 0xcd, 0x16, // cmp dx, 4; jb; mov ah, 0; int 16h
    0xb0, 0x2a, 0xe6, 0xf4, 0xb0, 0x0b, 0xe6, 0xf4, // mov al, 2Ah; out 0F4h, al; mov al, 0Bh; out 0F4h, al
    0xeb, 0xfa, // jmp
];

/// Sets VESA mode 143h, of 32 bits, with its linear frame buffer, and stores a pixel in each line,
/// at X = Y, with the colour 10305h Y. Ends like [`PIXELS`].
#[rustfmt::skip]
const LINEAR: [u8; 131] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, // xor ax, ax; mov ds, ax; mov es, ax; mov ss, ax
    0xbc, 0x00, 0x7c, 0xb8, 0x01, 0x4f, 0xb9, 0x43, 0x01, // mov sp, 7C00h; mov ax, 4F01h; mov cx, 143h
    0xbf, 0x00, 0x80, 0xcd, 0x10, 0x83, 0xf8, 0x4f, // mov di, 8000h; int 10h; cmp ax, 4Fh
    0x75, 0x4c, 0xb8, 0x02, 0x4f, 0xbb, 0x43, 0x41, // jne; mov ax, 4F02h; mov bx, 4143h
    0xcd, 0x10, 0x83, 0xf8, 0x4f, 0x75, 0x3f, 0xfa, // int 10h; cmp ax, 4Fh; jne; cli
    0x66, 0x0f, 0x01, 0x16, 0x6d, 0x7c, 0x0f, 0x20, 0xc0, // lgdtd 7C6Dh; mov eax, cr0
    0x40, 0x0f, 0x22, 0xc0, 0xbb, 0x08, 0x00, 0x8e, 0xc3, // inc ax; mov cr0, eax; mov bx, 8; mov es, bx
    0x48, 0x0f, 0x22, 0xc0, // dec ax; mov cr0, eax
    0x66, 0x8b, 0x3e, 0x28, 0x80, 0x66, 0x31, 0xc0, // mov edi, DWORD 8028h; xor eax, eax
    0xb9, 0x58, 0x02, 0x26, 0x67, 0x66, 0x89, 0x07, // mov cx, 258h; mov DWORD es:[edi], eax
    0x66, 0x05, 0x05, 0x03, 0x01, 0x00, // add eax, 10305h
    0x66, 0x81, 0xc7, 0x84, 0x0c, 0x00, 0x00, 0xe2, 0xec, // add edi, 0C84h; loop
    0xfb, // sti: an earlier interrupt would load ES again
    0xb4, 0x00, 0xcd, 0x16, 0xb0, 0x2a, 0xe6, 0xf4, // mov ah, 0; int 16h; mov al, 2Ah; out 0F4h, al
    0xb0, 0x0b, 0xe6, 0xf4, 0xeb, 0xfa, // mov al, 0Bh; out 0F4h, al; jmp
    0x0f, 0x00, 0x73, 0x7c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // the descriptor table: none, and data of 4 GiB
    0x00, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x93, 0xcf, 0x00,
];

/// A colour of the CGA's 16 colours.
fn cga(colour: usize) -> [u8; 3] {
    let part = |bit: usize| match (colour >> bit & 1, colour >> 3) {
        (0, 0) => 0,
        (1, 0) => 0xaa,
        (0, _) => 0x55,
        _ => 0xff,
    };
    match colour {
        6 => [0xaa, 0x55, 0],
        _ => [part(2), part(1), part(0)],
    }
}

/// Starts a boot sector, and waits until the screen is as expected.
#[track_caller]
fn shows(what: &str, code: &[u8], mode: u8, expected: &Picture) {
    let folder = Folder::new();
    let mut sector = code.to_vec();
    sector.resize(0x100, 0);
    sector.extend([mode, 0]);
    sector.extend((expected.height as u16).to_le_bytes());
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    sector.resize(1440 * 1024, 0);
    let floppy = folder.file("floppy.img", &sector);
    let mut pc = Pc::start(&folder, &["--floppy", floppy.to_str().unwrap()]);
    let png = folder.path("screen.png");
    let mut last = String::new();
    let end = std::time::Instant::now() + GUEST_PATIENCE;
    loop {
        pc.ask(&["screen", "--png", png.to_str().unwrap()]);
        if let Some(picture) = Picture::read(&png) {
            match expected.difference(&picture) {
                None => break,
                Some(difference) => last = difference,
            }
        }
        assert!(std::time::Instant::now() < end, "{what}: {last}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    pc.tell(&["type", "x"]);
    assert_eq!(pc.ended(), Some(0x2a << 1 | 1), "{what}");
}

#[test]
fn the_planar_modes_and_the_one_of_256_colours_show_what_the_bios_draws() {
    for (mode, width, height) in [
        (0x0d, 320, 200),
        (0x0e, 640, 200),
        (0x10, 640, 350),
        (0x12, 640, 480),
        (0x13, 320, 200),
    ] {
        let mut expected = Picture::black(width, height);
        for y in 0..height {
            expected.set(7 * y % 256, y, cga(y % 16));
        }
        shows(&format!("mode {mode:x}h"), &PIXELS, mode, &expected);
    }
}

#[test]
fn a_mode_of_vesa_is_reached_bank_by_bank() {
    let mut expected = Picture::black(640, 480);
    for bank in 0..4 {
        let at = bank * 0x1_0000 + 0x1000;
        expected.set(at % 640, at / 640, cga(bank + 1));
    }
    shows("mode 101h", &BANKS, 0, &expected);
}

#[test]
fn a_mode_of_vesa_is_memory_in_one_piece() {
    let mut expected = Picture::black(800, 600);
    for y in 0..600 {
        let [blue, green, red, _] = (0x1_0305 * y as u32).to_le_bytes();
        expected.set(y, y, [red, green, blue]);
    }
    shows("mode 143h", &LINEAR, 0, &expected);
}

#[test]
fn each_picture_of_the_screen_becomes_a_file() {
    let folder = Folder::new();
    let code = folder.file("floppy.img", &{
        let mut sector = PIXELS.to_vec();
        sector.resize(0x100, 0);
        sector.extend([0x13, 0, 200, 0]);
        sector.resize(510, 0);
        sector.extend([0x55, 0xaa]);
        sector.resize(1440 * 1024, 0);
        sector
    });
    let pictures = folder.path("some/pictures");
    std::fs::create_dir_all(&pictures).unwrap();
    std::fs::write(pictures.join("000041.png"), b"another run").unwrap();
    let display = format!("png:{}", pictures.display());
    let floppy = code.to_str().unwrap();
    let mut pc = Pc::start(&folder, &["--floppy", floppy, "--display", &display]);
    // The first picture may show text of the firmware; the last one is the complete picture of the
    // mode.
    let all = || -> Vec<Picture> {
        let files = (42..).map(|number| pictures.join(format!("{number:06}.png")));
        files.map_while(|file| Picture::read(&file)).collect()
    };
    within(GUEST_PATIENCE, "the last picture", || {
        let last = all().pop()?;
        let is_drawn =
            last.height == 200 && last.pixels[199 * 320 + 7 * 199 % 256] == cga(199 % 16);
        is_drawn.then_some(())
    });
    // A picture that does not change is written once.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let all = all();
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    pc.tell(&["type", "x"]);
    assert_eq!(pc.ended(), Some(0x2a << 1 | 1));
    let before = std::fs::read(pictures.join("000041.png")).unwrap();
    assert_eq!(before, b"another run");
    let mut parts = std::fs::read_dir(&pictures).unwrap();
    assert!(parts.all(|entry| entry.unwrap().path().extension().unwrap() == "png"));
}

#[test]
fn a_folder_for_pictures_that_cannot_be_made_is_one_line() {
    let folder = Folder::new();
    let file = folder.file("file", b"");
    for (display, expected) in [
        (
            format!("png:{}/pictures", file.display()),
            "Not a directory",
        ),
        (
            "png:".to_owned(),
            "expected none, text, png:DIR or vnc=WHERE",
        ),
        (
            "gtk".to_owned(),
            "expected none, text, png:DIR or vnc=WHERE",
        ),
    ] {
        let mut command = tollgate();
        command.args(["run", "--floppy", "none", "--display", &display]);
        let output = finish(&mut command, GUEST_PATIENCE);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(expected), "{errors}");
    }
}
