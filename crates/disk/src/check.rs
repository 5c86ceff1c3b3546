//! Whether the reference counts of a qcow2 image are what its tables say.
//!
//! Everything that is in use is found by following the header: tables of reference counts, L1
//! and L2 tables, data, snapshots. A cluster that is counted more often than it is used is a
//! *leak*, which only wastes room; one that is used more often than it is counted may be given
//! out again and is *damage*, and so is what lies outside the file.

use crate::header::{Header, be64, incompatible};
use crate::open::{DiskError, explain, open_file};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Clusters of a file at most that are looked at, for the room that counts take.
const MAX_CLUSTERS: u64 = 1 << 28;
/// Bytes of blocks of counts at most.
const MAX_COUNT_BYTES: u64 = 1 << 30;
/// Entries of an L1 table at most, as QEMU has it: 32 MiB of them.
const MAX_L1_ENTRIES: u64 = 4 << 20;
/// Snapshots at most, as QEMU has it.
const MAX_SNAPSHOTS: u32 = 65_536;
/// Where an entry of an L1 or L2 table points.
const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
/// An entry's cluster has one reference, this one.
const COPIED: u64 = 1 << 63;
/// An L2 entry's cluster is compressed.
const COMPRESSED: u64 = 1 << 62;

/// What is mended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repair {
    /// Nothing: the image is only read.
    Nothing,
    /// Clusters that nothing refers to are free again.
    Leaks,
}

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// Things that are wrong and can lose data.
    pub damage: u64,
    /// Clusters that are in use by their count alone.
    pub leaks: u64,
    /// Leaks that were mended; [`CheckReport::leaks`] are those that are left.
    pub mended_leaks: u64,
    /// Clusters of the disk that have data in the image.
    pub allocated: u64,
    /// Clusters of the disk.
    pub total: u64,
}

/// Checks a qcow2 image and tells `say` of each thing that is wrong.
///
/// # Errors
/// [`DiskError`]: it is in use, is not qcow2, or has something that the check does not know.
pub fn check(
    path: &Path,
    repair: Repair,
    mut say: impl FnMut(String),
) -> Result<CheckReport, DiskError> {
    check_file(path, repair, &mut say).map_err(|error| DiskError {
        path: path.to_owned(),
        why: explain(&error),
    })
}

fn check_file(path: &Path, repair: Repair, say: &mut dyn FnMut(String)) -> io::Result<CheckReport> {
    let file = open_file(path, repair == Repair::Leaks, false)?;
    let Some(header) = Header::read(&file)? else {
        let why = "it is not qcow2; only qcow2 images have something to check";
        return Err(io::Error::other(why));
    };
    refuse_unknown(&header)?;
    let clusters = file.metadata()?.len().div_ceil(header.cluster_bytes());
    if clusters > MAX_CLUSTERS {
        return Err(io::Error::other("it is too large to be checked"));
    }
    let mut check = Check {
        file: &file,
        header: &header,
        uses: vec![0; clusters as usize],
        report: CheckReport {
            total: header.size.div_ceil(header.cluster_bytes()),
            ..CheckReport::default()
        },
        say,
    };
    check.count_uses()?;
    let counts = Counts::read(&file, &header)?;
    check.compare(&counts, repair)?;
    check.compare_copied(&counts)?;
    if header.incompatible & incompatible::CORRUPT != 0 {
        check.damaged("the image is marked as damaged".into());
    }
    let report = check.report;
    if report.mended_leaks > 0 {
        file.sync_all()?;
    }
    Ok(report)
}

fn refuse_unknown(header: &Header) -> io::Result<()> {
    let known = incompatible::DIRTY
        | incompatible::CORRUPT
        | incompatible::COMPRESSION
        | incompatible::EXTENDED_L2;
    let what = if header.incompatible & incompatible::EXTERNAL_DATA != 0 {
        "an external data file"
    } else if header.incompatible & !known != 0 {
        "a feature that is unknown here"
    } else if header.encryption != 0 {
        "encryption"
    } else if header.has_bitmaps {
        "bitmaps"
    } else if u64::from(header.l1_entries) > MAX_L1_ENTRIES || header.snapshots > MAX_SNAPSHOTS {
        "tables larger than QEMU makes them"
    } else {
        return Ok(());
    };
    Err(io::Error::other(format!(
        "it has {what}; qemu-img check may know it"
    )))
}

