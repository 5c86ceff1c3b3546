//! Tests whole Debian systems on disks: systemd brings them to a login, apt-get installs a package
//! over the user network, and they survive a power cut. `scripts/get-system` makes the disks; with
//! `--all` it makes those with more kernels and of 32 bits too. Each test prints which one it used.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::exec::text;
use crate::support::folder::Folder;
use crate::support::repository;
use crate::support::session::Session;
use crate::support::system::{log_in, overlay, power_off, system, turn};
use crate::support::{GUEST_PATIENCE, finish, signal, tollgate, user_code_flags};
use tollgate_test_support::skip;

/// A new qcow2 image whose backing file is the system's disk.
fn disk(folder: &Folder, system: &Path) -> PathBuf {
    overlay(folder, &system.join("disk.img"))
}

/// Boots one of the system's kernels to the login, and logs in as root.
fn boot(system: &Path, flavour: &str, disk: &Path) -> Session {
    boot_with(system, flavour, disk, &[])
}

/// [`boot`] with more flags.
fn boot_with(system: &Path, flavour: &str, disk: &Path, flags: &[&str]) -> Session {
    let mut command = tollgate();
    command.args([
        "run",
        "-m",
        "512M",
        "--net",
        "user,allow=any,host",
        "--kernel",
    ]);
    command.arg(system.join(flavour).join("vmlinuz"));
    command
        .arg("--initrd")
        .arg(system.join(flavour).join("initrd.img"));
    command
        .arg("--drive")
        .arg(format!("file={}", disk.display()));
    command.args(["--append", "root=/dev/vda console=ttyS0"]);
    command.args(user_code_flags()).args(flags);
    let mut guest = Session::over_pipes(command);
    log_in(&mut guest);
    guest
}

/// The report of e2fsck about the disk, with its exit code: 0 for clean, 1 for repaired.
fn check(folder: &Folder, disk: &Path, flag: &str) -> (Option<i32>, String) {
    let raw = folder.path("disk.raw");
    if !raw.exists() {
        let mut convert = tollgate();
        convert
            .args(["image", "convert", "-O", "raw"])
            .arg(disk)
            .arg(&raw);
        let output = finish(&mut convert, GUEST_PATIENCE);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    let mut command = Command::new("e2fsck");
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env("LC_ALL", "C");
    let output = finish(command.args(["-f", flag]).arg(&raw), GUEST_PATIENCE);
    (
        output.status.code(),
        text(&output.stdout) + &text(&output.stderr),
    )
}

#[test]
fn a_debian_system_boots_installs_a_package_and_survives_a_power_cut() {
    let _turn = turn();
    let Some(system) = system("amd64") else {
        return;
    };
    let folder = Folder::new();
    let disk = disk(&folder, &system);
    let port = repository::serve(&folder);

    let mut guest = boot(&system, "cloud", &disk);
    let state = guest.shell("systemctl is-system-running --wait; systemctl --failed --no-legend");
    assert_eq!(state, "running");
    assert_eq!(guest.shell("findmnt -no SOURCE,FSTYPE /"), "/dev/vda ext4");
    guest.shell("/lib/systemd/systemd-networkd-wait-online --timeout=60");
    guest.shell("rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*");
    guest.shell(&format!(
        "echo 'deb [trusted=yes] http://10.0.2.2:{port} ./' >/etc/apt/sources.list"
    ));
    let installed = guest.shell(&format!(
        "(apt-get -q update && apt-get -qy install {}) >/tmp/log 2>&1 || tail /tmp/log",
        repository::PACKAGE
    ));
    assert_eq!(installed, "");
    let lines = format!("wc -l </usr/share/{}/file", repository::PACKAGE);
    assert_eq!(guest.shell(&lines), repository::LINES.to_string());
    guest.shell("sync");
    // Some writes are under way at the end.
    guest.type_line("while :; do cp -r /etc /root/$$; rm -r /root/$$; echo again; done");
    for _ in 0..3 {
        guest.wait_for("again\n");
    }
    signal(guest.process(), libc::SIGKILL);
    guest.end();

    // The journal repairs the file system, and no other repair is needed.
    let (code, said) = check(&folder, &disk, "-p");
    assert!(matches!(code, Some(0 | 1)), "{said}");
    let (code, said) = check(&folder, &disk, "-n");
    assert_eq!(code, Some(0), "{said}");
    std::fs::remove_file(folder.path("disk.raw")).unwrap();

    let mut guest = boot(&system, "cloud", &disk);
    let status = format!("dpkg -s {} | grep Status", repository::PACKAGE);
    assert_eq!(guest.shell(&status), "Status: install ok installed");
    assert_eq!(guest.shell(&lines), repository::LINES.to_string());
    assert_eq!(guest.shell("systemctl is-system-running --wait"), "running");
    power_off(guest);
    let (code, said) = check(&folder, &disk, "-n");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("journal"), "{said}");
}

