//! The other side of the comparison.

use crate::device_log::DeviceLog;
use crate::registers::Registers;
use std::fs::File;
use std::io;

/// What is known about the instruction that comes next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expectation {
    /// It repeats: the reference may take it in many pieces.
    pub repeats: bool,
    /// It may change hidden parts of registers.
    pub changes_hidden: bool,
    /// The linear address of the instruction behind it.
    pub next: u64,
}

/// How the reference got over an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// It stands at the next boundary, or at the first instruction of a handler if an
    /// interrupt was delivered there.
    Stepped,
    /// The instruction was held up: an interrupt was delivered in front of it, and the
    /// reference stands at the first instruction of the handler.
    Held,
    /// It ended: the guest left, or reset itself.
    Gone,
}

/// A processor that is believed.
pub trait Reference {
    /// Registers at the present boundary.
    fn registers(&self) -> &Registers;

    /// Goes over one instruction.
    ///
    /// # Errors
    /// The connection to it broke, or it said what is not understood.
    fn step(&mut self, expected: Expectation) -> io::Result<Progress>;

    /// What went between processor and devices during the last step, if that is known.
    fn devices(&self) -> Option<&DeviceLog>;

    /// Interrupts are delivered there, and ours must follow.
    fn takes_interrupts(&self) -> bool;

    /// The guest's RAM at the present boundary, by physical address; `None` if it
    /// cannot be seen.
    fn memory(&self) -> Option<&File>;

    /// The guest's RAM by physical address as it is now, some instructions later perhaps.
    fn later_memory(&self) -> &File;
}
