//! Tests a guest whose first instructions end the machine: what happens before and after them.
//! (`benches/start_up.rs` measures how long that takes; nothing here depends on it.)

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::support::folder::Folder;
use crate::support::{PATIENCE, ended, finish, signal, tollgate};

/// The code: mov al, value; out F4h, al
const fn leave_with(value: u8) -> [u8; 4] {
    [0xb0, value, 0xe6, 0xf4]
}

#[test]
fn the_first_instruction_can_end_the_machine() {
    let folder = Folder::new();
    for value in [0, 1, 0x10, 0x7f, 0xff] {
        let started = Instant::now();
        let mut command = tollgate();
        command
            .args(["run", "--kernel"])
            .arg(folder.boot_sector(&leave_with(value)));
        let output = finish(&mut command, PATIENCE);
        println!("start and end of the process: {:?}", started.elapsed());
        // The process's exit code is eight bits wide.
        let expected = i32::from((value << 1) | 1);
        assert_eq!(output.status.code(), Some(expected));
        assert_eq!((output.stdout, output.stderr), (Vec::new(), Vec::new()));
    }
}

#[test]
fn the_statistics_count_what_little_happened() {
    let folder = Folder::new();
    let mut command = tollgate();
    command
        .args(["run", "--stats", "--kernel"])
        .arg(folder.boot_sector(&leave_with(0x10)));
    let output = finish(&mut command, PATIENCE);
    assert_eq!(output.status.code(), Some(33));
    let errors = String::from_utf8_lossy(&output.stderr);
    let writes = errors
        .lines()
        .find_map(|line| line.strip_prefix("port-out"))
        .and_then(|rest| rest.split_whitespace().next());
    assert_eq!(writes, Some("1"), "{errors}");
    assert!(errors.contains("start-up: "), "{errors}");
    println!("{errors}");
}

#[test]
fn a_host_that_refuses_a_timer_gets_no_machine_without_ticks() {
    let folder = Folder::new();
    let boot_sector = folder.boot_sector(&leave_with(0x10));
    // This process may queue no more signals, so timer_create fails.
    let mut command = Command::new("prlimit");
    command
        .arg("--sigpending=0")
        .arg(tollgate().get_program())
        .args(["run", "--kernel"])
        .arg(boot_sector);
    let output = finish(&mut command, PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{errors}");
    assert!(errors.contains("the host refused a timer: "), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

/// A boot sector's code that writes R to the serial port and triple-faults.
fn triple_fault() -> [u8; 32] {
    let mut code = [0; 32];
    // The code is: mov dx, 3F8h; mov al, 'R'; out dx, al
    code[..6].copy_from_slice(&[0xba, 0xf8, 0x03, 0xb0, b'R', 0xee]);
    // The code, in real mode, is: lidt [7C10h], where the limit is zero; int3. The vectors are out
    // of reach, and so is the double fault's.
    code[6..12].copy_from_slice(&[0x0f, 0x01, 0x1e, 0x10, 0x7c, 0xcc]);
    code
}

#[test]
fn a_triple_fault_is_a_reset_if_that_is_asked_for() {
    let folder = Folder::new();
    let kernel = folder.boot_sector(&triple_fault());
    let run = |flags: &[&str]| {
        let mut command = tollgate();
        command.args(["run", "--kernel"]).arg(&kernel).args(flags);
        command
    };
    let output = finish(&mut run(&["--triple-fault", "reset"]), PATIENCE);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout, b"R");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "tollgate: the guest was reset by a triple fault\n"
    );
    let output = finish(&mut run(&["--triple-fault", "stop", "--reboot"]), PATIENCE);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout, b"R");

    let mut again = run(&["--triple-fault", "reset", "--reboot"]);
    again.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = again.spawn().unwrap();
    let mut starts = [0; 3];
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut starts).unwrap();
    assert_eq!(&starts, b"RRR");
    signal(child.id(), libc::SIGTERM);
    // The run must not wait for a reader of its output.
    drop(output);
    let output = ended(child, PATIENCE);
    assert_eq!(output.status.code(), Some(128 + libc::SIGTERM));
}

#[test]
fn a_triple_fault_has_its_exit_code_and_shows_the_registers() {
    let folder = Folder::new();
    let mut command = tollgate();
    command
        .args(["run", "--kernel"])
        .arg(folder.boot_sector(&triple_fault()));
    let output = finish(&mut command, PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr).to_lowercase();
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.starts_with("tollgate: triple fault"), "{errors}");
    assert!(errors.lines().count() > 1, "{errors}");
    for register in ["eax", "cr0", "eip"] {
        assert!(
            errors.contains(register),
            "{register} is missing in {errors}"
        );
    }
}
