//! Tests Linux with directories of the host that it mounts by 9P: as a directory, and as its root.
//! Debian's kernel for cloud machines has no 9P; the others have.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::guests::{fetched, guests_folder};
use crate::support::linux::{self, DEBIAN_686};
use crate::support::session::Session;
use crate::support::{PATIENCE, finish, tollgate, user_code_flags};

/// Debian's 64-bit kernel that preempts itself everywhere, which `get-guests --extra` fetches.
const DEBIAN_RT_AMD64: &str = "debian-rt-amd64";

/// The kernel's command line. With mitigations the kernel warns of some hosts' processors.
const CONSOLE: &str = "console=ttyS0 mitigations=off";

/// The kernels that have 9P, of those that were fetched.
fn kernels() -> Vec<&'static str> {
    let modules = format!("{DEBIAN_RT_AMD64}-modules/9p.ko");
    let mut kernels = vec![DEBIAN_686];
    if guests_folder().join(modules).is_file() {
        kernels.push(DEBIAN_RT_AMD64);
    }
    kernels
}

/// The initramfs with programs that the kernel runs.
fn programs(kernel: &str) -> &'static str {
    match kernel {
        DEBIAN_RT_AMD64 => "initrd-amd64.img",
        _ => "initrd-i386.img",
    }
}

/// `tollgate run` with a kernel, its modules, more files of its initramfs, and a share.
fn command(
    folder: &Folder,
    kernel: &str,
    files: &[(String, Vec<u8>)],
    append: &str,
    share: &str,
) -> Command {
    let files = [linux::module_files(kernel), files.to_vec()].concat();
    let archive = linux::archive_with(programs(kernel), &files);
    let mut command = tollgate();
    command.args(["run", "-m", "256M", "--kernel"]);
    command.arg(fetched(&format!("{kernel}/vmlinuz")));
    command
        .arg("--initrd")
        .arg(folder.file("initrd.img", &archive));
    command.args(["--append", append, "--share", share]);
    command.args(user_code_flags());
    command
}

