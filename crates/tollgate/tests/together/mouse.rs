//! Tests the PS/2 mouse: firmware and Linux understand its reports.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::json;

use crate::qemu::{Qmp, qemu};
use crate::support::floppy;
use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_686};
use crate::support::pc::Pc;
use crate::support::picture::Picture;
use crate::support::viewer::Viewer;
use crate::support::{GUEST_PATIENCE, PATIENCE, finish, tollgate, within};

/// Lets the BIOS call a routine of ours with the mouse's reports (INT 15h, C2h). The routine writes
/// state, X and Y to the debug console. First, 'R' says that it is ready, or '!' that it failed.
#[rustfmt::skip]
const MOUSE: [u8; 70] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, // xor ax, ax; mov ds, ax; mov es, ax
    0xb8, 0x05, 0xc2, 0xb7, 0x03, 0xcd, 0x15, 0x72, 0x1b, // mov ax, C205h; mov bh, 3; int 15h; jc
    0xb8, 0x07, 0xc2, 0xbb, 0x30, 0x7c, 0xcd, 0x15, 0x72, 0x11, // mov ax, C207h; mov bx, 7C30h; int 15h; jc
    0xb8, 0x00, 0xc2, 0xb7, 0x01, 0xcd, 0x15, 0x72, 0x08, // mov ax, C200h; mov bh, 1; int 15h; jc
    0xb0, 0x52, 0xe6, 0xe9, 0xfb, 0xf4, 0xeb, 0xfc, // mov al, 'R'; out E9h, al; sti; hlt; jmp
    0xb0, 0x21, 0xe6, 0xe9, 0xeb, 0xf6, // mov al, '!'; out E9h, al; jmp
    // The routine begins at 7C30h: push bp; mov bp, sp; push ax
    0x55, 0x89, 0xe5, 0x50,
    0x8a, 0x46, 0x0c, 0xe6, 0xe9, 0x8a, 0x46, 0x0a, 0xe6, 0xe9, // mov al, [bp+12]; out E9h, al; and [bp+10]
    0x8a, 0x46, 0x08, 0xe6, 0xe9, 0x58, 0x5d, 0xcb, // mov al, [bp+8]; out E9h, al; pop ax; pop bp; retf
];

/// Starts a machine that boots [`MOUSE`]; returns it and the file with its output.
fn start_with_mouse(folder: &Folder, more: &[&str]) -> (Pc, std::path::PathBuf) {
    let mut disk = vec![0; 1_474_560];
    disk[..MOUSE.len()].copy_from_slice(&MOUSE);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    let disk = folder.file("disk.img", &disk).display().to_string();
    let log = folder.path("log");
    let console = format!("file:{}", log.display());
    let arguments = ["--floppy", &disk, "--debug-console", &console];
    let pc = Pc::start(folder, &[&arguments[..], more].concat());
    // SeaBIOS writes to the same console first.
    wait_for(&log, b"R");
    (pc, log)
}

