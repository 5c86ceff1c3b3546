//! What a signal handler must still do for a guest instruction that counts as complete although
//! some of its host instructions have not run yet.

use crate::abi::flags::InterruptFlag;
use crate::abi::relocation::Relocation;

/// What must be noted of an x87 instruction that has completed (see
/// [`crate::translate`]'s `x87`), while the code that does so is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct X87Note {
    /// Offset in the block's code of the first host instruction that notes it.
    pub start: u32,
    /// Offset behind the last.
    pub end: u32,
    /// [`crate::Context::x87_instruction`].
    pub instruction: u64,
    /// [`crate::Context::x87_opcode`]; with a memory operand, its linear address is in R8.
    pub opcode: u32,
}

impl X87Note {
    /// The note as it is where its block runs.
    pub fn moved(&self, relocation: Relocation) -> Self {
        let mut moved = *self;
        // FNINIT notes nothing.
        if self.opcode != 0 {
            moved.instruction = relocation.rip(self.instruction);
        }
        moved
    }
}

/// Host code that completes an instruction in several steps. The instruction counts as done
/// from the first step on: a signal handler that interrupts here does the remaining steps (see
/// [`crate::signals`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Offset in the block's code of the first host instruction.
    pub start: u32,
    /// Offset behind the last.
    pub end: u32,
    /// What is done.
    pub kind: CompletionKind,
}

/// What a [`Completion`] does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompletionKind {
    /// Loads the flags from the image in R11.
    Flags {
        /// The flag that bit 9 of the image goes to, if any.
        interrupt: Option<InterruptFlag>,
    },
    /// Stores an interrupt's frame, whose parts are in [`crate::Context::work`], and changes
    /// the interrupt flag.
    Frame {
        /// Bytes of each value: 2 or 4.
        size: u8,
        /// EIP in the frame.
        rip: u32,
        /// The interrupt flag.
        flag: InterruptFlag,
    },
}
