//! Tests `tollgate exec --image`: a root on a disk image, whole or partitioned, whose changes are
//! discarded or kept, and which is left clean.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::exec::{Place, text};
use crate::support::{GUEST_PATIENCE, PATIENCE, finish, signal, tollgate};
use tollgate_disk::DriveOptions;

const MIB: u64 = 1 << 20;
const SECTOR: u64 = 512;
/// The offset of the first partition, and the length of each, in MiB.
const PARTITION_MIB: u64 = 16;

/// A program of e2fsprogs, which may not be in an ordinary user's PATH.
fn e2fs(program: &str) -> Command {
    let folders = ["/usr/sbin", "/sbin", "/usr/bin"];
    let paths = folders.map(|folder| Path::new(folder).join(program));
    let path = paths.into_iter().find(|path| path.exists());
    Command::new(path.unwrap_or_else(|| panic!("no {program}: install e2fsprogs")))
}

/// Makes an ext4 file system with the content of a folder at an offset in a file.
fn make_file_system(file: &Path, folder: &Path, at_mib: u64) {
    let offset = format!("offset={}", at_mib * MIB);
    let mut command = e2fs("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-E", &offset, "-d"]);
    command.arg(folder).arg(file);
    command.arg(format!("{PARTITION_MIB}M"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Expects that the file system at this offset was unmounted and has no defect.
#[track_caller]
fn assert_clean(file: &Path, at_mib: u64) {
    let place = format!("{}?offset={}", file.display(), at_mib * MIB);
    let output = e2fs("e2fsck").args(["-f", "-n", &place]).output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        !said.contains("recovering") && !said.contains("journal replay"),
        "{said}"
    );
    let output = e2fs("dumpe2fs").args(["-h", &place]).output();
    let header = text(&output.unwrap().stdout);
    assert!(!header.contains("needs_recovery"), "{header}");
}

/// Runs `tollgate image` with these words and returns its output.
fn image_tool(words: &[&str]) -> String {
    let output = finish(tollgate().arg("image").args(words), PATIENCE);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// An image that consists of a file system with the root of the place.
fn whole_disk(place: &Place) -> PathBuf {
    fs::write(place.root.join("etc/os-release"), "NAME=busybox\n").unwrap();
    let path = place.folder.path("disk.img");
    make_file_system(&path, &place.root, 0);
    path
}

/// A qcow2 image with the content of [`whole_disk`].
fn qcow2(place: &Place) -> PathBuf {
    let raw = whole_disk(place);
    let path = place.folder.path("disk.qcow2");
    let words = ["convert", "-O", "qcow2", raw.to_str().unwrap()];
    image_tool(&[&words[..], &[path.to_str().unwrap()]].concat());
    path
}

/// An image with three partitions: one with other files, one without a file system, and the root.
fn partitioned(place: &Place, table: fn(&fs::File, u64)) -> PathBuf {
    let path = place.folder.path("parts.img");
    let other = place.folder.path("boot");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("vmlinuz"), "x").unwrap();
    let file = fs::File::create(&path).unwrap();
    file.set_len((2 + 3 * PARTITION_MIB) * MIB).unwrap();
    table(&file, (2 + 3 * PARTITION_MIB) * MIB / SECTOR);
    make_file_system(&path, &other, start(0));
    make_file_system(&path, &place.root, start(2));
    path
}

/// The offset of a partition in MiB.
fn start(index: u64) -> u64 {
    1 + index * PARTITION_MIB
}

/// Writes a master boot record: entries of 16 bytes from byte 446 on, with type, first sector and
/// count.
fn mbr(file: &fs::File, _sectors: u64) {
    for index in 0..3 {
        let mut entry = [0; 16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&((start(index) * MIB / SECTOR) as u32).to_le_bytes());
        entry[12..].copy_from_slice(&((PARTITION_MIB * MIB / SECTOR) as u32).to_le_bytes());
        file.write_all_at(&entry, 446 + 16 * index).unwrap();
    }
    file.write_all_at(&[0x55, 0xaa], 510).unwrap();
}

fn crc32(bytes: &[u8]) -> [u8; 4] {
    let mut sum = flate2::Crc::new();
    sum.update(bytes);
    sum.sum().to_le_bytes()
}

/// Writes a table of GUID partitions (UEFI specification, 5.3) without its second copy, and the
/// protective master boot record.
fn gpt(file: &fs::File, sectors: u64) {
    let mut protective = [0; 16];
    protective[4] = 0xee;
    protective[8] = 1;
    protective[12..].copy_from_slice(&(sectors as u32 - 1).to_le_bytes());
    file.write_all_at(&protective, 446).unwrap();
    file.write_all_at(&[0x55, 0xaa], 510).unwrap();
    let mut entries = vec![0; 128 * 128];
    for index in 0..3 {
        let entry = &mut entries[128 * index as usize..];
        entry[..16].fill(0x11);
        entry[16..32].fill(0x20 + index as u8);
        let first = start(index) * MIB / SECTOR;
        let last = start(index + 1) * MIB / SECTOR - 1;
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
    }
    let mut header = [0; 92];
    header[..12].copy_from_slice(b"EFI PART\0\0\x01\0");
    header[12..16].copy_from_slice(&92u32.to_le_bytes());
    for (offset, sector) in [
        (24, 1),
        (32, sectors - 1),
        (40, 34),
        (48, sectors - 34),
        (72, 2),
    ] {
        header[offset..offset + 8].copy_from_slice(&sector.to_le_bytes());
    }
    header[56..72].fill(0x33);
    header[80..84].copy_from_slice(&128u32.to_le_bytes());
    header[84..88].copy_from_slice(&128u32.to_le_bytes());
    header[88..92].copy_from_slice(&crc32(&entries));
    let sum = crc32(&header);
    header[16..20].copy_from_slice(&sum);
    file.write_all_at(&header, SECTOR).unwrap();
    file.write_all_at(&entries, 2 * SECTOR).unwrap();
}

#[test]
fn changes_are_forgotten_and_the_image_stays_as_it_is() {
    let place = Place::new();
    for path in [qcow2(&place), place.folder.path("disk.img")] {
        let before = fs::read(&path).unwrap();
        let flags = ["--image", path.to_str().unwrap()];
        let script = "cat /etc/os-release; echo new > /etc/os-release; cat /etc/os-release; pwd; \
            echo here > file; id -u";
        let here = place.here.display();
        let expected = format!("NAME=busybox\nnew\n{here}\n0\n");
        assert_eq!(place.answer(&flags, script), expected);
        assert!(fs::read(&path).unwrap() == before, "{path:?}");
        // The current directory is the host's.
        assert_eq!(
            fs::read_to_string(place.here.join("file")).unwrap(),
            "here\n"
        );
        assert_eq!(place.script(&flags, "exit 9").status.code(), Some(9));
    }
}

#[test]
fn changes_last_and_the_file_system_is_clean() {
    let place = Place::new();
    for (path, is_qcow2) in [
        (qcow2(&place), true),
        (place.folder.path("disk.img"), false),
    ] {
        let path = path.to_str().unwrap();
        let image = format!("{path},rw");
        let flags = ["--image", &image];
        // A program that still writes does not delay the end.
        let script = "echo new > /etc/os-release; (while true; do echo x; done) > /etc/rest & \
            sleep 0.2; exit 4";
        let output = place.script(&flags, script);
        assert_eq!(
            (text(&output.stderr), output.status.code()),
            (String::new(), Some(4))
        );
        let raw = place.folder.path("copy.img");
        if is_qcow2 {
            image_tool(&["check", path]);
            image_tool(&["convert", "-O", "raw", path, raw.to_str().unwrap()]);
            assert_clean(&raw, 0);
            fs::remove_file(&raw).unwrap();
        } else {
            assert_clean(Path::new(path), 0);
        }
        let script = "cat /etc/os-release; test -s /etc/rest && echo rest";
        assert_eq!(place.answer(&["--image", path], script), "new\nrest\n");
        let output = finish(&mut place.exec(&flags, &["none"]), GUEST_PATIENCE);
        assert_eq!(output.status.code(), Some(127));
        if !is_qcow2 {
            assert_clean(Path::new(path), 0);
        }
    }
}

#[test]
fn the_partition_with_the_root_is_found() {
    for table in [mbr, gpt] {
        let place = Place::new();
        let path = partitioned(&place, table);
        let path = path.to_str().unwrap();
        let script = "echo x > /etc/found; cat /etc/found";
        assert_eq!(place.answer(&["--image", path], script), "x\n");
        let image = format!("{path},partition=3,rw");
        assert_eq!(place.answer(&["--image", &image], script), "x\n");
        for partition in [0, 2] {
            assert_clean(Path::new(path), start(partition));
        }
        for (partition, why) in [
            (1, "no such command"),
            (2, "partition 2 of the image is not ext2, ext3 or ext4"),
            (4, "no partition 4; it has partitions 1, 2, 3"),
        ] {
            let image = format!("{path},partition={partition}");
            let output = place.script(&["--image", &image], "true");
            let errors = text(&output.stderr);
            assert!(
                errors.contains(why) && errors.lines().count() == 1,
                "{errors}"
            );
        }
    }
}

#[test]
fn what_a_killed_machine_left_is_recovered() {
    let place = Place::new();
    let path = whole_disk(&place);
    let path = path.to_str().unwrap();
    let image = format!("{path},rw");
    // The file is in the journal at the latest when `sync` has returned.
    let script = "echo kept > /etc/kept; sync; echo ready; sleep 1000";
    let mut command = place.exec(&["--image", &image], &["sh", "-c", script]);
    command.stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    signal(child.id(), libc::SIGKILL);
    child.wait().unwrap();
    // The file is there, even without a change of the image.
    assert_eq!(place.answer(&["--image", path], "cat /etc/kept"), "kept\n");
    assert_eq!(
        place.answer(&["--image", &image], "cat /etc/kept"),
        "kept\n"
    );
    assert_clean(Path::new(path), 0);
}

#[test]
fn the_name_server_is_this_guest_s_alone() {
    let place = Place::new();
    fs::write(place.root.join("etc/resolv.conf"), "nameserver 192.0.2.1\n").unwrap();
    let path = whole_disk(&place);
    let image = format!("{},rw", path.display());
    let flags = ["--image", &image, "--net"];
    assert_eq!(
        place.answer(&flags, "cat /etc/resolv.conf"),
        "nameserver 10.0.2.3\n"
    );
    let flags = ["--image", &image];
    assert_eq!(
        place.answer(&flags, "cat /etc/resolv.conf"),
        "nameserver 192.0.2.1\n"
    );
}

#[test]
fn each_refusal_of_an_image_is_one_line() {
    let place = Place::new();
    let zeros = place.folder.sparse_file("zeros.img", 4 * MIB);
    let wrong = place.folder.file("wrong.qcow2", &[1; 4096]);
    let used = place.folder.sparse_file("used.img", 4 * MIB);
    let _owner = tollgate_disk::open(&DriveOptions::new(&used)).unwrap();
    let (empty, wrong) = (zeros.display().to_string(), wrong.display().to_string());
    let used = used.display().to_string();
    for (image, why) in [
        ("none.img", "no such file"),
        ("/", "it is a folder"),
        (&*wrong, "cannot use disk image"),
        (&*empty, "no root file system found on the image"),
        (&*used, "another virtual machine writes it"),
        (&*format!("{used},rw"), "another virtual machine uses it"),
        ("a,partition=0", "expected a number from 1"),
    ] {
        let output = place.script(&["--image", image], "true");
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{errors}");
        assert!(
            errors.contains(why) && errors.lines().count() == 1,
            "{errors}"
        );
    }
    let output = place.script(&["--image", "a", "--root", "/"], "true");
    assert!(
        text(&output.stderr).contains("cannot be used with"),
        "{}",
        text(&output.stderr)
    );
}
