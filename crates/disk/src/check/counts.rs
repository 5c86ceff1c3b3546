//! The reference counts stored in an image.

use crate::header::{Header, be64, read_padded};
use crate::host_file::file_bytes;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The maximum size of all blocks of counts in bytes.
const MAX_COUNT_BYTES: u64 = 1 << 30;

/// The reference counts stored in an image.
pub(super) struct Counts {
    /// The offset of each block of counts. A block with offset 0 does not exist, and all its counts
    /// are 0.
    offsets: Vec<u64>,
    blocks: Vec<Vec<u8>>,
    /// The number of bits of a count.
    bits: u64,
    /// The number of counts of a block, as a power of two.
    block_bits: u32,
}

impl Counts {
    /// Reads all counts of an image. Defects of the tables that lead to them are found when uses
    /// are counted.
    ///
    /// # Errors
    /// An error of the host, or there are too many counts.
    pub fn read(file: &File, header: &Header) -> io::Result<Self> {
        let cluster = header.cluster_bytes();
        let table_bytes = u64::from(header.refcount_table_clusters) * cluster;
        let table = read_padded(file, header.refcount_table_offset, table_bytes)?;
        let offsets: Vec<u64> = table
            .chunks_exact(8)
            .map(|entry| be64(entry, 0) & !0x1ff)
            .collect();
        let length = file_bytes(file)?;
        let mut blocks = Vec::new();
        let mut known = HashSet::new();
        for offset in &offsets {
            // A second reference to a block is damage, which is found elsewhere.
            let is_there = (1..length).contains(offset) && offset.is_multiple_of(cluster);
            if !is_there || !known.insert(*offset) {
                blocks.push(Vec::new());
                continue;
            }
            if known.len() as u64 * cluster > MAX_COUNT_BYTES {
                return Err(io::Error::other("it is too large to be checked"));
            }
            blocks.push(read_padded(file, *offset, cluster)?);
        }
        Ok(Self {
            offsets,
            blocks,
            bits: 1 << header.refcount_order,
            block_bits: header.cluster_bits + 3 - header.refcount_order,
        })
    }

    /// Returns the number of clusters that have counts, up to the last block.
    pub fn clusters(&self) -> u64 {
        let last = self.blocks.iter().rposition(|block| !block.is_empty());
        last.map_or(0, |last| (last as u64 + 1) << self.block_bits)
    }

    /// Returns the block of a cluster's count, and the first bit of the count in it. Counts of less
    /// than a byte begin with the lowest bits.
    fn place(&self, cluster: u64) -> (usize, u64) {
        let block = (cluster >> self.block_bits) as usize;
        (block, (cluster & ((1 << self.block_bits) - 1)) * self.bits)
    }

    /// Whether the image has a block for the count of a cluster.
    pub fn has_place(&self, cluster: u64) -> bool {
        let block = self.blocks.get(self.place(cluster).0);
        block.is_some_and(|block| !block.is_empty())
    }

    /// Returns the count of a cluster.
    pub fn get(&self, cluster: u64) -> u64 {
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
    ///
    /// # Errors
    /// An error of the host.
    pub fn set(&self, file: &File, cluster: u64, count: u64) -> io::Result<()> {
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
