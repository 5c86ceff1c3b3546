//! Tests Linux with virtio disks: everything that it writes is in the image, whatever the format,
//! even if Tollgate is killed.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::failing_host;
use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_686, DEBIAN_686_PAE, DEBIAN_AMD64};
use crate::support::qcow2::Qcow2;
use crate::support::session::Session;
use crate::support::{PATIENCE, finish, tollgate};
use tollgate_disk::Format;

const DISK_BYTES: u64 = 24 << 20;

/// `tollgate run` with the kernel, modules for disks, and these drives.
fn command(folder: &Folder, kernel: &str, drives: &[String]) -> Command {
    let mut command = linux::run_with_modules(folder, kernel);
    for drive in drives {
        command.args(["--drive", drive]);
    }
    command
}

fn boot(folder: &Folder, kernel: &str, drives: &[String]) -> Session {
    let mut guest = linux::boot(command(folder, kernel, drives));
    linux::load_modules(&mut guest);
    guest
}

/// Makes an empty image in the folder.
fn image(folder: &Folder, format: Format) -> std::path::PathBuf {
    let path = folder.path(&format!("disk.{}", format.name()));
    tollgate_disk::create(&path, format, DISK_BYTES).unwrap();
    path
}

/// The content of the disk, read without Tollgate's code. A kill may leave unused clusters in a
/// qcow2 image, but no other defect.
fn content(path: &Path, format: Format) -> Vec<u8> {
    let file = fs::read(path).unwrap();
    match format {
        Format::Raw => file,
        Format::Qcow2 => {
            let image = Qcow2::new(file);
            image.check();
            image.content()
        }
    }
}

