//! What the command does around a running virtual machine: keys, the terminal, signals,
//! the control socket. The guest is a boot sector that jumps to itself for ever.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A folder of one test's own, removed with its content.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-running-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// `tollgate run` with a guest that jumps to itself.
    fn run(&self, arguments: &[&str]) -> Command {
        self.run_code(&[0xeb, 0xfe], arguments)
    }

    /// `tollgate run` with a boot sector that begins with `code`.
    fn run_code(&self, code: &[u8], arguments: &[&str]) -> Command {
        let mut sector = [0; 512];
        sector[..code.len()].copy_from_slice(code);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        let guest = self.path("guest.img");
        fs::write(&guest, sector).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["run", "-m", "16M", "--kernel"]).arg(guest);
        command.args(arguments);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// The same with a control socket, once it answers.
    fn run_with_control(&self, arguments: &[&str]) -> (Child, UnixStream) {
        let path = self.path("vm.sock");
        let child = self
            .run(arguments)
            .arg("--control")
            .arg(&path)
            .spawn()
            .unwrap();
        let socket = eventually("the control socket", || UnixStream::connect(&path).ok());
        eventually("the first instruction", || {
            let state = ask(&socket, &json!({"command": "status"}))["status"]["state"].clone();
            (state != "starting").then_some(())
        });
        (child, socket)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(result) = attempt() {
            return result;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} did not come");
}

#[track_caller]
fn ended(mut child: Child) -> Output {
    let status = eventually("the end", || child.try_wait().unwrap());
    let mut output = Output {
        status,
        stdout: Vec::new(),
        stderr: Vec::new(),
    };
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_end(&mut output.stdout).unwrap();
    }
    if let Some(mut pipe) = child.stderr.take() {
        pipe.read_to_end(&mut output.stderr).unwrap();
    }
    output
}

fn ask(mut socket: &UnixStream, request: &Value) -> Value {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    writeln!(socket, "{request}").unwrap();
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn signal(child: &Child, signal: libc::c_int) {
    // SAFETY: kill takes integers only; the child was not waited for, so its number is its own.
    let result = unsafe { libc::kill(child.id() as libc::pid_t, signal) };
    assert_eq!(result, 0);
}

/// A terminal: the side of the person, and the side of the program.
fn terminal() -> (File, OwnedFd) {
    let (mut person, mut program) = (0, 0);
    let null = std::ptr::null_mut();
    // SAFETY: both descriptors are valid for writing; null asks for the defaults.
    let result =
        unsafe { libc::openpty(&mut person, &mut program, null, null.cast(), null.cast()) };
    assert_eq!(result, 0);
    // SAFETY: openpty returned these descriptors just now.
    unsafe { (File::from_raw_fd(person), OwnedFd::from_raw_fd(program)) }
}

/// The flags of a terminal's settings.
fn settings(terminal: &impl AsRawFd) -> [libc::tcflag_t; 4] {
    // SAFETY: termios consists of integers; it is valid for writing.
    let settings = unsafe {
        let mut settings = std::mem::zeroed::<libc::termios>();
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), &mut settings), 0);
        settings
    };
    [
        settings.c_iflag,
        settings.c_oflag,
        settings.c_cflag,
        settings.c_lflag,
    ]
}

/// Starts `command` on a terminal of its own and waits until that is raw.
fn start_on_terminal(mut command: Command) -> (Child, File, OwnedFd, [libc::tcflag_t; 4]) {
    use std::os::unix::process::CommandExt;
    let (person, program) = terminal();
    let before = settings(&program);
    let stdio = || Stdio::from(program.try_clone().unwrap());
    command.stdin(stdio()).stdout(stdio()).stderr(stdio());
    // SAFETY: setsid and ioctl may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            libc::ioctl(0, libc::TIOCSCTTY, 0);
            Ok(())
        });
    }
    let child = command.spawn().unwrap();
    eventually("raw mode", || (settings(&program) != before).then_some(()));
    (child, person, program, before)
}

#[test]
fn ctrl_a_x_quits_and_the_terminal_is_as_before() {
    let folder = Folder::new();
    let (child, mut person, program, before) = start_on_terminal(folder.run(&[]));
    person.write_all(b"\x01x").unwrap();
    assert_eq!(ended(child).status.code(), Some(0));
    assert_eq!(settings(&program), before);
}

#[test]
fn ctrl_a_h_shows_the_keys() {
    let folder = Folder::new();
    let (child, mut person, _program, _) = start_on_terminal(folder.run(&[]));
    person.write_all(b"\x01h").unwrap();
    let mut shown = String::new();
    while !shown.contains("pause, and go on") {
        let mut bytes = [0; 256];
        let count = person.read(&mut bytes).unwrap();
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    person.write_all(b"\x01x").unwrap();
    assert_eq!(ended(child).status.code(), Some(0));
}

#[test]
fn a_signal_ends_the_machine_and_the_terminal_is_as_before() {
    for number in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let folder = Folder::new();
        let (child, _person, program, before) = start_on_terminal(folder.run(&[]));
        signal(&child, number);
        assert_eq!(ended(child).status.code(), Some(128 + number));
        assert_eq!(settings(&program), before);
    }
}

#[test]
fn ctrl_c_goes_to_the_guest() {
    let folder = Folder::new();
    let (mut child, mut person, _program, _) = start_on_terminal(folder.run(&[]));
    person.write_all(b"\x03\x1c\x1a").unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none());
    person.write_all(b"\x01x").unwrap();
    assert_eq!(ended(child).status.code(), Some(0));
}

#[test]
fn the_end_of_standard_input_does_not_end_the_machine_and_ctrl_a_passes() {
    let folder = Folder::new();
    let mut command = folder.run(&["--control"]);
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
    let (child, socket) = folder.run_with_control(&["--serial", "null"]);
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
fn the_control_command_is_a_client() {
    let folder = Folder::new();
    let (child, _socket) = folder.run_with_control(&["--serial", "null"]);
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
    assert!(control("status").starts_with("state       running\n"));
    assert_eq!(control("pause"), "paused\n");
    assert_eq!(control("resume"), "running\n");
    assert_eq!(control("quit"), "");
    assert_eq!(ended(child).status.code(), Some(0));
}

#[test]
fn a_pty_is_named_and_a_quit_machine_shows_its_statistics() {
    let folder = Folder::new();
    let (child, socket) = folder.run_with_control(&["--serial", "pty", "--stats"]);
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
    // mov dx, 3F8h; next: out dx, al; jmp next
    let floods = [0xba, 0xf8, 0x03, 0xee, 0xeb, 0xfd];
    let folder = Folder::new();
    let child = folder.run_code(&floods, &[]).spawn().unwrap();
    // Time enough to fill the pipe.
    thread::sleep(Duration::from_millis(500));
    signal(&child, libc::SIGTERM);
    assert_eq!(ended(child).status.code(), Some(128 + libc::SIGTERM));
}
