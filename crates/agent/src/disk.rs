//! Mounts a root on a disk: finds it by its contents, and leaves it clean.
//!
//! The kernel reads the partition table (MBR or GPT) and makes a device for each partition. Only
//! the beginnings of the file systems are read here.

use crate::refusal::Refusal;
use crate::root::mount;
use crate::sys::{self, MS_RDONLY, MS_REMOUNT};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// The only disk, and the folder where the kernel lists its partitions.
const DISK: &str = "/dev/vda";
const DISK_FOLDER: &str = "/sys/block/vda";

/// The file system, and its magic number: `s_magic` of the superblock, which begins at byte 1024.
/// The driver ext4 also supports ext2 and ext3, which have the same magic number (the kernel's
/// Documentation/filesystems/ext4/super.rst).
const KIND: &str = "ext4";
const MARK: [u8; 2] = 0xef53_u16.to_le_bytes();
const MARK_AT: u64 = 1024 + 0x38;

/// How often, and after which time, a file system that is still in use is tried again.
const TRIES: u32 = 100;
const RETRY: Duration = Duration::from_millis(50);

const SIGKILL: i32 = 9;

/// Mounts the root: the partition with this number, or the first one with a system, or the disk
/// itself if it has a file system.
pub fn mount_root(partition: Option<u32>, target: &str, is_writable: bool) -> Result<(), Refusal> {
    if !Path::new(DISK_FOLDER).is_dir() {
        return Err(Refusal::own(
            "the guest has no disk; the kernel needs the driver virtio_blk: give its modules with \
             --modules",
        ));
    }
    let partitions = partitions();
    let device = match partition {
        Some(number) if !partitions.contains(&number) => {
            let has = list(&partitions);
            let why = format!("the image has no partition {number}; it has {has}");
            return Err(Refusal::own(why));
        }
        Some(number) if !has_file_system(&device_of(number)) => {
            let why = format!("partition {number} of the image is not ext2, ext3 or ext4");
            return Err(Refusal::own(why));
        }
        Some(number) => device_of(number),
        None => find_root(&partitions, target)?,
    };
    mount(
        &device,
        target,
        KIND,
        if is_writable { 0 } else { MS_RDONLY },
        "",
    )
}

/// Returns the device with the root.
fn find_root(partitions: &[u32], target: &str) -> Result<String, Refusal> {
    let mut devices: Vec<String> = partitions.iter().copied().map(device_of).collect();
    devices.insert(0, DISK.into());
    devices.retain(|device| has_file_system(device));
    if devices.is_empty() {
        return Err(Refusal::own(format!(
            "no root file system found on the image: no ext2, ext3 or ext4 on the disk itself, and \
             it has {}",
            list(partitions)
        )));
    }
    for device in &devices {
        // The journal is not replayed, because this may not be the root that the guest uses.
        mount(device, target, KIND, MS_RDONLY, "noload")?;
        let has_system = looks_like_root(Path::new(target));
        sys::unmount(target)
            .map_err(|error| Refusal::own(format!("cannot unmount {device}: {error}")))?;
        if has_system {
            return Ok(device.clone());
        }
    }
    Err(Refusal::own(format!(
        "no root file system found on the image: none of its file systems has /etc, and /bin or \
         /usr; it has {}",
        list(partitions)
    )))
}

fn looks_like_root(folder: &Path) -> bool {
    let has = |name: &str| fs::symlink_metadata(folder.join(name)).is_ok();
    has("etc") && (has("bin") || has("usr"))
}

/// Returns the numbers of the disk's partitions, in order.
fn partitions() -> Vec<u32> {
    let entries = fs::read_dir(DISK_FOLDER).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| {
            let number = fs::read_to_string(entry.path().join("partition")).ok()?;
            number.trim().parse().ok()
        })
        .collect();
    numbers.sort_unstable();
    numbers
}

fn device_of(partition: u32) -> String {
    format!("{DISK}{partition}")
}

/// Lists the partitions in words.
fn list(partitions: &[u32]) -> String {
    let numbers: Vec<String> = partitions.iter().map(u32::to_string).collect();
    match &numbers[..] {
        [] => "no partitions".into(),
        [number] => format!("partition {number}"),
        numbers => format!("partitions {}", numbers.join(", ")),
    }
}

fn has_file_system(device: &str) -> bool {
    let mut mark = [0; MARK.len()];
    let read = File::open(device).and_then(|file| file.read_exact_at(&mut mark, MARK_AT));
    read.is_ok() && mark == MARK
}

/// Ends all other processes, and makes the root read-only, which writes everything to the disk and
/// marks the file system as clean.
pub fn finish() -> Result<(), Refusal> {
    sys::send_signal(-1, SIGKILL);
    while sys::wait_for_child().is_some() {}
    // Mounts above the root may have open files of it, such as a file that is mounted as a disk.
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for line in mounts.lines().rev() {
        if let Some(place) = line.split(' ').nth(1)
            && place != "/"
        {
            let _ = sys::unmount(unescape(place));
        }
    }
    let mut tries = 0;
    loop {
        match sys::mount_at("", "/", "", MS_REMOUNT | MS_RDONLY, "") {
            Ok(()) => break,
            // A process that is still ending may close its files late.
            Err(_) if tries < TRIES => std::thread::sleep(RETRY),
            Err(error) => return Err(not_clean(&error)),
        }
        tries += 1;
    }
    sys::write_out();
    Ok(())
}

fn not_clean(error: &io::Error) -> Refusal {
    Refusal::own(format!(
        "the image could not be unmounted ({error}): its file system is left as by a power cut"
    ))
}

/// Decodes a path of /proc/mounts, where blanks and similar characters are octal numbers after a
/// backslash (fstab(5)).
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) if code.is_ascii() => {
                path.push(code.into());
                path.push_str(&part[3..]);
            }
            _ => {
                path.push('\\');
                path.push_str(part);
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mounts_are_read_as_they_were_meant() {
        for (text, path) in [
            ("/a", "/a"),
            (r"/a\040b\134c", r"/a b\c"),
            (r"/a\x\9", r"/a\x\9"),
        ] {
            assert_eq!(unescape(text), path);
        }
    }

    #[test]
    fn partitions_are_listed_in_words() {
        assert_eq!(list(&[]), "no partitions");
        assert_eq!(list(&[3]), "partition 3");
        assert_eq!(list(&[1, 14]), "partitions 1, 14");
    }
}
