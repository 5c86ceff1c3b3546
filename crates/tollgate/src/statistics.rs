//! The table that `--stats` shows.

use tollgate_exits::{ExitCounts, ExitKind};

/// Exits of all lives of a machine that was started again after resets.
#[derive(Default)]
pub struct Totals {
    lives: Vec<ExitCounts>,
}

impl Totals {
    /// Adds one life's counts.
    pub fn add(&mut self, counts: &ExitCounts) {
        self.lives.push(counts.clone());
    }

    /// Kinds that occurred, most frequent first.
    fn ranked(&self) -> Vec<(ExitKind, u64)> {
        let count = |kind: ExitKind| {
            let counts = self.lives.iter().map(|life| life.get(kind));
            counts.fold(0, u64::saturating_add)
        };
        let mut rows: Vec<_> = ExitKind::ALL
            .iter()
            .map(|&kind| (kind, count(kind)))
            .filter(|row| row.1 > 0)
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.1));
        rows
    }

    /// A line for each kind of exit with its count and share, and the total.
    pub fn table(&self) -> String {
        let rows = self.ranked();
        let total = rows
            .iter()
            .fold(0, |sum: u64, row| sum.saturating_add(row.1));
        let names = rows.iter().map(|row| row.0.name().len());
        let width = names.max().unwrap_or(0).max("exits by kind".len());
        let digits = grouped(total).len().max("count".len());
        let mut text = format!(
            "{:<width$}  {:>digits$}   share\n",
            "exits by kind", "count"
        );
        for (kind, count) in &rows {
            let share = *count as f64 * 100.0 / total.max(1) as f64;
            let count = grouped(*count);
            text.push_str(&format!(
                "{:<width$}  {count:>digits$}  {share:>5.1}%\n",
                kind.name()
            ));
        }
        let total = grouped(total);
        text.push_str(&format!("{:<width$}  {total:>digits$}\n", "total"));
        text
    }
}

/// A number with its thousands set apart: 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1,000");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }

    #[test]
    fn the_table_adds_up_the_lives_of_a_machine() {
        let mut counts = ExitCounts::default();
        for _ in 0..1500 {
            counts.count(ExitKind::Cli);
        }
        counts.count(ExitKind::SoftwareInterrupt);
        let mut totals = Totals::default();
        totals.add(&counts);
        totals.add(&counts);
        let expected = "\
exits by kind       count   share
cli                 3,000   99.9%
software-interrupt      2    0.1%
total               3,002
";
        assert_eq!(totals.table(), expected);
    }

    #[test]
    fn a_machine_without_exits_has_a_table_too() {
        assert!(
            Totals::default()
                .table()
                .ends_with("total              0\n")
        );
    }
}
