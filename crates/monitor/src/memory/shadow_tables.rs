//! What is derived from the guest's page tables, as an experiment chooses it, and what is counted
//! of it.
//!
//! After Umeno, Kubo and Takasaki, "Reduction of 2-0-Translation Table Maintenance Overhead in a
//! Virtual Machine System". Their *2-0 tables*, which the hardware walks in place of the guest's
//! own, are here the software TLB's tables of each space, and its shadow windows, which are the
//! host's page tables. The choices change what is kept and what an invalidation costs, never what a
//! guest computes: more than what is asked for may always be forgotten.

use crate::memory::kept_spaces::Limit;
use serde::{Deserialize, Serialize};

/// Spaces whose tables are kept unless something else is chosen, the loaded one among them, while none
/// is missed. With more a new process gets tables that are in no cache of the processor's: with
/// eight, starting a program takes a tenth longer than with four, with sixteen a quarter.
pub const USUAL_TABLES: u8 = 4;

/// What an invalidation of one linear page (INVLPG, INVPCID) forgets, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Invalidation {
    /// All that its space has, by an exit.
    Full,
    /// That page, by an exit.
    Selective,
    /// That page, in a fast path of translated code where it can.
    #[default]
    Inline,
}

/// What is purged when the guest invalidates all spaces, or all of one that is not loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DoubleInvalidation {
    /// Every table that there is, also one that was purged and not used since.
    Allow,
    /// Those that were selected since they were purged.
    SelectionFlag,
    /// Those that hold something: no table is purged before its place is needed.
    #[default]
    EntryCount,
}

/// The choices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShadowChoices {
    /// Spaces whose tables are kept at most, the loaded one among them: 1 to 16. `None`:
    /// [`USUAL_TABLES`], and more while spaces are missed.
    pub tables: Option<u8>,
    /// Invalidations of one linear page.
    pub invalidation: Invalidation,
    /// What leads to a physical page is found by notes of where entries lead. If not, all tables
    /// are purged for it.
    pub reverse_map: bool,
    /// Invalidations of many spaces.
    pub double_invalidation: DoubleInvalidation,
    /// At a load of CR3 that voids the translations of a space, those stay whose page-table entries
    /// are as they were.
    pub compares_entries: bool,
}

impl Default for ShadowChoices {
    fn default() -> Self {
        Self {
            tables: None,
            invalidation: Invalidation::default(),
            reverse_map: true,
            double_invalidation: DoubleInvalidation::default(),
            compares_entries: true,
        }
    }
}

impl ShadowChoices {
    /// Spaces whose tables are kept.
    pub fn limit(&self) -> Limit {
        match self.tables {
            Some(tables) => Limit::Fixed(tables.into()),
            None => Limit::Grows(USUAL_TABLES.into()),
        }
    }
}

/// What was done to the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShadowCounts {
    /// Invalidations of one page of the loaded space, in a fast path.
    pub page_inline: u64,
    /// By an exit, that page alone.
    pub page_selective: u64,
    /// By an exit, all that the space has.
    pub page_full: u64,
    /// Invalidations of a space that is kept and not loaded, or of a page of it.
    pub other_space: u64,
    /// Invalidations of the loaded space.
    pub loaded_space: u64,
    /// Invalidations of all spaces.
    pub all_spaces: u64,
    /// Physical pages for which what leads there was found by notes.
    pub physical_by_map: u64,
    /// For which all tables were purged.
    pub physical_full: u64,
    /// Tables of spaces that are not loaded, purged.
    pub purged: u64,
    /// Of them, tables that had not been selected since they were purged before: double
    /// invalidations.
    pub purged_twice: u64,
    /// Such tables that were left alone.
    pub spared: u64,
}

impl ShadowCounts {
    /// Each count with its name in statistics.
    pub fn named(&self) -> [(&'static str, u64); 11] {
        [
            ("page-inline", self.page_inline),
            ("page-selective", self.page_selective),
            ("page-full", self.page_full),
            ("other-space", self.other_space),
            ("loaded-space", self.loaded_space),
            ("all-spaces", self.all_spaces),
            ("physical-by-map", self.physical_by_map),
            ("physical-full", self.physical_full),
            ("purged", self.purged),
            ("purged-twice", self.purged_twice),
            ("spared", self.spared),
        ]
    }
}
