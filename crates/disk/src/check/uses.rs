//! Counts how often each cluster of an image is used, following all references from the header.

use super::counts::Counts;
use super::finding::Finding;
use crate::header::{Header, MAX_L1_ENTRIES, be64, incompatible, read_padded};
use std::collections::HashSet;
use std::fs::File;
use std::io;

/// The offset in an entry of an L1 or L2 table.
const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
/// The entry's cluster has no other reference.
const COPIED: u64 = 1 << 63;
/// The cluster of an L2 entry is compressed.
const COMPRESSED: u64 = 1 << 62;
/// The cluster of an L2 entry reads as zeros. This exists only in version 3 and not with extended
/// entries.
const ZERO: u64 = 1 << 0;
/// The reserved bits of an L1 entry.
const L1_RESERVED: u64 = 0x7f00_0000_0000_01ff;
/// The reserved bits of an L2 entry whose cluster is not compressed.
const L2_RESERVED: u64 = 0x3f00_0000_0000_01fe;
/// The reserved bits of an entry in the table of reference counts.
const REFCOUNT_RESERVED: u64 = 0x1ff;

/// The number of uses of each cluster.
pub(super) struct Uses {
    counted: Vec<u32>,
    /// Tables that are added while an image is written: L2 tables and blocks of counts.
    added: HashSet<u64>,
    /// The number of clusters of the disk that have data in the image.
    pub allocated: u64,
}

impl Uses {
    /// Counts the uses of `[in_file, clusters]`: the clusters in the file, and those that the
    /// reference counts or the file cover.
    ///
    /// # Errors
    /// An error of the host.
    pub fn count(
        file: &File,
        header: &Header,
        [in_file, clusters]: [u64; 2],
        find: &mut dyn FnMut(Finding),
    ) -> io::Result<Self> {
        let mut walk = Walk {
            file,
            header,
            find,
            in_file,
            uses: Self {
                counted: vec![0; clusters as usize],
                added: HashSet::new(),
                allocated: 0,
            },
            unshared: Vec::new(),
        };
        walk.count_all()?;
        walk.find_shared();
        Ok(walk.uses)
    }

    /// Returns the number of uses of every cluster.
    pub fn all(&self) -> &[u32] {
        &self.counted
    }

    /// Whether a cluster is a table that a killed process had added but not yet counted. imago
    /// writes the reference to a new table immediately, and its count with the next flush.
    pub fn is_uncounted_table(&self, cluster: u64, counts: &Counts) -> bool {
        self.counted.get(cluster as usize) == Some(&1)
            && counts.get(cluster) == 0
            && counts.has_place(cluster)
            && self.added.contains(&cluster)
    }

    /// Checks the marks of entries whose cluster has no other reference.
    ///
    /// # Errors
    /// An error of the host.
    pub fn compare_copied(
        &self,
        file: &File,
        header: &Header,
        counts: &Counts,
        find: &mut dyn FnMut(Finding),
    ) -> io::Result<()> {
        let mut compare = |entry: u64, level: &str| {
            let cluster = (entry & OFFSET_MASK) >> header.cluster_bits;
            // A table that will be repaired has this count afterwards.
            let count = self.counted.get(cluster as usize).map_or(0, |uses| {
                if self.is_uncounted_table(cluster, counts) {
                    return 1;
                }
                counts.get(cluster).min(u64::from(*uses).max(1))
            });
            let line = || {
                format!(
                    "an {level} entry for cluster {cluster} is marked wrongly: counted {count} times"
                )
            };
            match (entry & COPIED != 0, count == 1) {
                // Data that seem to be shared are copied before they are written, and then the mark
                // is correct. An L2 table would be copied without correcting the marks of its own
                // entries.
                (false, true) if level == "L2" => find(Finding::Harmless(line())),
                (false, true) | (true, false) => find(Finding::Hazard(line())),
                _ => {}
            }
        };
        let has_data = !header.has(incompatible::EXTERNAL_DATA);
        let mut known = HashSet::new();
        for entry in entries(file, header.l1_offset, header.l1_entries.into())? {
            let table = entry & OFFSET_MASK;
            // A table with two references was reported earlier.
            if table == 0 || !known.insert(table) {
                continue;
            }
            compare(entry, "L1");
            for entry in l2_entries(file, header, table)? {
                if has_data && entry & COMPRESSED == 0 && entry & OFFSET_MASK != 0 {
                    compare(entry, "L2");
                }
            }
        }
        Ok(())
    }
}