/// Boots a system with this kernel, expects that nothing has failed, and shuts it down; returns the
/// kernel's release.
fn boots(system: &Path, flavour: &str) -> String {
    let folder = Folder::new();
    let disk = disk(&folder, system);
    let mut guest = boot(system, flavour, &disk);
    let state = guest.shell("systemctl is-system-running --wait; systemctl --failed --no-legend");
    assert_eq!(state, "running", "{flavour}");
    let release = guest.shell("uname -r");
    power_off(guest);
    let (code, said) = check(&folder, &disk, "-n");
    assert_eq!(code, Some(0), "{flavour}: {said}");
    release
}

#[test]
fn the_generic_kernel_boots_the_same_system() {
    let _turn = turn();
    let Some(system) = system("amd64") else {
        return;
    };
    let release = boots(&system, "generic");
    assert!(!release.contains("cloud"), "{release}");
}

#[test]
fn kernels_for_real_time_and_from_backports_boot_a_system() {
    let _turn = turn();
    let Some(system) = system("amd64-kernels") else {
        return;
    };
    let release = boots(&system, "rt");
    assert!(release.contains("-rt-"), "{release}");
    let release = boots(&system, "backports");
    assert!(!release.starts_with("6.1."), "{release}");
}

#[test]
fn kernels_of_32_bits_boot_a_system_of_32_bits() {
    let _turn = turn();
    let Some(system) = system("i386") else {
        return;
    };
    for flavour in ["686", "686-pae"] {
        let release = boots(&system, flavour);
        assert!(release.ends_with(&format!("-{flavour}")), "{release}");
    }
}

#[test]
fn a_command_runs_on_each_kernel_of_the_systems() {
    let _turn = turn();
    let kernels = [
        ("amd64", "cloud", "x86_64 amd64\n"),
        ("amd64", "generic", "x86_64 amd64\n"),
        ("amd64-kernels", "rt", "x86_64 amd64\n"),
        ("amd64-kernels", "backports", "x86_64 amd64\n"),
        ("i386", "686", "i686 i386\n"),
        ("i386", "686-pae", "i686 i386\n"),
    ];
    for (name, flavour, expected) in kernels {
        let Some(system) = system(name) else { continue };
        let mut command = tollgate();
        command.args(["exec", "--net", "--kernel"]);
        command.arg(system.join(flavour).join("vmlinuz"));
        command.arg("--image").arg(system.join("disk.img"));
        command.args(["--", "sh", "-c"]);
        command.arg("ip -4 address show eth0 | grep -q 10.0.2.15 && echo $(uname -m; dpkg --print-architecture)");
        let output = finish(&mut command, GUEST_PATIENCE);
        let errors = text(&output.stderr);
        if errors.contains("this tollgate was built without an agent for them") {
            skip::impossible(&format!(
                "{flavour}: the agent for 32-bit kernels is not built in"
            ));
            continue;
        }
        assert_eq!(output.status.code(), Some(0), "{flavour}: {errors}");
        assert_eq!(text(&output.stdout), expected, "{flavour}");
        eprintln!("ran: {flavour}");
    }
}

#[test]
fn a_debian_system_shuts_down_when_the_power_button_is_pressed() {
    let _turn = turn();
    let Some(system) = system("amd64") else {
        return;
    };
    for flavour in ["cloud", "generic"] {
        let folder = Folder::new();
        let disk = disk(&folder, &system);
        let socket = folder.path("vm.sock");
        let flags = ["--control", socket.to_str().unwrap()];
        let mut guest = boot_with(&system, flavour, &disk, &flags);
        // systemd-logind finds the button after udev has loaded its driver.
        guest.shell("udevadm settle; systemctl is-system-running --wait");
        let mut control = tollgate();
        control.arg("control").arg(&socket);
        control.args(["power-button", "--wait=3600"]);
        let output = finish(&mut control, GUEST_PATIENCE);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{flavour}: {errors}");
        assert_eq!(guest.end().code, Some(0), "{flavour}");
        let (code, said) = check(&folder, &disk, "-n");
        assert_eq!(code, Some(0), "{flavour}: {said}");
    }
}

#[test]
fn a_debian_system_reports_that_its_kernel_panics() {
    let _turn = turn();
    let Some(system) = system("amd64") else {
        return;
    };
    let folder = Folder::new();
    let disk = disk(&folder, &system);
    let mut guest = boot(&system, "cloud", &disk);
    // udev has found the driver through the information in ACPI.
    assert_eq!(
        guest.shell("udevadm settle; lsmod | grep -c ^pvpanic_mmio"),
        "1"
    );
    assert_eq!(guest.shell("echo 1 >/proc/sys/kernel/panic"), "");
    guest.type_line("echo c >/proc/sysrq-trigger");
    let end = guest.end();
    assert_eq!(end.code, Some(5), "{}", end.errors);
    let said = "tollgate: the guest's kernel reported a panic\n";
    assert!(end.errors.contains(said), "{}", end.errors);
    assert!(
        end.errors.contains("tollgate: the guest was reset by "),
        "{}",
        end.errors
    );
}
