//! A translated block: host code for a run of guest instructions, and the tables
//! that lead from any host address in it back to exact guest state.

use crate::abi::completion::{Completion, X87Note};
use crate::abi::immediate::Immediate;
use crate::abi::link_layout::ModeId;
use crate::abi::marks::Mark;
use crate::abi::packed_marks::PackedMarks;
use crate::abi::register_map::RegisterMap;
use crate::abi::relocation::Relocation;
use crate::abi::sites::{BlockId, Site, SiteKind};
use crate::blocks::code_pages::CodePageId;
use crate::policy::instruction_kind::Helper;
use crate::policy::out_of_line::OutOfLine;
use rustc_hash::FxHashSet;

/// What identifies a translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct BlockKey {
    /// Physical address of the first byte.
    pub physical: u64,
    /// Physical page number of the second page, if the first instruction straddles;
    /// otherwise `u64::MAX`.
    pub second_page: u64,
    /// EIP of the first instruction, or its home.
    pub rip: u64,
    /// The block is relocatable: its addresses are homes (see [`crate::abi::relocation`]).
    pub relocates: bool,
    /// Mode word.
    pub mode: ModeId,
}

/// Who jumps to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Incoming {
    /// The jumping block.
    pub from: BlockId,
    /// Number of the jump's site in that block.
    pub site: u16,
}

/// An instruction of a block that was executed out of line before.
#[derive(Clone, Copy, Debug)]
pub struct Noted {
    /// EIP of the instruction, or its home.
    pub rip: u64,
    /// What it is, there.
    pub instruction: OutOfLine,
    /// The block that runs it on the bounce buffer, and the engine's generation in which that
    /// was found: void in any other.
    pub bounced_by: Option<(BlockId, u64)>,
}

/// A translation and its tables.
#[derive(Debug)]
pub struct Block {
    /// What it translates.
    pub key: BlockKey,
    /// Where it is listed with all that leads to it. `None`: links to it end with what they
    /// depend on (see [`crate::blocks::links`]).
    pub code_page: Option<CodePageId>,
    /// Where an indirect branch last found it: the table's entry for this EIP may lead here.
    pub listed_at: u64,
    /// The bits that an instruction pointer has in its mode.
    pub rip_mask: u64,
    /// Where the guest's registers live in its code.
    pub map: &'static RegisterMap,
    /// It holds one instruction and returns to the monitor behind it.
    pub is_single: bool,
    /// The bits of RSP that its stack adjustments change: 64, 32 or 16.
    pub stack_mask: u64,
    /// Offset of its code in the cache.
    pub host: u32,
    /// Bytes of code.
    pub host_length: u32,
    /// Bytes of guest code.
    pub guest_length: u32,
    /// Ordered by host offset.
    pub marks: PackedMarks,
    /// Ways out of the block, by site number.
    pub sites: Box<[Site]>,
    /// Instructions that the monitor executes.
    pub helpers: Box<[Helper]>,
    /// Instructions that were executed out of line, in the order in which that first happened.
    /// Void, and empty, when the guest's code has changed.
    pub noted: Vec<Noted>,
    /// Operands that can be replaced, in the order of the guest's code.
    pub immediates: Box<[Immediate]>,
    /// Ordered by host offset.
    pub x87_notes: Box<[X87Note]>,
    /// Ordered by host offset.
    pub completions: Box<[Completion]>,
    /// The guest's code, if the block has been retired before or was likely to be.
    pub bytes: Box<[u8]>,
    /// Kept for the case that its code comes back: nothing leads here.
    pub is_retired: bool,
    /// How often it was retired, as far as a byte counts.
    pub retirements: u8,
    /// A link to it was asked for since it was last revived.
    pub is_link_wanted: bool,
    /// Links, direct and through slots, that lead here: each is listed at its last target alone.
    pub incoming: FxHashSet<Incoming>,
    /// Links of this block that were made, each site once: (site, target). A slot may have been
    /// emptied since.
    pub outgoing: Vec<(u16, BlockId)>,
}

impl Block {
    /// Where what its tables name is, while the context's delta is this.
    pub fn relocation(&self, code_delta: u64) -> Relocation {
        match self.key.relocates {
            true => Relocation::new(code_delta, self.rip_mask),
            false => Relocation::NONE,
        }
    }

    /// The mark in force at an offset of the block's code.
    pub fn mark_at(&self, offset: u32) -> Option<Mark> {
        self.marks.at(offset)
    }

    /// The last site, as [`Block::sites`] numbers them, at which the instruction in work at an
    /// offset of the block's code may leave. `None`: it has none, or has completed there.
    pub fn site_at(&self, offset: u32) -> Option<usize> {
        let rip = self.mark_at(offset)?.rip;
        let leaves_there = |site: &Site| {
            let names_target = matches!(
                site.kind,
                SiteKind::Link(_) | SiteKind::Continue | SiteKind::Indirect | SiteKind::Far
            );
            !names_target && site.rip == rip && site.retry <= offset
        };
        self.sites.iter().rposition(leaves_there)
    }

    /// What is being completed at an offset of the block's code.
    pub fn completion_at(&self, offset: u32) -> Option<&Completion> {
        let next = self.completions.partition_point(|it| it.end <= offset);
        self.completions.get(next).filter(|it| it.start <= offset)
    }

    /// What is being noted at an offset of the block's code.
    pub fn x87_note_at(&self, offset: u32) -> Option<&X87Note> {
        let next = self.x87_notes.partition_point(|note| note.end <= offset);
        self.x87_notes.get(next).filter(|note| note.start <= offset)
    }
}
