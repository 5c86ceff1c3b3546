//! A translated block: the host code for a run of guest instructions, and the tables that lead from
//! any host address in this code back to the exact state of the guest.
//!
//! The code cache holds hundreds of thousands of blocks. So the fields that every block needs are
//! packed into as few bytes as possible, and what only few blocks have is allocated separately.

use crate::abi::immediate::Immediate;
use crate::abi::link_layout::ModeId;
use crate::abi::packed_sites::PackedSites;
use crate::abi::relocation::Relocation;
use crate::abi::signal_completion::{Completion, X87Note};
use crate::abi::sites::{BlockId, Site, SiteKind};
use crate::abi::state_map::StateEntry;
use crate::blocks::code_pages::CodePageId;
use crate::blocks::packed_tables::PackedTables;
use crate::policy::instruction_kind::Helper;
use crate::policy::mode::{Mode, ModeFlags};
use crate::policy::out_of_line::OutOfLine;

/// The key of a translation: everything that distinguishes it from other translations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct BlockKey {
    /// Physical address of the first byte.
    pub physical: u64,
    /// Physical page number of the second page, if the first instruction straddles;
    /// otherwise `u64::MAX`.
    pub second_page: u64,
    /// EIP of the first instruction, or the link address of that instruction if the block is
    /// relocatable.
    pub rip: u64,
    /// The block is relocatable: its addresses are link addresses (see [`crate::abi::relocation`]).
    pub relocates: bool,
    /// Number of the block's mode word.
    pub mode: ModeId,
}

/// A [`BlockKey`] in 16 bytes. A key that does not fit is marked as incomplete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackedKey {
    rip: u64,
    /// From the low bits to the high ones: the physical address, the number of the mode, whether
    /// the block is relocatable, and whether the key has a part that does not fit.
    rest: u64,
}

/// The number of bits of the physical address in a packed key.
const PHYSICAL_BITS: u32 = 47;
/// The number of bits of the mode's number in a packed key.
const MODE_BITS: u32 = 15;
const RELOCATES: u64 = 1 << 62;
const HAS_MORE: u64 = 1 << 63;
const _: () = assert!(PHYSICAL_BITS + MODE_BITS == 62);

impl PackedKey {
    /// Packs as much of a key as fits.
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

    /// Unpacks a key of which every part has fitted.
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

/// An instruction of a block that was executed out of line earlier.
#[derive(Clone, Copy, Debug)]
pub struct Noted {
    /// EIP of the instruction, or its link address if the block is relocatable.
    pub rip: u64,
    /// The instruction that was found at this address.
    pub instruction: OutOfLine,
    /// The block that runs the instruction on the bounce buffer, and the engine's generation in
    /// which that block was found. In any other generation the block's number is invalid.
    pub bounced_by: Option<(BlockId, u64)>,
}

/// The parts of a block that only few blocks have.
#[derive(Debug, Default)]
pub struct Rare {
    /// The whole key, if the packed key is incomplete.
    key: Option<BlockKey>,
    /// For a block without a code page: the EIP for which an indirect branch last found the block.
    /// The entry of the branch table for this EIP may still lead to the block.
    listed_at: Option<u64>,
    /// Instructions that the monitor executes.
    helpers: Box<[Helper]>,
    /// Instructions that were executed out of line, in the order in which that first happened. The
    /// list is emptied when the guest's code has changed.
    noted: Vec<Noted>,
    /// Notes of x87 pointers, ordered by host offset.
    x87_notes: Box<[X87Note]>,
    /// Parts of the code that complete an instruction, ordered by host offset.
    completions: Box<[Completion]>,
}

bitflags::bitflags! {
    /// Properties of a block that need one bit each.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct BlockFlags: u8 {
        /// The block is 64-bit code.
        const CODE_64 = 1 << 0;
        /// The block's stack adjustments change only the low 16 bits of RSP.
        const STACK_16 = 1 << 1;
        /// The block holds one instruction and returns to the monitor after it.
        const SINGLE = 1 << 2;
        /// The block is retired: nothing leads to it. It is kept because its guest code may come
        /// back.
        const RETIRED = 1 << 3;
        /// A link to the block was requested since the block was last revived.
        const LINK_WANTED = 1 << 4;
    }
}

