//! The points of the lines that plots of distributions consist of.

use super::super::Row;

/// The corners of a row's cumulative distribution.
pub(in crate::cost) fn steps(row: &Row, left: f64, right: f64) -> Vec<(f64, f64)> {
    steps_of(&row.distribution, left, right)
}

/// The corners of a cumulative distribution: values, and how often each occurs.
pub(in crate::cost) fn steps_of(
    distribution: &[(u64, u64)],
    left: f64,
    right: f64,
) -> Vec<(f64, f64)> {
    let total: u64 = distribution.iter().map(|(_, times)| times).sum();
    let total = total.max(1) as f64;
    let mut points = vec![(left, 0.0)];
    let (mut below, mut height) = (0, 0.0);
    for &(cycles, times) in distribution {
        let cycles = (cycles as f64).max(left);
        if cycles > right {
            break;
        }
        below += times;
        points.push((cycles, height));
        height = below as f64 * 100.0 / total;
        points.push((cycles, height));
    }
    points.push((right, height));
    points
}

/// The remaining share after each point, in per cent; where that is less than `least`, the line
/// ends at the axis.
pub(super) fn tail(shares: Vec<(f64, f64)>, least: f64) -> Vec<(f64, f64)> {
    let mut points: Vec<_> = shares
        .into_iter()
        .map(|(cycles, share)| (cycles, (100.0 - share).max(least)))
        .collect();
    let end = points.iter().position(|(_, rest)| *rest <= least);
    points.truncate(end.map_or(points.len(), |end| end + 1));
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_ends_at_the_axis() {
        let shares = vec![
            (10.0, 0.0),
            (20.0, 0.0),
            (20.0, 90.0),
            (30.0, 100.0),
            (99.0, 100.0),
        ];
        let points = [(10.0, 100.0), (20.0, 100.0), (20.0, 10.0), (30.0, 0.1)];
        assert_eq!(tail(shares, 0.1), points);
    }
}
