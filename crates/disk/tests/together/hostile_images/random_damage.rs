//! Tests with images in which any one field has another value: each is refused, or writes leave it
//! as sound as it was.

use super::{COPIED, be64, create_by_qemu, damage, ways};
use crate::support::{Folder, qemu_img};
use std::fs;
use tollgate_disk::{DriveOptions, open};

/// Random numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Makes an image with all kinds of clusters, and returns the offsets of its tables.
fn varied(folder: &Folder, options: &str, has_snapshot: bool) -> (Vec<u8>, Vec<(u64, u64)>) {
    let path = folder.path("varied.qcow2");
    create_by_qemu(&path, options, "1M");
    let write = |pieces: &[(u64, u8)]| {
        let image = open(&DriveOptions::new(&path)).unwrap();
        for (offset, byte) in pieces {
            image.write(*offset, &[*byte; 20_000]).unwrap();
        }
        image.close().unwrap();
    };
    write(&[(0, 1), (100_000, 2), (500_000, 3), (1 << 19, 4)]);
    if has_snapshot {
        let (is_done, text) = qemu_img(&[&"snapshot", &"-c", &"first", &path]);
        assert!(is_done, "{text}");
        write(&[(50_000, 5), (100_000, 6)]);
    }
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let cluster = 1 << u32::from_be_bytes(bytes[20..24].try_into().unwrap());
    let word = |at: u64| be64(&bytes, at);
    let (l1, entries) = (word(40), word(32) & 0xffff_ffff);
    let table = word(48);
    let mut tables = vec![(0, 112), (l1, entries * 8), (table, 64)];
    for index in 0..entries {
        let l2 = word(l1 + index * 8) & 0x00ff_ffff_ffff_fe00;
        if l2 != 0 {
            tables.push((l2, 8 * (cluster / 8).min(1 << 20)));
        }
    }
    for index in 0..4 {
        let block = word(table + index * 8);
        if block != 0 {
            tables.push((block, cluster));
        }
    }
    (bytes, tables)
}

/// Returns the new value of a field: zero, noise, or a cluster that has another use.
fn other_value(random: &mut Random, old: u64, bytes: u64, tables: &[(u64, u64)]) -> u64 {
    let table = tables[random.below(tables.len() as u64) as usize].0;
    let other = random.below(bytes) & !511;
    match random.below(9) {
        0 => 0,
        1 => table | COPIED,
        2 => table,
        3 => other | COPIED,
        4 => other,
        5 => old ^ 1 << random.below(64),
        6 => old ^ COPIED,
        7 => old.wrapping_add(1 << 16),
        _ => random.below(1 << 31) << 32 | random.below(1 << 31),
    }
}

#[test]
fn whatever_one_field_says_writes_add_no_damage_and_change_nothing_else() {
    const DISK: usize = 1 << 20;
    let folder = Folder::new();
    let rounds = std::env::var("TOLLGATE_IMAGE_ROUNDS");
    let rounds: u64 = rounds.map_or(60, |text| text.parse().unwrap());
    let mut random = Random(20_260_726);
    let mut opened = 0;
    for (options, has_snapshot) in [
        ("cluster_size=512", false),
        ("cluster_size=512,refcount_bits=1", false),
        ("cluster_size=4096", true),
        ("cluster_size=65536,compat=0.10", false),
        ("cluster_size=65536,refcount_bits=64", true),
    ] {
        let (sound, tables) = varied(&folder, options, has_snapshot);
        for round in 0..rounds {
            let path = folder.path("damaged.qcow2");
            let mut bytes = sound.clone();
            let (start, length) = tables[random.below(tables.len() as u64) as usize];
            // A word, or sometimes half of one, because the header has such fields.
            let at = (start + random.below(length / 8) * 8) as usize;
            let old = be64(&bytes, at as u64);
            let value = other_value(&mut random, old, sound.len() as u64, &tables);
            let width = if random.below(4) == 0 { 4 } else { 8 };
            bytes[at..at + width].copy_from_slice(&value.to_be_bytes()[8 - width..]);
            fs::write(&path, &bytes).unwrap();
            let what = format!("{options}: round {round}: {at:#x} is {value:#x}, {width} bytes");

            let [written, read, _] = ways(&path);
            if let Ok(image) = open(&read) {
                let _ = image.read(0, &mut vec![0; image.size().min(2 << 20) as usize]);
            }
            assert!(fs::read(&path).unwrap() == bytes, "{what}");
            let mut image = match open(&written) {
                Ok(image) => image,
                Err(error) => {
                    // Whatever is refused here is also found by the check, if it is damage.
                    let found = damage(&path).map_or(1, |damage| damage);
                    let names_file = error.why.contains("file");
                    let is_known = error.why.contains("not supported") || names_file;
                    assert!(found > 0 || is_known, "{what}: {error}");
                    continue;
                }
            };
            opened += 1;
            drop(image);
            let before = damage(&path).unwrap();
            image = open(&written).unwrap();
            let size = image.size().min(DISK as u64) as usize;
            if size < DISK / 2 {
                continue;
            }
            let mut disk = vec![0; size];
            if image.read(0, &mut disk).is_err() {
                // The cluster has become a compressed one, whose bytes are invalid.
                continue;
            }
            for _ in 0..20 {
                let length = 1 + random.below(30_000) as usize;
                let offset = random.below((size - length) as u64) as usize;
                let byte = random.below(256) as u8;
                if random.below(5) == 0 {
                    image
                        .write_zeroes(offset as u64, length as u64, true)
                        .unwrap();
                    disk[offset..offset + length].fill(0);
                } else {
                    image.write(offset as u64, &vec![byte; length]).unwrap();
                    disk[offset..offset + length].fill(byte);
                }
                if random.below(7) == 0 {
                    image.flush().unwrap();
                }
            }
            image.close().unwrap();
            let after = damage(&path).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(after <= before, "{what}: damage was {before}, is {after}");
            let image = open(&read).unwrap();
            let mut found = vec![0; size];
            image.read(0, &mut found).unwrap();
            assert!(found == disk, "{what}: other data");
        }
    }
    // Counts that are too high and many changes of the header do no harm.
    assert!(opened > rounds / 4, "{opened}");
}