/// Value of the field `code_page` of a block without a code page.
const NO_PAGE: u32 = u32::MAX;

/// A translation and its tables.
#[derive(Debug)]
pub struct Block {
    key: PackedKey,
    tables: PackedTables,
    rare: Option<Box<Rare>>,
    /// Offset of the block's code in the code cache.
    pub host: u32,
    /// Length of the block's code in bytes.
    pub host_length: u32,
    code_page: u32,
    /// Length of the translated guest code in bytes.
    pub guest_length: u16,
    flags: BlockFlags,
    /// Number of times that the block was retired; counting stops at 255.
    pub retirements: u8,
}

// Hundreds of thousands of blocks exist at the same time.
const _: () = assert!(size_of::<Option<Block>>() <= 56);

/// Everything that a block is made from, except its tables.
pub struct NewBlock {
    /// The key of the translation.
    pub key: BlockKey,
    /// The code page that lists the block and all that leads to it. If `None`, a link to the block
    /// is removed when the pages that the link depends on are invalidated (see
    /// [`crate::blocks::links`]).
    pub code_page: Option<CodePageId>,
    /// Offset of the block's code in the code cache.
    pub host: u32,
    /// Length of the block's code in bytes.
    pub host_length: u32,
    /// Length of the translated guest code in bytes.
    pub guest_length: u16,
    /// Instructions that the monitor executes.
    pub helpers: Box<[Helper]>,
    /// Notes of x87 pointers, ordered by host offset.
    pub x87_notes: Box<[X87Note]>,
    /// Parts of the code that complete an instruction, ordered by host offset.
    pub completions: Box<[Completion]>,
}

impl Block {
    /// Makes an active block in a mode. The addresses in `tables` must have been packed relative to
    /// the key's EIP.
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

    /// The key of the translation.
    pub fn key(&self) -> BlockKey {
        let rare = self.rare.as_ref().filter(|_| self.key.has_more());
        rare.and_then(|rare| rare.key)
            .unwrap_or_else(|| self.key.whole())
    }

    /// Whether the block is the translation of `key`; `packed` is the same key in its packed form.
    #[inline]
    pub fn translates(&self, key: &BlockKey, packed: PackedKey) -> bool {
        self.key == packed && (!packed.has_more() || self.key() == *key)
    }

    /// EIP of the first instruction, or the link address of that instruction if the block is
    /// relocatable.
    pub fn rip(&self) -> u64 {
        self.key.rip
    }

    /// Whether the block is relocatable, so that its addresses are link addresses.
    pub fn relocates(&self) -> bool {
        self.key.rest & RELOCATES != 0
    }

    /// The code page that lists the block and all that leads to it. If `None`, a link to the block
    /// is removed when the pages that the link depends on are invalidated (see
    /// [`crate::blocks::links`]).
    pub fn code_page(&self) -> Option<CodePageId> {
        (self.code_page != NO_PAGE).then_some(CodePageId::new(self.code_page))
    }

    /// For a block without a code page: the EIP for which an indirect branch last found the block.
    /// The entry of the branch table for this EIP may still lead to the block.
    pub fn listed_at(&self) -> u64 {
        let listed = self.rare.as_ref().and_then(|rare| rare.listed_at);
        listed.unwrap_or(self.key.rip)
    }

    /// Notes that an indirect branch to this EIP will find the block, which has no code page.
    pub fn set_listed_at(&mut self, rip: u64) {
        if rip != self.listed_at() {
            self.rare_mut().listed_at = Some(rip);
        }
    }

    fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Whether the block holds one instruction and returns to the monitor after it.
    pub fn is_single(&self) -> bool {
        self.flags.contains(BlockFlags::SINGLE)
    }

    /// Whether the block is 64-bit code.
    pub fn is_64_bit(&self) -> bool {
        self.flags.contains(BlockFlags::CODE_64)
    }

    /// The bits of RSP that the block's stack adjustments change: the low 64, 32 or 16.
    pub fn stack_mask(&self) -> u64 {
        if self.is_64_bit() {
            u64::MAX
        } else if self.flags.contains(BlockFlags::STACK_16) {
            0xffff
        } else {
            0xffff_ffff
        }
    }

