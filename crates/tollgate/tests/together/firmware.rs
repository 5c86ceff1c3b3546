//! Tests machines that start from SeaBIOS, which the package `seabios` provides.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::pc::Pc;
use crate::support::session::Session;
use crate::support::terminal::Terminal;
use crate::support::{self, PATIENCE, finish, tollgate};

/// The log of SeaBIOS on port 402h in a machine with these arguments, up to a line that contains
/// `last`.
fn log_until(last: &str, arguments: &[&str]) -> String {
    let folder = Folder::new();
    let log = folder.path("log");
    let mut command = tollgate();
    command
        .args(["run", "--serial", "null", "--debug-console"])
        .arg(format!("file:{}", log.display()))
        .args(arguments);
    let mut child = command.spawn().unwrap();
    let text = support::eventually(last, || {
        let text = String::from_utf8_lossy(&std::fs::read(&log).ok()?).into_owned();
        text.contains(last).then_some(text)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    text
}

#[test]
fn without_anything_to_boot_it_says_so() {
    let bios = "/usr/share/seabios/bios-256k.bin";
    let log = log_until("No bootable device", &["--bios", bios]);
    for expected in [
        "SeaBIOS (version",
        "Found QEMU fw_cfg",
        "[RAM]",
        "PIIX3/PIIX4 init: elcr=00 0c",
        "ACPI: parse DSDT",
        "PS2 keyboard initialized",
    ] {
        assert!(log.contains(expected), "no '{expected}' in\n{log}");
    }
}

/// Reads the second sector by INT 13h and writes its text to the serial port.
const SECTOR: [u8; 44] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, // xor ax, ax; mov ds, ax; mov es, ax
    0xb8, 0x01, 0x02, 0xb9, 0x02, 0x00, // mov ax, 0201h; mov cx, 2
    0xb6, 0x00, 0xbb, 0x00, 0x7e, 0xcd, 0x13, // mov dh, 0; mov bx, 7E00h; int 13h
    0xbe, 0x00, 0x7e, 0xba, 0xf8, 0x03, // mov si, 7E00h; mov dx, 3F8h
    0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, // lodsb; test al, al; jz; out; jmp
    0xb0, 0x2a, 0xe6, 0xf4, // mov al, 2Ah; out F4h, al
    0xeb, 0xfe, 0, 0, 0, 0, 0, // jmp to itself
];

#[test]
fn a_disk_boots_whose_kind_the_firmware_knows() {
    let folder = Folder::new();
    let mut disk = vec![0; 1 << 20];
    disk[..SECTOR.len()].copy_from_slice(&SECTOR);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    let text = b"read by INT 13h\n";
    disk[512..512 + text.len()].copy_from_slice(text);
    let image = folder.path("disk.img");
    std::fs::write(&image, disk).unwrap();
    let mut command = tollgate();
    let drive = format!("file={},format=raw", image.display());
    command.args(["run", "--drive", &drive]);
    let output = finish(&mut command, PATIENCE);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "read by INT 13h\n");
    assert_eq!(output.status.code(), Some(0x2a << 1 | 1), "{output:?}");
}

/// Writes "type> " by INT 10h, then every key that INT 16h reads.
const ECHO: [u8; 28] = [
    0x31, 0xc0, 0x8e, 0xd8, 0xbe, 0x40, 0x7c, // xor ax, ax; mov ds, ax; mov si, 7C40h
    0xac, 0x84, 0xc0, 0x74, 0x06, // lodsb; test al, al; jz
    0xb4, 0x0e, 0xcd, 0x10, 0xeb, 0xf5, // mov ah, 0Eh; int 10h; jmp
    0xb4, 0x00, 0xcd, 0x16, // mov ah, 0; int 16h
    0xb4, 0x0e, 0xcd, 0x10, 0xeb, 0xf6, // mov ah, 0Eh; int 10h; jmp
];

/// A disk that boots [`ECHO`].
fn echoing_disk(folder: &Folder) -> String {
    let mut disk = vec![0; 1 << 20];
    disk[..ECHO.len()].copy_from_slice(&ECHO);
    disk[0x40..0x46].copy_from_slice(b"type> ");
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    let image = folder.file("disk.img", &disk);
    format!("file={},format=raw", image.display())
}

