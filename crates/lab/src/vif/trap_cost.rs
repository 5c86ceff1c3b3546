//! What instructions that trap cost: their share of all instructions, and of the time.

use super::paper::implied_cost;
use crate::experiment::{CellResult, Results, shares};
use tollgate_exits::ExitKind;

/// The cost of instructions that trap, in one cell with one arm.
#[derive(Clone, Copy)]
pub struct TrapCost {
    /// Their share of all executed instructions, if each of them traps.
    pub trapped: Option<f64>,
    /// Their share of the time: count times cost, or as timed if they have no price.
    pub share: f64,
}

impl TrapCost {
    /// The cost of these kinds of exit; `None` without samples of that arm.
    pub fn of(results: &Results, cell: &CellResult, arm: &str, kinds: &[ExitKind]) -> Option<Self> {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        let shares = shares(&names, &cell.of_arm(arm), &results.prices(&cell.guest, arm));
        let share: f64 = shares
            .iter()
            .map(|share| share.by_price.unwrap_or(share.timed))
            .sum();
        if shares.is_empty() {
            return None;
        }
        // The same work executes the same instructions. A slower arm runs the idle loop less often,
        // with the same share of sensitive instructions in it.
        let trapped = cell.counted().and_then(|counted| {
            let instructions = counted.instructions? as f64;
            let executed: u64 = names
                .iter()
                .filter_map(|name| counted.executed.get(*name))
                .sum();
            Some(executed as f64 / instructions)
        });
        Some(Self { trapped, share })
    }

    /// Their number, in per cent of all instructions.
    pub fn trapped_text(&self) -> String {
        self.trapped
            .map_or("?".into(), |share| significant(share * 100.0))
    }

    /// Their time, in per cent of all.
    pub fn share_text(&self) -> String {
        significant(self.share * 100.0)
    }

    /// The cost of one trap in average instructions.
    pub fn implied_text(&self) -> String {
        let implied = self
            .trapped
            .and_then(|trapped| implied_cost(trapped, self.share));
        implied.map_or("?".into(), |cost| format!("{cost:.0}"))
    }
}

/// Explains the `?` that [`significant`] writes.
pub const UNFIT: &str = "?: count x cost comes to more than all of the time: the cost, measured in loops \
                         apart, does not fit this run.";

/// A share in per cent; more than the whole has no meaning.
pub fn significant(value: f64) -> String {
    if value > 100.0 {
        "?".into()
    } else if value >= 10.0 {
        format!("{value:.0}")
    } else if value >= 0.01 || value == 0.0 {
        format!("{value:.2}")
    } else {
        "<0.01".into()
    }
}
