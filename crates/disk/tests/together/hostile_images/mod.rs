//! Tests with qcow2 images that are damaged, encrypted or malicious: each is refused in one line,
//! or used without being harmed. `qemu-img check` agrees at the end.

mod named_files;
mod random_damage;

use crate::support::{Folder, qemu_img};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tollgate_disk::{
    Backing, Copy, DriveOptions, Encryption, Format, Repair, check, convert, create, create_over,
    info, open,
};

const CLUSTER: u64 = 65_536;
const SIZE: u64 = 8 << 20;
const COPIED: u64 = 1 << 63;

/// A sound image with data in its first mebibyte, and the offsets of its tables.
struct Sound {
    bytes: Vec<u8>,
    l1: u64,
    l2: u64,
    refcount_table: u64,
    refcount_block: u64,
    path: PathBuf,
}

impl Sound {
    fn new(folder: &Folder) -> Self {
        let path = folder.path("sound.qcow2");
        create(&path, Format::Qcow2, SIZE).unwrap();
        let image = open(&DriveOptions::new(&path)).unwrap();
        image.write(0, &vec![0x41; 1 << 20]).unwrap();
        image.close().unwrap();
        let bytes = fs::read(&path).unwrap();
        let word = |at: u64| be64(&bytes, at) & 0x00ff_ffff_ffff_fe00;
        let (l1, refcount_table) = (word(40), word(48));
        Self {
            l1,
            l2: word(l1),
            refcount_table,
            refcount_block: word(refcount_table),
            bytes,
            path: folder.path("damaged.qcow2"),
        }
    }

    /// Writes the image with other values at some offsets.
    fn with(&self, edits: &[(u64, Vec<u8>)]) -> &Path {
        let mut bytes = self.bytes.clone();
        for (offset, value) in edits {
            bytes[*offset as usize..][..value.len()].copy_from_slice(value);
        }
        fs::write(&self.path, bytes).unwrap();
        &self.path
    }
}

/// Makes a qcow2 image with qemu-img, with options that [`create`] does not have.
#[track_caller]
fn create_by_qemu(path: &Path, options: &str, size: &str) {
    let (is_done, text) = qemu_img(&[
        &"create", &"-q", &"-f", &"qcow2", &"-o", &options, &path, &size,
    ]);
    assert!(is_done, "{text}");
}

fn be64(bytes: &[u8], at: u64) -> u64 {
    u64::from_be_bytes(bytes[at as usize..][..8].try_into().unwrap())
}

fn word(at: u64, value: u64) -> (u64, Vec<u8>) {
    (at, value.to_be_bytes().to_vec())
}

fn half(at: u64, value: u32) -> (u64, Vec<u8>) {
    (at, value.to_be_bytes().to_vec())
}

/// Returns the ways to use an image: written, only read, and with its writes discarded.
fn ways(path: &Path) -> [DriveOptions; 3] {
    let options = DriveOptions::new(path);
    let mut read = options.clone();
    read.readonly = true;
    let mut forgotten = options.clone();
    forgotten.snapshot = true;
    [options, read, forgotten]
}

fn refusal(options: &DriveOptions) -> String {
    let Err(error) = open(options) else {
        panic!("{options:?} was opened");
    };
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    line
}

/// Copies the disk of an image to a raw image. Returns why that fails if it does.
fn copied(source: &Path, backing: Backing) -> Result<Vec<u8>, String> {
    let target = source.with_file_name("copy.img");
    let copy = Copy {
        source,
        source_format: Some(Format::Qcow2),
        backing,
        target: &target,
        target_format: Format::Raw,
        replace: true,
    };
    convert(&copy, |_, _| {}).map_err(|error| error.to_string())?;
    Ok(fs::read(target).unwrap())
}

fn damage(path: &Path) -> Result<u64, String> {
    let report = check(path, Repair::Nothing, |_| {});
    report
        .map(|report| report.damage)
        .map_err(|error| error.to_string())
}