fn power_off(mut guest: Session) {
    linux::assert_untroubled(&mut guest);
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

fn shared() -> (Folder, PathBuf) {
    let folder = Folder::new();
    let path = folder.path("shared");
    fs::create_dir(&path).unwrap();
    (folder, path)
}

const MOUNT: &str = "mkdir -p /s && mount -t 9p -o trans=virtio,version=9p2000.L";

#[test]
fn guest_and_host_see_the_same_files_by_9p() {
    for kernel in kernels() {
        let (folder, path) = shared();
        let numbers: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
        fs::write(path.join("from-host"), &numbers).unwrap();
        let share = format!("{}:hostfs,type=9p", path.display());
        let mut guest = linux::boot(command(&folder, kernel, &[], CONSOLE, &share));
        linux::load_modules(&mut guest);
        // Once with large messages, once with the kernel's own choice and a cache.
        for options in [",msize=500000", ",cache=loose,posixacl"] {
            let mount = format!("{MOUNT}{options} hostfs /s && cd /s && echo mounted");
            assert_eq!(guest.shell(&mount), "mounted");
            let same = "seq 1 200000 > /tmp/n; cmp /tmp/n from-host && echo same";
            assert_eq!(guest.shell(same), "same");
            guest.shell("cp /tmp/n from-guest; sync");
            assert_eq!(
                fs::read_to_string(path.join("from-guest")).unwrap(),
                numbers
            );
            guest.shell("echo more >> from-guest; truncate -s 3 from-guest; echo x >> from-guest");
            assert_eq!(guest.shell("cat from-guest"), "1\n2x");
            guest
                .shell("mkdir d && mv from-guest d/moved && ln d/moved hard && ln -s d/moved soft");
            assert_eq!(guest.shell("stat -c %h soft d/moved"), "1\n2");
            assert_eq!(guest.shell("cat soft; mkfifo p; ls -F p"), "1\n2x\np|");
            assert_eq!(
                guest.shell("cmp soft hard && rm d/moved && cat soft 2>&1"),
                "cat: can't open 'soft': No such file or directory"
            );
            guest.shell("chown 1000:100 hard; chmod 4751 hard");
            assert_eq!(guest.shell("stat -c '%a %u %g' hard"), "4751 1000 100");
            let host = path.join("hard").metadata().unwrap();
            assert_eq!(host.mode() & 0o7777, 0o751);
            // An open file without a name.
            assert_eq!(
                guest.shell("(exec 3<hard; rm hard; cat <&3; ls hard 2>&1)"),
                "1\n2x\nls: hard: No such file or directory"
            );
            // Programs can be executed and mapped.
            guest.shell("cp /bin/busybox d/busybox");
            assert_eq!(guest.shell("d/busybox echo ran; rm d/busybox"), "ran");
            let many = "cd d; seq 1 500 | while read n; do echo $n > $n; done; ls | wc -l; cd ..";
            assert_eq!(guest.shell(many), "500");
            assert_eq!(fs::read_dir(path.join("d")).unwrap().count(), 500);
            assert_eq!(guest.shell("cd ..; cat s/d/123 s/../s/d/7"), "123\n7");
            assert_eq!(guest.shell("cd /s; rm -r d soft p; ls"), "from-host");
            guest.shell("cd /; umount /s");
        }
        // Changes of a share that is not cached are seen.
        assert_eq!(
            guest.shell(&format!("{MOUNT} hostfs /s && cat /s/new 2>&1 | wc -l")),
            "1"
        );
        fs::write(path.join("new"), "new\n").unwrap();
        assert_eq!(guest.shell("cat /s/new"), "new");
        power_off(guest);
    }
}

#[test]
fn the_root_of_a_guest_is_a_directory_by_9p() {
    for kernel in kernels() {
        let (folder, path) = shared();
        let start = b"#!/bin/sh
            export PATH=/bin
            mkdir -p /proc /r; mount -t proc proc /proc
            for m in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci \
                netfs fscache 9pnet 9pnet_virtio 9p; do
                [ ! -e /mnt/$m.ko ] || insmod /mnt/$m.ko
            done
            mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 /dev/root /r &&
                exec switch_root /r /sbin/init
            poweroff -f
";
        let init = b"#!/bin/busybox sh
            export PATH=/bin
            /bin/busybox --install -s /bin
            mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev
            echo 'tollgate-guest: ready'
            cd /; PS1='/ # ' exec setsid cttyhack sh
";
        for directory in ["bin", "sbin", "proc", "sys", "dev", "etc"] {
            fs::create_dir(path.join(directory)).unwrap();
        }
        let busybox = match kernel {
            DEBIAN_RT_AMD64 => "busybox-amd64/busybox",
            _ => "busybox/busybox",
        };
        fs::copy(fetched(busybox), path.join("bin/busybox")).unwrap();
        fs::write(path.join("sbin/init"), init).unwrap();
        for program in ["bin/busybox", "sbin/init"] {
            fs::set_permissions(path.join(program), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let share = format!("{},tag=/dev/root,type=9p", path.display());
        let append = format!("{CONSOLE} rdinit=/mnt/start");
        let files = [("mnt/start".to_owned(), start.to_vec())];
        let mut guest = linux::boot(command(&folder, kernel, &files, &append, &share));
        assert_eq!(
            guest.shell("stat -f -c %t /; stat -c %u /bin/busybox"),
            "1021997\n0"
        );
        guest.shell("ln -s /bin/busybox /etc/link; echo text > /etc/file; chown 7 /etc/file");
        assert_eq!(
            guest.shell("cat /etc/file; stat -c %u /etc/file"),
            "text\n7"
        );
        assert_eq!(fs::read_to_string(path.join("etc/file")).unwrap(), "text\n");
        let link = fs::read_link(path.join("etc/link")).unwrap();
        assert_eq!(link.to_str(), Some("/bin/busybox"));
        power_off(guest);
    }
}

/// A client of 9P knows files by numbers of its own as long as it has mounted a share.
#[test]
fn a_mounted_9p_share_is_not_saved_and_an_unmounted_one_is() {
    let (folder, path) = shared();
    let share = format!("{}:hostfs,type=9p", path.display());
    let mut command = command(&folder, DEBIAN_686, &[], CONSOLE, &share);
    let socket = folder.path("control");
    command.arg("--control").arg(&socket);
    let mut guest = linux::boot(command);
    linux::load_modules(&mut guest);
    guest.shell(&format!("{MOUNT} hostfs /s"));
    let save = |name: &str| {
        let mut command = tollgate();
        command.args(["snapshot", "create"]).arg(&socket);
        finish(command.arg(folder.path(name)), PATIENCE)
    };
    let refused = save("mounted");
    let errors = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{errors}");
    assert!(errors.contains("virtio-9p (hostfs)"), "{errors}");
    assert!(errors.contains("unmount"), "{errors}");
    guest.shell("umount /s");
    assert!(save("unmounted").status.success());
    guest.shell(&format!("{MOUNT} hostfs /s && echo x > /s/a"));
    assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "x\n");
    power_off(guest);
}
