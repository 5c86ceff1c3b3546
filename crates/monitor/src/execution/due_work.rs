//! The checks and derived values that must be renewed before guest code runs again. Every one of
//! them is derived from other state: asking for a renewal too often costs time and changes no
//! result.

/// Notes of the work that is due. The one function that does a piece of work clears its note.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    /// Whether an event may have to be delivered at the next boundary, as after a request, a device
    /// access or a change of EFLAGS.IF. While this is false, the machine is not asked.
    pub events: bool,
    /// Whether the mode word must be computed again.
    pub mode: bool,
    /// Whether the offset of the time-stamp counter must be computed again, together with the mode
    /// word.
    pub clock: bool,
}

impl Due {
    /// All work is due, as at the start.
    pub const ALL: Self = Self {
        events: true,
        mode: true,
        clock: true,
    };
}
