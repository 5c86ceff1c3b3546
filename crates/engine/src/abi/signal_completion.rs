//! What a signal handler must still do for a guest instruction that counts as complete although
//! some of its host instructions have not run yet.

use crate::abi::flags::InterruptFlag;
use crate::abi::relocation::Relocation;

/// What must be noted about an x87 instruction that has completed (see `x87` in
/// [`crate::translate`]), while the host code that makes the note runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct X87Note {
    /// The offset in the block's code of the first host instruction of the note.
    pub start: u32,
    /// The offset after the last host instruction of the note.
    pub end: u32,
    /// The value for
    /// [`X87Pointers::instruction`](crate::abi::x87_pointers::X87Pointers::instruction).
    pub instruction: u64,
    /// The value for [`X87Pointers::opcode`](crate::abi::x87_pointers::X87Pointers::opcode); if
    /// there is a memory operand, its linear address is in R8.
    pub opcode: u32,
}

impl X87Note {
    /// The note with the address at which its block runs.
    pub fn moved(&self, relocation: Relocation) -> Self {
        let mut moved = *self;
        // FNINIT notes no address.
        if self.opcode != 0 {
            moved.instruction = relocation.rip(self.instruction);
        }
        moved
    }
}

/// Host code that completes an instruction in several steps. The instruction counts as complete
/// from the first step on: a signal handler that interrupts here executes the remaining steps (see
/// [`crate::signals`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The offset in the block's code of the first host instruction.
    pub start: u32,
    /// The offset after the last host instruction.
    pub end: u32,
    /// What the code does.
    pub kind: CompletionKind,
}

/// What the code of a [`Completion`] does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompletionKind {
    /// It loads the flags from the image in R11.
    Flags {
        /// The flag that bit 9 of the image is loaded into, if any.
        interrupt: Option<InterruptFlag>,
    },
    /// It stores an interrupt's frame, whose parts are in
    /// [`Transfers::work`](crate::abi::context::groups::Transfers::work), and changes the interrupt
    /// flag.
    Frame {
        /// The size in bytes of each value: 2 or 4.
        size: u8,
        /// EIP in the frame.
        rip: u32,
        /// The interrupt flag that changes.
        flag: InterruptFlag,
    },
}