/// Reads `bytes` at `offset`; what is behind the end of the file is zero.
fn read(file: &File, offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let mut data = vec![0; bytes as usize];
    let mut filled = 0;
    while filled < data.len() {
        let Some(at) = offset.checked_add(filled as u64) else {
            break;
        };
        match file.read_at(&mut data[filled..], at) {
            Ok(0) => break,
            Ok(count) => filled += count,
            // The offset is none of a file.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(data)
}

/// The entries of a table.
fn entries(file: &File, offset: u64, count: u64) -> io::Result<Vec<u64>> {
    let bytes = read(file, offset, count * 8)?;
    Ok(bytes.chunks_exact(8).map(|entry| be64(entry, 0)).collect())
}

struct Check<'a> {
    file: &'a File,
    header: &'a Header,
    /// How often each cluster of the file is in use.
    uses: Vec<u32>,
    report: CheckReport,
    say: &'a mut dyn FnMut(String),
}

impl Check<'_> {
    fn damaged(&mut self, what: String) {
        self.report.damage += 1;
        (self.say)(what);
    }

    /// Counts a use of the clusters that some bytes of the file lie in. Says whether all of
    /// them are in the file.
    fn note(&mut self, offset: u64, bytes: u64, what: &str) -> bool {
        let bits = self.header.cluster_bits;
        let last = offset
            .checked_add(bytes.max(1) - 1)
            .map(|last| last >> bits);
        let Some(last) = last.filter(|last| *last < self.uses.len() as u64) else {
            self.damaged(format!("{what} at {offset:#x} is not in the file"));
            return false;
        };
        for uses in &mut self.uses[(offset >> bits) as usize..=last as usize] {
            *uses = uses.saturating_add(1);
        }
        true
    }

    /// The same for what must begin with a cluster.
    fn note_aligned(&mut self, offset: u64, bytes: u64, what: &str) -> bool {
        if offset.is_multiple_of(self.header.cluster_bytes()) {
            return self.note(offset, bytes, what);
        }
        self.damaged(format!(
            "{what} at {offset:#x} does not begin with a cluster"
        ));
        false
    }

    fn count_uses(&mut self) -> io::Result<()> {
        let header = self.header;
        let cluster = header.cluster_bytes();
        self.note(0, cluster, "the header");
        let table_bytes = u64::from(header.refcount_table_clusters) * cluster;
        let table = header.refcount_table_offset;
        if table_bytes > 0 && self.note_aligned(table, table_bytes, "the table of counts") {
            for entry in entries(self.file, table, table_bytes / 8)? {
                if entry & !0x1ff != 0 {
                    self.note_aligned(entry & !0x1ff, cluster, "a block of counts");
                }
            }
        }
        self.count_l1(header.l1_offset, u64::from(header.l1_entries), true)?;
        self.count_snapshots()
    }

    fn count_snapshots(&mut self) -> io::Result<()> {
        let start = self.header.snapshots_offset;
        let mut at = start;
        for _ in 0..self.header.snapshots {
            let head = read(self.file, at, 40)?;
            let (offset, word) = (be64(&head, 0), be64(&head, 8));
            // Entries of its L1 table, bytes of its identity and of its name.
            let [entries, names] = [word >> 32, (word >> 16 & 0xffff) + (word & 0xffff)];
            let extra = be64(&head, 32) & 0xffff_ffff;
            if entries > MAX_L1_ENTRIES {
                self.damaged("a snapshot's L1 table is too long".into());
            } else {
                self.count_l1(offset, entries, false)?;
            }
            at = at.saturating_add(40 + (extra + names).next_multiple_of(8));
        }
        if at > start {
            self.note_aligned(start, at - start, "the table of snapshots");
        }
        Ok(())
    }

    fn count_l1(&mut self, offset: u64, count: u64, is_active: bool) -> io::Result<()> {
        if count == 0 || !self.note_aligned(offset, count * 8, "an L1 table") {
            return Ok(());
        }
        for entry in entries(self.file, offset, count)? {
            let table = entry & OFFSET_MASK;
            let cluster = self.header.cluster_bytes();
            if table != 0 && self.note_aligned(table, cluster, "an L2 table") {
                self.count_l2(table, is_active)?;
            }
        }
        Ok(())
    }

    fn count_l2(&mut self, table: u64, is_active: bool) -> io::Result<()> {
        let header = self.header;
        for entry in l2_entries(self.file, header, table)? {
            let is_there = if entry & COMPRESSED != 0 {
                let (offset, bytes) = compressed(header, entry);
                self.note(offset, bytes, "a compressed cluster");
                true
            } else if entry & OFFSET_MASK != 0 {
                let offset = entry & OFFSET_MASK;
                self.note_aligned(offset, header.cluster_bytes(), "a data cluster");
                true
            } else {
                false
            };
            self.report.allocated += u64::from(is_there && is_active);
        }
        Ok(())
    }

    /// Compares counts with uses.
    fn compare(&mut self, counts: &Counts, repair: Repair) -> io::Result<()> {
        let end = counts.clusters().max(self.uses.len() as u64);
        let mut cluster = 0;
        while cluster < end {
            let uses = self.uses.get(cluster as usize).copied();
            if uses.is_none() && !counts.has_block(cluster) {
                cluster = (cluster / counts.per_block + 1) * counts.per_block;
                continue;
            }
            let uses = uses.map_or(0, u64::from);
            let count = counts.get(cluster);
            if count > uses {
                if repair == Repair::Leaks {
                    counts.set(self.file, cluster, uses)?;
                    self.report.mended_leaks += 1;
                } else {
                    self.report.leaks += 1;
                    (self.say)(format!(
                        "leaked cluster {cluster}: counted {count}, used {uses} times"
                    ));
                }
            } else if count < uses {
                self.damaged(format!(
                    "cluster {cluster} is counted {count} times, but used {uses} times"
                ));
            }
            cluster += 1;
        }
        Ok(())
    }

    /// Compares the marks of entries that have their cluster for themselves.
    fn compare_copied(&mut self, counts: &Counts) -> io::Result<()> {
        let header = self.header;
        let l1 = entries(self.file, header.l1_offset, header.l1_entries.into())?;
        for entry in l1 {
            let table = entry & OFFSET_MASK;
            if table == 0 {
                continue;
            }
            self.compare_entry(counts, entry, "L1");
            for entry in l2_entries(self.file, header, table)? {
                if entry & COMPRESSED == 0 && entry & OFFSET_MASK != 0 {
                    self.compare_entry(counts, entry, "L2");
                }
            }
        }
        Ok(())
    }

    fn compare_entry(&mut self, counts: &Counts, entry: u64, level: &str) {
        let cluster = (entry & OFFSET_MASK) >> self.header.cluster_bits;
        let count = self.uses.get(cluster as usize).map_or(0, |uses| {
            // A leak that was mended has this count now.
            counts.get(cluster).min(u64::from(*uses).max(1))
        });
        if (entry & COPIED != 0) != (count == 1) {
            self.damaged(format!(
                "an {level} entry for cluster {cluster} is marked wrongly: counted {count} times"
            ));
        }
    }
}

