//! Tests the control socket of a running Linux guest.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::support::control::{ask, command, connect_to_running, guest_seconds, send_and_leave};
use crate::support::folder::Folder;
use crate::support::linux::{self, DEBIAN_686};
use crate::support::session::Session;
use crate::support::{PATIENCE, finish, tollgate};
use serde_json::json;

/// Boots a guest and connects to its control socket.
fn boot(folder: &Folder) -> (Session, UnixStream, PathBuf) {
    boot_with(folder, &[])
}

/// [`boot`] with more flags.
fn boot_with(folder: &Folder, flags: &[&str]) -> (Session, UnixStream, PathBuf) {
    let path = folder.path("vm.sock");
    let mut command = linux::run(DEBIAN_686);
    command.args(["-m", "512M", "--control"]).arg(&path);
    command.args(flags);
    let guest = linux::boot(command);
    let socket = connect_to_running(&path);
    (guest, socket, path)
}

/// Seconds since the start of the guest's kernel, as the kernel counts them.
#[track_caller]
fn uptime(guest: &mut Session) -> f64 {
    let text = guest.shell("cat /proc/uptime");
    let seconds = text.split(' ').next().and_then(|field| field.parse().ok());
    seconds.unwrap_or_else(|| panic!("{text:?}"))
}

/// The number of guest seconds in a second of the host, or a little more.
#[track_caller]
fn rate_of_clock(guest: &mut Session) -> f64 {
    let before = uptime(guest);
    let began = Instant::now();
    thread::sleep(Duration::from_secs(1));
    let waited = began.elapsed();
    (uptime(guest) - before) / waited.as_secs_f64()
}

#[test]
fn a_paused_guest_stands_still_and_goes_on() {
    const PAUSE: Duration = Duration::from_secs(2);
    let folder = Folder::new();
    let (mut guest, socket, _) = boot_with(&folder, &["--realtime", "keep"]);

    let first_asked = Instant::now();
    let before = uptime(&mut guest);
    assert_eq!(
        command(&socket, "pause"),
        json!({"ok": true, "state": "paused"})
    );
    let paused = Instant::now();
    let stopped_at = guest_seconds(&socket);
    // Output from before the pause may still be in the pipe.
    let mut said = guest.unread();
    loop {
        thread::sleep(Duration::from_millis(500));
        let now = guest.unread();
        if now == said {
            break;
        }
        said = now;
    }
    guest.type_line("echo $((6*7))");
    thread::sleep(PAUSE);
    assert_eq!(guest.unread(), said, "a paused guest echoes nothing");
    assert_eq!(guest_seconds(&socket), stopped_at);
    assert_eq!(command(&socket, "status")["status"]["state"], "paused");

    let resuming = Instant::now();
    assert_eq!(
        command(&socket, "resume"),
        json!({"ok": true, "state": "running"})
    );
    guest.wait_for("42\n");
    let after = uptime(&mut guest);
    let last_answered = Instant::now();

    // All guest time that passed lies outside the pause. The limit allows half a per cent more, the
    // resolution of the printed time, and an error of the guest's second: on a busy host the guest
    // measures its time-stamp counter as too slow, which makes its second shorter.
    let running = (paused - first_asked) + (last_answered - resuming);
    let rate = rate_of_clock(&mut guest).max(1.0);
    let most = running.as_secs_f64() * 1.005 * rate + 0.03;
    let passed = after - before;
    assert!(
        passed >= 0.0,
        "guest time went back from {before} to {after}"
    );
    assert!(
        passed <= most,
        "{passed} s passed in the guest, {most} s outside the pause"
    );
    linux::assert_untroubled(&mut guest);
}

/// The bounds of the difference between the guest's time of day and the host's, in seconds;
/// positive if the guest is ahead.
#[track_caller]
fn ahead(guest: &mut Session) -> (f64, f64) {
    let host = || {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap().as_secs_f64()
    };
    let before = host();
    let text = guest.shell("date +%s");
    let after = host();
    let second: f64 = text.trim().parse().unwrap_or_else(|_| panic!("{text:?}"));
    // The guest cuts off the fraction of its second.
    (second - after, second + 1.0 - before)
}

#[test]
fn the_guests_time_of_day_is_right_after_a_pause_or_late_as_wished() {
    const PAUSE: f64 = 25.0;
    let folder = Folder::new();
    for (choice, is_right) in [("step", true), ("keep", false)] {
        let (mut guest, socket, _) = boot_with(&folder, &["--realtime", choice]);
        let (before_least, before_most) = ahead(&mut guest);
        assert_eq!(command(&socket, "pause")["state"], "paused");
        // The pause is so long that Linux would take the jump for a stuck processor.
        thread::sleep(Duration::from_secs_f64(PAUSE));
        assert_eq!(command(&socket, "resume")["state"], "running");
        let (after_least, after_most) = ahead(&mut guest);
        // A tenth of a second allows for clocks that differ in rate.
        if is_right {
            assert!(
                after_most >= before_least - 0.1,
                "{after_most} {before_least}"
            );
            assert!(
                after_least <= before_most + 0.1,
                "{after_least} {before_most}"
            );
        } else {
            assert!(
                after_least <= before_most - PAUSE + 0.1,
                "{after_least} {before_most}"
            );
        }
        // The watchdog has time to report something.
        guest.shell("sleep 5");
        let log = guest.shell("dmesg | grep -cE 'soft lockup|detected stall|blocked for more'");
        assert_eq!(log, "0", "{choice}");
        linux::assert_untroubled(&mut guest);
        assert_eq!(command(&socket, "quit"), json!({"ok": true}));
        guest.end();
    }
}

