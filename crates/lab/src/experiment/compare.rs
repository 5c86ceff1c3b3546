//! Whether two arms differ, and by how much.

use crate::statistics::Quartiles;
use serde::Serialize;
use std::fmt;

/// The result of a comparison.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The middle halves of the two arms overlap.
    NoDifferenceMeasured,
    /// The arm needs less than the first one.
    Less,
    /// The arm needs more than the first one.
    More,
    /// The host ran other programs for so long that a difference would be random.
    NotJudged,
}

/// The comparison of an arm with the first one.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// The arm's median divided by the first arm's median.
    pub ratio: f64,
    /// Quartiles of the ratios of runs that were made one after the other.
    pub pairs: Quartiles,
    /// The verdict of the comparison.
    pub verdict: Verdict,
}

impl Comparison {
    /// Compares `values` with those of the first arm, both in the order of repetitions; `None` if
    /// either is empty.
    pub fn of(values: &[f64], first: &[f64]) -> Option<Self> {
        let (ours, theirs) = (Quartiles::of(values)?, Quartiles::of(first)?);
        let ratios: Vec<f64> = values.iter().zip(first).map(|(a, b)| a / b).collect();
        let verdict = if ours.overlaps(&theirs) {
            Verdict::NoDifferenceMeasured
        } else if ours.median < theirs.median {
            Verdict::Less
        } else {
            Verdict::More
        };
        Some(Self {
            ratio: ours.median / theirs.median,
            pairs: Quartiles::of(&ratios)?,
            verdict,
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratio = self.ratio;
        match self.verdict {
            Verdict::NoDifferenceMeasured => formatter.write_str("no difference measured"),
            Verdict::NotJudged => formatter.write_str("not judged: busy host"),
            Verdict::Less => write!(formatter, "{:.1} % less", (1.0 - ratio) * 100.0),
            Verdict::More if ratio < 2.0 => {
                write!(formatter, "{:.1} % more", (ratio - 1.0) * 100.0)
            }
            Verdict::More => write!(formatter, "{ratio:.1} times as much"),
        }
    }
}

/// How often two identical arms are found different by chance, with this number of repetitions: a
/// share of comparisons. Determined with pseudo-random numbers, the same each time.
pub fn chance_of_difference(repetitions: u32) -> f64 {
    const TRIALS: u32 = 4000;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    // Marsaglia's xorshift; only the order of the values matters, not their distribution.
    let mut number = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64
    };
    let mut differ = 0;
    for _ in 0..TRIALS {
        let mut arm = || Quartiles::of(&(0..repetitions).map(|_| number()).collect::<Vec<_>>());
        if let (Some(first), Some(second)) = (arm(), arm())
            && !first.overlaps(&second)
        {
            differ += 1;
        }
    }
    f64::from(differ) / f64::from(TRIALS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(values: &[f64], first: &[f64]) -> String {
        Comparison::of(values, first).unwrap().to_string()
    }

    #[test]
    fn overlapping_middle_halves_are_no_difference() {
        let first = [1.0, 1.1, 1.2, 1.3, 1.4];
        assert_eq!(text(&[1.4, 1.4, 1.5, 1.6, 1.7], &first), "25.0 % more");
        assert_eq!(
            text(&[1.2, 1.3, 1.4, 1.5, 1.6], &first),
            "no difference measured"
        );
        // One outlier makes no difference.
        assert_eq!(
            text(&[1.0, 1.1, 1.2, 1.3, 99.0], &first),
            "no difference measured"
        );
    }

    #[test]
    fn a_difference_is_told_by_the_medians() {
        assert_eq!(text(&[1.0; 5], &[2.0; 5]), "50.0 % less");
        assert_eq!(text(&[1.1; 5], &[1.0; 5]), "10.0 % more");
        assert_eq!(text(&[5.0; 5], &[2.0; 5]), "2.5 times as much");
    }

    #[test]
    fn more_repetitions_make_chance_differences_rarer() {
        // Of 5 and 5 values in random order, 4 of one come before the second of the other in 26 of
        // 252 orders; either may be first.
        assert!((chance_of_difference(5) - 52.0 / 252.0).abs() < 0.02);
        assert!(chance_of_difference(9) < 0.08 && chance_of_difference(15) < 0.02);
    }

    #[test]
    fn nothing_is_compared_with_nothing() {
        assert_eq!(Comparison::of(&[], &[1.0]), None);
        assert_eq!(Comparison::of(&[1.0], &[]), None);
    }
}
