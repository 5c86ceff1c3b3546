//! The layout of the link tables in memory, and how emitted code finds a target in them.
//! `blocks/links.rs` fills the tables.
//!
//! The tables consist of two parts of the same form. Where the code of programs leads depends on
//! the address space, so each space that is kept has a first part of its own. The second part
//! serves all other code, and is the same memory in all spaces:
//!
//! ```text
//! R13 of space 3 -> | programs' table, slots, own tables | table, slots, own tables, far table |
//! R13 of space 5 -> | programs' table, slots, own tables | the same memory                     |
//! ```

/// A small number that identifies a mode ([`crate::policy::mode::Mode`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct ModeId(pub u32);

/// Where a slot lies, in bytes from the start of the tables: emitted code jumps to what it holds
/// there. Numbers below [`MAX_SLOTS`] are slots of [programs' code](is_programs_slot).
pub const fn slot_offset(slot: u32) -> i32 {
    match is_programs_slot(slot) {
        true => SLOTS_OFFSET + slot as i32 * SLOT_BYTES,
        false => COMMON_SLOTS_OFFSET + (slot - MAX_SLOTS as u32) as i32 * SLOT_BYTES,
    }
}

/// Whether a slot is for code of programs: each address space has such slots of its own.
pub const fn is_programs_slot(slot: u32) -> bool {
    (slot as usize) < MAX_SLOTS
}

/// What emitted code a slot is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotsFor {
    /// Code of levels 0 to 2: all address spaces have the slot in common.
    Kernels,
    /// Code of level 3: each space has the slot for itself.
    Programs,
}

impl SlotsFor {
    /// What a slot is for.
    pub const fn of(slot: u32) -> Self {
        match is_programs_slot(slot) {
            true => Self::Programs,
            false => Self::Kernels,
        }
    }
}

/// Whether what lies at this offset from the start of the tables is for programs' code, so that
/// each address space has its own.
pub const fn is_programs_part(offset: u32) -> bool {
    offset < COMMON_OFFSET as u32
}

/// A small number that identifies all modes that differ in the base of CS alone: far
/// transfers of real and V86 mode lead from one to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct FamilyId(pub u32);

/// Where indirect branches of a mode find their targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BranchTable {
    /// In the table that all other modes of levels 0 to 2 share.
    Shared,
    /// In the table that all other modes of level 3, those of programs, share.
    SharedByPrograms,
    /// In the table of this number, which no other mode has: 64-bit code, and 32-bit code of the
    /// modes met first. Numbers below [`PROGRAMS_TABLES`] are for modes of level 3.
    Own(u8),
}

impl BranchTable {
    /// Whether several modes use it, so that its tags name the mode.
    pub const fn is_shared(self) -> bool {
        matches!(self, BranchTable::Shared | BranchTable::SharedByPrograms)
    }
}

/// Tables that belong to one mode of programs at most.
pub const PROGRAMS_TABLES: u8 = 64;
/// Tables that belong to one other mode at most.
pub const COMMON_TABLES: u8 = 96;
/// While fewer tables of other modes than programs' are taken, 32-bit code gets them too; the rest
/// is left to 64-bit code, which cannot do without.
pub const MAX_TABLES_OF_32_BIT_CODE: u8 = COMMON_TABLES / 2;
/// The same for programs' modes.
pub const MAX_TABLES_OF_32_BIT_PROGRAMS: u8 = PROGRAMS_TABLES / 2;

/// Entries of a hash table of indirect branches at which targets are looked for first, indexed
/// by [18 bits of EIP](first_choice). Two targets whose EIP has the same would push each other out
/// again and again, so the entry behind is looked at too.
pub const HASH_ENTRIES: usize = 1 << INDEX_BITS;
/// How many low bits of a target's EIP its index leaves out. Functions begin at multiples of 16,
/// and return addresses are rarely closer than five bytes. With all low bits in the index, the
/// entries of functions would share one eighth of the sets of the processor's first-level cache,
/// and each page of the table would serve only 128 bytes of code.
pub const INDEX_SHIFT: u32 = 2;

/// Bits of an index. A compiler at work has some 140,000 targets: twice as many as a table of 16 bits has
/// entries, which missed six times for each of them.
pub const INDEX_BITS: u32 = 18;
/// The bits of a target's EIP that its index consists of, where they are: four times the index.
pub const INDEX_BITS_IN_PLACE: u32 = (HASH_ENTRIES as u32 - 1) << INDEX_SHIFT;
const _: () = assert!(ENTRY_BYTES == 8 << INDEX_SHIFT, "code scales that by 8");
/// A rotation to the right by this many bits moves the bits of a target's index to the top of its
/// EIP.
pub const INDEX_TURN: u8 = (INDEX_SHIFT + INDEX_BITS) as u8;
/// R13 of guest code points this many bytes behind the start of the tables, which are aligned to 64
/// bytes. So the low six bits of R13 are always this number, and a shift to the right by R13 leaves
/// the bits of an index.
pub const LINKS_BIAS: i32 = 64 - INDEX_BITS as i32;

