//! The disk C: of DOS guests, with one partition, made here and read here.

use crate::nameless_file::NamelessFile;
use fatfs::{FatType, FileSystem, FormatVolumeOptions, FsOptions, format_volume};
use std::io::{self, Cursor, Read, Write};
use std::path::PathBuf;

const SECTOR: usize = 512;
/// The geometry of the machine's disks.
const HEADS: usize = 16;
const SECTORS_PER_TRACK: usize = 63;
const CYLINDERS: usize = 16;
const SECTORS: usize = CYLINDERS * HEADS * SECTORS_PER_TRACK;
/// The partition starts after the first track.
const FIRST: usize = SECTORS_PER_TRACK;
/// Large enough that tables of 12 bits suffice, which every DOS since the first hard disks
/// supports.
const CLUSTER_BYTES: u32 = 2048;
/// The type of a partition with such tables.
const FAT_12: u8 = 0x01;
/// The code for a hard disk in the file system's media descriptor.
const HARD_DISK: u8 = 0xf8;
/// Offset in the boot sector of the number of sectors before the partition.
const HIDDEN_SECTORS: usize = 0x1c;
/// Offset of the partition table in the first sector of a disk.
const PARTITIONS: usize = 0x1be;

/// A disk image in a temporary file, which is deleted when this value is dropped.
pub struct Disk(NamelessFile);

impl Disk {
    /// Makes a disk with these files; names have eight letters and three.
    ///
    /// # Errors
    ///
    /// The host refuses a file.
    pub fn with(files: &[(&str, &[u8])]) -> io::Result<Self> {
        let mut disk = vec![0; SECTORS * SECTOR];
        partition_table(&mut disk);
        let volume = &mut disk[FIRST * SECTOR..];
        let options = FormatVolumeOptions::new()
            .fat_type(FatType::Fat12)
            .bytes_per_cluster(CLUSTER_BYTES)
            .media(HARD_DISK)
            .drive_num(0x80)
            .heads(HEADS as u16)
            .sectors_per_track(SECTORS_PER_TRACK as u16)
            .volume_label(*b"TOLLGATE   ");
        format_volume(Cursor::new(&mut *volume), options)?;
        volume[HIDDEN_SECTORS..][..4].copy_from_slice(&(FIRST as u32).to_le_bytes());
        let system = FileSystem::new(Cursor::new(volume), FsOptions::new())?;
        for (name, content) in files {
            let mut file = system.root_dir().create_file(name)?;
            file.write_all(content)?;
            file.flush()?;
        }
        system.unmount()?;
        NamelessFile::with(&disk).map(Self)
    }

    /// A path of the disk that is valid in this process.
    pub fn path(&self) -> PathBuf {
        self.0.path()
    }

    /// The present content of a file.
    ///
    /// # Errors
    ///
    /// It does not exist, or the file system is damaged.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut disk = std::fs::read(self.path())?;
        let volume = Cursor::new(&mut disk[FIRST * SECTOR..]);
        let system = FileSystem::new(volume, FsOptions::new())?;
        let mut content = Vec::new();
        system
            .root_dir()
            .open_file(name)?
            .read_to_end(&mut content)?;
        Ok(content)
    }
}

/// Writes a table with one partition up to the end of the disk; its first sector contains no boot
/// code.
fn partition_table(disk: &mut [u8]) {
    // Head, then sector with the high bits of the cylinder, then cylinder.
    let place = |sector: usize| {
        let (track, number) = (sector / SECTORS_PER_TRACK, sector % SECTORS_PER_TRACK);
        let (cylinder, head) = (track / HEADS, track % HEADS);
        [
            head as u8,
            (number + 1) as u8 | (cylinder >> 8 << 6) as u8,
            cylinder as u8,
        ]
    };
    let entry = &mut disk[PARTITIONS..][..16];
    entry[1..4].copy_from_slice(&place(FIRST));
    entry[4] = FAT_12;
    entry[5..8].copy_from_slice(&place(SECTORS - 1));
    entry[8..12].copy_from_slice(&(FIRST as u32).to_le_bytes());
    entry[12..].copy_from_slice(&((SECTORS - FIRST) as u32).to_le_bytes());
    disk[SECTOR - 2..SECTOR].copy_from_slice(&[0x55, 0xaa]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_its_files() {
        let long = vec![7; 5000];
        let disk = Disk::with(&[("ONE.TXT", b"text"), ("TWO.BIN", &long)]).unwrap();
        assert_eq!(disk.read("ONE.TXT").unwrap(), b"text");
        assert_eq!(disk.read("TWO.BIN").unwrap(), long);
        assert!(disk.read("THREE.TXT").is_err());
        let bytes = std::fs::read(disk.path()).unwrap();
        assert_eq!(bytes.len(), 16 * 16 * 63 * 512);
        assert_eq!(&bytes[0x1be..][..8], &[0, 1, 1, 0, 1, 15, 63, 15]);
        // Names of eight letters and three need no additional entries, which an old DOS does not
        // know.
        let root = bytes.windows(11).filter(|name| name == b"ONE     TXT");
        assert_eq!(root.count(), 1);
    }
}