/// The first words of an L2 table's entries: the second ones have no references.
fn l2_entries(file: &File, header: &Header, table: u64) -> io::Result<Vec<u64>> {
    let step = if header.incompatible & incompatible::EXTENDED_L2 != 0 {
        2
    } else {
        1
    };
    let words = entries(file, table, header.cluster_bytes() / 8)?;
    Ok(words.into_iter().step_by(step).collect())
}

/// Where a compressed cluster lies: its first sector's offset, and bytes of its sectors.
const fn compressed(header: &Header, entry: u64) -> (u64, u64) {
    let bits = 62 - (header.cluster_bits - 8);
    let offset = entry & ((1 << bits) - 1);
    let sectors = (entry & (COMPRESSED - 1)) >> bits;
    (offset & !511, (sectors + 1) * 512)
}

/// The reference counts that stand in the image.
struct Counts {
    /// Where each block of counts lies, 0: none, and all of its counts are 0.
    offsets: Vec<u64>,
    blocks: Vec<Vec<u8>>,
    /// Bits of a count.
    bits: u64,
    /// Counts of a block.
    per_block: u64,
}

impl Counts {
    fn read(file: &File, header: &Header) -> io::Result<Self> {
        let cluster = header.cluster_bytes();
        let table_bytes = u64::from(header.refcount_table_clusters) * cluster;
        // A table of more than this is refused by QEMU: 8 MiB.
        let table_bytes = table_bytes.min(8 << 20);
        let table = entries(file, header.refcount_table_offset, table_bytes / 8)?;
        let offsets: Vec<u64> = table.iter().map(|entry| entry & !0x1ff).collect();
        let length = file.metadata()?.len();
        let mut blocks = Vec::new();
        let mut known = HashSet::new();
        for offset in &offsets {
            // A second reference to a block is damage, which was said before.
            let is_there = (1..length).contains(offset) && offset.is_multiple_of(cluster);
            if !is_there || !known.insert(*offset) {
                blocks.push(Vec::new());
                continue;
            }
            if known.len() as u64 * cluster > MAX_COUNT_BYTES {
                return Err(io::Error::other("it is too large to be checked"));
            }
            blocks.push(read(file, *offset, cluster)?);
        }
        let bits = 1 << header.refcount_order;
        Ok(Self {
            offsets,
            blocks,
            bits,
            per_block: cluster * 8 / bits,
        })
    }

