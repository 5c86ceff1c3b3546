//! Tests `scripts/compare-events`: its command line, its table as text and as JSON, and that the
//! guests of `benches/events` complete in Tollgate. A substitute takes QEMU's place.

use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tollgate_test_support::skip;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const TOLLGATE: &str = env!("CARGO_BIN_EXE_tollgate");

/// A folder that only this test uses.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("compare-events-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("the folder can be made");
    path
}

/// Runs the script with programs taken from `tools`, either before those of PATH or instead of
/// them.
fn compare(tools: Option<(&Path, bool)>, arguments: &[&str]) -> Output {
    let script = Path::new(REPOSITORY).join("scripts/compare-events");
    let mut command = Command::new("python3");
    command.arg(script).args(arguments);
    if let Some((tools, is_alone)) = tools {
        let others = std::env::var("PATH").unwrap_or_default();
        let path = match is_alone {
            true => tools.display().to_string(),
            false => format!("{}:{others}", tools.display()),
        };
        command.env("PATH", path);
    }
    command.output().expect("python3 is there")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Makes a program with QEMU's name that runs `script`.
fn stand_in(folder: &Path, script: &str) {
    let path = folder.join("qemu-system-x86_64");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("it can be written");
    fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("it is ours");
}

/// Whether the tools that assemble the guests are installed.
fn can_assemble() -> bool {
    let has = |tool: &str| Command::new(tool).arg("--version").output().is_ok();
    let all = ["as", "ld", "objcopy"].into_iter().all(has);
    if !all {
        skip::missing("binutils are missing");
    }
    all
}

#[test]
fn its_help_is_the_text_at_its_head() {
    let output = compare(None, &["--help"]);
    assert!(output.status.success());
    let help = text(&output.stdout);
    assert!(help.starts_with("compare-events - "), "{help}");
    for option in [
        "--tollgate",
        "--guest",
        "--only",
        "--rounds",
        "--cpu",
        "--json",
    ] {
        assert!(help.contains(option), "{option}: {help}");
    }
}

#[test]
fn wrong_arguments_are_named_and_exit_with_2() {
    for (arguments, named) in [
        (["--frobnicate", "1"], "--frobnicate"),
        (["--guest", "16,48"], "48"),
        (["--rounds", "0"], "--rounds"),
        (["--rounds", "many"], "--rounds"),
    ] {
        let output = compare(None, &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let message = text(&output.stderr);
        assert!(message.contains(named), "{arguments:?}: {message}");
    }
}

#[test]
fn without_qemu_it_says_so_in_one_line() {
    if !can_assemble() {
        return;
    }
    let tools = folder("no-qemu");
    for tool in ["as", "ld", "objcopy"] {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {tool}")])
            .output();
        let found = text(&found.expect("sh is there").stdout);
        std::os::unix::fs::symlink(found.trim(), tools.join(tool)).expect("it is a new link");
    }
    let script = Path::new(REPOSITORY).join("scripts/compare-events");
    let python = Command::new("sh")
        .args(["-c", "python3 -c 'import sys; print(sys.executable)'"])
        .output();
    let python = text(&python.expect("sh is there").stdout);
    let output = Command::new(python.trim())
        .arg(script)
        .env("PATH", &tools)
        .output()
        .expect("python3 is there");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "compare-events: error: 'qemu-system-x86_64' is missing; install the Debian packages \
         binutils and qemu-system-x86\n"
    );
}

/// The text and the JSON of a run in which Tollgate takes QEMU's place too.
fn table(name: &str, arguments: &[&str]) -> Option<(String, Value)> {
    if !can_assemble() {
        return None;
    }
    let folder = folder(name);
    // The kernel is the last argument.
    stand_in(
        &folder,
        &format!("for kernel; do :; done\nexec '{TOLLGATE}' run -m 64M --kernel \"$kernel\""),
    );
    let json = folder.join("rows.json");
    let json = json.to_str().expect("the path is text");
    let fixed = ["--tollgate", TOLLGATE, "--rounds", "1", "--json", json];
    let all = [&fixed[..], arguments].concat();
    let output = compare(Some((&folder, false)), &all);
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let written = fs::read_to_string(json).expect("it writes the file");
    let json = serde_json::from_str(&written).expect("it is JSON");
    Some((text(&output.stdout), json))
}

#[test]
fn the_guests_come_to_their_ends_and_both_tables_say_the_same() {
    let Some((text, json)) = table("all", &[]) else {
        return;
    };
    let mut lines = text.lines();
    assert!(
        lines
            .next()
            .is_some_and(|line| line.starts_with("cycles of one event"))
    );
    let head: Vec<&str> = lines.next().expect("a head").split_whitespace().collect();
    assert_eq!(
        head,
        ["code", "event", "tollgate", "p99", "tcg", "p99", "ratio"]
    );
    assert_eq!(json["rounds"], 1);
    let rows = json["rows"].as_array().expect("rows");
    for (code, event) in [
        ("16", "in-80h"),
        ("32", "page-fault-iret"),
        ("64", "apic-self-ipi"),
        ("64", "timer-late-hlt"),
    ] {
        let is_it = |row: &&Value| row["code"] == code && row["event"] == event;
        assert_eq!(rows.iter().filter(is_it).count(), 1, "{code} {event}");
    }
    let mut lost = Vec::new();
    for row in rows {
        let name = |name: &str| row[name].as_str().expect("a name").to_owned();
        assert_ne!(row["event"], "no-op");
        let line: Vec<&str> = lines.next().expect("a line").split_whitespace().collect();
        assert_eq!(line[..2], [name("code"), name("event")]);
        let number = |machine: &str, what: &str| {
            let value = row[machine][what].as_f64();
            value.unwrap_or_else(|| panic!("{machine} {what} of {row}"))
        };
        let shown: f64 = line[2].parse().expect("a number");
        assert!(
            (shown - number("tollgate", "median")).abs() <= 0.5,
            "{line:?}"
        );
        let shown: f64 = line[4].parse().expect("a number");
        assert!((shown - number("tcg", "median")).abs() <= 0.5, "{line:?}");
        let bar = number("tcg", "median").max(60.0);
        let is_lost = number("tollgate", "median") > bar;
        assert_eq!(row["lost"], is_lost);
        assert_eq!(line.last() == Some(&"lost"), is_lost, "{line:?}");
        if is_lost {
            lost.push(format!("{}/{}", name("code"), name("event")));
        }
    }
    let lost = match lost.is_empty() {
        true => "none".to_owned(),
        false => lost.join(", "),
    };
    assert_eq!(lines.next(), Some(format!("rows lost: {lost}").as_str()));
    assert_eq!(lines.next(), None);
}

#[test]
fn only_the_events_asked_for_are_shown() {
    let Some((text, json)) = table("only", &["--guest", "16", "--only", "cpuid,in-80h"]) else {
        return;
    };
    let rows = json["rows"].as_array().expect("rows");
    let events: Vec<&str> = rows
        .iter()
        .filter_map(|row| row["event"].as_str())
        .collect();
    assert_eq!(events, ["cpuid", "in-80h"]);
    assert_eq!(text.lines().count(), 5, "{text}");
}

#[test]
fn an_event_that_is_not_there_or_a_guest_that_does_not_end_is_an_error() {
    if !can_assemble() {
        return;
    }
    let folder = folder("errors");
    stand_in(
        &folder,
        &format!("for kernel; do :; done\nexec '{TOLLGATE}' run -m 64M --kernel \"$kernel\""),
    );
    let run = |arguments: &[&str]| {
        let fixed = ["--tollgate", TOLLGATE, "--rounds", "1", "--guest", "16"];
        let output = compare(Some((&folder, false)), &[&fixed[..], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        text(&output.stderr)
    };
    let message = run(&["--only", "frobnication"]);
    assert_eq!(
        message,
        "compare-events: error: no such event: frobnication\n"
    );
    stand_in(&folder, "echo stuck; exit 3");
    let message = run(&[]);
    assert!(
        message.contains("tcg left events16.elf with 3:\nstuck"),
        "{message}"
    );
}
