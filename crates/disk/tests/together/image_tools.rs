//! Tests of showing, checking and copying images. QEMU's own `qemu-img` decides whether an image is
//! correct.

use crate::support::{Folder, qemu_img};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use tollgate_disk::{
    Backing, CheckReport, Copy, DriveOptions, Format, Repair, check, convert, create, create_over,
    info, open,
};

const CLUSTER: u64 = 65_536;
const SIZE: u64 = 64 << 20;

/// Returns the names of all files in a folder, including hidden ones.
fn names(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(&folder.0).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn assert_same(one: &Path, other: &Path) {
    let (is_same, text) = qemu_img(&[&"compare", &one, &other]);
    assert!(is_same, "{text}");
}

fn assert_clean(path: &Path) -> CheckReport {
    let (is_clean, text) = qemu_img(&[&"check", &path]);
    assert!(is_clean, "{text}");
    let mut said = Vec::new();
    let report = check(path, Repair::Nothing, |line| said.push(line)).unwrap();
    assert_eq!((report.damage, report.leaks), (0, 0), "{said:?}");
    report
}

fn copy(source: &Path, target: &Path, target_format: Format) -> Result<(), String> {
    let copy = Copy {
        source,
        source_format: None,
        backing: Backing::Any,
        target,
        target_format,
        replace: false,
    };
    convert(&copy, |_, _| {}).map_err(|error| error.to_string())
}

/// Writes data at several offsets, including the end.
fn fill(path: &Path) {
    let image = open(&DriveOptions::new(path)).unwrap();
    for (offset, byte) in [
        (0, 1),
        (5 << 20, 2),
        ((5 << 20) + 300_000, 3),
        (40 << 20, 4),
    ] {
        image.write(offset, &[byte; 200_000]).unwrap();
    }
    image.write(SIZE - 512, &[5; 512]).unwrap();
    image.close().unwrap();
}

#[test]
fn copies_are_the_same_in_both_directions_and_sparse() {
    let folder = Folder::new();
    let (raw, qcow2) = (folder.path("a.img"), folder.path("a.qcow2"));
    create(&raw, Format::Raw, SIZE).unwrap();
    fill(&raw);
    copy(&raw, &qcow2, Format::Qcow2).unwrap();
    assert_same(&raw, &qcow2);
    let report = assert_clean(&qcow2);
    assert_eq!(report.total, SIZE / CLUSTER);
    assert!((10..20).contains(&report.allocated), "{report:?}");
    let again = folder.path("b.img");
    copy(&qcow2, &again, Format::Raw).unwrap();
    assert_same(&raw, &again);
    assert!(fs::metadata(&again).unwrap().blocks() * 512 < 2 << 20);
    assert_eq!(names(&folder), ["a.img", "a.qcow2", "b.img"]);
}

#[test]
fn a_copy_has_what_the_backing_file_has() {
    let folder = Folder::new();
    let (base, over, flat) = (
        folder.path("base.img"),
        folder.path("over.qcow2"),
        folder.path("flat.qcow2"),
    );
    create(&base, Format::Raw, SIZE).unwrap();
    fill(&base);
    create_over(&over, SIZE, "base.img", Format::Raw).unwrap();
    let image = open(&DriveOptions::new(&over)).unwrap();
    image.write(5 << 20, &[9; 100]).unwrap();
    image.close().unwrap();
    copy(&over, &flat, Format::Qcow2).unwrap();
    assert_same(&over, &flat);
    assert_clean(&flat);
    assert_eq!(
        info(&flat, None, false).unwrap().qcow2.unwrap().backing,
        None
    );
}

#[test]
fn images_of_qemu_are_read() {
    let folder = Folder::new();
    let raw = folder.path("a.img");
    create(&raw, Format::Raw, SIZE).unwrap();
    fill(&raw);
    for (number, options) in [
        "compat=0.10",
        "cluster_size=512",
        "cluster_size=2M,refcount_bits=1",
        "refcount_bits=64",
        "compression_type=zlib",
        "lazy_refcounts=on",
    ]
    .into_iter()
    .enumerate()
    {
        let qcow2 = folder.path(&format!("{number}.qcow2"));
        let compress = if options.contains("zlib") { "-c" } else { "-q" };
        let arguments: [&dyn AsRef<std::ffi::OsStr>; 8] = [
            &"convert", &compress, &"-O", &"qcow2", &"-o", &options, &raw, &qcow2,
        ];
        let (is_done, text) = qemu_img(&arguments);
        assert!(is_done, "{text}");
        assert_clean(&qcow2);
        let flat = folder.path(&format!("{number}.img"));
        copy(&qcow2, &flat, Format::Raw).unwrap();
        assert_same(&raw, &flat);
    }
}

#[test]
fn snapshots_count() {
    let folder = Folder::new();
    let qcow2 = folder.path("a.qcow2");
    create(&qcow2, Format::Qcow2, SIZE).unwrap();
    fill(&qcow2);
    for name in ["one", "two"] {
        let (is_done, text) = qemu_img(&[&"snapshot", &"-c", &name, &qcow2]);
        assert!(is_done, "{text}");
    }
    assert_clean(&qcow2);
    assert_eq!(
        info(&qcow2, None, false).unwrap().qcow2.unwrap().snapshots,
        2
    );
}

#[test]
fn leaks_are_found_and_mended() {
    let folder = Folder::new();
    let qcow2 = folder.path("a.qcow2");
    create(&qcow2, Format::Qcow2, SIZE).unwrap();
    fill(&qcow2);
    // Two clusters at the end of the file are counted but not used.
    let file = File::options().read(true).write(true).open(&qcow2).unwrap();
    let end = file.metadata().unwrap().len().div_ceil(CLUSTER);
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 48).unwrap();
    let table = u64::from_be_bytes(word);
    file.read_exact_at(&mut word, table).unwrap();
    let block = u64::from_be_bytes(word);
    file.write_all_at(&[0, 1, 0, 1], block + 2 * (end + 1))
        .unwrap();
    file.set_len((end + 3) * CLUSTER).unwrap();
    drop(file);
    let mut said = Vec::new();
    let report = check(&qcow2, Repair::Nothing, |line| said.push(line)).unwrap();
    assert_eq!((report.damage, report.leaks), (0, 2), "{said:?}");
    assert_eq!(said.len(), 2);
    let (is_clean, text) = qemu_img(&[&"check", &qcow2]);
    assert!(!is_clean && text.contains("2 leaked clusters"), "{text}");
    let report = check(&qcow2, Repair::Leaks, |line| said.push(line)).unwrap();
    assert_eq!((report.leaks, report.mended_leaks), (0, 2));
    assert_clean(&qcow2);
}

