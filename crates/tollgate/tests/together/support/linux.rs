//! Boots Debian's kernels as guests, with an initramfs that ends in a busybox shell.

use std::process::Command;

use super::folder::Folder;
use super::guests::fetched;
use super::session::Session;
use super::{tollgate, user_code_flags};

/// Debian's 32-bit kernel with two-level paging.
pub const DEBIAN_686: &str = "debian-686";
/// Debian's 32-bit kernel with PAE and NX.
pub const DEBIAN_686_PAE: &str = "debian-686-pae";
/// Debian's 64-bit kernel for virtual machines.
pub const DEBIAN_AMD64: &str = "debian-amd64";

/// The line that the first process writes when the shell is about to start.
pub const READY: &str = "tollgate-guest: ready";
/// The end of the shell's prompt, which follows the current directory.
pub const PROMPT: &str = " # ";

/// The initramfs with programs of the kernel's own width.
pub fn initramfs(kernel: &str) -> &'static str {
    if kernel == DEBIAN_AMD64 {
        "initrd-amd64.img"
    } else {
        "initrd-i386.img"
    }
}

/// [`initramfs`] with one more program: Linux unpacks several archives in order.
#[track_caller]
pub fn initramfs_with(kernel: &str, path: &str, program: &[u8]) -> Vec<u8> {
    initramfs_with_files(kernel, &[(path.to_owned(), program.to_vec())])
}

/// [`initramfs`] with more files, each of which may be executed.
#[track_caller]
pub fn initramfs_with_files(kernel: &str, files: &[(String, Vec<u8>)]) -> Vec<u8> {
    archive_with(initramfs(kernel), files)
}

/// A fetched initramfs with more files, each of which may be executed.
#[track_caller]
pub fn archive_with(initramfs: &str, files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = std::fs::read(fetched(initramfs)).unwrap();
    // The second archive begins at a multiple of four.
    archive.resize(archive.len().next_multiple_of(4), 0);
    for (path, content) in files {
        cpio_entry(&mut archive, path, 0o100_755, content);
    }
    cpio_entry(&mut archive, "TRAILER!!!", 0, &[]);
    archive
}

/// Modules that a kernel needs for virtio devices and shares, each after those that it uses.
const MODULES: &[&str] = &[
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_mmio",
    "virtio_balloon",
    "virtio_blk",
    "virtio_console",
    "rng-core",
    "virtio-rng",
    "fuse",
    "virtiofs",
    "failover",
    "net_failover",
    "virtio_net",
    "e1000",
    "vsock",
    "vmw_vsock_virtio_transport_common",
    "vmw_vsock_virtio_transport",
    "netfs",
    "fscache",
    "9pnet",
    "9pnet_virtio",
    "9p",
];

/// The script with which udhcpc configures the interface.
const LEASE: &str = "#!/bin/sh
case $1 in bound | renew)
    ifconfig $interface $ip netmask $subnet
    route add default gw $router dev $interface
    echo nameserver $dns >/etc/resolv.conf
esac
";

/// An initramfs with these modules in /mnt, and the script for udhcpc.
#[track_caller]
pub fn initramfs_with_modules(kernel: &str) -> Vec<u8> {
    archive_with(initramfs(kernel), &module_files(kernel))
}

/// The modules of a kernel and the script for udhcpc, as files of an initramfs.
#[track_caller]
pub fn module_files(kernel: &str) -> Vec<(String, Vec<u8>)> {
    let folder = fetched(&format!("{kernel}-modules/version"));
    let mut files: Vec<_> = MODULES
        .iter()
        .filter_map(|name| {
            // A module that is built into the kernel has no file.
            let module = std::fs::read(folder.with_file_name(format!("{name}.ko")));
            Some((format!("mnt/{name}.ko"), module.ok()?))
        })
        .collect();
    files.push(("mnt/lease".into(), LEASE.into()));
    files
}

/// `tollgate run` with a kernel and its modules, in an initramfs that is written to the folder, and
/// a console on the serial port.
#[track_caller]
pub fn run_with_modules(folder: &Folder, kernel: &str) -> Command {
    let initramfs = folder.file("initrd.img", &initramfs_with_modules(kernel));
    let mut command = tollgate();
    command.args(["run", "-m", "256M", "--kernel"]);
    command.arg(fetched(&format!("{kernel}/vmlinuz")));
    command.arg("--initrd").arg(initramfs);
    command.args(["--append", "console=ttyS0"]);
    command.args(user_code_flags());
    command
}

/// Loads the modules of [`initramfs_with_modules`].
#[track_caller]
pub fn load_modules(guest: &mut Session) {
    let names = MODULES.join(" ");
    let answer = guest.shell(&format!(
        "for m in {names}; do [ ! -e /mnt/$m.ko ] || insmod /mnt/$m.ko; done"
    ));
    assert_eq!(answer, "");
}

/// One entry of a cpio archive in the newc format.
pub fn cpio_entry(archive: &mut Vec<u8>, path: &str, mode: usize, content: &[u8]) {
    // The fields: inode, mode, owner, group, links, time, size, device numbers, length of the name,
    // checksum.
    let (size, name) = (content.len(), path.len() + 1);
    let fields = [1, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name, 0];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08X}").bytes());
    }
    for part in [[path.as_bytes(), b"\0"].concat().as_slice(), content] {
        archive.extend(part);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
}

/// `tollgate run` with a kernel, the initramfs and a console on the serial port.
#[track_caller]
pub fn run(kernel: &str) -> Command {
    run_with(tollgate(), kernel, "console=ttyS0")
}

/// [`run`] with a guest that switches itself off when the shell would start.
#[track_caller]
pub fn run_and_power_off(kernel: &str) -> Command {
    run_with(tollgate(), kernel, "console=ttyS0 tollgate.autooff")
}

/// [`run`] with the caller's command and another kernel command line.
#[track_caller]
pub fn run_with(mut command: Command, kernel: &str, append: &str) -> Command {
    command
        .args(["run", "--kernel"])
        .arg(fetched(&format!("{kernel}/vmlinuz")))
        .arg("--initrd")
        .arg(fetched(initramfs(kernel)))
        .args(["--append", append])
        .args(user_code_flags());
    command
}

/// Starts the guest and waits for its shell.
#[track_caller]
pub fn boot(command: Command) -> Session {
    let mut session = Session::over_pipes(command);
    wait_for_shell(&mut session);
    session
}

/// Waits for the shell, and stops the kernel from writing between its answers.
#[track_caller]
pub fn wait_for_shell(session: &mut Session) {
    session.wait_for(READY);
    session.wait_for(PROMPT);
    session.shell("dmesg -n 1");
}

/// How Linux begins the line that it writes on some models of Intel's, the host's own among them, if
/// they do not have IBRS, which no guest has.
pub const RETBLEED: &str = "RETBleed: WARNING: Spectre v2 mitigation leaves CPU vulnerable";

/// Expects that the kernel has found no defect of its machine.
#[track_caller]
pub fn assert_untroubled(session: &mut Session) {
    let log = session.shell("dmesg");
    assert!(log.contains("Linux version"), "{log}");
    for word in [
        "BUG",
        "Oops",
        "WARNING",
        "invalid opcode",
        "general protection",
    ] {
        let is_defect = |line: &&str| line.contains(word) && !line.contains(RETBLEED);
        let line = log.lines().find(is_defect);
        assert_eq!(line, None, "the kernel's log:\n{log}");
    }
}
