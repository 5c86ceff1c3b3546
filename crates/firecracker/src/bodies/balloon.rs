//! The memory balloon.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::body::Body;
use crate::fault::Fault;

/// The number of pages of a mebibyte.
const PAGES_OF_MIB: u64 = 256;

/// A balloon, through which the guest gives memory back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Balloon {
    /// How much the guest shall give.
    pub amount_mib: u64,
    /// Whether a guest that has no memory left may take some back.
    pub deflate_on_oom: bool,
    /// After how many seconds the guest is asked for statistics again; 0 for never.
    #[serde(default)]
    pub stats_polling_interval_s: u16,
    /// Whether a client asks for hints about free pages, which is refused.
    #[serde(default)]
    pub free_page_hinting: bool,
    /// Whether the guest reports free pages without requests.
    #[serde(default)]
    pub free_page_reporting: bool,
}

impl Body for Balloon {
    fn check(&self) -> Result<(), Fault> {
        if self.free_page_hinting {
            let why = "Tollgate asks for no hints; free_page_reporting takes free pages back without requests";
            return Err(Fault::field("free_page_hinting", why));
        }
        Ok(())
    }
}

impl Balloon {
    /// The number of pages that the guest shall give.
    pub fn pages(&self) -> u32 {
        u32::try_from(self.amount_mib.saturating_mul(PAGES_OF_MIB)).unwrap_or(u32::MAX)
    }

    /// Checks that the guest has this much memory.
    pub(crate) fn check_amount(amount_mib: u64, mem_size_mib: u64) -> Result<(), Fault> {
        match amount_mib <= mem_size_mib {
            true => Ok(()),
            false => Err(Fault::field(
                "amount_mib",
                &format!("the guest has {mem_size_mib} MiB"),
            )),
        }
    }
}

/// A change of the balloon's size.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalloonUpdate {
    /// How much the guest shall give.
    pub amount_mib: u64,
}

impl Body for BalloonUpdate {}

/// A change of the interval of statistics.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatisticsUpdate {
    /// After how many seconds the guest is asked again.
    pub stats_polling_interval_s: u16,
}

impl Body for StatisticsUpdate {}

/// What is known of a balloon.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BalloonState {
    /// The number of pages that the guest shall give.
    pub target_pages: u32,
    /// The number of pages that it has given.
    pub actual_pages: u32,
    /// What the guest's driver has reported, by the numbers of the specification of virtio.
    pub statistics: Vec<(u16, u64)>,
}

/// The names of the statistics, by their numbers: those of the specification of virtio (5.5.6.4), and
/// those that Linux has added.
const STATISTICS: [&str; 16] = [
    "swap_in",
    "swap_out",
    "major_faults",
    "minor_faults",
    "free_memory",
    "total_memory",
    "available_memory",
    "disk_caches",
    "hugetlb_allocations",
    "hugetlb_failures",
    "oom_kill",
    "alloc_stall",
    "async_scan",
    "direct_scan",
    "async_reclaim",
    "direct_reclaim",
];

impl BalloonState {
    /// The answer to a request for statistics.
    pub fn shown(&self) -> Value {
        let mib = |pages: u32| u64::from(pages) / PAGES_OF_MIB;
        let mut shown = json!({
            "target_pages": self.target_pages,
            "actual_pages": self.actual_pages,
            "target_mib": mib(self.target_pages),
            "actual_mib": mib(self.actual_pages),
        });
        for (number, value) in &self.statistics {
            if let Some(name) = STATISTICS.get(usize::from(*number)) {
                shown[*name] = json!(value);
            }
        }
        shown
    }
}