#[test]
fn damage_is_found_and_left_alone() {
    let folder = Folder::new();
    let qcow2 = folder.path("a.qcow2");
    create(&qcow2, Format::Qcow2, SIZE).unwrap();
    fill(&qcow2);
    let file = File::options().read(true).write(true).open(&qcow2).unwrap();
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 40).unwrap();
    let l1 = u64::from_be_bytes(word);
    file.read_exact_at(&mut word, l1).unwrap();
    let l2 = u64::from_be_bytes(word) & 0x00ff_ffff_ffff_fe00;
    // Two entries refer to the same cluster, and one to a cluster far beyond the end.
    file.read_exact_at(&mut word, l2).unwrap();
    file.write_all_at(&word, l2 + 8).unwrap();
    file.write_all_at(&(1_u64 << 63 | 1 << 50).to_be_bytes(), l2 + 16)
        .unwrap();
    let mut said = Vec::new();
    let report = check(&qcow2, Repair::Leaks, |line| said.push(line)).unwrap();
    assert!(report.damage >= 2, "{said:?}");
    assert!(
        said.iter().any(|line| line.contains("not in the file")),
        "{said:?}"
    );
    assert!(
        said.iter().any(|line| line.contains("used 2 times")),
        "{said:?}"
    );
    assert!(!qemu_img(&[&"check", &qcow2]).0);
}

