//! The record of a stub until it is emitted after the block's main path.

use crate::abi::state_map::Shadow;
use crate::emit::assembler::Patch;

/// A piece of code that is emitted after the block's main path.
pub struct Stub {
    pub(in crate::emit) kind: StubKind,
    pub(in crate::emit) site: usize,
    /// Position of the 32-bit distance that leads to the stub, when it is known.
    pub(in crate::emit) incoming: Option<Patch>,
    /// EIP of the guest instruction at which the stub leaves, and ESP adjustment in `esp`.
    pub(in crate::emit) rip: u64,
    pub(in crate::emit) esp: i32,
    /// For a miss: the position at which the look-up continues if the test for translated code lets
    /// the store proceed.
    pub(in crate::emit) back: usize,
    /// The interrupt shadow that covers the instruction.
    pub(in crate::emit) shadowed: Shadow,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::emit) enum StubKind {
    /// The exit of a failed look-up or check: R8 has the linear address.
    Miss,
    /// The exit of a shared look-up that has missed: a link to the same instruction in the mode
    /// without shared look-ups.
    Windowless,
    /// The exit of a direct link in the page: `incoming` is the distance that gets patched.
    DirectLink,
    /// The exit of a link through a slot, whose jump is in the main path.
    SlotLink,
    /// A link through a slot: both the jump and its exit.
    SlotJump,
}
