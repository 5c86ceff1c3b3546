//! Tests what `tollgate-qemu` changes about drives while Linux runs: sizes of images, discs, and
//! drives that come and go at the SCSI controller.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::linux_scsi;
use crate::qemu::{Qmp, linux};
use crate::support::exec::text;
use crate::support::folder::Folder;
use crate::support::linux as guest;
use crate::support::session::Session;
use crate::support::{GUEST_PATIENCE, finish, tollgate};

/// Linux with the modules of virtio and SCSI drives, and a client of QMP.
pub struct Machine {
    pub guest: Session,
    pub client: Qmp,
}

impl Machine {
    pub fn start(folder: &Folder, words: &[&str]) -> Self {
        let socket = folder.path("qmp");
        let qmp = format!("unix:{},server,nowait", socket.display());
        let initrd = folder.file("initrd", &linux_scsi::initramfs());
        let initrd = initrd.display().to_string();
        let own = ["-qmp", &qmp, "-nographic", "-initrd", &initrd];
        let mut guest = linux(&[&own, words].concat());
        guest::load_modules(&mut guest);
        linux_scsi::load_modules(&mut guest);
        Self {
            guest,
            client: Qmp::new(&socket),
        }
    }

    /// Gives an order that must be carried out.
    pub fn order(&mut self, name: &str, arguments: Value) {
        let request = json!({"execute": name, "arguments": arguments});
        assert_eq!(self.client.answer(request), json!({"return": {}}), "{name}");
    }

    /// Gives an order that must be refused. Returns the reason.
    pub fn refused(&mut self, name: &str, arguments: Value) -> String {
        let request = json!({"execute": name, "arguments": arguments});
        let answer = self.client.answer(request);
        let why = answer["error"]["desc"].as_str();
        why.unwrap_or_else(|| panic!("{name}: {answer}")).to_owned()
    }

    /// Gives an order in HMP's words, and checks what it says.
    pub fn line(&mut self, line: &str, said: &str) {
        let arguments = json!({"command-line": line});
        let request = json!({"execute": "human-monitor-command", "arguments": arguments});
        assert_eq!(
            self.client.answer(request),
            json!({"return": said}),
            "{line}"
        );
    }

    /// Waits until a command of the guest prints this.
    pub fn until(&mut self, command: &str, output: &str) {
        let wait = format!(
            "n=0; while [ \"$({command} 2>/dev/null)\" != '{output}' ] && [ $n -lt 300 ]; do \
             sleep 0.1; n=$((n+1)); done; {command}"
        );
        assert_eq!(self.guest.shell(&wait), output);
    }

    pub fn end(mut self) {
        guest::assert_untroubled(&mut self.guest);
        self.guest.type_line("poweroff -f");
        assert_eq!(self.guest.end().code, Some(0));
    }
}

