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

/// Where a slot lies, in bytes from the start of the tables; emitted code jumps to the address in
/// the slot. Numbers below [`MAX_SLOTS`] are slots of [programs' code](is_programs_slot).
pub const fn slot_offset(slot: u32) -> i32 {
    match is_programs_slot(slot) {
        true => SLOTS_OFFSET + slot as i32 * SLOT_BYTES,
        false => COMMON_SLOTS_OFFSET + (slot - MAX_SLOTS as u32) as i32 * SLOT_BYTES,
    }
}

/// Whether a slot is for code of programs: each address space has its own copy of these slots.
pub const fn is_programs_slot(slot: u32) -> bool {
    (slot as usize) < MAX_SLOTS
}

/// The code that a slot is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotsFor {
    /// Code of levels 0 to 2: all address spaces share the slot.
    Kernels,
    /// Code of level 3: each space has its own copy of the slot.
    Programs,
}

impl SlotsFor {
    /// The code that a slot is for.
    pub const fn of(slot: u32) -> Self {
        match is_programs_slot(slot) {
            true => Self::Programs,
            false => Self::Kernels,
        }
    }
}

/// Whether this offset from the start of the tables is in the part for programs' code, of which
/// each address space has its own copy.
pub const fn is_programs_part(offset: u32) -> bool {
    offset < COMMON_OFFSET as u32
}

/// A small number that identifies all modes that differ only in the base of CS: far transfers of
/// real and V86 mode lead from one of them to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct FamilyId(pub u32);

/// Where indirect branches of a mode find their targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BranchTable {
    /// They are in the table that all other modes of levels 0 to 2 share.
    Shared,
    /// They are in the table that all other modes of level 3, those of programs, share.
    SharedByPrograms,
    /// They are in the table of this number, which belongs to one mode. 64-bit modes have such
    /// tables, and so have the 32-bit modes that occur first. Numbers below [`PROGRAMS_TABLES`] are
    /// for modes of level 3.
    Own(u8),
}

impl BranchTable {
    /// Whether several modes use the table, so that its tags contain the mode.
    pub const fn is_shared(self) -> bool {
        matches!(self, BranchTable::Shared | BranchTable::SharedByPrograms)
    }
}

/// A mode, and where its indirect branches find their targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModeTable {
    /// The number of the mode.
    pub mode: ModeId,
    /// The table that its indirect branches use.
    pub table: BranchTable,
}

/// The number of tables that belong to one mode of programs each.
pub const PROGRAMS_TABLES: u8 = 64;
/// The number of tables that belong to one other mode each.
pub const COMMON_TABLES: u8 = 96;
/// The number of tables of modes that are not programs', below which 32-bit code gets a table too.
/// The rest is left to 64-bit code, which needs a table of its own.
pub const MAX_TABLES_OF_32_BIT_CODE: u8 = COMMON_TABLES / 2;
/// The number of tables of programs' modes, below which 32-bit code gets a table too.
pub const MAX_TABLES_OF_32_BIT_PROGRAMS: u8 = PROGRAMS_TABLES / 2;

/// The number of entries of a hash table of indirect branches that can be the first choice. They
/// are indexed by [18 bits of EIP](first_choice). Two targets with the same index would evict each
/// other again and again, so the next entry is examined too.
pub const HASH_ENTRIES: usize = 1 << INDEX_BITS;
/// How many low bits of a target's EIP are not in its index. Functions begin at multiples of 16,
/// and return addresses are rarely closer than five bytes. If all low bits were in the index, the
/// entries of functions would share one eighth of the sets of the processor's first-level cache,
/// and each page of the table would serve only 128 bytes of code.
pub const INDEX_SHIFT: u32 = 2;

/// The number of bits of an index. A compiler at work has some 140,000 targets. That is twice the
/// number of entries of a table of 16 bits, which missed six times for each target.
pub const INDEX_BITS: u32 = 18;
/// The bits of a target's EIP that form its index, in their place: four times the index.
pub const INDEX_BITS_IN_PLACE: u32 = (HASH_ENTRIES as u32 - 1) << INDEX_SHIFT;
const _: () = assert!(ENTRY_BYTES == 8 << INDEX_SHIFT, "code scales that by 8");
/// The number of bits by which a rotation to the right moves the bits of a target's index to the
/// top of its EIP.
pub const INDEX_TURN: u8 = (INDEX_SHIFT + INDEX_BITS) as u8;
/// The distance in bytes from the start of the tables to where R13 of guest code points. The tables
/// are aligned to 64 bytes, so the low six bits of R13 are always this number, and a shift to the
/// right by R13 leaves the bits of an index.
pub const LINKS_BIAS: i32 = 64 - INDEX_BITS as i32;

/// The displacement from R13 of an offset from the start of the tables, in bytes.
pub const fn from_links(offset: i32) -> i32 {
    offset - LINKS_BIAS
}