#[test]
fn the_client_says_that_a_guest_ignores_the_power_button() {
    let folder = Folder::new();
    let (mut guest, _socket, path) = boot(&folder);
    let press = |arguments: &[&str]| {
        let mut control = tollgate();
        control.arg("control").arg(&path).args(arguments);
        let output = finish(&mut control, PATIENCE);
        let errors = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), errors)
    };
    let (code, errors) = press(&["power-button", "--wait=2"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(
        errors.contains("has not switched off within 2 s"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1);
    for wrong in [["status", "--wait"], ["power-button", "--wait=0"]] {
        let (code, errors) = press(&wrong);
        assert_eq!(code, Some(2), "{errors}");
    }
    assert_eq!(guest.shell("echo $((6*7))"), "42");
    linux::assert_untroubled(&mut guest);
}

#[test]
fn a_busy_guest_is_paused_too() {
    let folder = Folder::new();
    let (mut guest, socket, _) = boot(&folder);
    // When this is printed, the terminal belongs to the loop and Ctrl-C reaches it.
    guest.type_line("echo busy now; while :; do :; done");
    guest.wait_for("\nbusy now\n");
    for _ in 0..20 {
        assert_eq!(command(&socket, "pause")["state"], "paused");
        let stopped_at = guest_seconds(&socket);
        thread::sleep(Duration::from_millis(10));
        assert_eq!(guest_seconds(&socket), stopped_at);
        assert_eq!(command(&socket, "resume")["state"], "running");
    }
    // Ctrl-C ends the loop.
    guest.type_bytes(b"\x03");
    guest.wait_for(linux::PROMPT);
    assert_eq!(guest.shell("echo $((6*7))"), "42");
    linux::assert_untroubled(&mut guest);
}

#[test]
fn status_counts_and_the_power_button_harms_no_guest_that_ignores_it() {
    let folder = Folder::new();
    let (mut guest, socket, _) = boot(&folder);
    let number = |name: &str| {
        let answer = ask(&socket, &json!({"command": "status", "id": "a"}));
        assert_eq!((&answer["ok"], &answer["id"]), (&json!(true), &json!("a")));
        answer["status"][name].as_u64().unwrap()
    };
    for name in ["uptime_ns", "guest_time_ns", "exits"] {
        let first = number(name);
        guest.shell("sleep 0.2");
        let second = number(name);
        assert!(first > 0 && second > first, "{name}: {first}, {second}");
    }
    let answer = ask(&socket, &json!({"command": "status"}));
    let cache = |name: &str| answer["status"]["code_cache"][name].as_u64().unwrap();
    assert!(cache("blocks") > 0 && cache("translated") >= cache("blocks"));
    assert!((1..cache("size_bytes")).contains(&cache("used_bytes")));
    for _ in 0..3 {
        assert_eq!(command(&socket, "power-button"), json!({"ok": true}));
    }
    assert_eq!(guest.shell("echo $((6*7))"), "42");
    linux::assert_untroubled(&mut guest);
}

#[test]
fn quit_ends_the_machine_and_removes_the_socket() {
    let folder = Folder::new();
    let (guest, socket, path) = boot(&folder);
    let mode = path.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(command(&socket, "quit"), json!({"ok": true}));
    let end = guest.end();
    assert_eq!((end.code, end.errors.as_str()), (Some(0), ""));
    assert!(!path.exists());
}

#[test]
fn a_paused_machine_can_be_quit() {
    let folder = Folder::new();
    let (guest, socket, _) = boot(&folder);
    assert_eq!(command(&socket, "pause")["state"], "paused");
    command(&socket, "quit");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn clients_that_vanish_disturb_nobody() {
    let folder = Folder::new();
    let (mut guest, socket, path) = boot(&folder);
    let requests: [&[u8]; 6] = [
        b"",
        b"{\"comm",
        b"{\"command\":\"status\"}",
        b"{\"command\":\"status\"}\n",
        b"\xff\0\n\n{]\n",
        b"{\"command\":\"status\"}\n{\"command\":\"sta",
    ];
    for _ in 0..20 {
        for request in requests {
            send_and_leave(&path, request);
        }
    }
    assert_eq!(command(&socket, "status")["ok"], true);
    assert_eq!(guest.shell("echo $((6*7))"), "42");
    command(&socket, "quit");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn a_second_machine_cannot_take_the_socket() {
    let folder = Folder::new();
    let (mut guest, socket, path) = boot(&folder);
    let mut second = tollgate();
    second
        .args(["run", "--kernel"])
        .arg(folder.boot_sector(&[0xeb, 0xfe]));
    second.arg("--control").arg(&path);
    let output = finish(&mut second, PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("another virtual machine listens there"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert_eq!(command(&socket, "status")["ok"], true);
    assert_eq!(guest.shell("echo $((6*7))"), "42");
}