/// The clusters that contain a range of bytes of the file.
#[derive(Clone, Copy)]
struct Clusters {
    first: u64,
    last: u64,
}

/// A walk through an image.
struct Walk<'a> {
    file: &'a File,
    header: &'a Header,
    find: &'a mut dyn FnMut(Finding),
    /// The number of clusters of the file.
    in_file: u64,
    uses: Uses,
    /// Clusters that are written in place, and so must have no second use.
    unshared: Vec<(Clusters, &'static str)>,
}

impl Walk<'_> {
    fn hazard(&mut self, line: String) {
        (self.find)(Finding::Hazard(line));
    }

    fn clusters(&self, offset: u64, bytes: u64) -> Option<Clusters> {
        let bits = self.header.cluster_bits;
        let last = offset.checked_add(bytes.max(1) - 1)? >> bits;
        let first = offset >> bits;
        (last < self.uses.counted.len() as u64).then_some(Clusters { first, last })
    }

    /// Counts a use of a range of bytes of the file. Returns `None` if the range is not in the
    /// file.
    fn note(&mut self, offset: u64, bytes: u64, what: &str) -> Option<Clusters> {
        let Some(clusters) = self.clusters(offset, bytes) else {
            self.hazard(format!("{what} at {offset:#x} is not in the file"));
            return None;
        };
        for uses in &mut self.uses.counted[clusters.first as usize..=clusters.last as usize] {
            *uses = uses.saturating_add(1);
        }
        Some(clusters)
    }

    /// Counts a use of a range that must begin with a cluster.
    fn note_aligned(&mut self, offset: u64, bytes: u64, what: &str) -> Option<Clusters> {
        if offset.is_multiple_of(self.header.cluster_bytes()) {
            return self.note(offset, bytes, what);
        }
        self.hazard(format!(
            "{what} at {offset:#x} does not begin with a cluster"
        ));
        None
    }

    /// Counts a use of a table, which must be completely in the file.
    fn note_table(&mut self, offset: u64, bytes: u64, what: &str) -> Option<Clusters> {
        let clusters = self.note_aligned(offset, bytes, what)?;
        if clusters.last < self.in_file {
            return Some(clusters);
        }
        self.hazard(format!("{what} at {offset:#x} is not in the file"));
        None
    }

    /// Counts a use of a table that is written in place. Returns whether the table can be read.
    fn note_unshared(&mut self, offset: u64, bytes: u64, what: &'static str) -> bool {
        let clusters = self.note_table(offset, bytes, what);
        self.unshared.extend(clusters.map(|it| (it, what)));
        clusters.is_some()
    }

    /// Finds data beyond the end of the file, which a failure of the host can leave. They become
    /// part of the file when they are written.
    fn find_missing(&mut self, clusters: Option<Clusters>, what: &str) {
        if let Some(clusters) = clusters.filter(|it| it.last >= self.in_file) {
            let last = clusters.last;
            (self.find)(Finding::Harmless(format!(
                "{what} in cluster {last} lies past the end of the file"
            )));
        }
    }

    fn count_all(&mut self) -> io::Result<()> {
        let header = self.header;
        let cluster = header.cluster_bytes();
        self.note_unshared(0, cluster, "the header");
        let table_bytes = u64::from(header.refcount_table_clusters) * cluster;
        let table = header.refcount_table_offset;
        if self.note_unshared(table, table_bytes, "the table of counts") {
            for entry in entries(self.file, table, table_bytes / 8)? {
                if entry & REFCOUNT_RESERVED != 0 {
                    self.hazard(format!(
                        "an entry of the table of counts has reserved bits that are set: {entry:#x}"
                    ));
                }
                if entry & !REFCOUNT_RESERVED != 0 {
                    let block = entry & !REFCOUNT_RESERVED;
                    self.note_unshared(block, cluster, "a block of counts");
                    self.uses.added.insert(block >> header.cluster_bits);
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
            let head = read_padded(self.file, at, 40)?;
            let (offset, word) = (be64(&head, 0), be64(&head, 8));
            // The snapshot's number of L1 entries, and the lengths of its id and of its name in
            // bytes.
            let [entries, names] = [word >> 32, (word >> 16 & 0xffff) + (word & 0xffff)];
            let extra = be64(&head, 32) & 0xffff_ffff;
            if entries > MAX_L1_ENTRIES {
                self.hazard("a snapshot's L1 table is too long".into());
            } else {
                self.count_l1(offset, entries, false)?;
            }
            at = at.saturating_add(40 + (extra + names).next_multiple_of(8));
        }
        if at > start {
            self.note_unshared(start, at - start, "the table of snapshots");
        }
        Ok(())
    }

    fn count_l1(&mut self, offset: u64, count: u64, is_active: bool) -> io::Result<()> {
        if count == 0 || !self.note_unshared(offset, count * 8, "an L1 table") {
            return Ok(());
        }
        let mut known = HashSet::new();
        for entry in entries(self.file, offset, count)? {
            let table = entry & OFFSET_MASK;
            if entry & L1_RESERVED != 0 {
                self.hazard(format!(
                    "an L1 entry has reserved bits that are set: {entry:#x}"
                ));
            }
            if table == 0 {
                continue;
            }
            let bytes = self.header.cluster_bytes();
            if self.note_table(table, bytes, "an L2 table").is_none() {
                continue;
            }
            if known.insert(table) {
                self.uses.added.insert(table >> self.header.cluster_bits);
                self.count_l2(table, is_active)?;
            } else {
                self.hazard(format!("two L1 entries lead to the L2 table at {table:#x}"));
            }
        }
        Ok(())
    }

    fn count_l2(&mut self, table: u64, is_active: bool) -> io::Result<()> {
        let header = self.header;
        let has_data = !header.has(incompatible::EXTERNAL_DATA);
        let mut reserved = L2_RESERVED;
        if header.version < 3 || header.has(incompatible::EXTENDED_L2) {
            reserved |= ZERO;
        }
        let reserved = |entry: u64| match entry & COMPRESSED != 0 {
            true if has_data => entry & COPIED,
            true => entry & COMPRESSED,
            false => entry & reserved,
        };
        for entry in l2_entries(self.file, header, table)? {
            if reserved(entry) != 0 {
                self.hazard(format!(
                    "an L2 entry has reserved bits that are set: {entry:#x}"
                ));
            }
            let offset = entry & OFFSET_MASK;
            let is_there = if !has_data {
                // In an external file the first cluster has the offset 0.
                offset != 0 || entry & COPIED != 0
            } else if entry & COMPRESSED != 0 {
                let (offset, bytes) = compressed(header, entry);
                let clusters = self.note(offset, bytes, "a compressed cluster");
                self.find_missing(clusters, "a compressed cluster");
                true
            } else if offset != 0 {
                let clusters = self.note_aligned(offset, header.cluster_bytes(), "a data cluster");
                self.find_missing(clusters, "a data cluster");
                true
            } else {
                false
            };
            self.uses.allocated += u64::from(is_there && is_active);
        }
        Ok(())
    }

    /// Finds tables that are written in place but have a second use.
    fn find_shared(&mut self) {
        for (clusters, what) in std::mem::take(&mut self.unshared) {
            let uses = &self.uses.counted[clusters.first as usize..=clusters.last as usize];
            if uses.iter().any(|uses| *uses != 1) {
                let first = clusters.first;
                self.hazard(format!(
                    "{what} in cluster {first} is also used as something else"
                ));
            }
        }
    }
}

/// Reads the entries of a table.
fn entries(file: &File, offset: u64, count: u64) -> io::Result<Vec<u64>> {
    let bytes = read_padded(file, offset, count * 8)?;
    Ok(bytes.chunks_exact(8).map(|entry| be64(entry, 0)).collect())
}

/// Reads the first words of an L2 table's entries: the second ones contain no references.
fn l2_entries(file: &File, header: &Header, table: u64) -> io::Result<Vec<u64>> {
    let step = if header.has(incompatible::EXTENDED_L2) {
        2
    } else {
        1
    };
    let words = entries(file, table, header.cluster_bytes() / 8)?;
    Ok(words.into_iter().step_by(step).collect())
}

/// Returns the offset of the first sector of a compressed cluster, and the number of bytes of its
/// sectors.
const fn compressed(header: &Header, entry: u64) -> (u64, u64) {
    let bits = 62 - (header.cluster_bits - 8);
    let offset = entry & ((1 << bits) - 1);
    let sectors = (entry & (COMPRESSED - 1)) >> bits;
    (offset & !511, (sectors + 1) * 512)
}
