//! The reference side of the comparison: QEMU, run freely or step by step.

use crate::device_log::DeviceLog;
use crate::registers::Registers;
use std::fs::File;
use std::io;

/// What is known about the next instruction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expectation {
    /// Whether it is repeated: the reference may execute it in many pieces.
    pub repeats: bool,
    /// Whether it may change hidden parts of registers.
    pub changes_hidden: bool,
    /// The linear address of the instruction after it.
    pub next: u64,
}

/// The result of a step of the reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// It is at the next boundary, or at the first instruction of a handler if an interrupt was
    /// delivered there.
    Stepped,
    /// The instruction was delayed: an interrupt was delivered before it, and the reference is at
    /// the first instruction of the handler.
    Held,
    /// It has ended: the guest left, or reset itself.
    Gone,
}

/// A processor that is taken to be correct.
pub trait Reference {
    /// The registers at the present boundary.
    fn registers(&self) -> &Registers;

    /// Executes one instruction.
    ///
    /// # Errors
    ///
    /// The connection to it broke, or its output could not be parsed.
    fn step(&mut self, expected: Expectation) -> io::Result<Progress>;

    /// The bytes between processor and devices during the last step, if they are known.
    fn devices(&self) -> Option<&DeviceLog>;

    /// Whether the reference delivers interrupts, which our side must follow.
    fn takes_interrupts(&self) -> bool;

    /// The guest's RAM at the present boundary, by physical address; `None` if it is not
    /// accessible.
    fn memory(&self) -> Option<&File>;

    /// The guest's RAM by physical address at this moment, possibly some instructions later.
    fn later_memory(&self) -> &File;
}
