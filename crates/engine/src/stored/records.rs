//! What the description of stored translations consists of.

use crate::policy::mode::Mode;
use serde::{Deserialize, Serialize};

/// Everything except the pages themselves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Index {
    /// The modes by their numbers.
    pub modes: Vec<Mode>,
    /// All block numbers below this one are taken.
    pub block_numbers: u32,
    /// The first slot that is not taken: of slots for all other code, and of slots for programs.
    pub next_slots: [u32; 2],
    /// How many blocks the engine translated that has written this, in addition to those that it
    /// took from an earlier description.
    pub translated: u64,
    /// The pages, those first that a guest is likely to reach first.
    pub pages: Vec<PageEntry>,
}

/// A page in the index.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PageEntry {
    /// The number of the physical page that the code was in.
    pub physical_page: u64,
    /// A hash of the page's contents.
    pub contents: u64,
    /// A bit for each 64 bytes of the page in which blocks of the record begin.
    pub begins: u64,
    /// Where the page's record begins, in bytes from the end of the index.
    pub offset: u64,
    /// The length of the record in bytes.
    pub length: u32,
    /// The record's checksum.
    pub checksum: u32,
    /// The record's tag under the key that has signed it; 0 without a key.
    pub tag: u128,
}

/// Blocks of one physical page: those that one run has translated. What another run needed in
/// addition is in a record of its own, so that a run takes little that only others need.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PageRecord<'a> {
    /// The link pages of the page's relocatable code.
    pub link_pages: Vec<u64>,
    /// The blocks that were made from the page.
    #[serde(borrow)]
    pub blocks: Vec<BlockRecord<'a>>,
    /// Links of which at least one end is in this page.
    pub links: Vec<LinkRecord>,
}

impl PageEntry {
    /// Whether a block of the record may begin at an offset of the page.
    pub fn may_begin_at(&self, offset: u16) -> bool {
        self.begins & begins_at(offset) != 0
    }
}

/// The bit of [`PageEntry::begins`] for an offset of a page.
fn begins_at(offset: u16) -> u64 {
    1 << (offset / 64 % 64)
}

impl PageRecord<'_> {
    /// The value of [`PageEntry::begins`].
    pub fn begins(&self) -> u64 {
        let bits = self.blocks.iter().map(|block| begins_at(block.offset));
        bits.fold(0, |all, bit| all | bit)
    }
}

/// One block. Blocks with code for which a signal handler stands in, which are few, are not stored:
/// what the handler does there is not verified.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BlockRecord<'a> {
    /// The block's number.
    pub number: u32,
    /// The offset of its first byte in the page.
    pub offset: u16,
    /// EIP of the first instruction, or its link address.
    pub rip: u64,
    /// The block is relocatable.
    pub relocates: bool,
    /// Indirect branches find the block.
    pub is_target: bool,
    /// The number of the block's mode.
    pub mode: u32,
    /// The guest's code.
    pub guest: &'a [u8],
    /// The host's code, in which each direct branch leads to its stub.
    pub code: &'a [u8],
    /// The packed tables.
    pub tables: &'a [u8],
    /// The offsets in the guest's code of the instructions that the monitor executes.
    pub helpers: Vec<u16>,
}

/// A link from a block to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkRecord {
    /// The number of the block that is left.
    pub from: u32,
    /// The site at which it is left.
    pub site: u16,
    /// The number of the block that is reached.
    pub to: u32,
}
