//! Tests `--display vnc=`: a viewer sees the screen, types and moves the mouse; unauthorized
//! viewers, and viewers that do not read, disturb no other.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::support::folder::Folder;
use crate::support::pc::Pc;
use crate::support::picture::Picture;
use crate::support::viewer::{Viewer, let_in};
use crate::support::{PATIENCE, finish, tollgate, within};

/// Writes "type> " by INT 10h, then every key that INT 16h reads.
const ECHO: [u8; 28] = [
    0x31, 0xc0, 0x8e, 0xd8, 0xbe, 0x40, 0x7c, // xor ax, ax; mov ds, ax; mov si, 7C40h
    0xac, 0x84, 0xc0, 0x74, 0x06, // lodsb; test al, al; jz
    0xb4, 0x0e, 0xcd, 0x10, 0xeb, 0xf5, // mov ah, 0Eh; int 10h; jmp
    0xb4, 0x00, 0xcd, 0x16, // mov ah, 0; int 16h
    0xb4, 0x0e, 0xcd, 0x10, 0xeb, 0xf6, // mov ah, 0Eh; int 10h; jmp
];

/// A floppy disk that boots [`ECHO`].
fn disk(folder: &Folder) -> String {
    let mut disk = vec![0; 1_474_560];
    disk[..ECHO.len()].copy_from_slice(&ECHO);
    disk[0x40..0x46].copy_from_slice(b"type> ");
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    folder.file("disk.img", &disk).display().to_string()
}

fn start(folder: &Folder, display: &str) -> Pc {
    Pc::start(folder, &["--floppy", &disk(folder), "--display", display])
}

/// Starts a machine with a VNC server at a socket in the folder.
fn start_at_socket(folder: &Folder) -> (Pc, std::path::PathBuf) {
    let socket = folder.path("vnc.sock");
    let pc = start(folder, &format!("vnc=unix:{}", socket.display()));
    (pc, socket)
}

fn connect(socket: &Path) -> UnixStream {
    let stream = within(PATIENCE, "the server", || UnixStream::connect(socket).ok());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The picture that `tollgate screen` writes.
fn picture(pc: &Pc, folder: &Folder) -> Picture {
    let png = folder.path("screen.png");
    pc.tell(&["screen", "--png", png.to_str().unwrap()]);
    Picture::read(&png).unwrap()
}

#[test]
fn a_viewer_sees_what_the_screen_shows_and_types() {
    let folder = Folder::new();
    let (pc, socket) = start_at_socket(&folder);
    let mut viewer = Viewer::begin(connect(&socket), None);
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    pc.screen_with("type>");
    let expected = picture(&pc, &folder);
    viewer.look_until("the prompt", |shown| *shown == expected);
    for character in b"Look & see" {
        viewer.key((*character).into());
    }
    pc.screen_with("type> Look & see");
    let expected = picture(&pc, &folder);
    viewer.look_until("what was typed", |shown| *shown == expected);
    pc.quit();
    assert!(!socket.exists());
}

#[test]
fn a_port_lets_in_who_knows_the_password() {
    let folder = Folder::new();
    let file = folder.file("password", b"secret\n");
    // The port was free a moment ago.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let display = format!("vnc={address},password={}", file.display());
    let pc = start(&folder, &display);
    within(PATIENCE, "the server", || TcpStream::connect(address).ok());
    pc.screen_with("type>");
    let connect = || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let mut stranger = connect();
    assert_eq!(let_in(&mut stranger, Some(b"guess")), [0, 0, 0, 1]);
    let mut why = String::new();
    stranger.read_to_string(&mut why).unwrap();
    assert!(why.ends_with("wrong password"), "{why:?}");
    let mut viewer = Viewer::begin(connect(), Some(b"secret"));
    let expected = picture(&pc, &folder);
    viewer.look_until("the prompt", |shown| *shown == expected);
    pc.quit();
}

#[test]
fn a_viewer_that_does_not_read_holds_nobody_up() {
    let folder = Folder::new();
    let (pc, socket) = start_at_socket(&folder);
    pc.screen_with("type>");
    let mut sleepers: Vec<Viewer> = (0..4)
        .map(|_| Viewer::begin(connect(&socket), None))
        .collect();
    // Each viewer requests far more pictures than a socket holds, and reads none.
    for sleeper in &mut sleepers {
        for _ in 0..200 {
            sleeper.say(&[3, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        }
    }
    let mut noise = connect(&socket);
    noise.write_all(&[0xff; 1000]).unwrap();
    drop(noise);
    let mut viewer = Viewer::begin(connect(&socket), None);
    for character in b"awake" {
        viewer.key((*character).into());
    }
    pc.screen_with("type> awake");
    let expected = picture(&pc, &folder);
    viewer.look_until("what was typed", |shown| *shown == expected);
    pc.quit();
}

#[test]
fn what_is_wrong_with_a_display_is_said_in_a_line() {
    let folder = Folder::new();
    let long = folder.file("long", b"123456789\n").display().to_string();
    let folder = folder.as_path().display();
    for (display, why) in [
        (
            "vnc=127.0.0.1:5900".to_owned(),
            "a port needs password=FILE",
        ),
        (
            "vnc=0.0.0.0:1,password=x".to_owned(),
            "did you mean 0.0.0.0:5901?",
        ),
        (
            format!("vnc=127.0.0.1,password={folder}/none"),
            "no such file",
        ),
        (
            format!("vnc=127.0.0.1,password={long}"),
            "8 characters at most",
        ),
        (
            format!("vnc=unix:{folder}/none/socket"),
            "its folder does not exist",
        ),
        (
            "window".to_owned(),
            "expected none, text, png:DIR or vnc=WHERE",
        ),
    ] {
        let output = finish(
            tollgate().args([
                "run",
                "--floppy",
                "none",
                "--serial",
                "null",
                "--display",
                &display,
            ]),
            PATIENCE,
        );
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{display}: {errors}");
        assert!(errors.contains(why), "{display}: {errors}");
        assert!(errors.contains("--display"), "{display}: {errors}");
    }
}