#[test]
fn a_header_that_cannot_be_understood_is_refused_by_every_way_in() {
    let folder = Folder::new();
    let sound = Sound::new(&folder);
    for (edit, why) in [
        (word(24, 1 << 62), "larger than qcow2 allows"),
        (word(24, 1 << 43), "its disk needs 16384"),
        (half(36, 0), "its L1 table has 0 entries"),
        (half(36, 5 << 20), "L1 table is larger"),
        (
            half(36, 1 << 20),
            "its L1 table at 0x30000 is not in the file",
        ),
        (word(40, 0), "its L1 table at 0x0 is not in the file"),
        (word(40, 1), "its L1 table does not begin with a cluster"),
        (word(40, 1 << 50), "is not in the file"),
        (word(48, 0), "its table of reference counts at 0x0"),
        (word(48, u64::MAX - 0xffff), "is not in the file"),
        (half(56, 0), "no table of reference counts"),
        (half(56, 1 << 20), "table of reference counts is larger"),
        (
            half(60, 1),
            "its table of snapshots at 0x0 is not in the file",
        ),
        (half(60, 1 << 20), "more snapshots"),
        (half(20, 8), "cluster size"),
        (half(20, 64), "cluster size"),
        (half(4, 4), "version 4 is unknown"),
        (half(32, 3), "encryption method 3"),
        (half(32, 2), "LUKS"),
        (half(96, 7), "more than 64 bits"),
        (half(100, 1 << 20), "it says that it has"),
        (half(100, 80), "it says that it has"),
        (half(108, u32::MAX), "extension is longer"),
        (word(72, 1 << 5), "unknown here (bits 0x20)"),
        (word(72, 1 << 63 | 1), "unknown here (bits 0x8"),
    ] {
        let path = sound.with(&[edit]);
        for options in ways(path) {
            assert!(
                refusal(&options).contains(why),
                "{why}: {}",
                refusal(&options)
            );
        }
        for line in [
            info(path, None, false).unwrap_err().to_string(),
            copied(path, Backing::Any).unwrap_err(),
            damage(path).unwrap_err(),
        ] {
            assert!(line.contains(why), "{why}: {line}");
        }
    }
}

#[test]
fn an_encrypted_image_is_shown_and_not_used() {
    let folder = Folder::new();
    let sound = Sound::new(&folder);
    let aes = sound.with(&[half(32, 1)]).to_owned();
    let luks = folder.path("luks.qcow2");
    let create = || {
        qemu_img(&[
            &"create",
            &"-q",
            &"--object",
            &"secret,id=key,data=password",
            &"-f",
            &"qcow2",
            &"-o",
            &"encrypt.format=luks,encrypt.key-secret=key,encrypt.iter-time=10",
            &luks,
            &"1M",
        ])
    };
    // It measures how fast it derives keys, which it gives up on a host that is busy just then.
    let is_over = |(is_done, text): &(bool, String)| *is_done || !text.contains("CPU usage");
    let mut tries = (0..50).map(|_| create());
    let (is_done, text) = tries.find(is_over).expect("the host is always busy");
    assert!(is_done, "{text}");
    for (path, encryption) in [(aes, Encryption::Aes), (luks, Encryption::Luks)] {
        let before = fs::read(&path).unwrap();
        for options in ways(&path) {
            let line = refusal(&options);
            assert!(line.contains("it is encrypted"), "{line}");
        }
        assert!(
            copied(&path, Backing::Any)
                .unwrap_err()
                .contains("encrypted")
        );
        assert!(damage(&path).unwrap_err().contains("encrypted"));
        let info = info(&path, None, false).unwrap().qcow2.unwrap();
        assert_eq!(info.encryption, Some(encryption));
        assert!(fs::read(&path).unwrap() == before);
    }
}

#[test]
fn what_imago_does_not_know_is_refused_with_a_way_out() {
    let folder = Folder::new();
    for (option, why) in [
        ("compression_type=zstd", "zstd"),
        ("extended_l2=on", "extended L2"),
    ] {
        let path = folder.path("other.qcow2");
        create_by_qemu(&path, option, "1M");
        for options in ways(&path) {
            let line = refusal(&options);
            assert!(
                line.contains(why) && line.contains("qemu-img convert"),
                "{line}"
            );
        }
        assert!(copied(&path, Backing::Any).unwrap_err().contains(why));
        assert_eq!(damage(&path), Ok(0));
    }
}