/// Waits until the file ends with these bytes.
#[track_caller]
fn wait_for(log: &Path, end: &[u8]) {
    let mut last = Vec::new();
    let end_time = std::time::Instant::now() + PATIENCE;
    while !last.ends_with(end) {
        assert!(
            std::time::Instant::now() < end_time,
            "{end:x?} is not the end of {last:x?}"
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
        last = std::fs::read(log).unwrap_or_default();
    }
}

#[test]
fn the_bios_reads_the_mouse_that_is_moved_from_the_command_line() {
    let folder = Folder::new();
    let (pc, log) = start_with_mouse(&folder, &[]);
    pc.tell(&["type", "--mouse", "move:5,-3"]);
    wait_for(&log, &[b'R', 0x08, 5, 3]);
    pc.tell(&["type", "--mouse", "click:right"]);
    wait_for(&log, &[0x0a, 0, 0, 0x08, 0, 0]);
    pc.tell(&[
        "type",
        "--mouse",
        "press",
        "--mouse",
        "move:-300,0",
        "--mouse",
        "release",
    ]);
    let drag = [0x09, 0, 0, 0x19, 0x01, 0, 0x19, 0xd3, 0, 0x08, 0, 0];
    wait_for(&log, &drag);
    let output = pc.ask(&["type", "--mouse", "jump"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("move:RIGHT,DOWN"));
    pc.quit();
}

#[test]
fn the_bios_reads_a_viewer_s_pointer() {
    let folder = Folder::new();
    let socket = folder.path("vnc.sock");
    let display = format!("vnc=unix:{}", socket.display());
    let (pc, log) = start_with_mouse(&folder, &["--display", &display]);
    let stream = within(PATIENCE, "the server", || UnixStream::connect(&socket).ok());
    let mut viewer = Viewer::begin(stream, None);
    let mut point = |buttons, x, y| viewer.say(&[5, buttons, 0, x, 0, y]);
    // The first position is no movement.
    point(0, 100, 100);
    point(0, 110, 95);
    wait_for(&log, &[0x08, 10, 5]);
    point(4, 110, 95);
    point(0, 110, 95);
    wait_for(&log, &[0x08, 10, 5, 0x0a, 0, 0, 0x08, 0, 0]);
    // A viewer that disconnects with a button down releases it.
    point(1, 110, 95);
    wait_for(&log, &[0x09, 0, 0]);
    drop(viewer);
    wait_for(&log, &[0x09, 0, 0, 0x08, 0, 0]);
    pc.quit();
}

/// Linux' driver asks for the wheel, sets rate and resolution, and passes the mouse's actions on by
/// the protocol "ExplorerPS/2" of /dev/input/mice.
#[test]
fn linux_finds_a_wheel_mouse_and_reads_it() {
    let folder = Folder::new();
    let module = fs::read(fetched("debian-686-modules/psmouse.ko")).unwrap();
    let files = [("mnt/psmouse.ko".to_owned(), module)];
    let initramfs = linux::initramfs_with_files(DEBIAN_686, &files);
    let initramfs = folder.file("initrd.img", &initramfs);
    let socket = folder.path("vm.sock");
    let mut command = tollgate();
    command.args(["run", "--kernel"]);
    command.arg(fetched("debian-686/vmlinuz"));
    command.arg("--initrd").arg(initramfs);
    command.arg("--control").arg(&socket);
    command.args(["--append", "console=ttyS0"]);
    let mut guest = linux::boot(command);
    guest.shell("insmod /mnt/psmouse.ko");
    guest.shell("until grep -q PS/2.*Mouse /proc/bus/input/devices; do sleep 0.1; done");
    let devices = guest.shell("grep Mouse /proc/bus/input/devices");
    assert!(devices.contains("ImPS/2 Generic Wheel Mouse"), "{devices}");
    // The device reports what happens after it was opened.
    guest.shell("exec 9</dev/input/mice; dd bs=3 count=3 <&9 >/tmp/seen 2>/dev/null & true");
    let type_on = |actions: &[&str]| {
        let mut command = tollgate();
        command.arg("type").arg(&socket);
        for action in actions {
            command.args(["--mouse", action]);
        }
        let output = finish(&mut command, PATIENCE);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    };
    type_on(&["move:20,10", "click"]);
    guest.shell("wait");
    let seen = guest.shell("od -A n -t x1 /tmp/seen");
    // The mouse moved right and, for Linux, down; the button was pressed and released.
    assert_eq!(seen.trim(), "28 14 f6 09 00 00 08 00 00");
    let log = guest.shell("dmesg");
    assert!(!log.contains("lost sync"), "{log}");
    linux::assert_untroubled(&mut guest);
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

/// KolibriOS draws its desktop and its pointer with threads that wait for its timer and for the
/// mouse.
#[test]
fn the_threads_of_kolibrios_live_on_after_it_has_drawn_its_desktop() {
    let folder = Folder::new();
    let Some(floppy) = floppy::unpacked(&folder, "kolibri") else {
        return;
    };
    let floppy = floppy.to_str().unwrap();
    let pc = Pc::start(&folder, &["--floppy", floppy, "--snapshot", "-m", "128M"]);
    let png = folder.path("screen.png");
    let picture = || {
        pc.ask(&["screen", "--png", png.to_str().unwrap()]);
        Picture::read(&png)
    };
    // Its menu is text; then it shows its progress in the mode of the desktop.
    let mut last = None;
    let mut desktop = within(GUEST_PATIENCE, "the desktop", || {
        std::thread::sleep(std::time::Duration::from_secs(2));
        let before = last.take();
        last = picture().filter(|picture| picture.width >= 640 && picture.height >= 480);
        if before.is_none() || before != last {
            return None;
        }
        last.take()
    });
    for _ in 0..5 {
        pc.tell(&["type", "--mouse", "move:9,-5"]);
        desktop = within(PATIENCE, "the pointer's move", || {
            picture().filter(|now| desktop.difference(now).is_some())
        });
    }
    pc.quit();
}

#[test]
fn qmp_moves_the_mouse_and_presses_its_buttons() {
    let folder = Folder::new();
    let mut disk = vec![0; 1_474_560];
    disk[..MOUSE.len()].copy_from_slice(&MOUSE);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    let disk = folder.file("disk.img", &disk).display().to_string();
    let (log, socket) = (folder.path("log"), folder.path("qmp"));
    let (console, qmp) = (
        format!("file:{}", log.display()),
        format!("unix:{},server,nowait", socket.display()),
    );
    let words = [
        "-fda",
        &disk,
        "-debugcon",
        &console,
        "-qmp",
        &qmp,
        "-display",
        "none",
    ];
    let mut child = qemu(&words).spawn().unwrap();
    let mut client = Qmp::new(&socket);
    wait_for(&log, b"R");
    let events = json!([
        {"type": "rel", "data": {"axis": "x", "value": 5}},
        {"type": "rel", "data": {"axis": "y", "value": 3}},
        {"type": "btn", "data": {"button": "right", "down": true}},
    ]);
    client.ask(json!({"execute": "input-send-event", "arguments": {"events": events}}));
    // Down is negative: the right button, the sign of Y, and 253.
    wait_for(&log, &[0x2a, 5, 253]);
    let line = json!({"command-line": "mouse_move -1 0"});
    client.ask(json!({"execute": "human-monitor-command", "arguments": line}));
    wait_for(&log, &[0x1a, 255, 0]);
    client.ask(json!({"execute": "quit"}));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
