//! A whole Debian system on a disk: systemd brings it up to a login, apt-get installs a package over
//! the user network, and it survives a power cut. `scripts/get-system` makes the disk.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::exec::text;
use support::folder::Folder;
use support::guests::repository as this_repository;
use support::repository;
use support::session::Session;
use support::{GUEST_PATIENCE, finish, signal, tollgate};

/// The folder that `scripts/get-system` has made, if it has.
fn system() -> Option<PathBuf> {
    let guests = match std::env::var_os("TOLLGATE_GUESTS") {
        Some(folder) => this_repository().join(folder),
        None => this_repository().join("target/guests"),
    };
    let folder = guests.join("system-amd64");
    let is_there = folder.join("recipe").is_file();
    if !is_there {
        eprintln!("skipped: no Debian system on a disk (scripts/get-system makes it)");
    }
    is_there.then_some(folder)
}

/// A new qcow2 image, behind which is the system's disk.
fn disk(folder: &Folder, system: &Path) -> PathBuf {
    let path = folder.path("disk.qcow2");
    let mut create = tollgate();
    create.args(["image", "create", "-f", "qcow2", "-F", "raw", "-b"]);
    let output = finish(
        create.arg(system.join("disk.img")).arg(&path),
        GUEST_PATIENCE,
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    path
}

/// Boots a kernel of the system's to the login, and root logs in.
fn boot(system: &Path, flavour: &str, disk: &Path) -> Session {
    let mut command = tollgate();
    command.args(["run", "-m", "512M", "--net", "user", "--kernel"]);
    command.arg(system.join(flavour).join("vmlinuz"));
    command
        .arg("--initrd")
        .arg(system.join(flavour).join("initrd.img"));
    command
        .arg("--drive")
        .arg(format!("file={}", disk.display()));
    command.args(["--append", "root=/dev/vda console=ttyS0"]);
    let mut guest = Session::over_pipes(command);
    guest.wait_for("login: ");
    guest.type_line("root");
    guest.wait_for("# ");
    // No editor of lines, and lines that end as the program ends them.
    guest.type_line("exec env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin sh");
    guest.wait_for("# ");
    guest.type_line("stty -onlcr");
    guest.wait_for("# ");
    guest.shell("dmesg -n 1");
    guest
}

fn power_off(mut guest: Session) {
    guest.type_line("systemctl poweroff");
    let end = guest.end();
    assert_eq!(end.code, Some(0), "{}", end.errors);
}

/// What e2fsck says of the disk, with its exit code: 0 clean, 1 mended.
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
    let Some(system) = system() else { return };
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
    // Some that is under way.
    guest.type_line("while :; do cp -r /etc /root/$$; rm -r /root/$$; echo again; done");
    for _ in 0..3 {
        guest.wait_for("again\n");
    }
    signal(guest.process(), libc::SIGKILL);
    guest.end();

    // The journal puts the file system right, and nothing else needs to be.
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

#[test]
fn the_generic_kernel_boots_the_same_system() {
    let Some(system) = system() else { return };
    let folder = Folder::new();
    let disk = disk(&folder, &system);
    let mut guest = boot(&system, "generic", &disk);
    let state = guest.shell("systemctl is-system-running --wait; systemctl --failed --no-legend");
    assert_eq!(state, "running");
    assert!(!guest.shell("uname -r").contains("cloud"));
    power_off(guest);
    let (code, said) = check(&folder, &disk, "-n");
    assert_eq!(code, Some(0), "{said}");
}
