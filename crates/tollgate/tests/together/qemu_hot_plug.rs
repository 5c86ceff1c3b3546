//! Tests devices that come and go on the PCI bus of `tollgate-qemu` while Linux runs.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::qemu::{Qmp, qemu};
use crate::qemu_drives::Machine;
use crate::support::folder::Folder;
use crate::support::linux as guest;

/// The words for an image of the host.
fn node(name: &str, path: &Path) -> Value {
    json!({"driver": "raw", "node-name": name,
        "file": {"driver": "file", "filename": path.display().to_string()}})
}

fn disk(id: &str, node: &str) -> Value {
    json!({"driver": "virtio-blk-pci", "id": id, "drive": node, "serial": id})
}

impl Machine {
    /// Removes a device, and waits until the guest has let it go.
    fn remove(&mut self, id: &str) {
        self.order("device_del", json!({"id": id}));
        assert_eq!(self.client.event("DEVICE_DELETED")["device"], id);
    }
}

#[test]
fn disks_adapters_and_random_bytes_come_and_go_on_the_pci_bus() {
    let folder = Folder::new();
    let first = folder.sparse_file("first.img", 4 << 20);
    let second = folder.file("second.img", &[b's'; 1 << 20]);
    let mut machine = Machine::start(&folder, &["-nodefaults", "-serial", "mon:stdio"]);
    machine.until("ls /sys/block | grep -c vd", "0");
    let slots = machine.guest.shell("ls /sys/bus/pci/slots | wc -l");
    machine.order("blockdev-add", node("n", &first));
    machine.order("device_add", disk("d", "n"));
    machine.until("cat /sys/block/vda/size", "8192");
    assert_eq!(machine.guest.shell("cat /sys/block/vda/serial"), "d");
    let write = "printf written | dd of=/dev/vda bs=512 seek=3 oflag=direct conv=sync 2>/dev/null";
    machine.guest.shell(write);
    assert_eq!(fs::read(&first).unwrap()[3 * 512..][..7], *b"written");
    machine.order("block_resize", json!({"device": "d", "size": 8 << 20}));
    machine.until("cat /sys/block/vda/size", "16384");

    // A second disk at a place of the client's choice, an adapter, and random bytes.
    machine.order("blockdev-add", node("m", &second));
    let mut placed = disk("e", "m");
    placed["addr"] = json!("0x1d");
    machine.order("device_add", placed);
    machine.until("head -c 3 /dev/vdb", "sss");
    let link = machine.guest.shell("readlink /sys/block/vdb");
    assert!(link.contains("0000:00:1d.0"), "{link}");
    machine.order("netdev_add", json!({"type": "user", "id": "u"}));
    let adapter = json!({"driver": "virtio-net-pci", "id": "net", "netdev": "u",
        "mac": "52:54:00:00:00:99"});
    machine.order("device_add", adapter);
    machine.until("cat /sys/class/net/eth0/address", "52:54:00:00:00:99");
    machine.guest.shell("ifconfig eth0 up");
    let lease = "udhcpc -t 20 -i eth0 -n -q -s /mnt/lease >/dev/null 2>&1; \
        ifconfig eth0 | grep -c 'addr:10.0.2.15'";
    assert_eq!(machine.guest.shell(lease), "1");
    machine.order(
        "device_add",
        json!({"driver": "virtio-rng-pci", "id": "rng"}),
    );
    let current = "cat /sys/class/misc/hw_random/rng_current";
    machine.until(&format!("{current} | cut -c 1-10"), "virtio_rng");
    let bytes = "dd if=/dev/hwrng bs=64 count=1 2>/dev/null | wc -c";
    assert_eq!(machine.guest.shell(bytes), "64");

    // A disk goes while it is read, and its image is free.
    let why = machine.refused("blockdev-del", json!({"node-name": "n"}));
    assert!(why.contains("in use"), "{why}");
    machine
        .guest
        .shell("(while cat /dev/vda; do :; done >/dev/null 2>&1 &)");
    machine.remove("d");
    machine.until("ls /sys/block | grep -c vda", "0");
    let other = fs::File::open(&first).unwrap();
    assert!(other.try_lock().is_ok());
    drop(other);
    machine.remove("net");
    machine.until("ls /sys/class/net | grep -c eth", "0");
    machine.order("netdev_del", json!({"id": "u"}));
    machine.remove("rng");
    // It comes again, to the place that is free again.
    machine.order("device_add", disk("d", "n"));
    machine.until("head -c 1543 /dev/vda | tail -c 7", "written");
    machine.remove("d");
    machine.order("blockdev-del", json!({"node-name": "n"}));
    // The guest lets go of one by itself.
    machine.guest.shell("echo 0 > /sys/bus/pci/slots/29/power");
    assert_eq!(machine.client.event("DEVICE_DELETED")["device"], "e");
    assert_eq!(machine.guest.shell("ls /sys/block | grep -c vd"), "0");
    assert_eq!(machine.guest.shell("ls /sys/bus/pci/slots | wc -l"), slots);
    machine.end();
}

