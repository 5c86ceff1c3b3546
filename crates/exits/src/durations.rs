//! A set of durations of which medians and percentiles are asked.
//!
//! Many sets are kept, one for each kind of exit and of work, and in most of them a short run
//! notes few durations. A histogram takes 35 KiB, so the first durations are kept as they are.

use hdrhistogram::Histogram;
use std::borrow::Cow;

/// The longest duration that is distinguished, in cycles.
const LONGEST_CYCLES: u64 = 1 << 40;
/// How many notes are kept as they are.
const MOST_NOTES: usize = 64;

/// A duration, and how often it was noted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    cycles: u64,
    times: u64,
}

/// A set of durations in cycles.
#[derive(Clone, Debug)]
pub(crate) enum DurationSet {
    /// While there are few, each is kept as it is.
    Notes(Vec<Note>),
    /// When there are many, they are counted in steps.
    Histogram(Histogram<u64>),
}

impl Default for DurationSet {
    fn default() -> Self {
        Self::Notes(Vec::new())
    }
}

fn histogram_of(notes: &[Note]) -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, LONGEST_CYCLES, 2)
        .expect("the bounds are constants that the histogram accepts");
    for note in notes {
        histogram.saturating_record_n(note.cycles, note.times);
    }
    histogram
}

impl DurationSet {
    /// Adds a duration a number of times.
    pub(crate) fn add(&mut self, cycles: u64, times: u64) {
        let cycles = cycles.max(1);
        match self {
            Self::Notes(notes) if notes.len() < MOST_NOTES => notes.push(Note { cycles, times }),
            Self::Notes(notes) => {
                let mut histogram = histogram_of(notes);
                histogram.saturating_record_n(cycles, times);
                *self = Self::Histogram(histogram);
            }
            Self::Histogram(histogram) => histogram.saturating_record_n(cycles, times),
        }
    }

    /// All durations as a histogram.
    pub(crate) fn histogram(&self) -> Cow<'_, Histogram<u64>> {
        match self {
            Self::Notes(notes) => Cow::Owned(histogram_of(notes)),
            Self::Histogram(histogram) => Cow::Borrowed(histogram),
        }
    }

    /// The end of the bucket of the longest duration; `None` if there is none.
    pub(crate) fn longest(&self) -> Option<u64> {
        let histogram = self.histogram();
        (!histogram.is_empty()).then(|| histogram.max())
    }

    /// The durations that were added to `before`, an earlier state of this set. `None` if it is
    /// not one.
    pub(crate) fn since(&self, before: &Self) -> Option<Self> {
        let mut rest = self.histogram().into_owned();
        rest.subtract(&*before.histogram()).ok()?;
        Some(Self::Histogram(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_durations_and_many_are_the_same() {
        let mut set = DurationSet::default();
        let mut all = Vec::new();
        assert!(set.histogram().is_empty());
        for number in 0..3 * MOST_NOTES as u64 {
            let before = set.clone();
            let note = Note {
                cycles: number * number * 1000,
                times: number % 3,
            };
            set.add(note.cycles, note.times);
            all.push(Note {
                cycles: note.cycles.max(1),
                ..note
            });
            let expected = histogram_of(&all);
            assert_eq!(*set.histogram(), expected);
            let rest = set.since(&before).unwrap();
            assert_eq!(rest.histogram().len(), note.times);
            assert_eq!(before.since(&set).is_none(), note.times > 0);
        }
        assert!(matches!(set, DurationSet::Histogram(_)));
    }
}
