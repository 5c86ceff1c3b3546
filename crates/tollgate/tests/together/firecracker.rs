//! Tests `tollgate-firecracker` with a Linux guest, through its socket and from a file.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::firecracker::{Client, firecracker};
use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_AMD64};
use crate::support::session::Session;
use crate::support::{PATIENCE, finish};

/// What the guests boot.
fn boot_source() -> Value {
    json!({
        "kernel_image_path": fetched("debian-amd64/vmlinux"),
        "initrd_path": fetched(linux::initramfs(DEBIAN_AMD64)),
        "boot_args": "console=ttyS0",
    })
}

/// A process that waits for requests, and a client.
fn started(folder: &Folder, name: &str) -> (Session, Client) {
    let socket = folder.path(name);
    let mut command = firecracker();
    command.arg("--api-sock").arg(&socket);
    (Session::over_pipes(command), Client::new(&socket))
}

fn start() -> Value {
    json!({"action_type": "InstanceStart"})
}

#[test]
fn a_guest_is_started_paused_saved_and_cloned_by_requests() {
    let folder = Folder::new();
    let disk = folder.sparse_file("disk.img", 8 << 20);
    let metrics = folder.path("metrics");
    let (mut guest, client) = started(&folder, "first");
    assert_eq!(client.get("/")["state"], "Not started");
    assert_eq!(client.get("/machine-config")["vcpu_count"], 1);
    client.order("PUT", "/boot-source", boot_source());
    let machine = json!({"vcpu_count": 1, "mem_size_mib": 192});
    client.order("PUT", "/machine-config", machine);
    let drive = json!({"drive_id": "data", "is_root_device": false, "is_read_only": true,
                       "path_on_host": disk});
    client.order("PUT", "/drives/data", drive);
    client.order("PUT", "/metrics", json!({"metrics_path": metrics}));
    client.order("PUT", "/actions", start());
    linux::wait_for_shell(&mut guest);
    assert_eq!(client.get("/")["state"], "Running");
    assert_eq!(
        guest.shell("ls /sys/bus/pci/devices 2>&1 | grep -c ^0"),
        "0"
    );
    let line = guest.shell("cat /proc/cmdline");
    assert_eq!(line, "console=ttyS0 pci=off");
    guest.shell("echo remembered >/tmp/a");

    let (state, memory) = (folder.path("state"), folder.path("memory"));
    let save = json!({"snapshot_path": state, "mem_file_path": memory});
    let early = client.refusal("PUT", "/snapshot/create", save.clone());
    assert!(early.contains("Pause"), "{early}");
    client.order("PATCH", "/vm", json!({"state": "Paused"}));
    assert_eq!(client.get("/")["state"], "Paused");
    client.order("PUT", "/snapshot/create", save);
    let (state2, memory2) = (folder.path("state2"), folder.path("memory2"));
    let difference = json!({"snapshot_path": state2, "mem_file_path": memory2,
                            "snapshot_type": "Diff"});
    client.order("PATCH", "/vm", json!({"state": "Resumed"}));
    guest.shell("echo later >/tmp/b");
    client.order("PATCH", "/vm", json!({"state": "Paused"}));
    client.order("PUT", "/snapshot/create", difference);
    let bytes = |path: &Path| path.metadata().unwrap().len();
    assert!(bytes(&memory2) < bytes(&memory));
    client.order("PATCH", "/vm", json!({"state": "Resumed"}));
    client.order("PUT", "/actions", json!({"action_type": "FlushMetrics"}));
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
    let metrics = std::fs::read_to_string(metrics).unwrap();
    let lines: Vec<Value> = metrics
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert_eq!(line["put_api_requests"]["boot_source_count"], 1);
        assert!(line["tollgate"].is_object());
    }

    let load = |state: &Path, memory: &Path, resume: bool| {
        json!({"snapshot_path": state, "resume_vm": resume,
               "mem_backend": {"backend_type": "File", "backend_path": memory}})
    };
    let (mut clone, clone_client) = started(&folder, "clone");
    let (mut later, later_client) = started(&folder, "later");
    let other = clone_client.refusal("PUT", "/snapshot/load", load(&state2, &memory, true));
    assert!(other.contains("belongs to another snapshot"), "{other}");
    clone_client.order("PUT", "/snapshot/load", load(&state, &memory, true));
    later_client.order("PUT", "/snapshot/load", load(&state2, &memory2, false));
    assert_eq!(clone.shell("cat /tmp/a; ls /tmp"), "remembered\na");
    assert_eq!(later_client.get("/")["state"], "Paused");
    let drives = &later_client.get("/vm/config")["drives"];
    assert_eq!(drives[0]["drive_id"], "data");
    later_client.order("PATCH", "/vm", json!({"state": "Resumed"}));
    assert_eq!(later.shell("cat /tmp/b"), "later");
    for session in [&mut clone, &mut later] {
        session.type_line("reboot -f");
    }
    assert_eq!(clone.end().code, Some(0));
    assert_eq!(later.end().code, Some(0));
}