/// Makes a qcow2 image, with a backing file if one is named.
fn qcow2(folder: &Folder, name: &str, backing: Option<&Path>, size: &str) -> String {
    let path = folder.path(name);
    let mut create = tollgate();
    create.args(["image", "create", "-f", "qcow2"]);
    if let Some(backing) = backing {
        create.args(["-F", "raw", "-b"]).arg(backing);
    }
    let output = finish(create.arg(&path).arg(size), GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    path.display().to_string()
}

#[test]
fn disks_get_another_size_while_linux_uses_them() {
    let folder = Folder::new();
    let raw = folder.sparse_file("raw.img", 4 << 20);
    let long = folder.file("long.img", &[b'x'; 3 << 20]);
    let over = qcow2(&folder, "over.qcow2", Some(&long), "1M");
    let scsi = qcow2(&folder, "scsi.qcow2", None, "4M");
    let mut machine = Machine::start(
        &folder,
        &[
            "-drive",
            &format!("file={},format=raw,if=virtio,id=raw", raw.display()),
            "-drive",
            &format!("file={over},if=virtio,id=over"),
            "-device",
            "virtio-scsi-pci",
            "-drive",
            &format!("file={scsi},if=none,id=scsi"),
            "-device",
            "scsi-hd,drive=scsi,id=unit",
            "-drive",
            &format!(
                "file={},format=raw,if=virtio,readonly=on,id=ro",
                long.display()
            ),
        ],
    );
    machine.until("cat /sys/block/vda/size", "8192");
    machine.order("block_resize", json!({"device": "raw", "size": 9 << 20}));
    machine.until("cat /sys/block/vda/size", "18432");
    machine
        .guest
        .shell("printf last | dd of=/dev/vda bs=512 seek=18431 oflag=direct 2>/dev/null");
    assert_eq!(fs::metadata(&raw).unwrap().len(), 9 << 20);
    // What is longer below does not show through.
    machine.until("cat /sys/block/vdb/size", "2048");
    machine.order(
        "block_resize",
        json!({"node-name": "over", "size": 4 << 20}),
    );
    machine.until("cat /sys/block/vdb/size", "8192");
    let counted = "dd if=/dev/vdb bs=64k iflag=direct 2>/dev/null | tr -d '\\000' | wc -c";
    assert_eq!(machine.guest.shell(counted), "1048576");
    // A SCSI disk reports it by an event; a monitor for people counts MiB.
    machine.until("cat /sys/block/sda/size", "8192");
    machine.line("block_resize unit 6", "");
    machine.until("cat /sys/block/sda/size", "12288");
    // It becomes smaller again.
    machine.order("block_resize", json!({"device": "raw", "size": 2 << 20}));
    machine.until("cat /sys/block/vda/size", "4096");
    let why = machine.refused("block_resize", json!({"device": "ro", "size": 1 << 20}));
    assert!(why.contains("read-only"), "{why}");
    let why = machine.refused("block_resize", json!({"device": "none", "size": 1}));
    assert!(why.contains("not found"), "{why}");
    machine.end();
    for image in [&over, &scsi] {
        let output = finish(tollgate().args(["image", "check", image]), GUEST_PATIENCE);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    }
}

#[test]
fn drives_and_discs_come_and_go_at_the_scsi_controller() {
    let folder = Folder::new();
    let disk = folder.sparse_file("disk.img", 4 << 20);
    let image = |name: &str, byte| folder.file(name, &[byte; 1 << 20]).display().to_string();
    let (first, second) = (image("a.iso", b'a'), image("b.iso", b'b'));
    let disk = disk.display().to_string();
    let mut machine = Machine::start(
        &folder,
        &[
            "-device",
            "virtio-scsi-pci,id=scsi0",
            "-device",
            "scsi-cd,id=cd,scsi-id=5",
        ],
    );
    machine.until("ls /sys/block | grep -c sr", "1");
    machine.order(
        "blockdev-change-medium",
        json!({"id": "cd", "filename": first}),
    );
    machine.until("head -c 3 /dev/sr0", "aaa");
    machine.order("eject", json!({"id": "cd", "force": true}));
    machine.until("head -c 3 /dev/sr0 2>&1 | grep -c edium", "1");
    machine.order(
        "blockdev-change-medium",
        json!({"id": "cd", "filename": second}),
    );
    machine.until("head -c 3 /dev/sr0", "bbb");

    let node =
        json!({"driver": "raw", "node-name": "n", "file": {"driver": "file", "filename": disk}});
    machine.order("blockdev-add", node);
    let device =
        json!({"driver": "scsi-hd", "id": "new", "drive": "n", "bus": "scsi0.0", "serial": "S7"});
    machine.order("device_add", device);
    machine.until("cat /sys/block/sda/size", "8192");
    machine
        .guest
        .shell("printf written | dd of=/dev/sda oflag=direct conv=sync 2>/dev/null");
    assert!(fs::read(&disk).unwrap().starts_with(b"written"));
    let why = machine.refused("blockdev-del", json!({"node-name": "n"}));
    assert!(why.contains("in use"), "{why}");
    // The drive is still there after a reset.
    machine.order("system_reset", json!({}));
    guest::wait_for_shell(&mut machine.guest);
    guest::load_modules(&mut machine.guest);
    linux_scsi::load_modules(&mut machine.guest);
    machine.until("head -c 7 /dev/sda", "written");
    machine.order("device_del", json!({"id": "new"}));
    assert_eq!(machine.client.event("DEVICE_DELETED")["device"], "new");
    machine.until("ls /sys/block | grep -c sda", "0");
    machine.order("blockdev-del", json!({"node-name": "n"}));
    // The image is free.
    let other = fs::File::open(&disk).unwrap();
    assert!(other.try_lock().is_ok());
    let why = machine.refused("device_add", json!({"driver": "virtio-9p-pci"}));
    assert!(why.contains("come and go"), "{why}");
    machine.end();
}
