//! What the databases must hold, computed without them, and what the guest says that they hold.

use super::workloads::{Action, Task};
use crate::experiment::LabError;
use std::collections::BTreeMap;

/// The number of writers, as in the study.
pub const WRITERS: u64 = 5;
/// The number of transactions of a writer. The scripts in `guests/database` know it too.
const BATCHES: u64 = 10;
/// The length of a row's filler.
const FILLER: u64 = 200;

/// A line that the guest prints about its work: its first word, and the numbers after it.
pub type Answer = (String, Vec<u64>);

/// The value that a writer gives its row of this number.
const fn value(writer: u64, number: u64) -> u64 {
    (number * 7_919 + writer * 104_729) % 1_000_003
}

/// The numbers that describe a table after five writers with `rows` rows each: the number of rows,
/// the sums of their values, of the first letters' codes, and of the fillers' lengths.
pub fn table(rows: u64) -> Vec<u64> {
    let batch = rows / BATCHES;
    let mut sums = vec![0; 4];
    for writer in 1..=WRITERS {
        for number in 1..=rows {
            let is_changed = (number - 1) % batch < batch / 2;
            sums[0] += 1;
            sums[1] += value(writer, number) + u64::from(is_changed);
            sums[2] += u64::from(b'a') + number % 26;
            sums[3] += FILLER;
        }
    }
    sums
}

/// The result of one process that sorts `rows` values: the writer, their number, and the sum of
/// each value times the last digit of its place.
pub fn computed(writer: u64, rows: u64) -> Vec<u64> {
    let mut values: Vec<u64> = (1..=rows).map(|number| value(writer, number)).collect();
    // Rows with the same value are in the order of their numbers, and contribute the same.
    values.sort_unstable();
    let places = (1..).map(|place: u64| place % 10);
    let sum = values
        .iter()
        .zip(places)
        .map(|(value, digit)| value * digit);
    vec![writer, rows, sum.sum()]
}

/// The answers that an action must have, in their order, when the prepared table has `held` rows of
/// each writer and the action has `rows`.
pub fn expected(action: Action, rows: u64, held: u64) -> Vec<Answer> {
    let work = |rows| ("work".to_owned(), table(rows));
    match action {
        Action::Start | Action::Both => vec![work(held)],
        Action::Jobs => Vec::new(),
        Action::Compute => (1..=WRITERS)
            .map(|writer| ("computed".to_owned(), computed(writer, rows)))
            .collect(),
    }
}

/// What the guest printed: answers, and what its kernel counted in that time.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Printed {
    /// The answers in their order.
    pub answers: Vec<Answer>,
    /// Counts by name.
    pub counts: BTreeMap<String, u64>,
}

impl Printed {
    /// Reads the output of `guests/database/run`.
    pub fn read(output: &str) -> Self {
        let mut printed = Self::default();
        for line in output.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("count") => {
                    if let (Some(name), Some(Ok(count))) =
                        (words.next(), words.next().map(str::parse))
                    {
                        printed.counts.insert(name.to_owned(), count);
                    }
                }
                Some(word @ ("work" | "computed")) => {
                    let numbers = words.map_while(|word| word.parse().ok()).collect();
                    printed.answers.push((word.to_owned(), numbers));
                }
                _ => {}
            }
        }
        printed
    }

    /// A count by its name; zero if the guest did not print it.
    pub fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Checks the answers.
    ///
    /// # Errors
    ///
    /// They are not the expected ones.
    pub fn check(&self, expected: &[Answer]) -> Result<(), LabError> {
        match self.answers == expected {
            true => Ok(()),
            false => Err(LabError::WorkNotDone(format!(
                "the database has {:?}, which should be {expected:?}",
                self.answers
            ))),
        }
    }

    /// The number of pages that the guest's kernel moved to its swap space and back.
    ///
    /// # Errors
    ///
    /// The task is one that pages, and there were none.
    pub fn paged(&self, task: Task) -> Result<u64, LabError> {
        let pages = self.count("swapped-in") + self.count("swapped-out");
        if task.action.pages() && pages == 0 {
            return Err(LabError::WorkNotDone(
                "the guest had enough memory: it moved no page to its swap space or back".into(),
            ));
        }
        Ok(pages)
    }

    /// The number of the guest's requests to its disks.
    pub fn requests(&self) -> u64 {
        ["vda-reads", "vda-writes", "vdb-reads", "vdb-writes"]
            .iter()
            .map(|name| self.count(name))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::workloads::task_of;
    use super::*;

    const OUTPUT: &str = "noise\r\nwork 50 7 8 10000\r\ncount swapped-in 3\r\ncount vda-reads 5\r\n\
                          count vdb-writes 6\r\n";

    #[test]
    fn output_is_read_line_by_line() {
        let printed = Printed::read(OUTPUT);
        assert_eq!(printed.answers, [("work".into(), vec![50, 7, 8, 10_000])]);
        assert_eq!(printed.requests(), 11);
        assert_eq!(printed.count("swapped-out"), 0);
        let jobs = task_of("postgres-jobs").unwrap();
        assert_eq!(printed.paged(jobs).unwrap(), 3);
    }

    #[test]
    fn a_guest_that_did_not_page_has_not_done_its_work() {
        let jobs = task_of("postgres-jobs").unwrap();
        assert!(Printed::default().paged(jobs).is_err());
        let compute = task_of("postgres-compute").unwrap();
        assert_eq!(Printed::default().paged(compute).unwrap(), 0);
    }

    #[test]
    fn answers_must_be_the_expected_ones() {
        let printed = Printed::read("work 1 2 3 4\n");
        assert!(printed.check(&[("work".into(), vec![1, 2, 3, 4])]).is_ok());
        assert!(printed.check(&[("work".into(), vec![1, 2, 3, 5])]).is_err());
        assert!(printed.check(&[]).is_err());
    }

    #[test]
    fn a_table_of_ten_rows_is_computed_by_hand() {
        // With one row in a batch, half a batch is none: no row is changed.
        let sums = table(10);
        let values: u64 = (1..=5)
            .map(|writer| (1..=10).map(|n| value(writer, n)).sum::<u64>())
            .sum();
        assert_eq!(sums, [50, values, 5 * (970 + 55), 10_000]);
        // With two rows in a batch, one of each batch is changed.
        let changed: u64 = 5 * 10;
        let values: u64 = (1..=5)
            .map(|writer| (1..=20).map(|n| value(writer, n)).sum::<u64>())
            .sum();
        assert_eq!(table(20)[1], values + changed);
    }

    #[test]
    fn places_are_counted_from_one() {
        let mut values = [value(2, 1), value(2, 2), value(2, 3)];
        values.sort_unstable();
        let sum = values[0] + 2 * values[1] + 3 * values[2];
        assert_eq!(computed(2, 3), [2, 3, sum]);
    }
}
