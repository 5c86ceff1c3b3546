//! Makes disks of PCs that start with GRUB.

use super::cd::made;
use super::folder::Folder;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
const GRUB: &str = "/usr/lib/grub/i386-pc/boot.img";
/// The offset of a partition's first sector in its entry.
const FIRST_SECTOR: u64 = 8;
/// The offset of the partition table in the first sector.
const TABLE: usize = 0x1be;
/// The size of an entry in bytes.
const ENTRY: usize = 16;

/// A disk that starts with GRUB and has two partitions: a FAT file system of `mib` MiB with these
/// files, by the names that they get, and with GRUB's menu; and an empty partition of 1 MiB.
pub fn grub_disk(folder: &Folder, mib: u64, files: &[(PathBuf, &str)], menu: &str) -> PathBuf {
    let disk = folder.sparse_file("disk.img", (1 + mib + 1) * MIB);
    let core = folder.path("core.img");
    let mut command = Command::new("grub-mkimage");
    command
        .args(["-O", "i386-pc", "-p", "(,msdos1)/grub", "-o"])
        .arg(&core);
    command.args(["biosdisk", "part_msdos", "fat", "normal"]);
    made(command.args(["linux", "chain", "freedos"]));
    let mut first = std::fs::read(GRUB)
        .unwrap_or_else(|error| panic!("{GRUB} (scripts/install-dependencies): {error}"));
    // The fields for floppy disks are where hard disks have their table.
    first[TABLE..0x1fe].fill(0);
    for (number, (kind, start, size)) in [(0x0e, 1, mib), (0x0e, 1 + mib, 1)].iter().enumerate() {
        let mut entry = vec![0, 0xfe, 0xff, 0xff, *kind, 0xfe, 0xff, 0xff];
        let sectors = |mib: u64| (mib * MIB / 512) as u32;
        entry.extend(sectors(*start).to_le_bytes());
        entry.extend(sectors(*size).to_le_bytes());
        first[TABLE + ENTRY * number..][..ENTRY].copy_from_slice(&entry);
    }
    first.extend(std::fs::read(core).unwrap());
    let file = OpenOptions::new().write(true).open(&disk).unwrap();
    file.write_all_at(&first, 0).unwrap();
    let menu = folder.file("grub.cfg", format!("set timeout=-1\n{menu}").as_bytes());
    let file_system = format!("{}@@1M", disk.display());
    let sectors = (mib * MIB / 512).to_string();
    made(Command::new("mformat").args(["-i", &file_system, "-T", &sectors, "::"]));
    made(Command::new("mmd").args(["-i", &file_system, "::/grub"]));
    let menu = (menu, "grub/grub.cfg");
    for (source, target) in files.iter().chain([&menu]) {
        let mut command = Command::new("mcopy");
        command.args(["-i", &file_system]).arg(source);
        made(command.arg(format!("::/{target}")));
    }
    disk
}

/// Writes to the beginning of such a disk's second partition.
pub fn write_second_partition(disk: &Path, bytes: &[u8]) {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open(disk).unwrap();
    let mut sector = [0; 4];
    let entry = (TABLE + ENTRY) as u64;
    file.read_exact_at(&mut sector, entry + FIRST_SECTOR)
        .unwrap();
    let start = u64::from(u32::from_le_bytes(sector)) * 512;
    file.write_all_at(bytes, start).unwrap();
}