#[test]
fn what_was_plugged_in_outlives_a_reset_and_what_was_to_go_does_not() {
    let folder = Folder::new();
    let stays = folder.file("stays.img", &[b'1'; 1 << 20]);
    let goes = folder.file("goes.img", &[b'2'; 1 << 20]);
    // No guest ejects anything as long as the machine is paused.
    let mut machine = Machine::start(&folder, &[]);
    for (name, path) in [("stays", &stays), ("goes", &goes)] {
        machine.order("blockdev-add", node(name, path));
        machine.order("device_add", disk(name, name));
    }
    machine.until("ls /sys/block | grep -c vd", "2");
    machine.order("stop", json!({}));
    machine.order("device_del", json!({"id": "goes"}));
    let why = machine.refused("blockdev-del", json!({"node-name": "goes"}));
    assert!(why.contains("in use"), "{why}");
    machine.order("system_reset", json!({}));
    assert_eq!(machine.client.event("DEVICE_DELETED")["device"], "goes");
    machine.order("cont", json!({}));
    guest::wait_for_shell(&mut machine.guest);
    guest::load_modules(&mut machine.guest);
    machine.until("ls /sys/block | grep -c vd", "1");
    assert_eq!(machine.guest.shell("head -c 3 /dev/vda"), "111");
    machine.order("blockdev-del", json!({"node-name": "goes"}));
    machine.remove("stays");
    machine.end();
}

#[test]
fn a_snapshot_has_the_devices_that_were_plugged_in() {
    let folder = Folder::new();
    let image = folder.file("disk.img", &[b'1'; 1 << 20]);
    let mut machine = Machine::start(&folder, &[]);
    machine.order("blockdev-add", node("n", &image));
    machine.order("device_add", disk("d", "n"));
    machine.until("head -c 3 /dev/vda", "111");
    machine.line("savevm t", "");
    let write = "printf 222 | dd of=/dev/vda bs=512 oflag=direct conv=sync 2>/dev/null";
    machine.guest.shell(write);
    machine.line("loadvm t", "");
    assert_eq!(machine.guest.shell("head -c 3 /dev/vda"), "111");
    machine.guest.shell(write);
    assert_eq!(fs::read(&image).unwrap()[..3], *b"222");
    machine.remove("d");
    // The machine stays as it is.
    machine.order(
        "device_add",
        json!({"driver": "virtio-rng-pci", "id": "rng"}),
    );
    machine.order("device_add", disk("d", "n"));
    machine.line(
        "loadvm t",
        "Error: 't' is a machine with other devices plugged into its PCI bus\n",
    );
    machine.until("ls /sys/block | grep -c vda", "1");
    machine.end();
}

