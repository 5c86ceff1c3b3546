//! What must be looked at or formed anew before guest code runs again. All of it is derived:
//! saying so too often costs time and changes nothing.

/// Notes of what is due, each taken back by the one function that does it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    /// Something may have to be delivered at the next boundary: after a request, a device
    /// access, or a change of EFLAGS.IF. While false the machine is not asked.
    pub events: bool,
    /// The mode word must be formed anew.
    pub mode: bool,
    /// The offset of the time-stamp counter must be formed anew, together with the mode word.
    pub clock: bool,
}

impl Due {
    /// Everything, as at the start.
    pub const ALL: Self = Self {
        events: true,
        mode: true,
        clock: true,
    };
}
