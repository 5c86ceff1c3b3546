//! The time that an experiment may take. Each cell gets an equal part of what is left when it begins:
//! it has the least number of repetitions in any case, and further ones while its part lasts.

use super::LEAST_REPETITIONS;
use std::time::{Duration, Instant};

/// The time of a run.
pub(super) struct Clock {
    /// When the run should end; `None` if it may take any time.
    end: Option<Instant>,
    /// When the present cell should end.
    end_of_cell: Option<Instant>,
    /// Whether samples were left out.
    left_out: bool,
}

impl Clock {
    /// A run that begins now.
    pub fn new(time: Option<Duration>) -> Self {
        Self {
            end: time.map(|time| Instant::now() + time),
            end_of_cell: None,
            left_out: false,
        }
    }

    /// A cell begins; it is the first of `left` cells.
    pub fn begin_cell(&mut self, left: usize) {
        let now = Instant::now();
        let cells = u32::try_from(left.max(1)).unwrap_or(u32::MAX);
        self.end_of_cell = self
            .end
            .map(|end| now + end.saturating_duration_since(now) / cells);
    }

    /// Whether no time is left for a cell that must be opened.
    pub fn is_over(&mut self) -> bool {
        let is_over = self.end.is_some_and(|end| Instant::now() >= end);
        self.left_out |= is_over;
        is_over
    }

    /// Whether the present cell must end before this repetition.
    pub fn ends_cell_before(&mut self, repetition: u32) -> bool {
        let is_over = self.end_of_cell.is_some_and(|end| Instant::now() >= end);
        let ends = is_over && repetition > LEAST_REPETITIONS;
        self.left_out |= ends;
        ends
    }

    /// Whether samples were left out.
    pub fn has_left_something_out(&self) -> bool {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_experiment::{Scripted, Silent};
    use super::super::{CellOutcome, Options, Stop, run};
    use super::*;

    #[test]
    fn without_time_cells_are_not_run_and_the_reason_says_how_they_are() {
        let options = Options {
            time: Some(Duration::ZERO),
            ..Options::default()
        };
        let results = run(&Scripted::default(), &options, &Stop::new(), &mut Silent).unwrap();
        assert!(results.out_of_time && !results.interrupted);
        assert_eq!(results.finished, 0);
        let why = "the time that was given was over; --resume measures it";
        assert_eq!(results.cells[0].outcome, CellOutcome::NotRun(why.into()));
    }

    #[test]
    fn a_cell_has_the_least_repetitions_and_more_while_its_part_lasts() {
        let mut clock = Clock::new(Some(Duration::ZERO));
        clock.begin_cell(2);
        assert!(!clock.ends_cell_before(LEAST_REPETITIONS));
        assert!(clock.ends_cell_before(LEAST_REPETITIONS + 1));
        let mut clock = Clock::new(Some(Duration::from_secs(3600)));
        clock.begin_cell(2);
        assert!(!clock.ends_cell_before(LEAST_REPETITIONS + 1));
        assert!(!clock.has_left_something_out() && !clock.is_over());
        let mut clock = Clock::new(None);
        clock.begin_cell(1);
        assert!(!clock.ends_cell_before(1000) && !clock.is_over());
    }
}
