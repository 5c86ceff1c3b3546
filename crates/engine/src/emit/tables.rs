//! What goes with the code of a block.

use crate::abi::completion::{Completion, X87Note};
use crate::abi::immediate::Immediate;
use crate::abi::packed_marks::PackedMarks;
use crate::abi::sites::Site;
use crate::policy::instruction_kind::Helper;

/// The tables that go with the code of a block.
#[derive(Clone)]
pub struct Tables {
    /// Ordered by host offset.
    pub marks: PackedMarks,
    /// Ways out.
    pub sites: Box<[Site]>,
    /// Instructions for the monitor.
    pub helpers: Box<[Helper]>,
    /// Operands that can be replaced.
    pub immediates: Box<[Immediate]>,
    /// Ordered by host offset.
    pub x87_notes: Box<[X87Note]>,
    /// Ordered by host offset.
    pub completions: Box<[Completion]>,
}
