//! Tests what the command does around a running virtual machine: keys, the terminal, signals, the
//! control socket. The guest is a boot sector with an endless loop.

use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::support::control::{ask, connect_to_running};
use crate::support::folder::Folder;
use crate::support::terminal::Terminal;
use crate::support::{self, PATIENCE, eventually, signal, tollgate};
use serde_json::json;

/// `tollgate run` with a guest that jumps to itself.
fn run(folder: &Folder, arguments: &[&str]) -> Command {
    run_code(folder, &[0xeb, 0xfe], arguments)
}

/// `tollgate run` with a boot sector that begins with `code`.
fn run_code(folder: &Folder, code: &[u8], arguments: &[&str]) -> Command {
    let mut command = tollgate();
    command
        .args(["run", "-m", "16M", "--kernel"])
        .arg(folder.boot_sector(code))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// [`run`] with a control socket, once it answers.
fn run_with_control(folder: &Folder, arguments: &[&str]) -> (Child, UnixStream) {
    let path = folder.path("vm.sock");
    let mut command = run(folder, arguments);
    let child = command.arg("--control").arg(&path).spawn().unwrap();
    (child, connect_to_running(&path))
}

/// The output of a process that ends soon.
#[track_caller]
fn ended(child: Child) -> std::process::Output {
    support::ended(child, PATIENCE)
}

#[test]
fn the_guest_reads_the_files_of_the_command_line() {
    let folder = Folder::new();
    let file = folder.file("value", b"\x21");
    // The code is: mov dx, 510h; mov ax, selector; out dx, ax; inc dx; in al, dx; out F4h, al
    let code = |selector| {
        [
            0xba, 0x10, 0x05, 0xb8, selector, 0, 0xef, 0x42, 0xec, 0xe6, 0xf4,
        ]
    };
    let of_file = format!("name=opt/b,file={}", file.display());
    let arguments = ["--fw-cfg", "opt/a,string=$x", "--fw-cfg", &of_file];
    // The files follow etc/e820 in the order of their names.
    for (selector, value) in [(0x21, b'$'), (0x22, 0x21)] {
        let child = run_code(&folder, &code(selector), &arguments).spawn();
        let code = ended(child.unwrap()).status.code();
        assert_eq!(code, Some(i32::from(value) * 2 + 1));
    }
}

#[test]
fn ctrl_a_x_quits_and_the_terminal_is_as_before() {
    let folder = Folder::new();
    let mut terminal = Terminal::new();
    let before = terminal.settings();
    let child = terminal.start_raw(run(&folder, &[]));
    terminal.person.write_all(b"\x01x").unwrap();
    assert_eq!(ended(child).status.code(), Some(0));
    assert_eq!(terminal.settings(), before);
}

#[test]
fn ctrl_a_h_shows_the_keys() {
    let folder = Folder::new();
    let mut terminal = Terminal::new();
    let child = terminal.start_raw(run(&folder, &[]));
    terminal.person.write_all(b"\x01h").unwrap();
    let mut shown = String::new();
    while !shown.contains("pause, and go on") {
        let mut bytes = [0; 256];
        let count = terminal.person.read(&mut bytes).unwrap();
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    terminal.person.write_all(b"\x01x").unwrap();
    assert_eq!(ended(child).status.code(), Some(0));
}

#[test]
fn a_signal_ends_the_machine_and_the_terminal_is_as_before() {
    for number in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let folder = Folder::new();
        let terminal = Terminal::new();
        let before = terminal.settings();
        let child = terminal.start_raw(run(&folder, &[]));
        signal(child.id(), number);
        assert_eq!(ended(child).status.code(), Some(128 + number));
        assert_eq!(terminal.settings(), before);
    }
}

#[test]
fn ctrl_c_goes_to_the_guest() {
    let folder = Folder::new();
    let mut terminal = Terminal::new();
    let mut child = terminal.start_raw(run(&folder, &[]));
    terminal.person.write_all(b"\x03\x1c\x1a").unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none());
    terminal.person.write_all(b"\x01x").unwrap();
    assert_eq!(ended(child).status.code(), Some(0));
}

