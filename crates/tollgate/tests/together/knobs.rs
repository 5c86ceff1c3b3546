//! Tests knobs of a machine: they are set at its start and while it runs, and statistics report
//! them.

use std::os::unix::net::UnixStream;
use std::process::{Child, Output, Stdio};

use crate::support::control::{ask, command, connect_to_running};
use crate::support::folder::Folder;
use crate::support::{PATIENCE, ended, eventually, finish, tollgate};
use serde_json::{Value, json};

/// The code is: cli; next: pushf; cli; popf; inc ebx; jmp next
const TOUCHES_THE_FLAG_FOR_EVER: &[u8] = &[0xfa, 0x9c, 0xfa, 0x9d, 0x66, 0x43, 0xeb, 0xf9];

fn start(folder: &Folder, arguments: &[&str]) -> (Child, UnixStream) {
    let path = folder.path("vm.sock");
    let child = tollgate()
        .args(["run", "-m", "16M", "--serial", "null", "--kernel"])
        .arg(folder.boot_sector(TOUCHES_THE_FLAG_FOR_EVER))
        .arg("--control")
        .arg(&path)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let socket = connect_to_running(&path);
    (child, socket)
}

/// Runs `tollgate set` with the path and these words.
fn set(folder: &Folder, words: &[&str]) -> Output {
    let mut command = tollgate();
    command.arg("set").arg(folder.path("vm.sock")).args(words);
    finish(&mut command, PATIENCE)
}

fn exits(socket: &UnixStream, kind: &str) -> u64 {
    let stats = command(socket, "stats")["stats"].clone();
    let rows = stats["exits"].as_array().unwrap().clone();
    let row = rows.iter().find(|row| row["kind"] == kind);
    row.map_or(0, |row| row["count"].as_u64().unwrap())
}

fn quit(child: Child, socket: &UnixStream) -> Output {
    command(socket, "quit");
    ended(child, PATIENCE)
}

#[test]
fn with_the_flag_virtualised_by_exits_each_sensitive_instruction_is_one() {
    let folder = Folder::new();
    let (child, socket) = start(&folder, &["--knob", "vif=off"]);
    for kind in ["cli", "pushf", "popf"] {
        eventually(kind, || (exits(&socket, kind) > 1000).then_some(()));
    }
    quit(child, &socket);
}

#[test]
fn a_running_guest_goes_on_while_its_knobs_are_turned() {
    let folder = Folder::new();
    let (child, socket) = start(&folder, &[]);
    for round in 0..10 {
        for assignments in [
            vec!["vif=off"],
            vec!["vif=off", "transition=trap"],
            vec!["transition=task"],
            vec!["vif=on", "vir=off", "transition=call"],
            vec!["vir=on", "switch=exit"],
            vec!["switch=inline"],
            // The machine is confined, and has a launcher that makes processes for programs.
            vec!["user-code=native"],
            vec!["user-code=translated"],
        ] {
            let output = set(&folder, &assignments);
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            assert_eq!(output.stdout, b"", "{round}");
        }
    }
    set(&folder, &["vif=off"]);
    let before = exits(&socket, "popf");
    eventually("more exits", || {
        (exits(&socket, "popf") > before + 1000).then_some(())
    });
    assert_eq!(quit(child, &socket).status.code(), Some(0));
}

#[test]
fn a_list_shows_every_knob_as_it_stands() {
    let folder = Folder::new();
    let (child, socket) = start(&folder, &["--vir", "off"]);
    let output = set(&folder, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().take(3).collect())
        .collect();
    assert!(lines.contains(&vec!["vif", "on", "off|on"]), "{text}");
    assert!(lines.contains(&vec!["vir", "off", "off|on"]), "{text}");
    let output = set(&folder, &["vif=off", "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let knobs = json!({"vif": "off", "vir": "off", "transition": "call",
        "memory-access": "adaptive", "anchors": "on", "user-code": "adaptive", "switch": "inline", "shadow-tables": "auto",
        "invalidation": "inline", "reverse-map": "on", "double-invalidation": "entry-count",
        "compare-entries": "on", "icache": "fast-path", "interruptible": "restart"});
    assert_eq!(answer, json!({"ok": true, "knobs": knobs}));
    assert_eq!(command(&socket, "status")["status"]["knobs"], knobs);
    quit(child, &socket);
}

#[test]
fn statistics_tell_the_knobs_and_whether_they_were_turned() {
    let folder = Folder::new();
    let (child, socket) = start(&folder, &["--knob", "vif=off", "--stats-format", "json"]);
    let stats = command(&socket, "stats")["stats"].clone();
    assert_eq!(stats["knobs"]["vif"], "off");
    assert_eq!(stats["knobs_changed"], false);
    // Setting a knob to its present value is no change.
    set(&folder, &["vif=off"]);
    set(&folder, &["vir=off"]);
    let output = quit(child, &socket);
    let stats: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(stats["knobs"]["vir"], "off");
    assert_eq!(stats["knobs_changed"], true);
}

#[test]
fn an_unknown_knob_or_value_is_one_line_that_names_the_known_ones() {
    let folder = Folder::new();
    let (child, socket) = start(&folder, &[]);
    for (words, message) in [
        (
            &["vid=on"][..],
            "tollgate: no knob is called 'vid'; knobs are: vif, vir, transition, memory-access, anchors, user-code, switch, shadow-tables, invalidation, reverse-map, double-invalidation, compare-entries, icache, interruptible\n",
        ),
        (
            &["vif=perhaps"],
            "tollgate: the knob vif has no value 'perhaps'; values are: off, on\n",
        ),
        (
            &["vif"],
            "tollgate: 'vif' is not knob=value; knobs are: vif, vir, transition, memory-access, anchors, user-code, switch, shadow-tables, invalidation, reverse-map, double-invalidation, compare-entries, icache, interruptible\n",
        ),
        (
            &["vif=on", "vif=off"],
            "tollgate: the knob vif was given twice\n",
        ),
    ] {
        let output = set(&folder, words);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), message);
    }
    // A client that speaks to the socket directly gets the same answer.
    let answer = ask(&socket, &json!({"command": "set", "knobs": {"vid": "on"}}));
    assert_eq!(
        answer,
        json!({"ok": false, "error": "no knob is called 'vid'; knobs are: vif, vir, transition, memory-access, anchors, user-code, switch, shadow-tables, invalidation, reverse-map, double-invalidation, compare-entries, icache, interruptible"})
    );
    quit(child, &socket);
}
