//! A reader of qcow2 images that shares nothing with the one under test: enough of the format
//! for images without compression, snapshots and backing files
//! (docs/interop/qcow2.txt in QEMU's sources).

use std::collections::HashMap;

/// The bits of a table's entry that are an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// The bit of an entry for data that says that the cluster reads as zeros.
const ZERO: u64 = 1;
/// The bit of an entry for data that says that the cluster is compressed.
const COMPRESSED: u64 = 1 << 62;
/// The bit of an entry that says that the cluster has one reference.
const COPIED: u64 = 1 << 63;

/// A qcow2 image in memory.
pub struct Qcow2 {
    file: Vec<u8>,
    cluster: u64,
    size: u64,
}

impl Qcow2 {
    /// The image in the bytes of a file.
    pub fn new(file: Vec<u8>) -> Self {
        assert_eq!(&file[..4], b"QFI\xfb");
        let mut image = Self {
            file,
            cluster: 0,
            size: 0,
        };
        image.cluster = 1 << image.u32(20);
        image.size = image.u64(24);
        assert_eq!(image.u32(4), 3, "version");
        assert_eq!(image.u64(8), 0, "no backing file");
        assert_eq!(image.u64(72) & !1, 0, "incompatible features");
        assert_eq!(image.u32(96), 4, "reference counts have 16 bits");
        image
    }

    fn bytes<const N: usize>(&self, at: u64) -> [u8; N] {
        // Nothing was ever written after the end.
        let at = at as usize;
        let mut bytes = [0; N];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = self.file.get(at + index).copied().unwrap_or(0);
        }
        bytes
    }

    fn u32(&self, at: u64) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    fn u64(&self, at: u64) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    /// Entries of the first table, with their offsets.
    fn first_table(&self) -> impl Iterator<Item = u64> {
        let (entries, table) = (self.u32(36), self.u64(40));
        (0..u64::from(entries)).map(move |index| self.u64(table + 8 * index))
    }

    fn second_table(&self, entry: u64) -> impl Iterator<Item = u64> {
        let table = entry & OFFSET;
        let entries = if table == 0 { 0 } else { self.cluster / 8 };
        (0..entries).map(move |index| self.u64(table + 8 * index))
    }

    /// The content of the disk.
    pub fn content(&self) -> Vec<u8> {
        let mut content = vec![0; self.size as usize];
        let clusters = self.cluster / 8;
        for (first, entry) in self.first_table().enumerate() {
            for (second, data) in self.second_table(entry).enumerate() {
                assert_eq!(data & COMPRESSED, 0);
                let place = (first as u64 * clusters + second as u64) * self.cluster;
                if data & OFFSET == 0 || data & ZERO != 0 || place >= self.size {
                    continue;
                }
                let bytes = self.cluster.min(self.size - place);
                for index in 0..bytes {
                    let [byte] = self.bytes((data & OFFSET) + index);
                    content[(place + index) as usize] = byte;
                }
            }
        }
        content
    }

    /// Checks the reference counts: no cluster has a smaller count than its references, and none is
    /// used twice. Returns how many clusters have a greater count, which only wastes space.
    pub fn check(&self) -> usize {
        let mut references: HashMap<u64, u64> = HashMap::new();
        let mut add = |offset: u64, bytes: u64| {
            assert_eq!(offset % self.cluster, 0, "{offset:#x}");
            for cluster in offset / self.cluster..(offset + bytes).div_ceil(self.cluster) {
                *references.entry(cluster).or_default() += 1;
            }
        };
        add(0, self.cluster);
        add(self.u64(40), 8 * u64::from(self.u32(36)));
        let counts = (self.u64(48), u64::from(self.u32(56)) * self.cluster);
        add(counts.0, counts.1);
        let blocks: Vec<u64> = (0..counts.1 / 8)
            .map(|index| self.u64(counts.0 + 8 * index))
            .collect();
        for block in blocks.iter().filter(|block| **block != 0) {
            add(block & OFFSET, self.cluster);
        }
        for entry in self.first_table().filter(|entry| entry & OFFSET != 0) {
            add(entry & OFFSET, self.cluster);
            for data in self.second_table(entry).filter(|data| data & OFFSET != 0) {
                assert!(data & COPIED != 0, "{data:#x} is shared by nobody");
                add(data & OFFSET, self.cluster);
            }
        }
        let per_block = self.cluster / 2;
        let count = |cluster: u64| {
            let block = blocks
                .get((cluster / per_block) as usize)
                .map_or(0, |block| block & OFFSET);
            let at = block + 2 * (cluster % per_block);
            if block == 0 {
                0
            } else {
                u64::from(u16::from_be_bytes(self.bytes(at)))
            }
        };
        for (cluster, used) in &references {
            assert_eq!(*used, 1, "cluster {cluster} is used twice");
            assert!(count(*cluster) >= 1, "cluster {cluster} is used but free");
        }
        let clusters = (self.file.len() as u64).div_ceil(self.cluster);
        let is_leaked = |cluster: &u64| count(*cluster) > 0 && !references.contains_key(cluster);
        (0..clusters).filter(is_leaked).count()
    }
}