#[test]
fn tables_that_writes_could_destroy_are_not_written() {
    let folder = Folder::new();
    let sound = Sound::new(&folder);
    let Sound {
        l1,
        l2,
        refcount_table,
        refcount_block,
        ..
    } = sound;
    let data = be64(&sound.bytes, l2);
    let zeros = vec![0; CLUSTER as usize];
    for (edits, why) in [
        // Allocations would take the clusters of the header, tables and data.
        (
            vec![word(refcount_block, 0)],
            "cluster 0 is counted 0 times",
        ),
        (
            vec![(refcount_block, zeros)],
            "cluster 0 is counted 0 times",
        ),
        (
            vec![word(refcount_table, 0)],
            "cluster 0 is counted 0 times",
        ),
        // A guest would write tables.
        (
            vec![word(l2, COPIED | l2)],
            "is counted 1 times, but used 2 times",
        ),
        (
            vec![word(l2, COPIED | refcount_table)],
            "used as something else",
        ),
        (
            vec![word(l2, COPIED | refcount_block)],
            "used as something else",
        ),
        (vec![word(l2, COPIED | l1)], "used as something else"),
        // Its count says that it is shared, but it is written in place.
        (
            vec![
                word(l2, l1),
                (refcount_block + 2 * (l1 / CLUSTER), vec![0, 2]),
            ],
            "an L1 table in cluster 3 is also used as something else",
        ),
        (vec![word(l1, COPIED | data)], "a compressed cluster at"),
        (
            vec![word(l1, COPIED | refcount_block)],
            "used as something else",
        ),
        (vec![word(refcount_table, l2)], "used as something else"),
        (
            vec![word(refcount_table, 1 << 50)],
            "a block of counts at 0x4000000000000 is not in",
        ),
        (
            vec![word(refcount_table, refcount_block | 1)],
            "reserved bits that are set",
        ),
        (
            vec![word(refcount_table, refcount_block + 512)],
            "does not begin with a cluster",
        ),
        (vec![word(40, l2)], "a compressed cluster at"),
        (vec![word(48, l2)], "a block of counts"),
        (vec![word(l1, 0)], ""),
        // Two clusters of the disk would be the same cluster.
        (
            vec![word(l2 + 8, data)],
            "is counted 1 times, but used 2 times",
        ),
        // Bits and offsets that are not allowed.
        (
            vec![word(l2, COPIED | 5 << 57 | 0x5_0000)],
            "reserved bits that are set",
        ),
        (vec![word(l2, data | 1 << 62)], "reserved bits that are set"),
        (
            vec![word(l1, COPIED | l2 | 1)],
            "reserved bits that are set",
        ),
        (vec![word(l2, data + 512)], "does not begin with a cluster"),
        (
            vec![word(l2, COPIED | 1 << 50)],
            "a data cluster at 0x4000000000000 is not in",
        ),
        (
            vec![word(l1, COPIED | (l2 + 512))],
            "does not begin with a cluster",
        ),
        (vec![word(l2, 1 << 62 | 1 << 45)], "a compressed cluster at"),
    ] {
        let path = sound.with(&edits).to_owned();
        let before = fs::read(&path).unwrap();
        let [written, read, forgotten] = ways(&path);
        if why.is_empty() {
            // The edit makes clusters leak and does no other harm, so the image can be opened for
            // writing.
            open(&written).unwrap().close().unwrap();
            continue;
        }
        let line = refusal(&written);
        assert!(
            line.contains(why) || line.contains(" more, which"),
            "{why}: {line}"
        );
        assert!(line.contains("qemu-img check -r all"), "{line}");
        let mut said = Vec::new();
        let report = check(&path, Repair::Nothing, |line| said.push(line)).unwrap();
        assert!(report.damage > 0);
        assert!(
            said.iter().any(|line| line.contains(why)),
            "{why}: {said:?}"
        );
        // Reading does no harm, whatever the result, and neither do writes that are discarded.
        for options in [read, forgotten] {
            let Ok(image) = open(&options) else { continue };
            let _ = image.read(0, &mut vec![0; SIZE as usize]);
            let _ = image.write(0, &[1; 512]);
            let _ = image.close();
        }
        let _ = copied(&path, Backing::Any);
        assert!(fs::read(&path).unwrap() == before, "{why}");
    }
}

#[test]
fn qemu_repairs_what_is_refused() {
    let folder = Folder::new();
    let sound = Sound::new(&folder);
    let path = sound.with(&[word(sound.refcount_block, 0)]).to_owned();
    assert!(refusal(&DriveOptions::new(&path)).contains("qemu-img check -r all"));
    let (is_done, text) = qemu_img(&[&"check", &"-r", &"all", &path]);
    assert!(is_done, "{text}");
    let image = open(&DriveOptions::new(&path)).unwrap();
    image.write(4 << 20, &[7; 4096]).unwrap();
    image.close().unwrap();
    assert!(qemu_img(&[&"check", &path]).0);
}

#[test]
fn a_table_that_a_killed_process_did_not_count_is_counted_before_the_image_is_written() {
    let folder = Folder::new();
    let sound = Sound::new(&folder);
    for table in [sound.l2, sound.refcount_block] {
        let at = sound.refcount_block + 2 * (table / CLUSTER);
        let path = sound.with(&[(at, vec![0, 0])]).to_owned();
        assert_eq!(damage(&path), Ok(1));
        let image = open(&DriveOptions::new(&path)).unwrap();
        assert_eq!(damage_while_used(&path, image), 0);
        assert!(qemu_img(&[&"check", &path]).0);
    }
    // The header, the table of counts, the L1 table and data are counted before they are used.
    let data = be64(&sound.bytes, sound.l2) & 0x00ff_ffff_ffff_fe00;
    for used in [0, sound.refcount_table, sound.l1, data] {
        let at = sound.refcount_block + 2 * (used / CLUSTER);
        let path = sound.with(&[(at, vec![0, 0])]).to_owned();
        let line = refusal(&DriveOptions::new(&path));
        assert!(
            line.contains("is counted 0 times, but used 1 times"),
            "{line}"
        );
    }
}

