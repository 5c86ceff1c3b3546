//! The x87 instruction and operand pointers of the guest: emitted code notes them in the context,
//! since the host's own pointers contain host addresses.

/// Bit of [`X87Pointers::opcode`]: an instruction was noted since the vector registers were last
/// saved.
pub const X87_FRESH: u32 = 1 << 15;
/// Bit of [`X87Pointers::opcode`]: an instruction with a memory operand was noted since then,
/// perhaps an earlier one. An instruction without an operand leaves the operand's note unchanged,
/// as processors leave their data pointer.
pub const X87_OPERAND_FRESH: u32 = 1 << 31;

/// The notes of the last x87 instruction, as emitted code makes them.
#[derive(Debug, Default)]
#[repr(C)]
pub struct X87Pointers {
    /// RIP of the last x87 instruction that is not a control instruction; only the low 32 bits are
    /// valid if the instruction was not in 64-bit code.
    pub instruction: u64,
    /// That instruction's opcode (11 bits); from bit 16 on the number of the segment register of
    /// its memory operand plus one (0: no operand); and the bits [`X87_OPERAND_FRESH`] and
    /// [`X87_FRESH`].
    pub opcode: u32,
    /// CS of the last x87 instruction. FNINIT clears this field and the next with one store.
    pub code_selector: u16,
    /// The selector of the last memory operand's segment.
    pub data_selector: u16,
    /// The linear address of the last memory operand.
    pub operand: u64,
    /// The offset of the last memory operand in its segment.
    pub operand_offset: u64,
}
