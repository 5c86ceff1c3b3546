//! The ways in which translated code reaches guest memory.

/// The way of all accesses of a block; part of its mode, and so of its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Access {
    /// Each operand's linear address is looked up in a software TLB.
    #[default]
    Checked,
    /// The host's page tables stand for the guest's: the operand lies where its linear address
    /// leads in a [shadow window](tollgate_tlb::shadow_windows), and what is not there faults on
    /// the host. Not in every mode: see [`AccessUnavailable`].
    Direct,
    /// The same, and the parts that most programs use are reached by their space's
    /// [anchor](tollgate_tlb::shadow_windows::anchors), which the host's GS holds.
    Anchored,
}

// The context keeps what is known of programs of each.
const _: () = assert!(Access::COUNT == crate::abi::context::WAYS);

impl Access {
    /// How many there are.
    pub const COUNT: usize = 3;

    /// Whether accesses are made to shadow windows.
    pub const fn is_direct(self) -> bool {
        matches!(self, Self::Direct | Self::Anchored)
    }
}

/// Code with this access cannot be emitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessUnavailable(pub Access);

impl std::fmt::Display for AccessUnavailable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?} access to its memory", self.0)
    }
}

impl std::error::Error for AccessUnavailable {}
