//! The memos by which translated code itself changes the privilege level: for SYSCALL, SYSRET,
//! SYSENTER, SYSEXIT and IRET.
//!
//! These instructions load constants: the segments come from model-specific registers, and with
//! them the mode of the target follows from that of the instruction. So the monitor executes each
//! instruction once and stores its result here. A write of a control register, or of one of the
//! model-specific registers that these instructions use, discards all results. IRET loads
//! descriptors in addition: see [`OuterReturn`].

use crate::abi::link_layout::{FamilyId, ModeId, ModeTable, far_tag_base};
use crate::abi::memos::CodeAfter;
use tollgate_x86::{Segment, Watched};

/// The instructions, in the order of [`crate::abi::context::groups::Transfers::level_changes`].
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
    /// IRET from 64-bit code at level 0 to 64-bit code at level 3.
    Iret,
}

impl LevelChangeKind {
    /// All instructions, by number.
    pub const ALL: [Self; 5] = [
        Self::Syscall,
        Self::Sysret,
        Self::Sysenter,
        Self::Sysexit,
        Self::Iret,
    ];

    /// Whether the instruction leads to a program, whose code may be relocatable.
    pub const fn leads_to_program(self) -> bool {
        matches!(self, Self::Sysret | Self::Sysexit | Self::Iret)
    }
}

/// The values that IRET's frame and the descriptors that it names must have for the result of
/// [`LevelChangeKind::Iret`] to be valid.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct OuterReturn {
    /// CS in the frame.
    pub code_selector: u64,
    /// SS in the frame.
    pub stack_selector: u64,
    /// The descriptor of that CS.
    pub code: Watched,
    /// The descriptor of that SS.
    pub stack: Watched,
}

impl Default for OuterReturn {
    fn default() -> Self {
        Self::NEVER
    }
}

impl OuterReturn {
    /// Values that no frame has.
    pub const NEVER: Self = Self {
        code_selector: 0,
        stack_selector: 0,
        code: Watched::NEVER,
        stack: Watched::NEVER,
    };
}

/// The result of one of the instructions.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct LevelChange {
    /// The mode of the instructions for which the result is valid, as [`from_mode`] encodes it;
    /// zero if there is no result.
    pub from: u64,
    /// CS after the instruction.
    pub code: Segment,
    /// SS after the instruction.
    pub stack: Segment,
    /// The software TLB of the level that the instruction leads to (R14 in guest code).
    pub tlb: u64,
    /// The target's code, as indirect branches find it.
    pub then: CodeAfter,
}

impl LevelChange {
    /// The result of a change from one mode to another.
    pub fn new(from: ModeId, to: ModeTable, code: Segment, stack: Segment, tlb: u64) -> Self {
        Self {
            from: from_mode(from.0),
            code,
            stack,
            tlb,
            then: CodeAfter::of(to.table, to.mode),
        }
    }
}

/// The result of an IRET to a V86 task. The task's segments follow from the frame alone, and with
/// them everything in its mode except what the flags in `privilege` determine.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct VirtualReturn {
    /// The mode of the instructions for which the result is valid, as in [`LevelChange::from`].
    pub from: u64,
    /// EFLAGS.IOPL of the task.
    pub privilege: u64,
    /// The software TLB of level 3 (R14 in guest code).
    pub tlb: u64,
    /// The number that, added to the packed far pointer of the task's next instruction, gives the
    /// negative of the tag of that target's entry.
    pub tag: u64,
}

impl VirtualReturn {
    /// The result of a return from a mode to a task whose modes are this family.
    pub fn new(from: ModeId, family: FamilyId, privilege: u64, tlb: u64) -> Self {
        Self {
            from: from_mode(from.0),
            privilege,
            tlb,
            tag: far_tag_base(family),
        }
    }
}

/// The encoding of a mode in [`LevelChange::from`]; it is never zero.
pub const fn from_mode(mode: u32) -> u64 {
    (mode as u64 + 1).wrapping_neg()
}