/// The lines of a terminal of 25 by 80 that received this text. The terminal knows the sequences
/// that move the cursor and clear the screen.
fn screen_of(sent: &str) -> Vec<String> {
    let mut cells = vec![vec![' '; 80]; 25];
    let (mut row, mut column) = (0, 0);
    // Each sequence is "ESC [", parameters, and a letter.
    let mut pieces = sent.split("\x1b[");
    pieces.next();
    for piece in pieces {
        let Some(end) = piece.find(|c: char| c.is_ascii_alphabetic()) else {
            break;
        };
        let (parameters, rest) = piece.split_at(end);
        match &rest[..1] {
            "H" => {
                let (y, x) = parameters.split_once(';').unwrap();
                let number = |text: &str| text.parse::<usize>().unwrap() - 1;
                (row, column) = (number(y), number(x));
            }
            "J" => cells.iter_mut().for_each(|line| line.fill(' ')),
            _ => {}
        }
        for character in rest[1..].chars() {
            if let Some(cell) = cells.get_mut(row).and_then(|line| line.get_mut(column)) {
                *cell = character;
            }
            column += 1;
        }
    }
    cells.iter().map(|line| line.iter().collect()).collect()
}

#[test]
fn the_terminal_is_screen_and_keyboard_and_is_put_back() {
    let folder = Folder::new();
    let mut terminal = Terminal::new();
    let mut command = tollgate();
    command.args([
        "run",
        "--display",
        "text",
        "--drive",
        &echoing_disk(&folder),
    ]);
    let before = terminal.settings();
    let mut child = terminal.start_raw(command);
    let mut reader = terminal.person.try_clone().unwrap();
    let shown = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&shown);
    // The thread ends with the test at the latest, so it is not joined.
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = reader.read(&mut bytes) {
            collected.lock().unwrap().extend(&bytes[..count]);
        }
    });
    let shown_with = |text: &str| {
        support::eventually(text, || {
            let lines = screen_of(&String::from_utf8_lossy(&shown.lock().unwrap()));
            lines.iter().any(|line| line.contains(text)).then_some(())
        });
    };
    shown_with("SeaBIOS (version");
    shown_with("type>");
    terminal.person.write_all(b"Hello, terminal!").unwrap();
    shown_with("type> Hello, terminal!");
    let colours = String::from_utf8_lossy(&shown.lock().unwrap()).contains("\x1b[0;37;40m");
    assert!(colours, "light grey on black");
    terminal.person.write_all(b"\x01x").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(terminal.settings(), before);
    support::eventually("the other screen", || {
        let bytes = shown.lock().unwrap();
        String::from_utf8_lossy(&bytes)
            .contains("\x1b[?1049l")
            .then_some(())
    });
}

#[test]
fn what_is_typed_reaches_the_guest_and_what_it_writes_the_screen() {
    let folder = Folder::new();
    let socket = folder.path("vm.sock");
    let drive = echoing_disk(&folder);
    let mut command = tollgate();
    command
        .args(["run", "--serial", "null", "--drive", &drive, "--control"])
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
            screen.contains(text).then_some(screen)
        })
    };
    screen_with("type>");
    let typed = ask(&["type", r"Hello, World! ~|{}\\", "--keys", "shift-4"]);
    assert_eq!(typed.status.code(), Some(0), "{typed:?}");
    let screen = screen_with(r"type> Hello, World! ~|{}\$");
    assert_eq!(screen.lines().count(), 25, "{screen}");
    assert!(screen.starts_with("SeaBIOS (version"), "{screen}");
    // The text is longer than what all queues on the way hold.
    let long: String = ('a'..='z').cycle().take(600).collect();
    assert_eq!(ask(&["type", &long]).status.code(), Some(0));
    screen_with(&long[600 - 60..600 - 40]);
    assert_eq!(ask(&["type", "ä"]).status.code(), Some(2));

    let picture = folder.path("screen.png");
    let written = ask(&["screen", "--png", picture.to_str().unwrap()]);
    assert_eq!(written.status.code(), Some(0), "{written:?}");
    let bytes = std::fs::read(picture).unwrap();
    assert_eq!(bytes[..8], *b"\x89PNG\r\n\x1a\n");
    assert_eq!(bytes[16..24], [0, 0, 0x02, 0xd0, 0, 0, 0x01, 0x90]);

    assert_eq!(ask(&["control", "quit"]).status.code(), Some(0));
    assert!(child.wait().unwrap().success());
}

