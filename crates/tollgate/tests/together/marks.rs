//! Tests marks in the statistics: they are set by the guest or from outside, and events between two
//! marks are counted.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::process::{Child, Output, Stdio};

use crate::support::control::{command, connect_to_running};
use crate::support::folder::Folder;
use crate::support::{self, PATIENCE, finish, tollgate};
use serde_json::Value;

/// Real-mode code that sets the mark of up to eight characters.
fn mark(name: &str) -> Vec<u8> {
    let mut bytes = [0; 8];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    let mut code = vec![0x66, 0xb8, 0x03, 0x4c, 0x4f, 0x54]; // mov eax, 544F4C03h
    code.extend([0x66, 0xbb]); // mov ebx, ...
    code.extend(&bytes[..4]);
    code.extend([0x66, 0xb9]); // mov ecx, ...
    code.extend(&bytes[4..]);
    // The code ends with: xor edx, edx; xor esi, esi; vmcall
    code.extend([0x66, 0x31, 0xd2, 0x66, 0x31, 0xf6, 0x0f, 0x01, 0xc1]);
    code
}

/// The code: mov dx, 3F8h; mov cx, COUNT; next: in al, dx; loop next
fn reads(count: u16) -> Vec<u8> {
    let [low, high] = count.to_le_bytes();
    vec![0xba, 0xf8, 0x03, 0xb9, low, high, 0xec, 0xe2, 0xfd]
}

/// A guest that reads 300 times, 1000 times between two marks, and 200 times.
fn marked_guest(folder: &Folder) -> std::path::PathBuf {
    // The code is: xor al, al; out F4h, al
    let end = vec![0x30, 0xc0, 0xe6, 0xf4];
    let parts = [
        reads(300),
        mark("begin"),
        reads(1000),
        mark("end"),
        reads(200),
        end,
    ];
    folder.boot_sector(&parts.concat())
}

fn run(folder: &Folder, arguments: &[&str]) -> Output {
    let mut command = tollgate();
    let fixed = ["run", "-m", "16M", "--serial", "null", "--kernel"];
    command
        .args(fixed)
        .arg(marked_guest(folder))
        .args(arguments);
    let output = finish(&mut command, PATIENCE);
    // The guest has written 0 to isa-debug-exit.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    output
}

/// How often a kind of exit was counted.
fn count(snapshot: &Value, kind: &str) -> u64 {
    let rows = snapshot["exits"].as_array().unwrap();
    let row = rows.iter().find(|row| row["kind"] == kind);
    row.map_or(0, |row| row["count"].as_u64().unwrap())
}

#[test]
fn statistics_between_marks_of_the_guest_are_exact() {
    let folder = Folder::new();
    let counted = |arguments: &[&str]| {
        let mut all = vec!["--stats-format", "json"];
        all.extend(arguments);
        let output = run(&folder, &all);
        let snapshot: Value = serde_json::from_slice(&output.stderr).unwrap();
        count(&snapshot, "port-in")
    };
    assert_eq!(counted(&[]), 1500);
    assert_eq!(counted(&["--stats-since", "begin"]), 1200);
    assert_eq!(counted(&["--stats-until", "begin"]), 300);
    // The flags had other names in earlier versions.
    assert_eq!(
        counted(&["--stats-from", "begin", "--stats-to", "end"]),
        1000
    );
    assert_eq!(
        counted(&["--stats-since", "begin", "--stats-until", "end"]),
        1000
    );
}

#[test]
fn a_mark_that_never_came_is_named_and_all_is_told() {
    let folder = Folder::new();
    let output = run(&folder, &["--stats-since", "start"]);
    let text = String::from_utf8(output.stderr).unwrap();
    let line = "tollgate: --stats-since, --stats-until: no mark is called 'start'; there are: begin, end; ";
    assert!(text.starts_with(line), "{text}");
    assert!(text.contains("\nport-in "), "{text}");
}

/// The number of exits of a kind in a trace.
fn traced(folder: &Folder, arguments: &[&str]) -> usize {
    let path = folder.path("trace.json");
    let trace = ["--trace", path.to_str().unwrap()];
    run(folder, &[&trace, arguments].concat());
    let trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap().iter();
    events
        .filter(|event| event["ph"] == "X" && event["name"] == "port-in")
        .count()
}

