//! Runs the tool itself with SeaBIOS on both sides, where QEMU is installed.

use std::process::Command;
use tollgate_test_support::skip;

/// The program of QEMU that the tool needs.
const QEMU: &str = "qemu-system-i386";
/// Enough to reach the self-test: real mode, 32-bit code, firmware that copies itself to RAM, PCI,
/// files read by fw_cfg.
const STEPS: &str = "200000";

#[test]
fn firmware_is_followed_from_the_reset_vector() {
    let is_installed = |command: &str| Command::new(command).arg("--version").output().is_ok();
    if !is_installed(QEMU) || tollgate_machine::boot::firmware::find().is_err() {
        skip::impossible(&format!("no {QEMU}, or no SeaBIOS"));
        return;
    }
    let name = format!("tollgate-lockstep-test.{}.img", std::process::id());
    let floppy = std::env::temp_dir().join(name);
    std::fs::write(&floppy, vec![0; 1440 << 10]).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate-lockstep"));
    command.args(["--memory", "16", "--steps", STEPS, "--floppy"]);
    let output = command.arg(&floppy).output().unwrap();
    std::fs::remove_file(&floppy).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text.starts_with(&format!("{STEPS} instructions")), "{text}");
    assert!(text.contains("no difference"), "{text}");
    // QEMU changes this memory in the few instructions by which it is ahead.
    let differing = text.split("RAM: ").nth(1).unwrap();
    let differing: usize = differing.split(' ').next().unwrap().parse().unwrap();
    assert!(differing < 4096, "{text}");
}