    /// Whether the block is retired: nothing leads to it, and it is kept because its guest code may
    /// come back.
    pub fn is_retired(&self) -> bool {
        self.flags.contains(BlockFlags::RETIRED)
    }

    /// Notes that nothing leads to the block any more.
    pub fn retire(&mut self) {
        self.flags |= BlockFlags::RETIRED;
        self.flags -= BlockFlags::LINK_WANTED;
        self.retirements = self.retirements.saturating_add(1);
        if let Some(rare) = &mut self.rare {
            rare.noted = Vec::new();
        }
    }

    /// Makes a retired block active again.
    pub fn revive(&mut self) {
        self.flags -= BlockFlags::RETIRED;
    }

    /// Notes that a link to the block is requested. Returns whether a link was already requested
    /// since the block was last revived.
    pub fn want_link(&mut self) -> bool {
        let was_wanted = self.flags.contains(BlockFlags::LINK_WANTED);
        self.flags |= BlockFlags::LINK_WANTED;
        was_wanted
    }

    /// How the addresses in the block's tables are moved when the context's slide is `code_slide`.
    pub fn relocation(&self, code_slide: u64) -> Relocation {
        if !self.relocates() {
            return Relocation::NONE;
        }
        let mask = match self.is_64_bit() {
            true => u64::MAX,
            false => 0xffff_ffff,
        };
        Relocation::new(code_slide, mask)
    }

    /// The sites of the block: the places where the block can be left.
    pub fn sites(&self) -> PackedSites<'_> {
        self.tables.sites(self.key.rip)
    }

    /// The site with this number.
    #[inline]
    pub fn site(&self, number: usize) -> Option<Site> {
        self.sites().get(number)
    }

    /// The block's state map, ordered by host offset.
    pub fn state_map(&self) -> impl Iterator<Item = StateEntry> + '_ {
        self.tables.state_map()
    }

    /// The entry of the state map that applies at an offset of the block's code.
    pub fn state_at(&self, offset: u32) -> Option<StateEntry> {
        self.tables.state_at(offset)
    }

    /// Immediate operands that can be replaced, in the order of the guest's code.
    pub fn immediates(&self) -> impl Iterator<Item = Immediate> + '_ {
        self.tables.immediates()
    }

    /// The bytes of the packed tables, without a copy of the guest's code.
    pub fn table_bytes(&self) -> &[u8] {
        self.tables.bytes()
    }

    /// Whether a signal handler stands in for a part of the code.
    pub fn has_signal_completions(&self) -> bool {
        let rare = self.rare.as_ref();
        rare.is_some_and(|rare| !rare.x87_notes.is_empty() || !rare.completions.is_empty())
    }

    /// A copy of the guest's code, if the block was retired before or was likely to be retired;
    /// otherwise an empty slice.
    pub fn code(&self) -> &[u8] {
        self.tables.code()
    }

    /// The copy of the guest's code, for changes.
    pub fn code_mut(&mut self) -> &mut [u8] {
        self.tables.code_mut()
    }

    /// Keeps a copy of the guest's code.
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

    /// The instructions that were executed out of line, for changes.
    pub fn noted_mut(&mut self) -> &mut [Noted] {
        self.rare.as_mut().map_or(&mut [], |rare| &mut rare.noted)
    }

    /// Appends an instruction that was executed out of line.
    pub fn note(&mut self, noted: Noted) {
        self.rare_mut().noted.push(noted);
    }

    /// The number, in the order of [`Block::sites`], of the last site through which the instruction
    /// that is executing at an offset of the block's code can leave. `None` if the instruction has
    /// no such site, or is already complete at this offset.
    pub fn site_at(&self, offset: u32) -> Option<usize> {
        let rip = self.state_at(offset)?.rip;
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

    /// Parts of the block's code that complete an instruction, each with what remains to be done,
    /// ordered by host offset.
    pub fn completions(&self) -> &[Completion] {
        self.rare.as_ref().map_or(&[], |rare| &rare.completions)
    }

    /// The completion of an instruction that is under way at an offset of the block's code, if any.
    pub fn completion_at(&self, offset: u32) -> Option<&Completion> {
        let all = self.completions();
        let next = all.partition_point(|it| it.end <= offset);
        all.get(next).filter(|it| it.start <= offset)
    }

    /// The note of x87 pointers that is being stored at an offset of the block's code, if any.
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
