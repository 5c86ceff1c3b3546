//! How an instruction ended that was executed without a fault.

/// How an instruction without a fault ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The instruction is complete, and RIP points to the next one.
    Next,
    /// The instruction is complete and has set CS and RIP itself.
    Jumped,
    /// HLT is complete, RIP points to the next instruction, and the processor waits.
    Halted,
    /// The instruction stopped early, RIP is unchanged, and it must be started again. Registers
    /// show the progress of a repeated string instruction; any other instruction has made none.
    Repeat,
}
