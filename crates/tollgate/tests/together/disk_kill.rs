//! Kills Tollgate at random moments while a guest writes to its disks. Afterwards the image has
//! everything that the guest knew to be on stable storage, and a qcow2 image is consistent. Each
//! sector says which record it belongs to.
//!
//! `TOLLGATE_KILL_ROUNDS` sets the number of rounds, which is small without it.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime};

use crate::support::folder::Folder;
use crate::support::linux::{self, DEBIAN_AMD64};
use crate::support::qcow2::Qcow2;
use crate::support::{PATIENCE, finish, signal, tollgate};
use tollgate_disk::Format;

const DISK_BYTES: usize = 24 << 20;
const SECTOR: usize = 512;
/// A record repeats its line.
const LINE: usize = 16;

/// A program of the guest that writes records and flushes each before the next one begins.
struct Writer {
    disk: usize,
    /// The size of a record and of its slot, in bytes.
    bytes: usize,
    /// The offset of the slots on the disk.
    start: usize,
    slots: usize,
}

/// The sizes of records on both disks: less than a cluster of 64 KiB, one cluster, and some that
/// cross clusters.
const WRITERS: [Writer; 6] = [
    Writer {
        disk: 0,
        bytes: 4096,
        start: 0,
        slots: 1000,
    },
    Writer {
        disk: 0,
        bytes: 65_536,
        start: 4 << 20,
        slots: 60,
    },
    Writer {
        disk: 0,
        bytes: 24_576,
        start: 342 * 24_576,
        slots: 150,
    },
    Writer {
        disk: 1,
        bytes: 4096,
        start: 0,
        slots: 1000,
    },
    Writer {
        disk: 1,
        bytes: 65_536,
        start: 4 << 20,
        slots: 60,
    },
    Writer {
        disk: 1,
        bytes: 24_576,
        start: 342 * 24_576,
        slots: 150,
    },
];
/// From this offset on, one more program writes without flushing, on either disk.
const NOISE: usize = 12 << 20;

impl Writer {
    /// The offset of a record: consecutive records are far apart.
    const fn slot(&self, record: usize) -> usize {
        record * 37 % self.slots
    }

    fn script(&self, number: usize, first: usize) -> String {
        let Self { bytes, slots, .. } = self;
        let disk = ["vda", "vdb"][self.disk];
        let start = self.start / bytes;
        assert_eq!(self.start % bytes, 0);
        format!(
            "(n={first}; while :; do yes \"$(printf 'w%s %012d' {number} $n)\" | \
             head -c {bytes} >/tmp/{number}; \
             dd if=/tmp/{number} of=/dev/{disk} bs={bytes} seek=$(({start}+n*37%{slots})) \
             conv=notrunc,fsync 2>/dev/null && echo flushed={number},$n,; n=$((n+1)); done) &\n"
        )
    }
}

/// The record that a sector belongs to; the sector must contain only this record.
fn record(sector: &[u8], number: usize) -> Option<usize> {
    if sector.iter().all(|byte| *byte == 0) {
        return None;
    }
    let line = &sector[..LINE];
    assert!(
        sector.chunks(LINE).all(|part| part == line),
        "a sector of two records: {:?}",
        String::from_utf8_lossy(sector)
    );
    let text = std::str::from_utf8(line).unwrap();
    let record = text.strip_prefix(&format!("w{number} ")).unwrap();
    Some(record.strip_suffix('\n').unwrap().parse().unwrap())
}

/// The lines `flushed=WRITER,RECORD,` of the guest's output that are complete.
fn flushed(output: &str) -> impl Iterator<Item = (usize, usize)> {
    output.split("flushed=").skip(1).filter_map(|rest| {
        let mut numbers = rest.split(',');
        let writer = numbers.next()?.parse().ok()?;
        let record = numbers.next()?.parse().ok()?;
        // The comma at the end shows that the line is complete.
        numbers.next()?;
        Some((writer, record))
    })
}

#[test]
fn what_was_flushed_survives_kills_at_random_moments_under_load() {
    let rounds = std::env::var("TOLLGATE_KILL_ROUNDS");
    let rounds: usize = rounds.map_or(4, |rounds| rounds.parse().unwrap());
    let folder = Folder::new();
    let images: Vec<PathBuf> = [Format::Raw, Format::Qcow2]
        .map(|format| {
            let path = folder.path(&format!("disk.{}", format.name()));
            tollgate_disk::create(&path, format, DISK_BYTES as u64).unwrap();
            path
        })
        .into();
    // The last record that was flushed to each slot that has one.
    let mut oldest: HashMap<(usize, usize), usize> = HashMap::new();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut random = u64::from(now.unwrap().subsec_nanos());
    let mut total = 0;
    for round in 0..rounds {
        let mut command = linux::run_with_modules(&folder, DEBIAN_AMD64);
        for image in &images {
            command.args(["--drive", &format!("file={}", image.display())]);
        }
        let mut guest = linux::boot(command);
        linux::load_modules(&mut guest);
        for (number, writer) in WRITERS.iter().enumerate() {
            guest.type_line(writer.script(number, round * 100_000).trim_end());
        }
        let megabyte = NOISE >> 20;
        for disk in ["vda", "vdb"] {
            guest.type_line(&format!(
                "(while :; do dd if=/dev/urandom of=/dev/{disk} bs=1M seek={megabyte} count=11 \
                 conv=notrunc 2>/dev/null; done) &"
            ));
        }
        guest.wait_for(&format!("flushed=5,{},", round * 100_000));
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        thread::sleep(Duration::from_micros((random >> 33) % 1_500_000));
        signal(guest.process(), libc::SIGKILL);
        let end = guest.end();
        assert!(!end.errors.contains("fails"), "{}", end.errors);
        for (number, record) in flushed(&end.output) {
            let slot = WRITERS[number].slot(record);
            oldest.insert((number, slot), record);
            total += 1;
        }

        let qcow2 = Qcow2::new(fs::read(&images[1]).unwrap());
        qcow2.check();
        let contents = [fs::read(&images[0]).unwrap(), qcow2.content()];
        for (number, writer) in WRITERS.iter().enumerate() {
            let content = &contents[writer.disk][writer.start..];
            let slots = content.chunks(writer.bytes).take(writer.slots);
            for (slot, content) in slots.enumerate() {
                let expected = oldest.get(&(number, slot)).copied();
                for sector in content.chunks(SECTOR) {
                    let found = record(sector, number);
                    // A record that was being written may be there completely, partly, or not at
                    // all.
                    assert!(
                        found >= expected,
                        "round {round}, writer {number}, slot {slot}: {found:?} is older than \
                         {expected:?}"
                    );
                    assert!(found.is_none_or(|found| writer.slot(found) == slot));
                }
            }
        }
        // Allocated clusters that are not used yet can be freed; then the check finds no defect.
        for flags in [&["-r", "leaks"][..], &[]] {
            let mut check = tollgate();
            check.args(["image", "check", "-q"]).args(flags);
            let output = finish(check.arg(&images[1]), PATIENCE);
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(0), "round {round}: {errors}");
        }
    }
    println!("{rounds} rounds, {total} flushed records");
}
