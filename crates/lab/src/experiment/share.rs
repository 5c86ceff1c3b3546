//! The share of the time that a kind of exit takes: computed from its count and the cost of one,
//! and as timed directly.

use super::{Price, Sample};
use crate::statistics::Quartiles;
use serde::Serialize;

/// If the two figures differ by more than this, the output says so.
const AGREE: f64 = 0.10;

/// The share of one kind of exit in an arm's time.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Share {
    /// The kind's name.
    pub kind: String,
    /// Number of exits; median of the repetitions.
    pub count: f64,
    /// Count times the price of one, divided by the time; median. `None` if there is no price.
    pub by_price: Option<f64>,
    /// The cycles that the ledger's samples of the run itself give, divided by the time; median.
    pub timed: f64,
}

impl Share {
    /// Whether the two shares differ by more than a tenth of the larger one. Shares below a
    /// thousandth count as equal.
    pub fn disagrees(&self) -> bool {
        let Some(by_price) = self.by_price else {
            return false;
        };
        let larger = by_price.max(self.timed);
        larger > 0.001 && (by_price - self.timed).abs() > AGREE * larger
    }
}

/// The share of `kind` in these samples of one arm, with that arm's prices; `None` if there are no
/// samples.
pub fn share(kind: &str, samples: &[&Sample], prices: &[&Price]) -> Option<Share> {
    let price = prices.iter().find(|price| price.kind == kind);
    let median = |value: &dyn Fn(&Sample) -> f64| {
        let values: Vec<f64> = samples.iter().map(|sample| value(sample)).collect();
        Quartiles::of(&values).map(|quartiles| quartiles.median)
    };
    let count = |sample: &Sample| sample.timed.exits(kind).map_or(0, |row| row.count) as f64;
    let cycles = |sample: &Sample| sample.timed.exits(kind).map_or(0, |row| row.cycles) as f64;
    let wall = |sample: &Sample| sample.timed.ledger.wall_cycles.max(1) as f64;
    Some(Share {
        kind: kind.to_owned(),
        count: median(&count)?,
        by_price: match price {
            Some(price) => median(&|sample| count(sample) * price.cycles / wall(sample)),
            None => None,
        },
        timed: median(&|sample| cycles(sample) / wall(sample))?,
    })
}

/// The shares of several kinds of exit.
pub fn shares(kinds: &[&str], samples: &[&Sample], prices: &[&Price]) -> Vec<Share> {
    kinds
        .iter()
        .filter_map(|kind| share(kind, samples, prices))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::test_experiment::sample;
    use super::*;

    fn price(cycles: f64) -> Price {
        Price::of("ours", "a", "cli", vec![cycles]).unwrap()
    }

    #[test]
    fn a_share_is_count_times_cost_over_time() {
        // 10 exits that took 200 of 1000 cycles.
        let sample = sample("a", 1, 10, 200, 1000);
        let share = |cycles| share("cli", &[&sample], &[&price(cycles)]).unwrap();
        assert_eq!(share(20.0).by_price, Some(0.2));
        assert_eq!(share(20.0).timed, 0.2);
        assert!(!share(19.0).disagrees());
        assert!(share(17.0).disagrees() && share(23.0).disagrees());
    }

    #[test]
    fn a_kind_without_a_price_has_one_share_and_nothing_to_disagree_with() {
        let sample = sample("a", 1, 10, 200, 1000);
        let share = share("cli", &[&sample], &[]).unwrap();
        assert_eq!(share.by_price, None);
        assert!(!share.disagrees());
    }

    #[test]
    fn a_kind_that_did_not_occur_has_no_share_of_the_time() {
        let sample = sample("a", 1, 10, 200, 1000);
        let share = share("sti", &[&sample], &[]).unwrap();
        assert_eq!((share.count, share.timed), (0.0, 0.0));
        assert_eq!(super::share("sti", &[], &[]), None);
    }
}