/// The index of the entry at which a target is looked for first. Emitted code computes the same
/// index.
pub const fn first_choice(rip: u64) -> u32 {
    (rip >> INDEX_SHIFT) as u32 & (HASH_ENTRIES as u32 - 1)
}
/// The size in bytes of an entry of these tables: tag, target, the value of
/// [`KeptRegisters::code_slide`](crate::abi::context::groups::KeptRegisters::code_slide) at the
/// target (its slide), and the negative of the slide.
pub const ENTRY_BYTES: i32 = 32;
/// The offset in an entry of the host address of the target.
pub const ENTRY_TARGET: i32 = 8;
/// The offset in an entry of the target's slide.
pub const ENTRY_SLIDE: i32 = 16;
/// The offset in an entry of the slide's negative, which emitted code can compare without changing
/// flags.
pub const ENTRY_NEGATED_SLIDE: i32 = 24;
/// The size in bytes of a hash table: it has one further entry at its end, and occupies whole cache
/// lines. The slots follow the first table of each part.
pub const TABLE_BYTES: i32 = HASH_ENTRIES as i32 * ENTRY_BYTES + 64;
/// The distance in bytes from the start of the tables to the slots of programs' code.
pub const SLOTS_OFFSET: i32 = TABLE_BYTES;
/// The number of slots for programs' code, which is also the number of slots for all other code.
pub const MAX_SLOTS: usize = 1 << 20;
/// The size in bytes of all slots of one of the two parts.
const SLOTS_BYTES: i32 = MAX_SLOTS as i32 * SLOT_BYTES;
/// The size in bytes of a slot. It contains the host address that the link leads to, and that of
/// its stub, which the link leads to while it has no target.
pub const SLOT_BYTES: i32 = 16;
/// The offset in a slot of the stub's address.
pub const SLOT_STUB: i32 = 8;
/// The distance in bytes from the start of the tables to the first table that belongs to one mode
/// of programs.
pub const OWN_TABLES_OFFSET: i32 = SLOTS_OFFSET + SLOTS_BYTES;

/// The distance in bytes from the start of the tables to the part that all address spaces share.
/// What lies before that part is for programs' code, and each space has its own copy.
pub const COMMON_OFFSET: i32 =
    (OWN_TABLES_OFFSET + PROGRAMS_TABLES as i32 * TABLE_BYTES + HOST_PAGE - 1) & -HOST_PAGE;
/// The distance in bytes from the start of the tables to the slots of code that is not programs'.
pub const COMMON_SLOTS_OFFSET: i32 = COMMON_OFFSET + TABLE_BYTES;
/// The distance in bytes from the start of the tables to the first of the tables that belong to one
/// mode of levels 0 to 2.
pub const COMMON_TABLES_OFFSET: i32 = COMMON_SLOTS_OFFSET + SLOTS_BYTES;

/// The distance in bytes from the start of the tables to the table of far transfers in real and V86
/// mode.
pub const FAR_TABLE_OFFSET: i32 = COMMON_TABLES_OFFSET + COMMON_TABLES as i32 * TABLE_BYTES;
/// The number of entries of the table of far transfers.
pub const FAR_ENTRIES: usize = 1 << 16;
/// The size in bytes of an entry of the table of far transfers: tag and target.
pub const FAR_ENTRY_BYTES: i32 = 16;
/// The size in bytes of all tables, in whole pages of the host.
pub const TABLES_BYTES: i32 =
    (FAR_TABLE_OFFSET + FAR_ENTRIES as i32 * FAR_ENTRY_BYTES + HOST_PAGE - 1) & -HOST_PAGE;
/// The size in bytes of a page of the host.
const HOST_PAGE: i32 = 4096;

/// Where a mode's table of indirect branches lies, in bytes from the start of the tables (R13 in
/// guest code).
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

/// Where the entries for a target with index 0 lie, in a mode that uses `table`: the first choice
/// and the second choice, in bytes from the start of the tables.
pub const fn choices(table: BranchTable) -> [i32; 2] {
    let first = table_offset(table);
    [first, first + ENTRY_BYTES]
}

/// The number that, added to the target's RIP, gives the negative of the tag of the target's entry.
/// `table` is the table of indirect branches that `mode` uses.
pub const fn indirect_tag(table: BranchTable, mode: ModeId) -> u64 {
    match table {
        BranchTable::Shared | BranchTable::SharedByPrograms => ((mode.0 as u64) << 32) + 1,
        BranchTable::Own(_) => 1,
    }
}

/// The number that, added to a far pointer, gives the negative of the tag of the pointer's entry.
/// It is chosen so that the sum is never zero, which the tag of a vacant entry may be.
pub const fn far_tag_base(family: FamilyId) -> u64 {
    ((family.0 as u64) << 32) + 1
}