#[test]
fn the_end_of_standard_input_does_not_end_the_machine_and_ctrl_a_passes() {
    let folder = Folder::new();
    let mut command = run(&folder, &["--control"]);
    let path = folder.path("vm.sock");
    let mut child = command.arg(&path).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"\x01x").unwrap();
    drop(input);
    let socket = eventually("the control socket", || UnixStream::connect(&path).ok());
    thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none());
    assert_eq!(
        ask(&socket, &json!({"command": "quit"})),
        json!({"ok": true})
    );
    assert_eq!(ended(child).status.code(), Some(0));
}

#[test]
fn the_control_socket_pauses_resumes_and_quits() {
    let folder = Folder::new();
    let (child, socket) = run_with_control(&folder, &["--serial", "null"]);
    let time = || {
        let answer = ask(&socket, &json!({"command": "status"}));
        answer["status"]["guest_time_ns"].as_u64().unwrap()
    };
    let paused = ask(&socket, &json!({"command": "pause", "id": 7}));
    assert_eq!(paused, json!({"ok": true, "state": "paused", "id": 7}));
    let stands_still = time();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(time(), stands_still);
    assert_eq!(
        ask(&socket, &json!({"command": "status"}))["status"]["state"],
        "paused"
    );
    let resumed = ask(&socket, &json!({"command": "resume"}));
    assert_eq!(resumed["state"], "running");
    assert_eq!(ask(&socket, &json!({"command": "dance"}))["ok"], false);
    assert_eq!(
        ask(&socket, &json!({"command": "power-button"})),
        json!({"ok": true})
    );
    ask(&socket, &json!({"command": "quit"}));
    assert_eq!(ended(child).status.code(), Some(0));
    assert!(!folder.path("vm.sock").exists());
}

#[test]
fn a_processor_that_waits_for_an_interrupt_is_halted() {
    let folder = Folder::new();
    // The code halts with interrupts disabled, in a loop.
    let mut command = run_code(&folder, &[0xf4, 0xeb, 0xfd], &["--serial", "null"]);
    let path = folder.path("vm.sock");
    let child = command.arg("--control").arg(&path).spawn().unwrap();
    let socket = connect_to_running(&path);
    let state = || ask(&socket, &json!({"command": "status"}))["status"]["state"].clone();
    eventually("HLT", || (state() == "halted").then_some(()));
    assert_eq!(
        ask(&socket, &json!({"command": "pause"}))["state"],
        "paused"
    );
    assert_eq!(state(), "paused");
    assert_eq!(
        ask(&socket, &json!({"command": "resume"}))["state"],
        "running"
    );
    assert_eq!(state(), "halted");
    ask(&socket, &json!({"command": "quit"}));
    assert_eq!(ended(child).status.code(), Some(0));
}

#[test]
fn the_control_command_is_a_client() {
    let folder = Folder::new();
    let (child, _socket) = run_with_control(&folder, &["--serial", "null"]);
    let control = |command: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg("control")
            .arg(folder.path("vm.sock"))
            .arg(command)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(control("status").starts_with("state         running\n"));
    assert_eq!(control("pause"), "paused\n");
    assert_eq!(control("resume"), "running\n");
    assert_eq!(control("quit"), "");
    assert_eq!(ended(child).status.code(), Some(0));
}

#[test]
fn a_pty_is_named_and_a_quit_machine_shows_its_statistics() {
    let folder = Folder::new();
    let (child, socket) = run_with_control(&folder, &["--serial", "pty", "--stats"]);
    ask(&socket, &json!({"command": "quit"}));
    let output = ended(child);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("tollgate: the serial port is /dev/pts/"),
        "{errors}"
    );
    assert!(errors.contains("exits by kind"), "{errors}");
    assert!(errors.contains("start-up: "), "{errors}");
}

#[test]
fn a_machine_whose_output_nobody_reads_can_be_ended() {
    // The code is: mov dx, 3F8h; next: out dx, al; jmp next
    let floods = [0xba, 0xf8, 0x03, 0xee, 0xeb, 0xfd];
    let folder = Folder::new();
    let mut child = run_code(&folder, &floods, &[]).spawn().unwrap();
    // This is enough time to fill the pipe.
    thread::sleep(Duration::from_millis(500));
    signal(child.id(), libc::SIGTERM);
    // The pipe is not read before the end.
    eventually("the end", || child.try_wait().unwrap());
    assert_eq!(ended(child).status.code(), Some(128 + libc::SIGTERM));
}

