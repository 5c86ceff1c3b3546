//! How a load of CR3 switches to another address space: the choices of an experiment, and counts.
//!
//! After Umeno, Kubo and Takasaki, "Reduction of 2-0-Translation Table Maintenance Overhead in a
//! Virtual Machine System": a table that is known is found and selected without the monitor; only a
//! miss exits.

use serde::{Deserialize, Serialize};

/// How a space is loaded of which translations are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpaceSwitch {
    /// By an exit.
    Exit,
    /// In a fast path of translated code where it can, without an exit.
    #[default]
    Inline,
}

/// Loads of CR3, by what was known of the space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceLoads {
    /// Its translations were kept.
    pub kept: u64,
    /// It was the loaded one, and the guest let its translations be kept.
    pub same: u64,
    /// The guest would have them forgotten, but the [entries of its tables] are as they were, all or
    /// nearly all.
    ///
    /// [entries of its tables]: tollgate_tlb::TableEntries
    pub compared: u64,
    /// So many of these three without an exit.
    pub inline: u64,
    /// The guest asked for them to be forgotten.
    pub flushed: u64,
    /// The guest would have them kept, but there were none: a miss.
    pub missed: u64,
    /// For so many of the last two a space was forgotten that was known till then.
    pub stolen: u64,
    /// Entries of page tables that were compared.
    pub entries: u64,
    /// Those of them that had changed.
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
