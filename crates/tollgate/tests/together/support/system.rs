//! Whole systems on disks: Debian, which `scripts/get-system` makes, and what
//! `scripts/get-other-systems` builds.

use super::exec::text;
use super::folder::Folder;
use super::guests::guests_folder;
use super::session::Session;
use super::{GUEST_PATIENCE, finish, tollgate};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tollgate_test_support::skip;

/// Waits until no other whole system runs: each is much work, and several would only delay each
/// other.
pub fn turn() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether scripts/test has made the system with this name, so that a test must not be skipped.
/// `TOLLGATE_TEST_SYSTEMS` has the names with spaces between them.
pub fn is_promised(name: &str) -> bool {
    let names = std::env::var("TOLLGATE_TEST_SYSTEMS").unwrap_or_default();
    names.split(' ').any(|promised| promised == name)
}

/// The folder of a system. `None`: the system was not made, and the test that needs it is skipped.
///
/// # Panics
/// The system is missing although [`is_promised`] says that it exists.
pub fn system(name: &str) -> Option<PathBuf> {
    made(name, &format!("system-{name}"), "scripts/get-system")
}

/// The folder of a system that is neither Linux nor DOS. `None`: it was not built, and the test that
/// needs it is skipped.
///
/// # Panics
/// The system is missing although [`is_promised`] says that it exists.
pub fn other_system(name: &str) -> Option<PathBuf> {
    made(name, name, "scripts/get-other-systems")
}

/// The folder of the disk with databases for this architecture. `None`: it was not made, and the
/// test that needs it is skipped.
///
/// # Panics
/// The system is missing although [`is_promised`] says that it exists.
pub fn database(architecture: &str) -> Option<PathBuf> {
    let name = format!("database-{architecture}");
    made(&name, &name, "scripts/get-database")
}

/// The folder of UEFI firmware and of disks that boot with it. `None`: it was not made, and the test
/// that needs it is skipped.
///
/// # Panics
/// The folder is missing although [`is_promised`] says that it exists.
pub fn uefi() -> Option<PathBuf> {
    made("uefi", "uefi", "scripts/get-uefi")
}

/// The folder of Debian's image with cloud-init and a seed for it. `None`: it was not made, and the
/// test that needs it is skipped.
///
/// # Panics
/// The folder is missing although [`is_promised`] says that it exists.
pub fn cloud_image() -> Option<PathBuf> {
    made("cloud-image", "cloud-image", "scripts/get-cloud-image")
}

/// The folder of what a script makes, if it is complete.
fn made(name: &str, folder: &str, script: &str) -> Option<PathBuf> {
    let folder = guests_folder().join(folder);
    let is_there = folder.join("recipe").is_file();
    if is_there {
        eprintln!("ran: the system {name}");
    } else {
        assert!(
            !is_promised(name),
            "TOLLGATE_TEST_SYSTEMS names the system {name}, which is not in {}",
            folder.display()
        );
        skip::impossible(&format!(
            "no system {name} on a disk ({script} {name} makes it)"
        ));
    }
    is_there.then_some(folder)
}

/// A new qcow2 image with another image as its backing file.
pub fn overlay(folder: &Folder, image: &Path) -> PathBuf {
    let path = folder.path("disk.qcow2");
    let mut create = tollgate();
    create.args(["image", "create", "-f", "qcow2", "-F", "raw", "-b"]);
    let output = finish(create.arg(image).arg(&path), GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    path
}

/// Waits until systemd has reached the login, and logs in as root, to a shell whose output is easy
/// to read.
pub fn log_in(guest: &mut Session) {
    // The stages are kernel, initial RAM disk and systemd, each of which takes its time on a busy
    // host.
    for stage in ["Run /init as init process", "Welcome to ", "login: "] {
        guest.wait_for(stage);
    }
    guest.type_line("root");
    guest.wait_for("# ");
    // The shell has no line editor, and lines end as the program ends them.
    guest.type_line("exec env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin sh");
    guest.wait_for("# ");
    guest.type_line("stty -onlcr");
    guest.wait_for("# ");
    guest.shell("dmesg -n 1");
}

/// Shuts the system down.
pub fn power_off(mut guest: Session) {
    guest.type_line("systemctl poweroff");
    let end = guest.end();
    assert_eq!(end.code, Some(0), "{}", end.errors);
}
