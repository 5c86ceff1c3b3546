//! Tests `tollgate top` and how it finds machines. What it draws is tested next to its code,
//! without a terminal.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::control::{command, connect_to_running};
use crate::support::folder::Folder;
use crate::support::{self, PATIENCE, finish, tollgate};

/// `tollgate` with a run-time folder of its own.
fn tollgate_in(folder: &Folder) -> Command {
    let mut command = tollgate();
    command.env("XDG_RUNTIME_DIR", folder.as_path());
    command
}

/// Starts a guest that does nothing in an endless loop.
fn running(folder: &Folder, arguments: &[&str]) -> Child {
    tollgate_in(folder)
        .args(["run", "-m", "16M", "--serial", "null", "--kernel"])
        .arg(folder.boot_sector(&[0xeb, 0xfe]))
        .args(arguments)
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

#[track_caller]
fn ends(child: Child, socket: &Path) {
    command(&connect_to_running(socket), "quit");
    assert_eq!(support::ended(child, PATIENCE).status.code(), Some(0));
    assert!(fs::symlink_metadata(socket).is_err(), "{socket:?} is left");
}

#[test]
fn each_machine_is_found_in_the_run_time_folder() {
    let folder = Folder::new();
    let child = running(&folder, &[]);
    let found = folder.path(&format!("tollgate/{}.sock", child.id()));
    let status = command(&connect_to_running(&found), "status");
    assert_eq!(status["status"]["machine"]["pid"], child.id());
    let mode = fs::metadata(folder.path("tollgate"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    ends(child, &found);

    let named = folder.path("vm.sock");
    let child = running(&folder, &["--control", named.to_str().unwrap()]);
    let found = folder.path(&format!("tollgate/{}.sock", child.id()));
    connect_to_running(&found);
    assert_eq!(fs::read_link(&found).unwrap(), named);
    ends(child, &named);
    assert!(fs::symlink_metadata(&found).is_err(), "the link is left");
}

#[test]
fn nothing_is_put_into_a_folder_that_others_can_reach() {
    let folder = Folder::new();
    let open = folder.path("tollgate");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    let socket = folder.path("vm.sock");
    let child = running(&folder, &["--control", socket.to_str().unwrap()]);
    connect_to_running(&socket);
    assert_eq!(fs::read_dir(&open).unwrap().count(), 0);
    ends(child, &socket);
    // A link to a folder is not accepted either.
    fs::remove_dir(&open).unwrap();
    let elsewhere = folder.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o700)).unwrap();
    symlink(&elsewhere, &open).unwrap();
    let child = running(&folder, &["--control", socket.to_str().unwrap()]);
    connect_to_running(&socket);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    ends(child, &socket);
}

#[test]
fn top_needs_a_machine_and_a_terminal() {
    let folder = Folder::new();
    let refused = |arguments: &[&str], code: i32, reason: &str| {
        let output = finish(tollgate_in(&folder).arg("top").args(arguments), PATIENCE);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(
            errors.contains(reason) && errors.lines().count() == 1,
            "{errors}"
        );
    };
    refused(&[], 1, "no machine of this user is running");
    refused(&["/nonexistent/vm.sock"], 2, "no such socket");
    let child = running(&folder, &[]);
    let found = folder.path(&format!("tollgate/{}.sock", child.id()));
    connect_to_running(&found);
    refused(&[], 2, "needs a terminal");
    // The socket that a killed machine has left is removed.
    let stale = folder.path("tollgate/1.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    refused(&[], 2, "needs a terminal");
    assert!(!stale.exists());
    ends(child, &found);
}
