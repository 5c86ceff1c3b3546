//! Puts the rounds of one kind in one machine together.

use super::Measured;
use crate::cost::{BatchResult, Row};
use crate::statistics::{Quartiles, Summary, distribution};

/// All rounds in one row; `None` for no rounds.
pub fn merged(rounds: &[Row]) -> Option<Measured> {
    let values: Vec<u64> = rounds
        .iter()
        .flat_map(|row| &row.distribution)
        .flat_map(|&(cycles, times)| std::iter::repeat_n(cycles, times as usize))
        .collect();
    let mut row = rounds.first()?.clone();
    row.single = Summary::of(&values)?;
    row.distribution = distribution(&values);
    for other in &rounds[1..] {
        for (sum, count) in row.counts.iter_mut().zip(&other.counts) {
            sum.expected += count.expected;
            sum.counted += count.counted;
        }
    }
    let each: Vec<f64> = rounds.iter().map(|row| row.exits_each).collect();
    row.exits_each = each.iter().sum::<f64>() / each.len() as f64;
    let batches: Vec<BatchResult> = rounds.iter().filter_map(|row| row.batch).collect();
    let medians: Vec<f64> = batches.iter().map(|batch| batch.median).collect();
    row.batch = batches.first().map(|first| BatchResult {
        batches: batches.iter().map(|batch| batch.batches).sum(),
        mean: batches.iter().map(|batch| batch.mean).sum::<f64>() / batches.len() as f64,
        median: Quartiles::of(&medians).map_or(first.median, |quartiles| quartiles.median),
        ..*first
    });
    Some(Measured {
        rounds: match medians.is_empty() {
            true => rounds.iter().map(|row| row.single.p50 as f64).collect(),
            false => medians,
        },
        row,
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::cost::{BatchContents, CheckedCount, GuestMode};

    /// A row with these values.
    pub fn row(values: &[u64], batch: f64) -> Row {
        Row {
            kind: "cpuid".into(),
            what: String::new(),
            mode: GuestMode::Long,
            pinned: true,
            baseline: 0,
            single: Summary::of(values).unwrap(),
            batch: Some(BatchResult {
                batches: 5,
                repeat: 50,
                mean: batch,
                median: batch,
                baseline: 1.0,
                contents: BatchContents::EventOnly,
            }),
            exits_each: 1.0,
            counts: vec![CheckedCount {
                kind: "cpuid".into(),
                expected: 7,
                counted: 7,
                at_least: false,
            }],
            distribution: distribution(values),
        }
    }

    #[test]
    fn rounds_are_put_together_and_each_is_kept() {
        let rounds = [row(&[1, 2, 2], 10.0), row(&[2, 9], 30.0), row(&[5], 20.0)];
        let all = merged(&rounds).unwrap();
        assert_eq!(all.rounds, [10.0, 30.0, 20.0]);
        assert_eq!(all.row.distribution, [(1, 1), (2, 3), (5, 1), (9, 1)]);
        assert_eq!((all.row.single.count, all.row.single.max), (6, 9));
        let batch = all.row.batch.unwrap();
        assert_eq!((batch.median, batch.batches), (20.0, 15));
        assert_eq!(all.row.counts[0].counted, 21);
        assert_eq!(merged(&[]), None);
    }
}