/// The displacement from R13 of an offset from the start of the tables, in bytes.
pub const fn from_links(offset: i32) -> i32 {
    offset - LINKS_BIAS
}

/// The index of the entry at which a target is looked for first. Emitted code computes the same.
pub const fn first_choice(rip: u64) -> u32 {
    (rip >> INDEX_SHIFT) as u32 & (HASH_ENTRIES as u32 - 1)
}
/// Bytes of an entry of these tables: tag, target, what
/// [`Context::code_delta`](crate::abi::context::Context::code_delta) must be there, and the negative
/// of that.
pub const ENTRY_BYTES: i32 = 32;
/// Offset in an entry of the host address of the target.
pub const ENTRY_TARGET: i32 = 8;
/// Offset in an entry of the target's delta.
pub const ENTRY_DELTA: i32 = 16;
/// Offset in an entry of the delta's negative, which emitted code can compare without changing flags.
pub const ENTRY_NEGATED_DELTA: i32 = 24;
/// Bytes of a hash table, with an entry behind the last, in whole cache lines. The slots follow the
/// first table of each part.
pub const TABLE_BYTES: i32 = HASH_ENTRIES as i32 * ENTRY_BYTES + 64;
/// Bytes from the start of the tables to the slots of programs' code.
pub const SLOTS_OFFSET: i32 = TABLE_BYTES;
/// Slots that can be given out for programs' code, and as many for all other code.
pub const MAX_SLOTS: usize = 1 << 20;
/// Bytes of all slots of one of the two parts.
const SLOTS_BYTES: i32 = MAX_SLOTS as i32 * SLOT_BYTES;
/// Bytes of a slot: the host address that the link leads to, and that of its stub, to which it
/// leads as long as it has no target.
pub const SLOT_BYTES: i32 = 16;
/// Offset in a slot of the stub's address.
pub const SLOT_STUB: i32 = 8;
/// Bytes from the start of the tables to the first table that belongs to one mode of programs.
pub const OWN_TABLES_OFFSET: i32 = SLOTS_OFFSET + SLOTS_BYTES;

/// Bytes from the start of the tables to the part that all address spaces have in common. What lies
/// before it is for programs' code, and each space has its own.
pub const COMMON_OFFSET: i32 =
    (OWN_TABLES_OFFSET + PROGRAMS_TABLES as i32 * TABLE_BYTES + HOST_PAGE - 1) & -HOST_PAGE;
/// Bytes from the start of the tables to the slots of code that is not programs'.
pub const COMMON_SLOTS_OFFSET: i32 = COMMON_OFFSET + TABLE_BYTES;
/// Bytes from the start of the tables to the first table that belongs to one mode which is not
/// programs'.
pub const COMMON_TABLES_OFFSET: i32 = COMMON_SLOTS_OFFSET + SLOTS_BYTES;

/// Bytes from the start of the tables to that of far transfers in real and V86 mode.
pub const FAR_TABLE_OFFSET: i32 = COMMON_TABLES_OFFSET + COMMON_TABLES as i32 * TABLE_BYTES;
/// Entries of that table.
pub const FAR_ENTRIES: usize = 1 << 16;
/// Bytes of one of its entries: tag and target.
pub const FAR_ENTRY_BYTES: i32 = 16;
/// Bytes of all tables, whole pages of the host.
pub const TABLES_BYTES: i32 =
    (FAR_TABLE_OFFSET + FAR_ENTRIES as i32 * FAR_ENTRY_BYTES + HOST_PAGE - 1) & -HOST_PAGE;
/// Bytes of a page of the host.
const HOST_PAGE: i32 = 4096;

/// Where a mode's table of indirect branches lies, in bytes from the start of the tables
/// (R13 in guest code).
pub const fn table_offset(table: BranchTable) -> i32 {
    match table {
        BranchTable::SharedByPrograms => 0,
        BranchTable::Shared => COMMON_OFFSET,
        BranchTable::Own(number) => match number.checked_sub(PROGRAMS_TABLES) {
            None => OWN_TABLES_OFFSET + number as i32 * TABLE_BYTES,
            Some(number) => COMMON_TABLES_OFFSET + number as i32 * TABLE_BYTES,
        },
    }
}

/// Where an entry lies in which a target of the mode that uses `table` is looked for, if its
/// index is 0, in bytes from the start of the tables: the first choice and the second one.
pub const fn choices(table: BranchTable) -> [i32; 2] {
    let first = table_offset(table);
    [first, first + ENTRY_BYTES]
}

/// Added to the target's RIP it gives the negative of the tag of the target's entry. `table` is
/// the table of indirect branches that `mode` uses.
pub const fn indirect_tag(table: BranchTable, mode: ModeId) -> u64 {
    match table {
        BranchTable::Shared | BranchTable::SharedByPrograms => ((mode.0 as u64) << 32) + 1,
        BranchTable::Own(_) => 1,
    }
}

/// What a far pointer is added to; the negated sum is its tag. Never zero, as a vacant
/// entry's tag may be.
pub const fn far_tag_base(family: FamilyId) -> u64 {
    ((family.0 as u64) << 32) + 1
}
