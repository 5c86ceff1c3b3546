//! The last place of a block's code where an island can be inserted.

use crate::abi::state_map::StateEntry;

/// A place where an island can be inserted.
#[derive(Clone, Copy)]
pub(in crate::emit) struct Seam {
    pub(in crate::emit) position: usize,
    /// Index of the state-map entry that applies at the seam.
    pub(in crate::emit) entry: usize,
    /// That entry as it was at the seam, if another entry has replaced it since.
    pub(in crate::emit) replaced: Option<StateEntry>,
}
