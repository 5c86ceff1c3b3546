//! `--confine`: all threads of a machine are confined, and what needs files works all the same.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::json;
use tollgate_confine::{Part, host_offers};
use tollgate_test_support::skip;

use crate::support::control::{ask, command, connect_to_running};
use crate::support::exec::{Place, text};
use crate::support::folder::Folder;
use crate::support::{GUEST_PATIENCE, PATIENCE, ended, eventually, finish, tollgate};

/// Whether this host can confine threads entirely.
fn can_be_strict() -> bool {
    let can = Part::ALL.into_iter().all(host_offers);
    if !can {
        skip::impossible("this host lacks filters of system calls or Landlock");
    }
    can
}

/// A line of the status of each thread of a process, with the thread's name.
fn statuses(process: u32, line: &str) -> Vec<(String, String)> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let status = |thread: &Path| {
        let name = fs::read_to_string(thread.join("comm")).ok()?;
        let status = fs::read_to_string(thread.join("status")).ok()?;
        let value = status.lines().find_map(|found| found.strip_prefix(line))?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    };
    let threads = threads.flatten();
    threads
        .filter_map(|thread| status(&thread.path()))
        .collect()
}

#[test]
fn every_thread_is_confined_while_the_guest_runs_and_files_are_opened_for_it() {
    if !can_be_strict() {
        return;
    }
    let folder = Folder::new();
    let (socket, port) = (folder.path("vm.sock"), folder.path("port.sock"));
    // jmp $
    let disk = folder.sparse_file("disk.img", 1 << 20);
    let disk_file = fs::File::options().write(true).open(&disk).unwrap();
    disk_file.write_all_at(&[0xeb, 0xfe], 0).unwrap();
    disk_file.write_all_at(&[0x55, 0xaa], 510).unwrap();
    let discs = ["disc.iso", "other.iso"].map(|name| folder.sparse_file(name, 1 << 20));
    let [disc, other_disc] = discs;
    let mut run = tollgate();
    run.args([
        "run",
        "--confine",
        "strict",
        "--serial",
        "null",
        "--stats",
        "-m",
        "16M",
    ]);
    let disk = format!("file={}", disk.display());
    run.args(["--drive", &disk]);
    run.arg("--cdrom").arg(&disc);
    run.arg("--share").arg(folder.as_path());
    run.args(["--net", "user"]);
    run.arg("--vsock")
        .arg(format!("cid=3,path={}", port.display()));
    run.arg("--display")
        .arg(format!("vnc=unix:{}", folder.path("vnc.sock").display()));
    run.arg("--control").arg(&socket);
    run.stderr(std::process::Stdio::piped());
    let mut child = run.spawn().unwrap();
    let control = connect_to_running(&socket);
    let process = child.id();

    eventually("filters on all threads", || {
        let filtered = statuses(process, "Seccomp:");
        let has_vcpu = filtered.iter().any(|(name, _)| name == "vcpu");
        (has_vcpu && filtered.iter().all(|(_, mode)| mode == "2")).then_some(())
    });
    for (name, value) in statuses(process, "NoNewPrivs:") {
        assert_eq!(value, "1", "{name}");
    }
    // A thread that the main one starts has its filter before it has given up its privileges.
    eventually("threads without privileges", || {
        let privileges = statuses(process, "CapEff:");
        let mut confined = privileges
            .iter()
            .filter(|(name, _)| ["disk", "vnc"].contains(&name.as_str()));
        confined
            .all(|(_, value)| value == "0000000000000000")
            .then_some(())
    });

    let snapshot = folder.path("state");
    let request = json!({"command": "snapshot", "file": snapshot, "then": "resume"});
    // On a busy host the processor may answer late.
    eventually("the snapshot", || {
        (ask(&control, &request)["ok"] == true).then_some(())
    });
    assert!(snapshot.exists());
    eventually("the other disc", || {
        let mut medium = tollgate();
        medium.arg("medium").arg(&socket).arg("d").arg(&other_disc);
        let output = finish(&mut medium, PATIENCE);
        output.status.success().then_some(())
    });
    assert_eq!(command(&control, "quit")["ok"], true);
    let mut errors = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    let output = ended(child, PATIENCE);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let line = "confined: system calls, files, privileges (threads: ";
    assert!(errors.contains(line), "{errors}");
}

#[test]
fn a_command_runs_strictly_confined_and_without() {
    if !can_be_strict() {
        return;
    }
    let place = Place::new();
    for confine in ["strict", "off"] {
        let script = "cat /etc/passwd | wc -l; echo new > file; cat file; kill -0 $$";
        let output = place.script(&["--confine", confine, "--cold"], script);
        assert_eq!(text(&output.stderr), "", "{confine}");
        assert_eq!(text(&output.stdout), "2\nnew\n", "{confine}");
        assert_eq!(output.status.code(), Some(0), "{confine}");
    }
}

#[test]
fn an_unknown_confinement_is_refused() {
    let mut run = tollgate();
    run.args(["run", "--confine", "a-bit"]);
    let output = finish(&mut run, GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("auto, strict, off"),
        "{output:?}"
    );
}
