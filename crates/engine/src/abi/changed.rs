//! What guest code has changed by transfers of control that it made itself.

bitflags::bitflags! {
    /// What guest code has changed by transfers of control that it made itself. The mode differs
    /// from that in which guest code was entered, except after [`Changed::RESUME_FLAG`] alone.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    #[repr(transparent)]
    pub struct Changed: u64 {
        /// The privilege level has changed.
        const LEVEL = 1 << 0;
        /// The mode has changed within a privilege level.
        const MODE = 1 << 1;
        /// An IRET within a level has loaded EFLAGS.RF for the instruction at
        /// [`returned_rip`](crate::abi::context::groups::Transfers::returned_rip). Emitted code stores this bit separately, as the upper half.
        const RESUME_FLAG = 1 << 32;
    }
}