#[test]
fn a_trace_is_of_what_lies_between_marks() {
    let folder = Folder::new();
    assert_eq!(traced(&folder, &[]), 1500);
    assert_eq!(traced(&folder, &["--trace-since", "begin"]), 1200);
    assert_eq!(traced(&folder, &["--trace-until", "begin"]), 300);
    assert_eq!(traced(&folder, &["--trace-to", "begin"]), 300);
    let between = ["--trace-since", "begin", "--trace-until", "end"];
    assert_eq!(traced(&folder, &between), 1000);
    assert_eq!(traced(&folder, &["--trace-since", "never"]), 0);
    // 64 KiB hold about two hundred exits with the events inside them.
    let ring = traced(&folder, &["--trace-ring", "--trace-limit", "64K"]);
    assert!((100..1500).contains(&ring), "{ring}");
}

/// Starts a guest that reads its port in an endless loop.
fn running(folder: &Folder) -> (Child, UnixStream) {
    let path = folder.path("vm.sock");
    // The code is: mov dx, 3F8h; next: in al, dx; jmp next
    let kernel = folder.boot_sector(&[0xba, 0xf8, 0x03, 0xec, 0xeb, 0xfd]);
    let child = tollgate()
        .args(["run", "-m", "16M", "--serial", "null", "--kernel"])
        .arg(kernel)
        .arg("--control")
        .arg(&path)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    (child, connect_to_running(&path))
}

#[track_caller]
fn client(folder: &Folder, name: &str, arguments: &[&str]) -> Output {
    let mut command = tollgate();
    command
        .arg(name)
        .arg(folder.path("vm.sock"))
        .args(arguments);
    finish(&mut command, PATIENCE)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn marks_are_set_and_listed_from_outside() {
    let folder = Folder::new();
    let (child, socket) = running(&folder);
    let exits = || {
        command(&socket, "status")["status"]["exits"]
            .as_u64()
            .unwrap()
    };
    let wait = || {
        let before = exits();
        support::eventually("exits", || (exits() > before + 1000).then_some(()));
    };
    wait();
    assert_eq!(client(&folder, "mark", &["a"]).status.code(), Some(0));
    wait();
    assert_eq!(client(&folder, "mark", &["b"]).status.code(), Some(0));
    let listed = text(&client(&folder, "mark", &[]));
    let names: Vec<_> = listed
        .lines()
        .map(|line| line.split_whitespace().last())
        .collect();
    assert_eq!(names, [Some("a"), Some("b")]);

    let between = ["--since", "a", "--until", "b", "--format", "json"];
    let [first, second] = [0, 1].map(|_| text(&client(&folder, "stats", &between)));
    let first: Value = serde_json::from_str(&first).unwrap();
    assert!(count(&first, "port-in") >= 1000, "{first}");
    let second: Value = serde_json::from_str(&second).unwrap();
    assert_eq!(first["exits"], second["exits"]);

    let unknown = client(&folder, "stats", &["--since", "c"]);
    assert_eq!(unknown.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(
        errors.contains("--since: no mark is called 'c'; there are: a, b"),
        "{errors}"
    );
    assert_eq!(client(&folder, "mark", &["a b"]).status.code(), Some(2));

    command(&socket, "quit");
    assert_eq!(support::ended(child, PATIENCE).status.code(), Some(0));
}

#[test]
fn intervals_are_told_until_the_machine_ends() {
    let folder = Folder::new();
    let (child, socket) = running(&folder);
    let mut told = tollgate()
        .arg("stats")
        .arg(folder.path("vm.sock"))
        .args(["--interval", "0.1", "--top", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(told.stdout.take().unwrap()).lines();
    let mut lines = lines.map(Result::unwrap);
    let mut knobs = 0;
    for _ in 0..3 {
        let row = lines.find(|line| {
            knobs += u32::from(line.starts_with("knobs "));
            line.starts_with("port-in ")
        });
        assert!(row.is_some());
    }
    assert_eq!(knobs, 1, "how they stand is told once");
    command(&socket, "quit");
    assert!(lines.last().is_some());
    assert_eq!(support::ended(told, PATIENCE).status.code(), Some(0));
    support::ended(child, PATIENCE);
}
