//! Tests machines that start from UEFI firmware: OVMF, whose package and disks `scripts/get-uefi`
//! turns into what these tests boot.

use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::session::Session;
use crate::support::system::uefi;
use crate::support::tollgate;
use std::path::Path;
use std::process::Command;

/// What the guests of `scripts/get-guests` print when they have booted.
const READY: &str = "tollgate-guest: ready";
/// The prompt of the firmware's shell, up to the sequence that ends its colour.
const SHELL: &str = "Shell> ";

/// A machine whose firmware is in flash memory, with this file of variables.
fn machine(files: &Path, variables: &Path) -> Command {
    let mut command = tollgate();
    command.args(["run", "-m", "256M", "--pflash"]);
    command.arg(format!("{}/OVMF_CODE_4M.fd,readonly", files.display()));
    command.arg("--pflash").arg(variables);
    command
}

/// A copy of the firmware's empty variables.
fn variables(files: &Path, folder: &Folder) -> std::path::PathBuf {
    let empty = std::fs::read(files.join("OVMF_VARS_4M.fd")).unwrap();
    folder.file("vars.fd", &empty)
}

/// Types a line, one key after the other as they appear, because the firmware takes few at once.
fn type_slowly(guest: &mut Session, line: &str) {
    for key in line.bytes() {
        guest.type_bytes(&[key]);
        guest.wait_for(&char::from(key).to_string());
    }
    guest.type_bytes(b"\r");
}

/// Skips the countdown before the shell, and waits for its prompt.
fn reach_shell(guest: &mut Session) {
    guest.wait_for("to skip");
    guest.type_bytes(b"\x1b");
    guest.wait_for(SHELL);
}

#[test]
fn one_image_reaches_its_shell_as_a_rom() {
    let Some(files) = uefi() else { return };
    let mut command = tollgate();
    command.args(["run", "-m", "256M", "--bios"]);
    let mut guest = Session::over_pipes({
        command.arg(files.join("OVMF.fd"));
        command
    });
    reach_shell(&mut guest);
    type_slowly(&mut guest, "reset");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn variables_are_kept_in_their_file() {
    let Some(files) = uefi() else { return };
    let folder = Folder::new();
    let variables = variables(&files, &folder);
    let mut guest = Session::over_pipes(machine(&files, &variables));
    reach_shell(&mut guest);
    type_slowly(&mut guest, "set kept across");
    guest.wait_for(SHELL);
    type_slowly(&mut guest, "reset");
    assert_eq!(guest.end().code, Some(0));
    let mut guest = Session::over_pipes(machine(&files, &variables));
    reach_shell(&mut guest);
    type_slowly(&mut guest, "echo %kept%");
    guest.wait_for("across");
    type_slowly(&mut guest, "reset");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn boot_loaders_load_linux_from_a_disk_and_a_disc() {
    let Some(files) = uefi() else { return };
    for (device, image, loader) in [
        ("--drive", "grub.img", "grub"),
        ("--drive", "systemd-boot.img", "systemd-boot"),
        ("--cdrom", "disc.iso", "grub"),
    ] {
        let folder = Folder::new();
        let mut command = machine(&files, &variables(&files, &folder));
        let path = files.join(image);
        command.arg(device).arg(match device {
            "--drive" => format!("file={},readonly=on", path.display()),
            _ => path.display().to_string(),
        });
        let mut guest = Session::over_pipes(command);
        guest.wait_for(READY);
        assert!(
            guest
                .shell("cat /proc/cmdline")
                .contains(&format!("loader={loader}"))
        );
        assert_eq!(guest.shell("ls -d /sys/firmware/efi"), "/sys/firmware/efi");
        guest.type_line("exit");
        assert_eq!(guest.end().code, Some(0), "{image}");
    }
}

#[test]
fn the_firmware_loads_the_kernel_of_the_command_line() {
    let Some(files) = uefi() else { return };
    let mut command = tollgate();
    command.args(["run", "-m", "256M", "--bios"]);
    command.arg(files.join("OVMF.fd"));
    command.arg("--kernel").arg(fetched("debian-amd64/vmlinuz"));
    command.arg("--initrd").arg(fetched("initrd-amd64.img"));
    command.args(["--append", "console=ttyS0 loader=firmware"]);
    let mut guest = Session::over_pipes(command);
    guest.wait_for(READY);
    assert!(guest.shell("cat /proc/cmdline").contains("loader=firmware"));
    assert_eq!(guest.shell("ls -d /sys/firmware/efi"), "/sys/firmware/efi");
    guest.type_line("exit");
    assert_eq!(guest.end().code, Some(0));
}
