//! Tests panics that the guest's kernel reports, and resets: the messages and the exit codes.

use std::process::{Output, Stdio};

use crate::support::control::{ask, connect_to_running};
use crate::support::folder::Folder;
use crate::support::{self, PATIENCE, eventually, tollgate};
use serde_json::json;

/// The code: mov dx, port; mov al, value; out dx, al
fn out(port: u16, value: u8) -> Vec<u8> {
    let [low, high] = port.to_le_bytes();
    vec![0xba, low, high, 0xb0, value, 0xee]
}

/// Code that reports a panic of the guest's kernel.
fn panic() -> Vec<u8> {
    out(0x505, 1)
}

/// Code that resets the whole machine.
fn reset() -> Vec<u8> {
    out(0xcf9, 6)
}

/// Runs a guest that does these steps in order and then halts.
fn run(steps: &[Vec<u8>], arguments: &[&str]) -> Output {
    let folder = Folder::new();
    let code = [steps.concat(), vec![0xeb, 0xfe]].concat();
    let mut command = tollgate();
    command
        .args(["run", "-m", "16M", "--kernel"])
        .arg(folder.boot_sector(&code))
        .args(arguments)
        .stdin(Stdio::null());
    support::finish(&mut command, PATIENCE)
}

#[track_caller]
fn check(steps: &[Vec<u8>], arguments: &[&str], code: i32, messages: &str) {
    let output = run(steps, arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors, messages);
    assert_eq!(output.status.code(), Some(code));
}

const PANICKED: &str = "tollgate: the guest's kernel reported a panic\n";

#[test]
fn a_guest_that_panics_and_is_reset_has_failed() {
    let register = "tollgate: the guest was reset by the reset register (port CF9h)\n";
    let both = format!("{PANICKED}{register}");
    check(&[reset()], &[], 0, register);
    check(&[panic(), reset()], &[], 5, &both);
    check(&[panic(), reset()], &["--exit-on", "reset=9"], 5, &both);
    check(&[reset()], &["--exit-on", "reset"], 6, register);
    check(&[reset()], &["--exit-on", "reset=9"], 9, register);
    let controller = "tollgate: the guest was reset by the keyboard controller (port 64h)\n";
    check(&[out(0x64, 0xfe)], &[], 0, controller);
}

#[test]
fn a_panic_ends_the_machine_if_it_shall() {
    check(&[panic()], &["--exit-on", "panic"], 5, PANICKED);
    check(
        &[panic()],
        &["--exit-on", "panic=77", "--reboot"],
        77,
        PANICKED,
    );
    let off = out(0xf4, 0x10);
    check(&[panic(), off.clone()], &[], 33, PANICKED);
    let dump = "tollgate: the guest's kernel reported a panic; another kernel takes over to write a dump\n";
    check(&[out(0x505, 2), off], &[], 33, dump);
}

#[test]
fn a_reset_that_starts_the_machine_again_has_no_exit_code() {
    let output = run(&[reset()], &["--exit-on", "reset", "--reboot"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("--exit-on reset cannot be used with --reboot"));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn the_status_counts_panics_and_resets_by_cause() {
    let folder = Folder::new();
    // Each reset clears all memory, including that of the clock chip, so the guest cannot count its
    // resets and resets itself every time.
    let code = [panic(), out(0x64, 0xfe)].concat();
    let mut command = tollgate();
    let path = folder.path("vm.sock");
    let mut child = command
        .args([
            "run", "-m", "16M", "--serial", "null", "--reboot", "--kernel",
        ])
        .arg(folder.boot_sector(&code))
        .arg("--control")
        .arg(&path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let socket = connect_to_running(&path);
    eventually("two resets", || {
        let status = ask(&socket, &json!({"command": "status"}))["status"].clone();
        let resets = status["resets"]["keyboard-controller"].as_u64()?;
        (resets >= 2 && status["panics"].as_u64()? >= 2).then_some(())
    });
    ask(&socket, &json!({"command": "quit"}));
    child.wait().unwrap();
}