/// Returns to real mode as a program of the 286 does: CMOS 0Fh makes firmware jump to the address
/// at 40h:67h, and `reset` resets the processor. The code at that address ends the machine with
/// 0Ah.
fn resetting_disk(status: u8, reset: &[u8]) -> Vec<u8> {
    const RESUMED: usize = 0x80;
    let begin = [
        0x31, 0xc0, 0x8e, 0xd8, // xor ax, ax; mov ds, ax
        0xc7, 0x06, 0x67, 0x04, 0x80, 0x7c, // mov word [467h], 7C80h
        0xc7, 0x06, 0x69, 0x04, 0x00, 0x00, // mov word [469h], 0
        0xb0, 0x0f, 0xe6, 0x70, 0xb0, status, 0xe6, 0x71, // CMOS 0Fh
    ];
    let mut disk = vec![0; 1 << 20];
    disk[..begin.len()].copy_from_slice(&begin);
    disk[begin.len()..begin.len() + reset.len()].copy_from_slice(reset);
    // After the reset follows a jump to itself. At RESUMED is: mov al, 0Ah; out F4h, al
    disk[begin.len() + reset.len()..][..2].copy_from_slice(&[0xeb, 0xfe]);
    disk[RESUMED..RESUMED + 4].copy_from_slice(&[0xb0, 0x0a, 0xe6, 0xf4]);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

#[test]
fn a_program_comes_back_from_a_reset_of_the_processor() {
    let folder = Folder::new();
    let resets: [&[u8]; 4] = [
        &[0xb0, 0xfe, 0xe6, 0x64],             // the keyboard controller
        &[0xb0, 0x03, 0xe6, 0x92],             // port 92h
        &[0xba, 0xf9, 0x0c, 0xb0, 0x04, 0xee], // CF9h
        // The code is: lidt [700h], where zeros are; ud2
        &[0x0f, 0x01, 0x1e, 0x00, 0x07, 0x0f, 0x0b],
    ];
    for (number, reset) in resets.iter().enumerate() {
        for status in [0x05, 0x0a] {
            let disk = resetting_disk(status, reset);
            let image = folder.file(&format!("{number}-{status}.img"), &disk);
            let drive = format!("file={},format=raw", image.display());
            let mut command = tollgate();
            command.args(["run", "--serial", "null", "--drive", &drive]);
            let output = finish(&mut command, PATIENCE);
            let code = output.status.code();
            assert_eq!(
                code,
                Some(0x0a << 1 | 1),
                "{reset:x?}, {status}: {output:?}"
            );
        }
    }
}

/// Resets a processor without an address to return to: the machine starts again, which ends the run
/// here.
#[test]
fn a_reset_that_nobody_awaits_is_the_machine_s() {
    let folder = Folder::new();
    let disk = resetting_disk(0, &[0xb0, 0xfe, 0xe6, 0x64]);
    let image = folder.file("disk.img", &disk);
    let drive = format!("file={},format=raw", image.display());
    let mut command = tollgate();
    command.args(["run", "--serial", "null", "--drive", &drive]);
    assert_eq!(finish(&mut command, PATIENCE).status.code(), Some(0));
}

/// Sets the video mode whose number is the key's character minus 40h, for each key.
const MODES: [u8; 12] = [
    0xb4, 0x00, 0xcd, 0x16, 0x2c, 0x40, // mov ah, 0; int 16h; sub al, 40h
    0xb4, 0x00, 0xcd, 0x10, 0xeb, 0xf4, // mov ah, 0; int 10h; jmp
];

#[test]
fn the_modes_of_the_display_s_firmware_have_their_sizes() {
    let folder = Folder::new();
    let mut disk = vec![0; 1 << 20];
    disk[..MODES.len()].copy_from_slice(&MODES);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    let image = folder.file("disk.img", &disk);
    let socket = folder.path("vm.sock");
    let drive = format!("file={},format=raw", image.display());
    let mut command = tollgate();
    command
        .args(["run", "--serial", "null", "--drive", &drive, "--control"])
        .arg(&socket);
    let mut child = command.spawn().unwrap();
    let ask = |arguments: &[&str]| {
        let mut command = tollgate();
        command.arg(arguments[0]).arg(&socket).args(&arguments[1..]);
        finish(&mut command, PATIENCE)
    };
    support::eventually("the boot", || {
        let screen = ask(&["screen"]);
        String::from_utf8_lossy(&screen.stdout)
            .contains("Booting from Hard")
            .then_some(())
    });
    // The modes are 04h, 06h, 0Dh, 0Eh, 10h, 12h, 13h, and text of 40 columns.
    for (key, columns, rows) in [
        ("D", 320, 200),
        ("F", 640, 200),
        ("M", 320, 200),
        ("N", 640, 200),
        ("P", 640, 350),
        ("R", 640, 480),
        ("S", 320, 200),
        ("A", 40, 25),
    ] {
        assert_eq!(ask(&["type", key]).status.code(), Some(0));
        let names = if columns == 40 {
            ["columns", "rows"]
        } else {
            ["width", "height"]
        };
        support::eventually(key, || {
            let screen = ask(&["screen", "--json"]).stdout;
            let screen: serde_json::Value = serde_json::from_slice(&screen).ok()?;
            (screen[names[0]] == columns && screen[names[1]] == rows).then_some(())
        });
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_is_missing_or_contradicts_is_one_line() {
    for (arguments, expected) in [
        (&["--bios", "/nonexistent"][..], "--bios: cannot read"),
        (
            &["--bios", "/dev/null"],
            "a firmware image has a multiple of 4096",
        ),
        (
            &["--bios", "/dev/null", "--pci", "off"],
            "firmware (--bios) needs the PCI bus",
        ),
        (&["--bios", "a", "--pflash", "b"], "cannot be used with"),
        (
            &["--pflash", "/dev/null"],
            "cannot use disk image '/dev/null'",
        ),
        (
            &["--bios", "/dev/null", "--kernel", "/dev/null"],
            "'/dev/null' is not UEFI firmware",
        ),
        (
            &["--bios", "/dev/null", "--append", "quiet"],
            "--initrd and --append belong to --kernel",
        ),
        (&[], "--kernel"),
        (
            &[
                "--bios",
                "/usr/share/seabios/bios-256k.bin",
                "--display",
                "text",
            ],
            "--display text needs a terminal",
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

/// Reads keys by INT 16h, waits at least a tick of the clock before each, and writes them to the
/// debug console. First, 'R' says that it is ready.
#[rustfmt::skip]
const SLOW_READER: [u8; 36] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0xfb, // xor ax, ax; mov ds, ax; mov ss, ax; mov sp, 7C00h; sti
    0xb0, 0x52, 0xe6, 0xe9, // mov al, 'R'; out E9h, al
    0x8b, 0x1e, 0x6c, 0x04, // next: mov bx, [46Ch]
    0xf4, 0xa1, 0x6c, 0x04, 0x29, 0xd8, 0x3c, 0x02, // wait: hlt; mov ax, [46Ch]; sub ax, bx; cmp al, 2
    0x72, 0xf6, // jb wait
    0xb4, 0x00, 0xcd, 0x16, 0xe6, 0xe9, // mov ah, 0; int 16h; out E9h, al
    0xeb, 0xea, // jmp next
];

/// The BIOS stores 15 keys and drops further ones, so typing waits for the program.
#[test]
fn text_that_is_typed_faster_than_a_program_reads_keys_of_the_bios_arrives_as_a_whole() {
    let folder = Folder::new();
    let mut disk = vec![0; 1_474_560];
    disk[..SLOW_READER.len()].copy_from_slice(&SLOW_READER);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    let disk = folder.file("disk.img", &disk).display().to_string();
    let log = folder.path("log");
    let console = format!("file:{}", log.display());
    let pc = Pc::start(&folder, &["--floppy", &disk, "--debug-console", &console]);
    let ends_with = |end: &str| {
        support::eventually(end, || {
            let text = std::fs::read(&log).ok()?;
            text.ends_with(end.as_bytes()).then_some(())
        });
    };
    ends_with("R");
    let text = "The quick brown Fox jumps over the lazy Dog, 2 times.";
    pc.tell(&["type", text]);
    ends_with(&format!("R{text}"));
    pc.quit();
}

#[test]
fn u_boot_of_both_widths_reaches_its_prompt_and_obeys() {
    for name in ["qemu-x86", "qemu-x86_64"] {
        let rom = fetched(&format!("u-boot/{name}.rom"));
        let mut command = tollgate();
        command.args(["run", "--bios"]).arg(rom);
        let mut machine = Session::over_pipes(command);
        // Otherwise the firmware would search for something to boot.
        machine.wait_for("Hit any key to stop autoboot");
        machine.type_bytes(b" ");
        machine.wait_for("\n=> ");
        machine.type_line("version");
        let answer = machine.wait_for("\n=> ");
        assert!(answer.contains("\nU-Boot 20"), "{name}: {answer}");
        machine.type_line("reset");
        assert_eq!(machine.end().code, Some(0), "{name}");
    }
}
