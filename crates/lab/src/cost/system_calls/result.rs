//! The cycles of both system calls, and what follows from them.

use crate::statistics::percentile;
use serde::Serialize;
use tollgate_host_facts::processors::HostDescription;

/// What one guest did, pinned or not.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Calls {
    /// The guest's name.
    pub guest: &'static str,
    /// Whether the machine was pinned to one host processor.
    pub pinned: bool,
    /// The figures; or why there are none.
    pub finding: Result<Samples, String>,
}

/// The cycles of both system calls, ascending.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Samples {
    /// Those of the call that does nothing.
    pub nothing: Vec<u64>,
    /// Those of the call that makes the hypercall.
    pub marked: Vec<u64>,
    /// The number of hypercalls that the ledger counted.
    pub hypercalls: u64,
}

/// What all guests did, pinned and not.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SystemCalls {
    /// A description of the host.
    pub host: HostDescription,
    /// The host processor to which machines were pinned.
    pub pinned_to: usize,
    /// Whether everything was measured.
    pub is_complete: bool,
    /// The guests, pinned first.
    pub calls: Vec<Calls>,
}

impl Samples {
    /// The difference of both calls' cycles at a percentile: what the hypercall adds there.
    pub fn difference(&self, percent: u32) -> Option<i64> {
        let at = |values| percentile(values, percent).map(|cycles: u64| cycles as i64);
        Some(at(&self.marked)? - at(&self.nothing)?)
    }

    /// The cycles of each marked call minus the median of the one that does nothing, as the study subtracted it.
    pub fn exits(&self) -> Vec<u64> {
        let nothing = percentile(&self.nothing, 50).unwrap_or(0);
        let exits = self.marked.iter();
        exits.map(|cycles| cycles.saturating_sub(nothing)).collect()
    }

    /// The narrowest range that contains 95 % of the exits.
    pub fn usual(&self) -> Option<(u64, u64)> {
        let exits = self.exits();
        let most = (exits.len() * 95).div_ceil(100).max(1);
        let ranges = exits.windows(most).map(|part| (part[0], part[most - 1]));
        ranges.min_by_key(|(least, most)| most - least)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Figures of one guest, and one that did not run.
    pub fn example() -> SystemCalls {
        SystemCalls {
            host: HostDescription::here(2_000_000),
            pinned_to: 1,
            is_complete: true,
            calls: vec![
                Calls {
                    guest: "linux-amd64",
                    pinned: true,
                    finding: Ok(Samples {
                        nothing: vec![100; 100],
                        marked: (1..=100).map(|index| 400 + index).collect(),
                        hypercalls: 200,
                    }),
                },
                Calls {
                    guest: "linux-686",
                    pinned: true,
                    finding: Err("no kernel module".into()),
                },
            ],
        }
    }

    #[test]
    fn the_call_that_does_nothing_is_subtracted() {
        let example = example();
        let samples = example.calls[0].finding.as_ref().unwrap();
        assert_eq!(samples.difference(50), Some(350));
        assert_eq!(samples.difference(100), Some(400));
        assert_eq!(samples.exits()[0], 301);
        assert_eq!(samples.usual(), Some((301, 395)));
        assert_eq!(Samples::default().usual(), None);
    }
}
