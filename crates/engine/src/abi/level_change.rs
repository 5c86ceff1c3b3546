//! What translated code must know to change the privilege level itself: by SYSCALL, SYSRET,
//! SYSENTER and SYSEXIT.
//!
//! These load constants: the segments come from model-specific registers, and with them the
//! mode of the target follows from that of the instruction. So the monitor does each once,
//! and leaves here what it came to. Whoever changes a control register or a model-specific
//! register has all of it forgotten.

use crate::abi::link_layout::{BranchTable, ModeId};
use crate::abi::link_layout::{indirect_tag, table_offset};
use tollgate_x86::Segment;

/// The instructions, in the order of [`crate::Context::level_changes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum LevelChangeKind {
    /// SYSCALL in 64-bit code.
    Syscall,
    /// SYSRET to 64-bit code.
    Sysret,
    /// SYSENTER outside IA-32e mode.
    Sysenter,
    /// SYSEXIT outside IA-32e mode.
    Sysexit,
}

impl LevelChangeKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Syscall, Self::Sysret, Self::Sysenter, Self::Sysexit];
}

/// What one of them comes to.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct LevelChange {
    /// For instructions in this mode, as [`from_mode`] has it; zero: for none.
    pub from: u64,
    /// CS behind it.
    pub code: Segment,
    /// SS behind it.
    pub stack: Segment,
    /// The software TLB of the level that it leads to (R14 in guest code).
    pub tlb: u64,
    /// Where indirect branches of the target's mode find their targets: eighths of the bytes
    /// from the start of the link tables.
    pub table: u64,
    /// What such an entry's tag is the negative of, but for the target's RIP.
    pub tag: u64,
}

impl LevelChange {
    /// A change from one mode to another, whose indirect branches use `table`.
    pub fn new(
        modes: (ModeId, ModeId),
        table: BranchTable,
        code: Segment,
        stack: Segment,
        tlb: u64,
    ) -> Self {
        let (from, to) = modes;
        Self {
            from: from_mode(from.0),
            code,
            stack,
            tlb,
            table: table_offset(table) as u64 / 8,
            tag: indirect_tag(table, to),
        }
    }
}

/// How [`LevelChange::from`] names a mode: never zero.
pub const fn from_mode(mode: u32) -> u64 {
    (mode as u64 + 1).wrapping_neg()
}