/// Writes to new clusters of an image and closes it. Returns the damage that a check finds
/// afterwards.
fn damage_while_used(path: &Path, image: tollgate_disk::Image) -> u64 {
    image.write(4 << 20, &[7; 200_000]).unwrap();
    image.close().unwrap();
    let image = open(&DriveOptions::new(path)).unwrap();
    let mut data = [0; 512];
    image.read(0, &mut data).unwrap();
    assert_eq!(data, [0x41; 512]);
    drop(image);
    damage(path).unwrap()
}

#[test]
fn marks_keep_an_image_from_being_written_until_it_was_looked_through() {
    let folder = Folder::new();
    let sound = Sound::new(&folder);
    for (mark, why) in [(1, "not closed cleanly"), (2, "corrupt"), (3, "corrupt")] {
        let path = sound.with(&[word(72, mark)]).to_owned();
        let [written, read, forgotten] = ways(&path);
        let line = refusal(&written);
        assert!(
            line.contains(why) && line.contains("qemu-img check -r all"),
            "{line}"
        );
        for options in [read, forgotten] {
            for cache in [tollgate_disk::Cache::Writeback, tollgate_disk::Cache::None] {
                let image = match open(&DriveOptions {
                    cache,
                    ..options.clone()
                }) {
                    Ok(image) => image,
                    // The file system of the folder does not support O_DIRECT.
                    Err(error) if error.why.contains("O_DIRECT") => continue,
                    Err(error) => panic!("{error}"),
                };
                let mut data = [0; 512];
                image.read(0, &mut data).unwrap();
                assert_eq!(data, [0x41; 512]);
            }
        }
        assert_eq!(
            copied(&path, Backing::Any).unwrap()[..1 << 20],
            [0x41; 1 << 20]
        );
        assert_eq!(damage(&path), Ok(u64::from(mark.count_ones())));
        let info = info(&path, None, false).unwrap().qcow2.unwrap();
        assert_eq!(
            (info.is_dirty, info.is_corrupt),
            (mark & 1 != 0, mark & 2 != 0)
        );
        let report = check(&path, Repair::Leaks, |line| panic!("{line}")).unwrap();
        assert_eq!(
            (report.damage, report.removed_marks),
            (0, u64::from(mark.count_ones()))
        );
        open(&written).unwrap().close().unwrap();
        assert!(qemu_img(&[&"check", &path]).0);
    }
    // The mark stays if the image has a defect.
    let path = sound
        .with(&[word(72, 1), word(sound.refcount_block, 0)])
        .to_owned();
    let report = check(&path, Repair::Leaks, |_| {}).unwrap();
    assert_eq!(report.removed_marks, 0);
    assert!(refusal(&DriveOptions::new(&path)).contains("not closed cleanly"));
}

#[test]
fn damage_below_an_image_is_only_read() {
    let folder = Folder::new();
    let sound = Sound::new(&folder);
    sound.with(&[word(72, 3)]);
    let path = folder.path("over.qcow2");
    create_over(&path, SIZE, "damaged.qcow2", Format::Qcow2).unwrap();
    let image = open(&DriveOptions::new(&path)).unwrap();
    let mut data = [0; 512];
    image.read(0, &mut data).unwrap();
    assert_eq!(data, [0x41; 512]);
    drop(image);
    sound.with(&[half(32, 1)]);
    let line = refusal(&DriveOptions::new(&path));
    assert!(line.contains("damaged.qcow2: it is encrypted"), "{line}");
}

#[test]
fn an_image_with_many_clusters_is_opened_after_a_look_at_all_its_tables() {
    let folder = Folder::new();
    let path = folder.path("many.qcow2");
    create_by_qemu(&path, "preallocation=metadata", "20G");
    let start = std::time::Instant::now();
    let image = open(&DriveOptions::new(&path)).unwrap();
    println!("opened in {:?}", start.elapsed());
    image.close().unwrap();
    // The last entry of the last table counts too.
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut table = [0; 8];
    file.read_exact_at(&mut table, 40).unwrap();
    let l1 = u64::from_be_bytes(table);
    file.read_exact_at(&mut table, l1 + 39 * 8).unwrap();
    let l2 = u64::from_be_bytes(table) & 0x00ff_ffff_ffff_fe00;
    file.write_all_at(&(COPIED | l1).to_be_bytes(), l2 + CLUSTER - 8)
        .unwrap();
    assert!(refusal(&DriveOptions::new(&path)).contains("it is damaged"));
}
