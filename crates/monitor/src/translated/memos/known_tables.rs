//! Which tables of memos have entries.

/// Which of the tables that fast paths use have entries. The tables have tens of KiB, so emptying
/// them costs more than most of the instructions after which that is due.
#[derive(Clone, Copy, Default)]
pub(crate) struct FastPathsKnown {
    pub(super) cpuid: bool,
    pub(super) segment_loads: bool,
}