#[test]
fn guest_ram_may_lie_in_a_file_that_leaves_nothing_behind() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("ram")).unwrap();
    let place = folder.path("ram");
    // The code is: mov word [1000h], 1234h; mov al, [1001h]; out F4h, al
    let code = [
        0xc7, 0x06, 0x00, 0x10, 0x34, 0x12, 0xa0, 0x01, 0x10, 0xe6, 0xf4,
    ];
    let run = |place: &std::path::Path| {
        let child = run_code(&folder, &code, &["--memory-backing", "pageable"])
            .env("TMPDIR", place)
            .spawn()
            .unwrap();
        ended(child)
    };
    let output = run(&place);
    assert_eq!(output.status.code(), Some(0x12 << 1 | 1), "{output:?}");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    let output = run(std::path::Path::new("/no/such/folder"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("in a file in /no/such/folder"), "{error}");
    assert_eq!((error.lines().count(), output.status.success()), (1, false));
}

#[test]
fn resident_guest_ram_is_locked_or_refused_in_one_line() {
    let folder = Folder::new();
    let code = [0xb0, 0x12, 0xe6, 0xf4];
    let arguments = ["--memory-backing", "resident"];
    let output = ended(run_code(&folder, &code, &arguments).spawn().unwrap());
    if output.status.code() == Some(0x12 << 1 | 1) {
        return;
    }
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("cannot lock 16 MiB"), "{error}");
    assert_eq!((error.lines().count(), output.status.success()), (1, false));
}

#[test]
fn secret_guest_ram_cannot_be_read_from_outside_or_is_refused_in_one_line() {
    let folder = Folder::new();
    let path = folder.path("vm.sock");
    // The code is: mov word [1000h], 1234h; and a jump to itself.
    let code = [0xc7, 0x06, 0x00, 0x10, 0x34, 0x12, 0xeb, 0xfe];
    let mut command = run_code(&folder, &code, &["--secret-memory", "--control"]);
    let mut child = command.arg(&path).spawn().unwrap();
    let socket = eventually("the machine, or its end", || {
        let has_ended = child.try_wait().unwrap().is_some();
        let socket = UnixStream::connect(&path).ok();
        (has_ended || socket.is_some()).then_some(socket)
    });
    let Some(socket) = socket else {
        let output = ended(child);
        let error = String::from_utf8_lossy(&output.stderr);
        let is_told = error.contains("no secret memory") || error.contains("cannot lock 16 MiB");
        assert!(is_told, "{error}");
        assert_eq!((error.lines().count(), output.status.success()), (1, false));
        return;
    };
    let start = eventually("guest RAM", || {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let ram = maps.lines().find(|line| line.contains("secretmem"))?;
        u64::from_str_radix(ram.split('-').next()?, 16).ok()
    });
    let memory = std::fs::File::open(format!("/proc/{}/mem", child.id())).unwrap();
    let mut bytes = [0; 2];
    assert!(memory.read_at(&mut bytes, start + 0x1000).is_err());

    let place = folder.path("snapshot");
    let request = json!({"command": "snapshot", "file": place});
    let refusal = ask(&socket, &request).to_string();
    assert!(refusal.contains("written to no snapshot"), "{refusal}");
    let request = json!({"command": "set", "knobs": {"user-code": "native"}});
    let refusal = ask(&socket, &request).to_string();
    assert!(
        refusal.contains("executes nothing from secret memory"),
        "{refusal}"
    );
    ask(&socket, &json!({"command": "quit"}));
    assert_eq!(ended(child).status.code(), Some(0));

    let arguments = ["--secret-memory", "--knob", "user-code=native"];
    let output = ended(run_code(&folder, &code, &arguments).spawn().unwrap());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("user-code can only be 'translated'"),
        "{error}"
    );
    assert_eq!(output.status.code(), Some(2), "{error}");
}
