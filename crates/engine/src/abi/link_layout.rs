//! How the link tables lie in memory, and how emitted code finds a target in them. What fills
//! them is `blocks/links.rs`.

/// A small number that identifies a mode ([`crate::policy::mode::Mode`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct ModeId(pub u32);

/// Where a slot lies, in bytes from the start of the tables: emitted code jumps to what it holds
/// there.
pub const fn slot_offset(slot: u32) -> i32 {
    SLOTS_OFFSET + slot as i32 * SLOT_BYTES
}

/// A small number that identifies all modes that differ in the base of CS alone: far
/// transfers of real and V86 mode lead from one to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct FamilyId(pub u32);

/// Where indirect branches of a mode find their targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BranchTable {
    /// In the table that all other modes share.
    Shared,
    /// In the table of this number, which no other mode has: 64-bit code, and 32-bit code of the
    /// modes met first.
    Own(u8),
}

/// Tables that belong to one mode at most.
pub const MAX_OWN_TABLES: u8 = 96;
/// While fewer are taken, 32-bit code gets them too; the rest is left to 64-bit code, which cannot
/// do without.
pub const MAX_TABLES_OF_32_BIT_CODE: u8 = 48;

/// Entries of a hash table of indirect branches at which targets are looked for first, indexed
/// by the low 16 bits of EIP. Two targets whose EIP has the same would push each other out
/// again and again, so the entry behind is looked at too.
pub const HASH_ENTRIES: usize = 1 << 16;
/// Bytes of an entry of these tables: tag, target, what
/// [`Context::code_delta`](crate::abi::context::Context::code_delta) must be there, nothing.
pub const ENTRY_BYTES: i32 = 32;
/// Offset in an entry of the host address of the target.
pub const ENTRY_TARGET: i32 = 8;
/// Offset in an entry of the target's delta.
pub const ENTRY_DELTA: i32 = 16;
/// Bytes of a hash table, with an entry behind the last, in whole cache lines. Behind the first
/// table the slots begin.
pub const TABLE_BYTES: i32 = HASH_ENTRIES as i32 * ENTRY_BYTES + 64;
/// Bytes from the start of the tables to the slots.
pub const SLOTS_OFFSET: i32 = TABLE_BYTES;
/// Slots that can be given out.
pub const MAX_SLOTS: usize = 1 << 20;
/// Bytes of a slot: the host address that the link leads to, and that of its stub, to which it
/// leads as long as it has no target.
pub const SLOT_BYTES: i32 = 16;
/// Offset in a slot of the stub's address.
pub const SLOT_STUB: i32 = 8;
/// Bytes from the start of the tables to the first table that belongs to one mode.
pub const OWN_TABLES_OFFSET: i32 = SLOTS_OFFSET + MAX_SLOTS as i32 * SLOT_BYTES;

/// Bytes from the start of the tables to that of far transfers in real and V86 mode.
pub const FAR_TABLE_OFFSET: i32 = OWN_TABLES_OFFSET + MAX_OWN_TABLES as i32 * TABLE_BYTES;
/// Entries of that table.
pub const FAR_ENTRIES: usize = 1 << 16;
/// Bytes of one of its entries: tag and target.
pub const FAR_ENTRY_BYTES: i32 = 16;
/// Bytes of all tables.
pub const TABLES_BYTES: i32 = FAR_TABLE_OFFSET + FAR_ENTRIES as i32 * FAR_ENTRY_BYTES;

/// Where a mode's table of indirect branches lies, in bytes from the start of the tables
/// (R13 in guest code).
pub const fn table_offset(table: BranchTable) -> i32 {
    match table {
        BranchTable::Shared => 0,
        BranchTable::Own(number) => OWN_TABLES_OFFSET + number as i32 * TABLE_BYTES,
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
        BranchTable::Shared => ((mode.0 as u64) << 32) + 1,
        BranchTable::Own(_) => 1,
    }
}

/// What a far pointer is added to; the negated sum is its tag. Never zero, as a vacant
/// entry's tag may be.
pub const fn far_tag_base(family: FamilyId) -> u64 {
    ((family.0 as u64) << 32) + 1
}