#[test]
fn a_guest_s_memory_may_be_secret() {
    let folder = Folder::new();
    let socket = folder.path("secret");
    let mut command = firecracker();
    command
        .arg("--secret-memory")
        .arg("--api-sock")
        .arg(&socket);
    let mut guest = Session::over_pipes(command);
    let client = Client::new(&socket);
    client.order("PUT", "/boot-source", boot_source());
    let machine = json!({"vcpu_count": 1, "mem_size_mib": 128});
    client.order("PUT", "/machine-config", machine);
    let answer = client.ask("PUT", "/actions", &start());
    if !answer.is(204) {
        // The host has none, or lets this user lock less.
        let reason = answer.body["fault_message"].as_str().unwrap();
        let is_told = reason.contains("no secret memory") || reason.contains("cannot lock 128 MiB");
        assert!(is_told, "{reason}");
        return;
    }
    linux::wait_for_shell(&mut guest);
    assert_eq!(guest.shell("echo of $((6 * 7))"), "of 42");
    client.order("PATCH", "/vm", json!({"state": "Paused"}));
    let save =
        json!({"snapshot_path": folder.path("state"), "mem_file_path": folder.path("memory")});
    let refusal = client.refusal("PUT", "/snapshot/create", save);
    assert!(refusal.contains("written to no snapshot"), "{refusal}");
    assert!(!folder.path("state").exists());
    client.order("PATCH", "/vm", json!({"state": "Resumed"}));
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

/// A configuration file.
fn file(folder: &Folder, content: &Value) -> Command {
    let path = folder.file("vm.json", content.to_string().as_bytes());
    let mut command = firecracker();
    command.args(["--no-api", "--config-file"]).arg(path);
    command
}

#[test]
fn a_guest_is_started_from_a_file() {
    let folder = Folder::new();
    let config = json!({
        "boot-source": boot_source(),
        "drives": [],
        "machine-config": {"vcpu_count": 1, "mem_size_mib": 192},
    });
    let mut command = file(&folder, &config);
    command.arg("--enable-pci");
    let mut guest = linux::boot(command);
    assert_eq!(guest.shell("ls /sys/bus/pci/devices"), "0000:00:00.0");
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn the_exit_code_says_what_was_wrong() {
    let folder = Folder::new();
    let mut config = json!({"boot-source": {"kernel_image_path": "/none"}, "drives": []});
    let code = |command: &mut Command| {
        let output = finish(command, PATIENCE);
        let errors = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), errors)
    };
    let (number, errors) = code(&mut file(&folder, &config));
    assert_eq!(number, Some(152), "{errors}");
    assert!(
        errors.contains("kernel_image_path: cannot read '/none'"),
        "{errors}"
    );
    config["machine-config"] = json!({"vcpu_count": 2, "mem_size_mib": 1});
    let (number, errors) = code(&mut file(&folder, &config));
    assert_eq!(number, Some(152), "{errors}");
    assert!(errors.contains("vcpu_count: "), "{errors}");
    config["machine-config"] = json!({"vcpu_count": 1, "mem_size_mib": 512});
    let mut limited = file(&folder, &config);
    let (number, errors) = code(limited.args(["--limit", "memory=512M"]));
    assert_eq!(number, Some(152), "{errors}");
    let line = "mem_size_mib: --limit memory=: the guest's 512 MiB and the monitor need 768 MiB";
    assert!(errors.contains(line), "{errors}");
    let (number, errors) = code(firecracker().arg("--no-api"));
    assert_eq!(number, Some(153), "{errors}");
    let output = finish(firecracker().arg("--version"), PATIENCE);
    assert!(output.stdout.starts_with(b"Firecracker v1."));
    assert_eq!(output.status.code(), Some(0));
}
