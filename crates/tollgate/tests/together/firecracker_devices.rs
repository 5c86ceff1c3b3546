//! Tests what requests change in a running machine of `tollgate-firecracker`: its balloon and its
//! drives; and the boot timer.

use std::fs::File;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::firecracker::{Client, firecracker};
use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_AMD64};
use crate::support::session::Session;
use crate::support::within;

const PATIENCE: Duration = Duration::from_secs(120);

/// A process that waits for requests, and a client that has given it a kernel with modules.
fn prepared(folder: &Folder, flags: &[&str]) -> (Session, Client) {
    let socket = folder.path("socket");
    let mut command = firecracker();
    command.args(["--confine", "strict", "--api-sock"]);
    command.arg(&socket).args(flags);
    let (guest, client) = (Session::over_pipes(command), Client::new(&socket));
    let initramfs = linux::initramfs_with_modules(DEBIAN_AMD64);
    let source = json!({
        "kernel_image_path": fetched("debian-amd64/vmlinux"),
        "initrd_path": folder.file("initrd.img", &initramfs),
        "boot_args": "console=ttyS0",
    });
    client.order("PUT", "/boot-source", source);
    let machine = json!({"vcpu_count": 1, "mem_size_mib": 256});
    client.order("PUT", "/machine-config", machine);
    (guest, client)
}

fn start(guest: &mut Session, client: &Client) {
    client.order("PUT", "/actions", json!({"action_type": "InstanceStart"}));
    linux::wait_for_shell(guest);
    linux::load_modules(guest);
}

fn power_off(mut guest: Session) {
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

/// Waits until the statistics are as the test expects.
fn statistics(client: &Client, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    within(PATIENCE, what, || {
        let shown = client.get("/balloon/statistics");
        is_so(&shown).then_some(shown)
    })
}

#[test]
fn a_balloon_takes_memory_gives_it_back_and_reports() {
    for flags in [&[][..], &["--enable-pci"]] {
        let folder = Folder::new();
        let (mut guest, client) = prepared(&folder, flags);
        let balloon = json!({"amount_mib": 0, "deflate_on_oom": true,
                             "stats_polling_interval_s": 1});
        client.order("PUT", "/balloon", balloon);
        start(&mut guest, &client);
        let before = statistics(&client, "statistics", |it| it["free_memory"].is_u64());
        let free = before["free_memory"].as_u64().unwrap();
        assert!(before["total_memory"].as_u64().unwrap() > free);
        client.order("PATCH", "/balloon", json!({"amount_mib": 64}));
        let full = statistics(&client, "a full balloon", |it| {
            it["actual_mib"] == 64 && it["free_memory"].as_u64().unwrap() + (50 << 20) < free
        });
        assert_eq!(full["target_pages"], 64 * 256);
        client.order("PATCH", "/balloon", json!({"amount_mib": 0}));
        statistics(&client, "an empty balloon", |it| it["actual_pages"] == 0);
        linux::assert_untroubled(&mut guest);
        power_off(guest);
    }
}

#[test]
fn a_drive_gets_another_size_and_another_image_while_the_guest_runs() {
    let folder = Folder::new();
    let disk = folder.sparse_file("disk.img", 8 << 20);
    let other = folder.file("other.img", &b"other".repeat(1 << 20)[..4 << 20]);
    let (mut guest, client) = prepared(&folder, &[]);
    let drive = json!({"drive_id": "data", "is_root_device": false, "path_on_host": disk});
    client.order("PUT", "/drives/data", drive);
    start(&mut guest, &client);
    assert_eq!(guest.shell("cat /sys/block/vda/size"), "16384");
    guest.shell("echo written | dd of=/dev/vda conv=fsync 2>/dev/null");
    let file = File::options().write(true).open(&disk).unwrap();
    file.set_len(16 << 20).unwrap();
    drop(file);
    let patch = |path: &std::path::Path| json!({"drive_id": "data", "path_on_host": path});
    client.order("PATCH", "/drives/data", patch(&disk));
    let size = |guest: &mut Session, sectors: &str| {
        within(PATIENCE, "another size", || {
            (guest.shell("cat /sys/block/vda/size") == sectors).then_some(())
        });
    };
    size(&mut guest, "32768");
    assert_eq!(guest.shell("head -c 7 /dev/vda"), "written");
    let missing = client.refusal("PATCH", "/drives/data", patch(&folder.path("none")));
    assert!(missing.starts_with("path_on_host: "), "{missing}");
    assert_eq!(
        client.get("/vm/config")["drives"][0]["path_on_host"],
        json!(disk)
    );
    client.order("PATCH", "/drives/data", patch(&other));
    size(&mut guest, "8192");
    guest.shell("echo 3 >/proc/sys/vm/drop_caches; blockdev --flushbufs /dev/vda");
    assert_eq!(guest.shell("head -c 5 /dev/vda"), "other");
    linux::assert_untroubled(&mut guest);
    power_off(guest);
}

#[test]
fn a_guest_that_reports_its_start_is_timed_in_the_log() {
    for flags in [&[][..], &["--enable-pci"]] {
        let folder = Folder::new();
        let log = folder.path("log");
        let log_flags = ["--boot-timer", "--log-path", log.to_str().unwrap()];
        let (mut guest, client) = prepared(&folder, &[&log_flags, flags].concat());
        client.order("PUT", "/entropy", json!({}));
        start(&mut guest, &client);
        // The device of the boot timer takes nothing from the other devices.
        assert_ne!(guest.shell("cat /sys/class/misc/hw_random/rng_current"), "");
        guest.shell("devmem 0xc0000000 8 122; devmem 0xc0000000 8 123; devmem 0xc0000000 8 123");
        let line = within(PATIENCE, "the line", || {
            let log = std::fs::read_to_string(&log).ok()?;
            let mut lines = log
                .lines()
                .filter(|line| line.contains("Guest-boot-time = "));
            let line = lines.next()?.to_owned();
            assert_eq!(lines.next(), None);
            Some(line)
        });
        assert!(line.contains(" us ") && line.ends_with(" CPU ms"), "{line}");
        power_off(guest);
    }
}
