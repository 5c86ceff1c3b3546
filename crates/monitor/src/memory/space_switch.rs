//! How a load of CR3 switches to another address space: the choices of an experiment, and counts.
//!
//! This follows Umeno, Kubo and Takasaki, "Reduction of 2-0-Translation Table Maintenance Overhead
//! in a Virtual Machine System": a table that is known is found and selected without the monitor;
//! only a miss exits.

use serde::{Deserialize, Serialize};
use tollgate_x86::Space;

/// How a space whose translations are kept is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpaceSwitch {
    /// An exit loads the space.
    Exit,
    /// A fast path of translated code loads the space where it can, without an exit.
    #[default]
    Inline,
}

/// A load of CR3 that guest code makes without an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceLoad {
    /// The loaded space.
    pub from: Space,
    /// The space that it loads.
    pub to: Space,
    /// Whether the translations of the new space may be kept.
    pub keeps: bool,
    /// Whether the guest lets interrupts in.
    pub lets_in: bool,
}

/// Counts of loads of CR3, by what was known about the space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceLoads {
    /// The translations of the space were kept.
    pub kept: u64,
    /// The space was already loaded, and the guest let its translations be kept.
    pub same: u64,
    /// The guest asked for the translations to be forgotten, but all or nearly all [entries of its
    /// tables] were unchanged.
    ///
    /// [entries of its tables]: tollgate_tlb::TableEntries
    pub compared: u64,
    /// The number of loads of these three kinds that took no exit.
    pub inline: u64,
    /// The guest asked for the translations to be forgotten.
    pub flushed: u64,
    /// The guest let the translations be kept, but none were known: a miss.
    pub missed: u64,
    /// The number of loads of the last two kinds for which another known space had to be forgotten.
    pub stolen: u64,
    /// The number of page-table entries that were compared.
    pub entries: u64,
    /// The number of compared entries that had changed.
    pub changed: u64,
}

impl SpaceLoads {
    /// Each count with its name in statistics.
    pub fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("kept", self.kept),
            ("same", self.same),
            ("compared", self.compared),
            ("inline", self.inline),
            ("flushed", self.flushed),
            ("missed", self.missed),
            ("stolen", self.stolen),
            ("entries-compared", self.entries),
            ("entries-changed", self.changed),
        ]
    }
}
