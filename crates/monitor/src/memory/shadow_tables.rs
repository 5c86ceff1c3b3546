//! The choices of an experiment about the data that is derived from the guest's page tables, and
//! counts.
//!
//! This follows Umeno, Kubo and Takasaki, "Reduction of 2-0-Translation Table Maintenance Overhead
//! in a Virtual Machine System". Their *2-0 tables*, which the hardware walks in place of the
//! guest's own, correspond to two structures here: the software TLB's tables of each space, and the
//! shadow windows, which are the host's page tables. The choices change what is kept and what an
//! invalidation costs, never what a guest computes, because forgetting more than the guest asks for
//! is always allowed.

use crate::memory::kept_spaces::Limit;
use serde::{Deserialize, Serialize};

/// The default number of spaces whose tables are kept while no kept space is missed, including the
/// loaded one. With more spaces, a new process gets tables that are not in the processor's caches:
/// starting a program takes a tenth longer with eight spaces than with four, and a quarter longer
/// with sixteen.
pub const USUAL_TABLES: u8 = 4;

/// How much an invalidation of one linear page (INVLPG, INVPCID) forgets, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Invalidation {
    /// An exit forgets all entries of the page's space.
    Full,
    /// An exit forgets the entries of that page.
    Selective,
    /// A fast path of translated code forgets the entries of that page where it can.
    #[default]
    Inline,
}

/// Which tables are purged when the guest invalidates all spaces, or all of a space that is not
/// loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DoubleInvalidation {
    /// All tables, including those that were purged and not used since.
    Allow,
    /// Only the tables that were selected since they were last purged.
    SelectionFlag,
    /// Only the tables that hold entries: no table is purged before its place is needed.
    #[default]
    EntryCount,
}

/// The choices of the experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShadowChoices {
    /// Maximum number of spaces whose tables are kept, including the loaded one: 1 to 16. `None`
    /// means [`USUAL_TABLES`], and more while spaces are missed.
    pub tables: Option<u8>,
    /// How one linear page is invalidated.
    pub invalidation: Invalidation,
    /// Whether the entries that lead to a physical page are found by notes of where entries lead.
    /// If not, all tables are purged instead.
    pub reverse_map: bool,
    /// How many spaces are invalidated.
    pub double_invalidation: DoubleInvalidation,
    /// Whether a load of CR3 that voids the translations of a space keeps those whose page-table
    /// entries have not changed.
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
    /// The limit on the number of spaces whose tables are kept.
    pub fn limit(&self) -> Limit {
        match self.tables {
            Some(tables) => Limit::Fixed(tables.into()),
            None => Limit::Grows(USUAL_TABLES.into()),
        }
    }
}

/// Counts of the operations on the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShadowCounts {
    /// Invalidations of one page of the loaded space by a fast path.
    pub page_inline: u64,
    /// Invalidations of one page by an exit that forgot only that page.
    pub page_selective: u64,
    /// Invalidations of one page by an exit that had to drop all entries of the space.
    pub page_full: u64,
    /// Invalidations of a kept space that is not loaded, or of a page of such a space.
    pub other_space: u64,
    /// Invalidations of the loaded space.
    pub loaded_space: u64,
    /// Invalidations of all spaces.
    pub all_spaces: u64,
    /// Physical pages whose entries were found by the notes of their origins.
    pub physical_by_map: u64,
    /// Physical pages for which all tables were purged.
    pub physical_full: u64,
    /// Purged tables of spaces that are not loaded.
    pub purged: u64,
    /// Purged tables that had not been selected since they were last purged: double invalidations.
    pub purged_twice: u64,
    /// Tables of that kind that were not purged again.
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