fn power_off(mut guest: Session) {
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

/// The lines that `seq` writes.
fn numbers(last: u32) -> Vec<u8> {
    let lines = (1..=last).map(|number| format!("{number}\n").into_bytes());
    lines.collect::<Vec<_>>().concat()
}

#[test]
fn what_the_guest_writes_is_in_the_image() {
    for kernel in [DEBIAN_AMD64, DEBIAN_686, DEBIAN_686_PAE] {
        let folder = Folder::new();
        let formats = [Format::Raw, Format::Qcow2];
        let drives = formats.map(|format| {
            let path = image(&folder, format);
            format!("file={},serial=S-{}", path.display(), format.name())
        });
        let mut guest = boot(&folder, kernel, &drives);
        guest.shell("seq 1 300000 > /tmp/numbers");
        for (disk, format) in [("vda", Format::Raw), ("vdb", Format::Qcow2)] {
            let sectors = guest.shell(&format!("cat /sys/block/{disk}/size"));
            assert_eq!(sectors, (DISK_BYTES / 512).to_string());
            let serial = guest.shell(&format!("cat /sys/block/{disk}/serial"));
            assert_eq!(serial, format!("S-{}", format.name()));
            // The writes go to the middle of a cluster, and up to the last byte.
            let to = format!("of=/dev/{disk} conv=notrunc,fsync 2>&1 | tail -n 1 | cut -c 1-8");
            guest.shell(&format!("dd if=/tmp/numbers bs=4k seek=100 {to}"));
            let end = DISK_BYTES / 4096 - 1;
            guest.shell(&format!("dd if=/tmp/numbers bs=4k count=1 seek={end} {to}"));
            let sums = guest.shell(&format!(
                "echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/{disk} bs=4k skip=100 count=486 \
                 2>/dev/null | head -c $(wc -c < /tmp/numbers) | cmp - /tmp/numbers && echo same"
            ));
            assert_eq!(sums, "same", "{kernel} {disk}");
        }
        // Interrupts come as messages, not through a line.
        let interrupts = guest.shell("grep -c 'PCI-MSI.*virtio' /proc/interrupts");
        assert!(interrupts.parse::<u32>().unwrap() >= 2, "{interrupts}");
        linux::assert_untroubled(&mut guest);
        power_off(guest);
        let numbers = numbers(300_000);
        let mut expected = vec![0; DISK_BYTES as usize];
        expected[100 * 4096..][..numbers.len()].copy_from_slice(&numbers);
        expected[DISK_BYTES as usize - 4096..].copy_from_slice(&numbers[..4096]);
        for format in formats {
            let path = folder.path(&format!("disk.{}", format.name()));
            assert!(content(&path, format) == expected, "{kernel} {path:?}");
        }
    }
}

#[test]
fn interrupt_lines_serve_disks_as_well_as_messages() {
    let folder = Folder::new();
    let path = image(&folder, Format::Raw);
    let drive = format!("file={}", path.display());
    let mut command = command(&folder, DEBIAN_AMD64, &[drive]);
    command.args(["--append", "console=ttyS0 pci=nomsi"]);
    // The last word of the kernel's command line would be an error, because it may be given only
    // once.
    let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let first = words.iter().position(|word| word == "--append").unwrap();
    let mut once = tollgate();
    once.args(&words[..first]).args(&words[first + 2..]);
    let mut guest = linux::boot(once);
    linux::load_modules(&mut guest);
    guest.shell("seq 1 100000 | dd of=/dev/vda bs=4k conv=notrunc,fsync");
    let lines = guest.shell("grep -c 'IO-APIC.*virtio' /proc/interrupts");
    assert_eq!(lines, "1");
    power_off(guest);
    assert!(fs::read(&path).unwrap().starts_with(&numbers(100_000)));
}

#[test]
fn disks_and_random_bytes_come_without_pci_too() {
    for kernel in [DEBIAN_AMD64, DEBIAN_686] {
        let folder = Folder::new();
        let path = image(&folder, Format::Qcow2);
        let drive = format!("file={}", path.display());
        let mut command = command(&folder, kernel, &[drive]);
        command.args(["--pci", "off", "--device", "virtio-rng"]);
        let mut guest = linux::boot(command);
        linux::load_modules(&mut guest);
        guest.shell("seq 1 100000 | dd of=/dev/vda bs=4k conv=notrunc,fsync");
        let devices = guest.shell("ls /sys/bus/virtio/devices | wc -l");
        assert_eq!(devices, "2");
        assert_eq!(guest.shell("head -c 1000 /dev/hwrng | wc -c"), "1000");
        let lines = guest.shell("grep -c virtio /proc/interrupts");
        assert_eq!(lines, "2");
        linux::assert_untroubled(&mut guest);
        power_off(guest);
        assert!(content(&path, Format::Qcow2).starts_with(&numbers(100_000)));
    }
}

#[test]
fn a_kernel_without_acpi_is_told_where_devices_are() {
    let folder = Folder::new();
    let drive = format!("file={}", image(&folder, Format::Raw).display());
    let mut command = linux::run_with(tollgate(), DEBIAN_686, "console=ttyS0 acpi=off");
    command.args(["--drive", &drive, "--device", "virtio-rng", "--pci", "off"]);
    let mut guest = linux::boot(command);
    let line = guest.shell("cat /proc/cmdline");
    let mut words = line.split(' ');
    // The files have the magic number and the device number, which is 2 for a disk and 4 for a
    // source of random bytes (virtio 1.2, 4.2.2, 5).
    for device in ["0x00000002", "0x00000004"] {
        let word = words.next().unwrap();
        let place = word.strip_prefix("virtio_mmio.device=512@0x").unwrap();
        let (address, _line) = place.split_once(':').unwrap();
        let address = u64::from_str_radix(address, 16).unwrap();
        assert_eq!(
            guest.shell(&format!("devmem {address:#x} 32")),
            "0x74726976"
        );
        let number = guest.shell(&format!("devmem {:#x} 32", address + 8));
        assert_eq!(number, device);
    }
    assert_eq!(words.collect::<Vec<_>>(), ["console=ttyS0", "acpi=off"]);
}

#[test]
fn random_bytes_come_over_pci() {
    let folder = Folder::new();
    let mut command = command(&folder, DEBIAN_AMD64, &[]);
    command.args(["--device", "virtio-rng"]);
    let mut guest = linux::boot(command);
    linux::load_modules(&mut guest);
    let name = guest.shell("cat /sys/class/misc/hw_random/rng_current");
    assert_eq!(name, "virtio_rng.0");
    assert_eq!(guest.shell("head -c 1000 /dev/hwrng | wc -c"), "1000");
    power_off(guest);
}

#[test]
fn read_only_and_snapshot_leave_the_image_alone() {
    let folder = Folder::new();
    let path = folder.file("disk.img", &vec![b'7'; 1 << 20]);
    let drives = [
        format!("file={},readonly=on", path.display()),
        format!("file={},snapshot=on", path.display()),
    ];
    let mut guest = boot(&folder, DEBIAN_AMD64, &drives);
    assert_eq!(
        guest.shell("cat /sys/block/vda/ro /sys/block/vdb/ro"),
        "1\n0"
    );
    guest.shell("echo hello | dd of=/dev/vda conv=notrunc,fsync 2>/dev/null");
    guest.shell("echo hello | dd of=/dev/vdb conv=notrunc,fsync 2>/dev/null");
    guest.shell("echo 3 > /proc/sys/vm/drop_caches");
    assert_eq!(guest.shell("head -c 6 /dev/vda"), "777777");
    assert_eq!(guest.shell("head -c 6 /dev/vdb"), "hello");
    power_off(guest);
    assert_eq!(fs::read(&path).unwrap(), vec![b'7'; 1 << 20]);
}

#[test]
fn what_was_flushed_survives_a_kill() {
    for format in [Format::Raw, Format::Qcow2] {
        for round in 1..=3u32 {
            let folder = Folder::new();
            let path = image(&folder, format);
            let drives = [format!("file={}", path.display())];
            let mut guest = boot(&folder, DEBIAN_AMD64, &drives);
            // The blocks are far apart, so that each makes a qcow2 image grow.
            guest.type_line(
                "i=0; while :; do i=$((i+1)); yes block-$i | head -c 4096 | \
                 dd of=/dev/vda bs=4096 seek=$((i*37%6000)) conv=notrunc,fsync 2>/dev/null; \
                 echo flushed=$i; done",
            );
            let last = 20 * round + 3;
            guest.wait_for(&format!("flushed={last}\n"));
            // SAFETY: kill takes integers; the process is this test's child.
            unsafe { libc::kill(guest.process() as i32, libc::SIGKILL) };
            guest.end();
            let content = content(&path, format);
            for block in 1..=last {
                let line = format!("block-{block}\n");
                let expected = line.repeat(4096 / line.len() + 1);
                let place = (block * 37 % 6000) as usize * 4096;
                let found = &content[place..place + 4096];
                assert!(found == &expected.as_bytes()[..4096], "block {block}");
            }
        }
    }
}

#[test]
fn a_full_host_is_an_io_error_in_the_guest_and_one_line() {
    let folder = Folder::new();
    let path = folder.sparse_file("disk.img", 400 << 20);
    let drive = format!("file={}", path.display());
    let inner = command(&folder, DEBIAN_AMD64, &[drive]);
    // Writes after 300 MiB fail, as they do on a full disk. Guest memory is a file too.
    let mut command = Command::new("bash");
    command.args(["-c", "trap '' XFSZ; ulimit -f 307200; exec \"$0\" \"$@\""]);
    command.arg(inner.get_program()).args(inner.get_args());
    let mut guest = linux::boot(command);
    linux::load_modules(&mut guest);
    let write = |at: u32| {
        format!(
            "seq 1 1000 | dd of=/dev/vda bs=4k seek={at} conv=notrunc,fsync 2>&1 | grep -c error"
        )
    };
    assert_eq!(guest.shell(&write(1)), "0");
    assert_eq!(guest.shell(&write(90_000)), "1");
    assert_eq!(guest.shell(&write(100_000)), "1");
    assert_eq!(guest.shell(&write(2)), "0");
    guest.type_line("poweroff -f");
    let end = guest.end();
    assert_eq!(end.code, Some(0));
    let lines = end
        .errors
        .lines()
        .filter(|line| line.contains("writing fails"));
    assert_eq!(lines.count(), 1, "{}", end.errors);
}

#[test]
fn a_failing_host_is_an_io_error_in_the_guest_and_a_line_for_each_operation() {
    let folder = Folder::new();
    let path = folder.sparse_file("disk.img", 400 << 20);
    let drive = format!("file={}", path.display());
    let mut command = command(&folder, DEBIAN_AMD64, &[drive]);
    failing_host::fail_from(&mut command, 300 << 20);
    let mut guest = linux::boot(command);
    linux::load_modules(&mut guest);
    // Whole pages are written, which need not be read before.
    let write = |at: u32| {
        format!(
            "dd if=/dev/zero of=/dev/vda bs=4k count=1 seek={at} conv=notrunc,fsync 2>&1 \
             | grep -c error"
        )
    };
    let read = |at: u32| {
        format!("dd if=/dev/vda of=/dev/null bs=4k skip={at} count=4 2>&1 | grep -c error")
    };
    for round in 0..2 {
        assert_eq!(guest.shell(&write(1)), "0");
        assert_eq!(guest.shell(&write(90_000 + round)), "1");
        assert_eq!(guest.shell(&read(95_000 + round)), "1");
        assert_eq!(guest.shell(&read(40_000)), "0");
    }
    assert_eq!(guest.shell("head -c 3 /dev/vda | wc -c"), "3");
    guest.type_line("poweroff -f");
    let end = guest.end();
    assert_eq!(end.code, Some(0));
    for operation in ["reading fails", "writing fails"] {
        let mut lines = end.errors.lines().filter(|line| line.contains(operation));
        let line = lines.next().unwrap_or_else(|| panic!("{}", end.errors));
        assert!(line.contains("Input/output error"), "{line}");
        assert_eq!(lines.next(), None);
    }
}

#[test]
fn an_image_in_use_is_refused_with_one_line() {
    let folder = Folder::new();
    let path = image(&folder, Format::Raw);
    let drive = format!("file={}", path.display());
    let guest = boot(&folder, DEBIAN_AMD64, std::slice::from_ref(&drive));
    for options in ["", ",readonly=on", ",snapshot=on"] {
        let mut second = tollgate();
        second.args(["run", "--kernel"]);
        second.arg(fetched("debian-amd64/vmlinuz"));
        second.args(["--drive", &format!("{drive}{options}")]);
        let output = finish(&mut second, PATIENCE);
        assert_eq!(output.status.code(), Some(2));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains("another virtual machine"), "{errors}");
    }
    power_off(guest);
}