#[test]
fn tables_of_nonsense_are_damage_or_refused() {
    let folder = Folder::new();
    let qcow2 = folder.path("a.qcow2");
    create(&qcow2, Format::Qcow2, 1 << 20).unwrap();
    let image = open(&DriveOptions::new(&qcow2)).unwrap();
    image.write(0, &[1; 512]).unwrap();
    image.close().unwrap();
    let bytes = fs::read(&qcow2).unwrap();
    let mut state = 1_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state >> 33
    };
    for _ in 0..400 {
        let mut bytes = bytes.clone();
        for _ in 0..=next() % 3 {
            // The byte is in the header, or at the beginning of any cluster.
            let cluster = next() % (bytes.len() as u64 / CLUSTER);
            let at = (cluster * CLUSTER + next() % 112) as usize;
            bytes[at] = [0, 1, 0x40, 0x7f, 0x80, 0xff][next() as usize % 6];
        }
        fs::write(&qcow2, &bytes).unwrap();
        let _ = info(&qcow2, None, false);
        let _ = check(&qcow2, Repair::Leaks, |_| {});
    }
}

#[test]
fn what_is_in_use_is_left_alone() {
    let folder = Folder::new();
    let (source, target) = (folder.path("a.qcow2"), folder.path("b.qcow2"));
    for path in [&source, &target] {
        create(path, Format::Qcow2, SIZE).unwrap();
    }
    let replacing = Copy {
        source: &source,
        source_format: None,
        backing: Backing::Any,
        target: &target,
        target_format: Format::Qcow2,
        replace: true,
    };
    let user = open(&DriveOptions::new(&target)).unwrap();
    let refusal = convert(&replacing, |_, _| {}).unwrap_err().to_string();
    assert!(
        refusal.contains("another virtual machine uses it"),
        "{refusal}"
    );
    assert!(info(&target, None, false).is_err());
    assert!(info(&target, None, true).is_ok());
    assert!(check(&target, Repair::Nothing, |_| {}).is_err());
    drop(user);
    fill(&source);
    convert(&replacing, |_, _| {}).unwrap();
    assert_same(&source, &target);
    // The image cannot be replaced by a copy of itself.
    let itself = Copy {
        target: &source,
        ..replacing
    };
    assert!(convert(&itself, |_, _| {}).is_err());
    assert_eq!(names(&folder), ["a.qcow2", "b.qcow2"]);
}

#[test]
fn a_name_that_is_taken_stays_what_it_is() {
    let folder = Folder::new();
    let path = folder.path("a.img");
    fs::write(&path, b"mine").unwrap();
    assert!(
        create(&path, Format::Qcow2, SIZE)
            .unwrap_err()
            .why
            .contains("it exists")
    );
    let source = folder.path("b.img");
    create(&source, Format::Raw, SIZE).unwrap();
    assert!(
        copy(&source, &path, Format::Raw)
            .unwrap_err()
            .contains("it exists")
    );
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    let nowhere = folder.path("no/c.img");
    assert!(
        copy(&source, &nowhere, Format::Raw)
            .unwrap_err()
            .contains("folder does not exist")
    );
    assert_eq!(names(&folder), ["a.img", "b.img"]);
}

#[test]
fn progress_goes_to_the_end() {
    let folder = Folder::new();
    let source = folder.path("a.img");
    create(&source, Format::Raw, SIZE).unwrap();
    fill(&source);
    let target = folder.path("b.qcow2");
    let copy = Copy {
        source: &source,
        source_format: None,
        backing: Backing::Any,
        target: &target,
        target_format: Format::Qcow2,
        replace: false,
    };
    let mut steps = Vec::new();
    convert(&copy, |done, all| steps.push((done, all))).unwrap();
    assert!(steps.is_sorted());
    assert_eq!(steps.last(), Some(&(SIZE, SIZE)));
}
