//! The ways in which translated code reaches guest memory.

use serde::{Deserialize, Serialize};

/// The way in which all accesses of a block are made; it is part of the block's mode and so of its
/// key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
pub enum Access {
    /// Each operand's linear address is looked up in a software TLB.
    #[default]
    Checked,
    /// The host's page tables stand for the guest's: the operand lies where its linear address
    /// leads in a [shadow window](tollgate_tlb::shadow_windows), and accesses to unmapped pages
    /// fault on the host. This is not available in every mode: see [`AccessUnavailable`].
    Direct,
    /// As with `Direct`, but the parts that most programs use are reached by their space's
    /// [anchor](tollgate_tlb::shadow_windows::anchors), which the host's GS holds.
    Anchored,
    /// As with `Checked`, in a program of which only some pages are translated: the processor runs
    /// the others as they are, without this engine. No block of another page has this way in its
    /// mode, so a branch to one leaves translated code.
    PartlyNative,
}

// The context stores what is known of programs for each way of access.
const _: () = assert!(Access::COUNT == crate::abi::context::WAYS);

impl Access {
    /// The number of ways.
    pub const COUNT: usize = 4;

    /// Whether accesses are made to shadow windows.
    pub const fn is_direct(self) -> bool {
        matches!(self, Self::Direct | Self::Anchored)
    }
}

/// The error that code with this way of access cannot be emitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessUnavailable(pub Access);

impl std::fmt::Display for AccessUnavailable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "no code can be emitted with {:?} access to memory",
            self.0
        )
    }
}

impl std::error::Error for AccessUnavailable {}
