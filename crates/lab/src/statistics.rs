//! Medians, quartiles and percentiles of cycle counts.

use serde::{Deserialize, Serialize};

/// Statistics of a set of values. Percentiles are the value at the nearest rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// The number of values.
    pub count: u64,
    /// The smallest value.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// The largest value.
    pub max: u64,
}

impl Summary {
    /// The summary of `values`, in any order; `None` for no values.
    pub fn of(values: &[u64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable();
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let at = |percent| percentile(&sorted, percent);
        Some(Self {
            count: sorted.len() as u64,
            min,
            p50: at(50)?,
            p95: at(95)?,
            p99: at(99)?,
            max,
        })
    }
}

/// The value at the nearest rank: the smallest one that at least `percent` per cent of the values
/// do not exceed. `None` for no values.
pub fn percentile(sorted: &[u64], percent: u32) -> Option<u64> {
    let rank = (sorted.len() as u64 * u64::from(percent.min(100))).div_ceil(100);
    let index = usize::try_from(rank.saturating_sub(1)).ok()?;
    sorted.get(index).copied()
}

/// The median of unsorted values at the nearest rank; `None` for no values.
pub fn median(values: &[u64]) -> Option<u64> {
    Summary::of(values).map(|summary| summary.p50)
}

/// The values in ascending order, each with its number of occurrences: everything except the order.
pub fn distribution(values: &[u64]) -> Vec<(u64, u64)> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let mut counted: Vec<(u64, u64)> = Vec::new();
    for value in sorted {
        match counted.last_mut() {
            Some(last) if last.0 == value => last.1 += 1,
            _ => counted.push((value, 1)),
        }
    }
    counted
}

/// The step by which a clock advances, derived from differences of its readings and their numbers
/// of occurrences: the median distance between neighbours among those that are not rare. 1 if no
/// step is recognizable. If the clock is scaled, as in virtual machines, its steps sometimes differ
/// by one: adjacent values count as the most frequent of them.
pub fn clock_step(differences: &[(u64, u64)]) -> u64 {
    let total: u64 = differences.iter().map(|difference| difference.1).sum();
    let frequent = differences.iter().filter(|it| it.1 > total / 1000);
    let mut groups: Vec<Vec<(u64, u64)>> = Vec::new();
    for &(value, count) in frequent {
        match groups.last_mut() {
            Some(group) if group.last().is_some_and(|last| value - last.0 <= 1) => {
                group.push((value, count));
            }
            _ => groups.push(vec![(value, count)]),
        }
    }
    let tops: Vec<u64> = groups
        .iter()
        .filter_map(|group| group.iter().max_by_key(|it| it.1))
        .map(|top| top.0)
        .collect();
    let gaps: Vec<u64> = tops.windows(2).map(|pair| pair[1] - pair[0]).collect();
    median(&gaps).unwrap_or(1)
}

/// The median and the quartiles.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Quartiles {
    /// The value below which a quarter of the values lie.
    pub lower: f64,
    /// The value below which half of the values lie.
    pub median: f64,
    /// The value below which three quarters of the values lie.
    pub upper: f64,
}

impl Quartiles {
    /// The quartiles of `values`, in any order, interpolated between neighbours; `None` for no
    /// values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |fraction: f64| {
            let position = fraction * (sorted.len() - 1) as f64;
            let below = sorted[position.floor() as usize];
            let above = sorted[position.ceil() as usize];
            below + (above - below) * position.fract()
        };
        (!sorted.is_empty()).then(|| Self {
            lower: at(0.25),
            median: at(0.5),
            upper: at(0.75),
        })
    }

    /// Whether the two middle halves overlap.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.lower <= other.upper && other.lower <= self.upper
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_at_the_nearest_rank() {
        let values: Vec<u64> = (1..=100).rev().collect();
        let summary = Summary::of(&values).unwrap();
        assert_eq!(
            summary,
            Summary {
                count: 100,
                min: 1,
                p50: 50,
                p95: 95,
                p99: 99,
                max: 100
            }
        );
        assert_eq!(percentile(&[7], 1), Some(7));
        assert_eq!(percentile(&[1, 2, 3], 0), Some(1));
        assert_eq!(percentile(&[1, 2, 3], 34), Some(2));
        assert_eq!(percentile(&[], 50), None);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn a_distribution_keeps_every_value() {
        assert_eq!(distribution(&[3, 1, 3, 3]), vec![(1, 1), (3, 3)]);
        assert!(distribution(&[]).is_empty());
    }

    #[test]
    fn a_clock_step_is_the_distance_of_frequent_differences() {
        let mut readings = vec![26; 500];
        readings.extend([52; 900]);
        readings.extend([78; 300]);
        readings.extend([104; 300]);
        readings.push(79);
        assert_eq!(clock_step(&distribution(&readings)), 26);
        assert_eq!(clock_step(&[(5, 10)]), 1);
        // A scaled clock, with steps of slightly more than 26.
        let scaled = [26, 26, 27, 51, 52, 52, 78, 78, 79, 104];
        assert_eq!(clock_step(&distribution(&scaled)), 26);
        assert_eq!(clock_step(&distribution(&[10, 11, 12, 13])), 1);
        assert_eq!(clock_step(&distribution(&[20, 22, 24])), 2);
    }

    #[test]
    fn quartiles_interpolate() {
        let quartiles = Quartiles::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(
            (quartiles.lower, quartiles.median, quartiles.upper),
            (1.75, 2.5, 3.25)
        );
        assert!(Quartiles::of(&[]).is_none());
    }

    #[test]
    fn settings_overlap_if_their_middle_halves_do() {
        let of = |lower, upper| Quartiles {
            lower,
            median: lower,
            upper,
        };
        assert!(of(1.0, 2.0).overlaps(&of(2.0, 3.0)));
        assert!(of(1.0, 9.0).overlaps(&of(2.0, 3.0)));
        assert!(!of(1.0, 2.0).overlaps(&of(2.1, 3.0)));
    }
}
