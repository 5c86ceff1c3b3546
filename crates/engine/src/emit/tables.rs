//! What goes with the code of a block.

use crate::abi::completion::{Completion, X87Note};
use crate::abi::immediate::Immediate;
use crate::abi::marks::Mark;
use crate::abi::sites::Site;
use crate::policy::instruction_kind::Helper;

/// The tables that go with the code of a block, where they were made.
#[derive(Clone, Copy)]
pub struct EmittedTables<'a> {
    /// Ordered by host offset.
    pub marks: &'a [Mark],
    /// Ways out.
    pub sites: &'a [Site],
    /// Instructions for the monitor.
    pub helpers: &'a [Helper],
    /// Operands that can be replaced.
    pub immediates: &'a [Immediate],
    /// Ordered by host offset.
    pub x87_notes: &'a [X87Note],
    /// Ordered by host offset.
    pub completions: &'a [Completion],
}

/// The same, to be kept while other blocks are made.
#[derive(Clone)]
pub struct Tables {
    /// Ordered by host offset.
    pub marks: Box<[Mark]>,
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

impl From<EmittedTables<'_>> for Tables {
    fn from(emitted: EmittedTables<'_>) -> Self {
        Self {
            marks: emitted.marks.into(),
            sites: emitted.sites.into(),
            helpers: emitted.helpers.into(),
            immediates: emitted.immediates.into(),
            x87_notes: emitted.x87_notes.into(),
            completions: emitted.completions.into(),
        }
    }
}
