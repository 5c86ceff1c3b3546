//! A translated block: host code for a run of guest instructions, and the tables
//! that lead from any host address in it back to exact guest state.
//!
//! There are as many as fit into the code cache, hundreds of thousands, so that a block has what
//! every block needs in as few bytes as that takes; what few have is kept apart.

use crate::abi::completion::{Completion, X87Note};
use crate::abi::immediate::Immediate;
use crate::abi::link_layout::ModeId;
use crate::abi::marks::Mark;
use crate::abi::packed_sites::PackedSites;
use crate::abi::relocation::Relocation;
use crate::abi::sites::{BlockId, Site, SiteKind};
use crate::blocks::code_pages::CodePageId;
use crate::blocks::packed_tables::PackedTables;
use crate::policy::instruction_kind::Helper;
use crate::policy::mode::{Mode, ModeFlags};
use crate::policy::out_of_line::OutOfLine;

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

/// A key in less room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackedKey {
    rip: u64,
    /// From low to high: the physical address, the mode, relocatable or not, and whether the key
    /// has more than fits in here.
    rest: u64,
}

/// Bits of a physical address that fit.
const PHYSICAL_BITS: u32 = 47;
/// Bits of a mode's number that fit.
const MODE_BITS: u32 = 15;
const RELOCATES: u64 = 1 << 62;
const HAS_MORE: u64 = 1 << 63;
const _: () = assert!(PHYSICAL_BITS + MODE_BITS == 62);

impl PackedKey {
    /// The key, as far as it fits.
    #[inline]
    pub fn new(key: &BlockKey) -> Self {
        let mode = u64::from(key.mode.0);
        let fits = key.second_page == u64::MAX
            && key.physical >> PHYSICAL_BITS == 0
            && mode >> MODE_BITS == 0;
        let mut rest = key.physical & ((1 << PHYSICAL_BITS) - 1);
        rest |= (mode & ((1 << MODE_BITS) - 1)) << PHYSICAL_BITS;
        if key.relocates {
            rest |= RELOCATES;
        }
        if !fits {
            rest |= HAS_MORE;
        }
        Self { rip: key.rip, rest }
    }

    fn has_more(self) -> bool {
        self.rest & HAS_MORE != 0
    }

    /// The key, if it has no more than is in here.
    fn whole(self) -> BlockKey {
        BlockKey {
            physical: self.rest & ((1 << PHYSICAL_BITS) - 1),
            second_page: u64::MAX,
            rip: self.rip,
            relocates: self.rest & RELOCATES != 0,
            mode: ModeId((self.rest >> PHYSICAL_BITS) as u32 & ((1 << MODE_BITS) - 1)),
        }
    }
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

/// What few blocks have.
#[derive(Debug, Default)]
pub struct Rare {
    /// Of one whose packed key has more.
    key: Option<BlockKey>,
    /// Of one without a code page: where an indirect branch last found it. The table's entry
    /// for this EIP may lead here.
    listed_at: Option<u64>,
    /// Instructions that the monitor executes.
    helpers: Box<[Helper]>,
    /// Instructions that were executed out of line, in the order in which that first happened.
    /// Void, and empty, when the guest's code has changed.
    noted: Vec<Noted>,
    /// Ordered by host offset.
    x87_notes: Box<[X87Note]>,
    /// Ordered by host offset.
    completions: Box<[Completion]>,
}

bitflags::bitflags! {
    /// What is to be known of a block.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct BlockFlags: u8 {
        /// 64-bit code.
        const CODE_64 = 1 << 0;
        /// Its stack adjustments change 16 bits of RSP.
        const STACK_16 = 1 << 1;
        /// It holds one instruction and returns to the monitor behind it.
        const SINGLE = 1 << 2;
        /// Kept for the case that its code comes back: nothing leads here.
        const RETIRED = 1 << 3;
        /// A link to it was asked for since it was last revived.
        const LINK_WANTED = 1 << 4;
    }
}

/// No code page.
const NO_PAGE: u32 = u32::MAX;

/// A translation and its tables.
#[derive(Debug)]
pub struct Block {
    key: PackedKey,
    tables: PackedTables,
    rare: Option<Box<Rare>>,
    /// Offset of its code in the cache.
    pub host: u32,
    /// Bytes of code.
    pub host_length: u32,
    code_page: u32,
    /// Bytes of guest code.
    pub guest_length: u16,
    flags: BlockFlags,
    /// How often it was retired, as far as a byte counts.
    pub retirements: u8,
}

// There are very many.
const _: () = assert!(size_of::<Option<Block>>() <= 56);

