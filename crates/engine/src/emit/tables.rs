//! The tables that the emitter makes together with the code of a block.

use crate::abi::immediate::Immediate;
use crate::abi::signal_completion::{Completion, X87Note};
use crate::abi::sites::Site;
use crate::abi::state_map::StateEntry;
use crate::policy::instruction_kind::Helper;

/// The tables of a block's code, borrowed from the emitter.
#[derive(Clone, Copy)]
pub struct EmittedTables<'a> {
    /// The state map, ordered by host offset.
    pub state_map: &'a [StateEntry],
    /// The sites of the block: the places where the block can be left.
    pub sites: &'a [Site],
    /// Instructions that the monitor executes.
    pub helpers: &'a [Helper],
    /// Immediate operands that can be replaced.
    pub immediates: &'a [Immediate],
    /// Notes of x87 pointers, ordered by host offset.
    pub x87_notes: &'a [X87Note],
    /// Parts of the code that complete an instruction, ordered by host offset.
    pub completions: &'a [Completion],
}

/// A copy of the tables of a block's code, which survives while other blocks are made.
#[derive(Clone)]
pub struct Tables {
    /// The state map, ordered by host offset.
    pub state_map: Box<[StateEntry]>,
    /// The sites of the block: the places where the block can be left.
    pub sites: Box<[Site]>,
    /// Instructions that the monitor executes.
    pub helpers: Box<[Helper]>,
    /// Immediate operands that can be replaced.
    pub immediates: Box<[Immediate]>,
    /// Notes of x87 pointers, ordered by host offset.
    pub x87_notes: Box<[X87Note]>,
    /// Parts of the code that complete an instruction, ordered by host offset.
    pub completions: Box<[Completion]>,
}

impl From<EmittedTables<'_>> for Tables {
    fn from(emitted: EmittedTables<'_>) -> Self {
        Self {
            state_map: emitted.state_map.into(),
            sites: emitted.sites.into(),
            helpers: emitted.helpers.into(),
            immediates: emitted.immediates.into(),
            x87_notes: emitted.x87_notes.into(),
            completions: emitted.completions.into(),
        }
    }
}