/// A boot sector that writes chance values to the registers of hot plug and reads them, and ejects
/// everything, for ever.
const EJECTS: [u8; 60] = [
    0x66, 0xbb, 1, 0, 0, 0, // mov ebx, 1
    0x66, 0x69, 0xdb, 0x0d, 0x66, 0x19, 0x00, // again: imul ebx, ebx, 19660dh
    0x66, 0x81, 0xc3, 0x5f, 0xf3, 0x6e, 0x3c, // add ebx, 3c6ef35fh
    0xba, 0x00, 0xae, // mov dx, 0ae00h
    0x66, 0x89, 0xd8, // mov eax, ebx
    0x66, 0xc1, 0xe8, 24, // shr eax, 24
    0x24, 0x1c, // and al, 1ch
    0x00, 0xc2, // add dl, al
    0x66, 0x89, 0xd8, // mov eax, ebx
    0x66, 0xef, // out dx, eax
    0x66, 0xed, // in eax, dx
    0xba, 0x10, 0xae, // mov dx, 0ae10h
    0x66, 0x31, 0xc0, // xor eax, eax
    0x66, 0xef, // out dx, eax
    0xba, 0x08, 0xae, // mov dx, 0ae08h
    0x66, 0x83, 0xc8, 0xff, // or eax, -1
    0x66, 0xef, // out dx, eax
    0xeb, 0xca, // jmp again
];

#[test]
fn a_guest_that_ejects_everything_at_any_time_harms_only_itself() {
    let folder = Folder::new();
    let mut content = vec![0; 1 << 20];
    content[..EJECTS.len()].copy_from_slice(&EJECTS);
    content[510..512].copy_from_slice(&[0x55, 0xaa]);
    let boot = folder.file("boot.img", &content).display().to_string();
    let image = folder.file("disk.img", &[b'1'; 1 << 20]);
    let socket = folder.path("qmp");
    let place = format!("unix:{},server,nowait", socket.display());
    let mut child = qemu(&["-display", "none", "-hda", &boot, "-qmp", &place])
        .spawn()
        .unwrap();
    let mut client = Qmp::new(&socket);
    for (name, arguments) in [
        ("blockdev-add", node("n", &image)),
        ("netdev_add", json!({"type": "user", "id": "u"})),
    ] {
        let request = json!({"execute": name, "arguments": arguments});
        assert_eq!(client.answer(request), json!({"return": {}}), "{name}");
    }
    for _ in 0..30 {
        for device in [
            disk("d", "n"),
            json!({"driver": "virtio-net-pci", "id": "e", "netdev": "u"}),
            json!({"driver": "virtio-rng-pci", "id": "r"}),
        ] {
            let request = json!({"execute": "device_add", "arguments": device});
            assert_eq!(client.answer(request), json!({"return": {}}));
            assert_eq!(client.event("DEVICE_DELETED")["device"], device["id"]);
        }
    }
    let missing = json!({"execute": "device_del", "arguments": {"id": "d"}});
    assert_eq!(client.answer(missing)["error"]["class"], "DeviceNotFound");
    assert_eq!(
        client.ask(json!({"execute": "query-status"}))["status"],
        "running"
    );
    client.ask(json!({"execute": "quit"}));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(fs::File::open(&image).unwrap().try_lock().is_ok());
}

#[test]
fn a_machine_without_acpi_or_without_the_bus_refuses_devices() {
    let folder = Folder::new();
    for words in [&["-no-acpi"][..], &["-machine", "microvm"]] {
        let mut machine = Machine::start(&folder, words);
        let device = json!({"driver": "virtio-rng-pci", "id": "rng"});
        let why = machine.refused("device_add", device);
        assert!(why.contains("does not support hotplugging"), "{why}");
        let why = machine.refused("device_del", json!({"id": "rng"}));
        assert!(why.contains("not found"), "{why}");
        machine.client.ask(json!({"execute": "quit"}));
        assert_eq!(machine.guest.end().code, Some(0));
    }
}
