//! Tests the network adapters of `tollgate-qemu` with Linux: the one that a PC has by itself, and its
//! state in a snapshot.

use serde_json::json;

use crate::qemu::{Qmp, qemu};
use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_686};
use crate::support::session::Session;

#[test]
fn a_pc_has_an_e1000_which_a_snapshot_keeps() {
    let folder = Folder::new();
    let initrd = folder.file("initrd", &linux::initramfs_with_modules(DEBIAN_686));
    let socket = folder.path("qmp");
    // Snapshots of the monitor lie next to a disk.
    let disk = folder.sparse_file("disk.img", 1 << 20);
    let disk = format!("file={},format=raw,if=virtio", disk.display());
    let qmp = format!("unix:{},server,nowait", socket.display());
    let mut command = qemu(&["-nographic", "-m", "256", "-append", "console=ttyS0 quiet"]);
    command.arg("-kernel").arg(fetched("debian-686/vmlinuz"));
    command.arg("-initrd").arg(initrd);
    command.args([
        "-qmp",
        &qmp,
        "-drive",
        &disk,
        "-nic",
        "user,mac=52:54:00:00:00:42",
    ]);
    let mut guest = Session::over_pipes(command);
    linux::wait_for_shell(&mut guest);
    linux::load_modules(&mut guest);
    let identity = guest.shell("cat /sys/class/net/eth0/device/device /sys/class/net/eth0/address");
    assert_eq!(identity, "0x100e\n52:54:00:00:00:42");
    guest.shell("ifconfig lo up; ifconfig eth0 up");
    let lease = guest.shell("udhcpc -q -n -t 20 -i eth0 -s /mnt/lease 2>&1 | tail -n 1");
    assert!(lease.contains("10.0.2.15"), "{lease}");
    let ping = |guest: &mut Session| {
        let answers = guest.shell("ping -c 2 -s 1400 10.0.2.2 | grep -c 'bytes from 10.0.2.2'");
        assert_eq!(answers, "2");
    };
    ping(&mut guest);

    let mut client = Qmp::new(&socket);
    let human = |line: &str| {
        let arguments = json!({"command-line": line});
        json!({"execute": "human-monitor-command", "arguments": arguments})
    };
    let network = client.ask(human("info network"));
    assert!(
        network.as_str().unwrap().contains("model=e1000"),
        "{network}"
    );
    let devices = client.ask(json!({"execute": "query-pci"}))[0]["devices"].clone();
    let is_adapter = |it: &&serde_json::Value| it["id"]["device"] == 0x100e;
    let adapter = devices.as_array().unwrap().iter().find(is_adapter);
    let slot = guest.shell("basename $(readlink /sys/class/net/eth0/device)");
    let expected = format!(
        "0000:00:{:02x}.0",
        adapter.unwrap()["slot"].as_u64().unwrap()
    );
    assert_eq!(slot, expected);
    assert_eq!(client.ask(human("savevm first")), "");
    guest.shell("ifconfig eth0 down");
    assert_eq!(client.ask(human("loadvm first")), "");
    ping(&mut guest);
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}
