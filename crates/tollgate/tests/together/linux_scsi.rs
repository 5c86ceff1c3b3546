//! Tests Linux with disks and CD-ROMs at the virtio SCSI controller.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::support::folder::Folder;
use crate::support::guests::guests_folder;
use crate::support::linux::{self, DEBIAN_AMD64};
use crate::support::session::Session;

const DISK_BYTES: u64 = 24 << 20;

/// The modules, each after those that it uses.
const MODULES: &str = "scsi_common scsi_mod virtio_scsi sd_mod cdrom sr_mod";

/// An initramfs with these modules and those of virtio devices.
pub fn initramfs() -> Vec<u8> {
    let modules = MODULES.split(' ').filter_map(|name| {
        let path = format!("{DEBIAN_AMD64}-modules/{name}.ko");
        let module = fs::read(guests_folder().join(path));
        Some((format!("mnt/{name}.ko"), module.ok()?))
    });
    let mut files = linux::module_files(DEBIAN_AMD64);
    files.extend(modules);
    linux::archive_with(linux::initramfs(DEBIAN_AMD64), &files)
}

/// Loads the modules, after those of virtio devices.
pub fn load_modules(guest: &mut Session) {
    let load = format!("for m in {MODULES}; do [ ! -e /mnt/$m.ko ] || insmod /mnt/$m.ko; done");
    assert_eq!(guest.shell(&load), "");
}

#[test]
fn disks_and_discs_at_the_controller_are_read_and_written() {
    let folder = Folder::new();
    let disk = folder.sparse_file("disk.img", DISK_BYTES);
    let read = folder.file("read.img", &[b'r'; 1 << 20]);
    let disc = folder.file("disc.iso", &[b'd'; 1 << 20]);
    let mut command = linux::run_with_modules(&folder, DEBIAN_AMD64);
    // This initramfs has more modules than the usual one, whose file it replaces.
    fs::write(folder.path("initrd.img"), initramfs()).unwrap();
    for drive in [
        format!("file={},if=scsi,discard=unmap,serial=S1", disk.display()),
        format!("file={},if=scsi,readonly=on,format=raw", read.display()),
        format!("file={},if=scsi,media=cdrom,format=raw", disc.display()),
    ] {
        command.args(["--drive", &drive]);
    }
    let mut guest = linux::boot(command);
    linux::load_modules(&mut guest);
    load_modules(&mut guest);
    guest.shell("n=0; while [ ! -e /dev/sr0 ] && [ $n -lt 100 ]; do sleep 0.1; n=$((n+1)); done");
    // Linux looks at its disks at the same time, so their names have no order.
    for (target, name) in [(0, "w"), (1, "r")] {
        let block = format!("/sys/bus/scsi/devices/0:0:{target}:0/block");
        guest.shell(&format!("ln -s /sys/block/$(ls {block}) /sys-{name}"));
        guest.shell(&format!("ln -s /dev/$(ls {block}) /disk-{name}"));
    }
    assert_eq!(guest.shell("cat /sys-w/size"), "49152");
    assert_eq!(guest.shell("cat /sys-w/ro /sys-r/ro"), "0\n1");
    assert_eq!(guest.shell("cat /sys-w/device/vpd_pg80 | tail -c 2"), "S1");
    // More than a page, with and without the guest's cache, and a flush.
    guest.shell("seq 1 300000 > /tmp/n; dd if=/tmp/n of=/disk-w bs=64k seek=3 2>/dev/null; sync");
    guest.shell("dd if=/tmp/n of=/disk-w bs=512k count=2 seek=8 oflag=direct 2>/dev/null");
    let numbers: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    let content = fs::read(&disk).unwrap();
    assert!(content[3 << 16..][..numbers.len()] == *numbers.as_bytes());
    assert!(content[4 << 20..][..1 << 20] == numbers.as_bytes()[..1 << 20]);
    guest.shell("echo 3 > /proc/sys/vm/drop_caches");
    let same = "dd if=/disk-w bs=64k skip=3 2>/dev/null | head -c $(wc -c < /tmp/n) | cmp - /tmp/n";
    assert_eq!(guest.shell(&format!("{same} && echo same")), "same");
    // A partition, and a file system on it.
    guest.shell("printf 'n\\np\\n1\\n\\n\\nw\\n' | fdisk /disk-w >/dev/null 2>&1");
    assert_eq!(guest.shell("ls -d /sys-w/sd?1 | wc -l"), "1");
    // Discarded blocks are zeros again.
    guest.shell("blkdiscard -o 4194304 -l 1048576 /disk-w; sync");
    let mut part = vec![1; 1 << 20];
    let file = fs::File::open(&disk).unwrap();
    file.read_exact_at(&mut part, 4 << 20).unwrap();
    assert!(part.iter().all(|byte| *byte == 0));
    // What is only read, and what is not there.
    assert_eq!(
        guest.shell("head -c 3 /disk-r; head -c 3 /dev/sr0"),
        "rrrddd"
    );
    assert_eq!(
        guest.shell("dd if=/dev/sr0 bs=2k 2>/dev/null | wc -c"),
        "1048576"
    );
    let refused = guest.shell("(echo x > /disk-r) 2>&1 | grep -c .");
    assert_eq!(refused, "1");
    assert_eq!(
        guest.shell("dd if=/disk-w bs=512 skip=49152 2>/dev/null | wc -c"),
        "0"
    );
    // A reset of the unit, while it is used.
    guest.shell("dd if=/disk-w of=/dev/null bs=1M 2>/dev/null & echo - - - > /sys/class/scsi_host/host0/scan; wait");
    linux::assert_untroubled(&mut guest);
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
    assert!(fs::read(&read).unwrap() == [b'r'; 1 << 20]);
}