/// What a block is made from, beside its tables.
pub struct NewBlock {
    /// What it translates.
    pub key: BlockKey,
    /// Where it is listed with all that leads to it. `None`: links to it end with what they
    /// depend on (see [`crate::blocks::links`]).
    pub code_page: Option<CodePageId>,
    /// Offset of its code in the cache.
    pub host: u32,
    /// Bytes of code.
    pub host_length: u32,
    /// Bytes of guest code.
    pub guest_length: u16,
    /// Instructions that the monitor executes.
    pub helpers: Box<[Helper]>,
    /// Ordered by host offset.
    pub x87_notes: Box<[X87Note]>,
    /// Ordered by host offset.
    pub completions: Box<[Completion]>,
}

impl Block {
    /// A block in force, in a mode. The tables' start is the key's EIP.
    pub fn new(new: NewBlock, mode: &Mode, tables: PackedTables) -> Self {
        let mut flags = BlockFlags::empty();
        flags.set(BlockFlags::CODE_64, mode.flags.contains(ModeFlags::CODE64));
        flags.set(BlockFlags::STACK_16, mode.stack_mask() == 0xffff);
        flags.set(BlockFlags::SINGLE, mode.flags.contains(ModeFlags::SINGLE));
        let key = PackedKey::new(&new.key);
        let rare = Rare {
            key: Some(new.key).filter(|_| key.has_more()),
            listed_at: None,
            helpers: new.helpers,
            noted: Vec::new(),
            x87_notes: new.x87_notes,
            completions: new.completions,
        };
        let has_rare = rare.key.is_some()
            || !rare.helpers.is_empty()
            || !rare.x87_notes.is_empty()
            || !rare.completions.is_empty();
        Self {
            key,
            tables,
            rare: has_rare.then(|| Box::new(rare)),
            host: new.host,
            host_length: new.host_length,
            code_page: new.code_page.map_or(NO_PAGE, CodePageId::number),
            guest_length: new.guest_length,
            flags,
            retirements: 0,
        }
    }

    /// What it translates.
    pub fn key(&self) -> BlockKey {
        let rare = self.rare.as_ref().filter(|_| self.key.has_more());
        rare.and_then(|rare| rare.key)
            .unwrap_or_else(|| self.key.whole())
    }

    /// Whether it translates a key, which is also given packed.
    #[inline]
    pub fn translates(&self, key: &BlockKey, packed: PackedKey) -> bool {
        self.key == packed && (!packed.has_more() || self.key() == *key)
    }

    /// EIP of the first instruction, or its home.
    pub fn rip(&self) -> u64 {
        self.key.rip
    }

    /// Its addresses are homes.
    pub fn relocates(&self) -> bool {
        self.key.rest & RELOCATES != 0
    }

    /// Where it is listed with all that leads to it. `None`: links to it end with what they
    /// depend on (see [`crate::blocks::links`]).
    pub fn code_page(&self) -> Option<CodePageId> {
        (self.code_page != NO_PAGE).then_some(CodePageId::new(self.code_page))
    }

    /// Where an indirect branch last found it, if it has no code page: the table's entry for this
    /// EIP may lead here.
    pub fn listed_at(&self) -> u64 {
        let listed = self.rare.as_ref().and_then(|rare| rare.listed_at);
        listed.unwrap_or(self.key.rip)
    }

    /// An indirect branch to this EIP is going to find it, and it has no code page.
    pub fn set_listed_at(&mut self, rip: u64) {
        if rip != self.listed_at() {
            self.rare_mut().listed_at = Some(rip);
        }
    }

    fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// It holds one instruction and returns to the monitor behind it.
    pub fn is_single(&self) -> bool {
        self.flags.contains(BlockFlags::SINGLE)
    }

    /// It is 64-bit code.
    pub fn is_64_bit(&self) -> bool {
        self.flags.contains(BlockFlags::CODE_64)
    }

    /// The bits of RSP that its stack adjustments change: 64, 32 or 16.
    pub fn stack_mask(&self) -> u64 {
        if self.is_64_bit() {
            u64::MAX
        } else if self.flags.contains(BlockFlags::STACK_16) {
            0xffff
        } else {
            0xffff_ffff
        }
    }

    /// Kept for the case that its code comes back: nothing leads here.
    pub fn is_retired(&self) -> bool {
        self.flags.contains(BlockFlags::RETIRED)
    }

    /// Nothing leads here from now on.
    pub fn retire(&mut self) {
        self.flags |= BlockFlags::RETIRED;
        self.flags -= BlockFlags::LINK_WANTED;
        self.retirements = self.retirements.saturating_add(1);
        if let Some(rare) = &mut self.rare {
            rare.noted = Vec::new();
        }
    }

