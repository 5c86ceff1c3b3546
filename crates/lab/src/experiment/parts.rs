//! Parts of the tables and the summary that a report of several experiments uses, too.

pub(crate) use super::busy::{is_too_busy, remark as busy_remark};
pub(crate) use super::compare::chance_of_difference;
pub(crate) use super::summary::arms_in_words;
pub(crate) use super::table::{early_end, few_repetitions, place, times};