    /// The clusters that there are counts for, up to the last block.
    fn clusters(&self) -> u64 {
        let last = self.blocks.iter().rposition(|block| !block.is_empty());
        last.map_or(0, |last| (last as u64 + 1) * self.per_block)
    }

    /// The block of a cluster's count, and which bit of it the count begins with. Counts of
    /// less than a byte begin with the lowest bits.
    fn place(&self, cluster: u64) -> (usize, u64) {
        let block = (cluster / self.per_block) as usize;
        (block, cluster % self.per_block * self.bits)
    }

    fn has_block(&self, cluster: u64) -> bool {
        let block = self.blocks.get(self.place(cluster).0);
        block.is_some_and(|block| !block.is_empty())
    }

    fn get(&self, cluster: u64) -> u64 {
        let (block, bit) = self.place(cluster);
        let Some(block) = self.blocks.get(block).filter(|block| !block.is_empty()) else {
            return 0;
        };
        let byte = (bit / 8) as usize;
        if self.bits < 8 {
            return u64::from(block[byte]) >> (bit % 8) & ((1 << self.bits) - 1);
        }
        block[byte..byte + self.bits as usize / 8]
            .iter()
            .fold(0, |count, byte| count << 8 | u64::from(*byte))
    }

    /// Changes a count in the file.
    fn set(&self, file: &File, cluster: u64, count: u64) -> io::Result<()> {
        let (block, bit) = self.place(cluster);
        let at = self.offsets[block] + bit / 8;
        if self.bits < 8 {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at)?;
            let mask = ((1 << self.bits) - 1) << (bit % 8);
            byte[0] = byte[0] & !mask | (count as u8) << (bit % 8) & mask;
            return file.write_all_at(&byte, at);
        }
        let bytes = count.to_be_bytes();
        file.write_all_at(&bytes[8 - self.bits as usize / 8..], at)
    }
}