    /// It is in force again.
    pub fn revive(&mut self) {
        self.flags -= BlockFlags::RETIRED;
    }

    /// A link to it is asked for. Whether one was before, since it was last revived.
    pub fn want_link(&mut self) -> bool {
        let was_wanted = self.flags.contains(BlockFlags::LINK_WANTED);
        self.flags |= BlockFlags::LINK_WANTED;
        was_wanted
    }

    /// Where what its tables name is, while the context's delta is this.
    pub fn relocation(&self, code_delta: u64) -> Relocation {
        if !self.relocates() {
            return Relocation::NONE;
        }
        let mask = match self.is_64_bit() {
            true => u64::MAX,
            false => 0xffff_ffff,
        };
        Relocation::new(code_delta, mask)
    }

    /// Ways out of the block.
    pub fn sites(&self) -> PackedSites<'_> {
        self.tables.sites(self.key.rip)
    }

    /// The way out of this number.
    #[inline]
    pub fn site(&self, number: usize) -> Option<Site> {
        self.sites().get(number)
    }

    /// Its marks, ordered by host offset.
    pub fn marks(&self) -> impl Iterator<Item = Mark> + '_ {
        self.tables.marks()
    }

    /// The mark in force at an offset of the block's code.
    pub fn mark_at(&self, offset: u32) -> Option<Mark> {
        self.tables.mark_at(offset)
    }

    /// Operands that can be replaced, in the order of the guest's code.
    pub fn immediates(&self) -> impl Iterator<Item = Immediate> + '_ {
        self.tables.immediates()
    }

    /// The guest's code, if it has been retired before or was likely to be; else nothing.
    pub fn code(&self) -> &[u8] {
        self.tables.code()
    }

    /// The same, to be changed.
    pub fn code_mut(&mut self) -> &mut [u8] {
        self.tables.code_mut()
    }

    /// Keeps the guest's code.
    pub fn keep_code(&mut self, bytes: &[u8]) {
        self.tables.keep_code(bytes);
    }

    /// Instructions that the monitor executes.
    pub fn helpers(&self) -> &[Helper] {
        self.rare.as_ref().map_or(&[], |rare| &rare.helpers)
    }

    /// Instructions that were executed out of line.
    pub fn noted(&self) -> &[Noted] {
        self.rare.as_ref().map_or(&[], |rare| &rare.noted)
    }

    /// The same, to be changed.
    pub fn noted_mut(&mut self) -> &mut [Noted] {
        self.rare.as_mut().map_or(&mut [], |rare| &mut rare.noted)
    }

    /// Notes one more, behind the others.
    pub fn note(&mut self, noted: Noted) {
        self.rare_mut().noted.push(noted);
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
        let sites = self.sites().iter().enumerate();
        let last = sites.filter(|(_, site)| leaves_there(site)).last();
        last.map(|(number, _)| number)
    }

    /// What is done in parts of its code that complete an instruction, ordered by host offset.
    pub fn completions(&self) -> &[Completion] {
        self.rare.as_ref().map_or(&[], |rare| &rare.completions)
    }

    /// What is being completed at an offset of the block's code.
    pub fn completion_at(&self, offset: u32) -> Option<&Completion> {
        let all = self.completions();
        let next = all.partition_point(|it| it.end <= offset);
        all.get(next).filter(|it| it.start <= offset)
    }

    /// What is being noted at an offset of the block's code.
    pub fn x87_note_at(&self, offset: u32) -> Option<&X87Note> {
        let all = &self.rare.as_ref()?.x87_notes;
        let next = all.partition_point(|note| note.end <= offset);
        all.get(next).filter(|note| note.start <= offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_key_is_whole_or_says_that_it_is_not() {
        let plain = BlockKey {
            physical: 0x12_3456_789a,
            second_page: u64::MAX,
            rip: 0xffff_ffff_8123_489a,
            relocates: true,
            mode: ModeId(0x3fff),
        };
        for relocates in [false, true] {
            let key = BlockKey { relocates, ..plain };
            let packed = PackedKey::new(&key);
            assert!(!packed.has_more());
            assert_eq!(packed.whole(), key);
        }
        let more = [
            BlockKey {
                second_page: 0x1_2345,
                ..plain
            },
            BlockKey {
                physical: 1 << 51,
                ..plain
            },
            BlockKey {
                mode: ModeId(1 << 15),
                ..plain
            },
        ];
        for key in more {
            assert!(PackedKey::new(&key).has_more());
            assert_ne!(PackedKey::new(&key), PackedKey::new(&plain));
        }
    }
}
